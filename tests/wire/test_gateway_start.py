"""covers: the command line of chp-gateway: client files, help, and what it can't be started with."""

import socket
from pathlib import Path

import pytest

from chp_client.gateway.main import arguments, run
from tests.wire import keys
from tests.wire.gateways import RunningGateway

GATE = keys.new_pair()


def test_a_pair_with_keys_is_reached_by_a_client_file(tmp_path: Path) -> None:
    with keys.pair_with_keys(tmp_path, ("gate", GATE)) as pair:
        known = keys.known(pair)
        file = keys.client_file(tmp_path / "gate.toml", GATE, known)
        with RunningGateway(pair.servers, "--client-file", str(file), "--anonymous", "gate") as gateway:
            assert gateway.client.put("/v1/keys/a", content=b"1").status_code == 200
            servers = gateway.client.get("/v1/pair").json()["servers"]
            assert sorted(server["state"] for server in servers) == ["active", "passive"], servers


def refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a refused start, and check its exit code 2."""
    try:
        code = run(flags)
    except SystemExit as left:
        code = left.code  # type: ignore[assignment]
    assert code == 2
    return capsys.readouterr().err


def test_wrong_flags_are_named_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = keys.client_file(tmp_path / "gate.toml", GATE, {"tcp://a:5556": keys.new_pair().public})
    assert "chp keygen" in refused(["--client-file", str(tmp_path / "none.toml")], capsys)
    assert "which has tcp://a:5556" in refused(["--client-file", str(file), "--servers", "tcp://b:5556"], capsys)
    assert "client-file" in refused(["--listen", "0.0.0.0:80"], capsys)
    known = ["--client-file", str(file)]
    assert "is believed" in refused(["--listen", "0.0.0.0:80", *known, "--anonymous", "bob"], capsys)
    assert "client file" in refused(["--user-header", "X-User"], capsys)
    assert "one of them" in refused([*known, "--user-header", "X-User", "--anonymous", "bob"], capsys)
    assert "X-Remote-User" in refused([*known, "--user-header", "X: User"], capsys)
    assert "--audit" in refused([*known, "--audit", str(tmp_path / "none" / "audit")], capsys)
    assert "tcp://" in refused(["--servers", "no/where"], capsys)
    assert "--listne" in refused(["--listne", "x"], capsys)
    assert "warning" in refused(["--log-level", "loud"], capsys)


MOUNTS = '[mounts]\n"/" = ["a:5556"]\n"/rates/" = ["b:5556"]\n'


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("/=a:5556 /=b:5556", "has the mount '/' twice"),
        ("/= /rates/=b:5556", "has the mount '/' without a server"),
        ("/=a:5556 /rates/=a:5556", "the server tcp://a:5556 in the mounts '/' and '/rates/'"),
        ("/=a:5556 b:5556", "'b:5556' without a mount"),
    ],
)
def test_bad_mounts_are_named(servers: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["--servers", servers], capsys)
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (MOUNTS + '[topics]\n"ticks" = "/none/"', "maps the topic 'ticks' to '/none/', which is no mount"),
        (MOUNTS.replace("b:5556", "c:5556"), "tcp://c:5556 in the mount '/rates/', and no [[servers]]"),
        (MOUNTS.replace('["b:5556"]', "[]"), "the mount '/rates/' without a server"),
    ],
)
def test_bad_mounts_of_a_client_file_are_named(
    table: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = dict.fromkeys(("tcp://a:5556", "tcp://b:5556"), keys.new_pair().public)
    file = keys.client_file(tmp_path / "gate.toml", GATE, servers)
    file.write_text(f"{file.read_text()}\n{table}")
    said = refused(["--client-file", str(file)], capsys)
    assert words in said and str(file) in said and said.count("\n") == 1


def test_mounts_beside_a_client_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = keys.client_file(tmp_path / "gate.toml", GATE, {"tcp://a:5556": keys.new_pair().public})
    said = refused(["--client-file", str(file), "--servers", "/=a:5556"], capsys)
    assert "its [mounts] name the mounts too" in said


def test_a_taken_port_ends_the_gateway_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 3
    assert "give another port" in capsys.readouterr().err


def test_help_names_paths_options_and_exit_codes() -> None:
    text = arguments().format_help()
    for word in ("/health", "/ready", "/metrics", "--client-file", "CHP_CLIENT_FILE", "exit codes", "examples"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120
