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


def test_what_is_wrong_is_named_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_port_that_is_taken_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 3
    assert "give another port" in capsys.readouterr().err


def test_help_says_where_to_look_and_how_it_ends() -> None:
    text = arguments().format_help()
    for word in ("/health", "/ready", "/metrics", "--client-file", "CHP_CLIENT_FILE", "exit codes", "examples"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120
