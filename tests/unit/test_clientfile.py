"""Tests of client files: what is read, what is said of a wrong one, and that no output shows a secret.

covers: chp_client/clientfile.py, `chp --client-file`, `chp keygen --server`, Spark's clientFile
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from chp.errors import BadInput
from chp_client import ClientFile, Clone
from chp_client.clientfile import credentials_of
from chp_client.spark import options
from tests.talk import run
from tests.wire import keys

ALICE, OTHER = keys.new_pair(), keys.new_pair()
SERVERS = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:5")
VARIABLES = ("CHP_SERVERS", "CHP_CLIENT_FILE", "CHP_CLIENT")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a valid client file."""
    return keys.client_file(tmp_path / "alice.toml", ALICE, dict.fromkeys(SERVERS, OTHER.public))


def test_a_client_file_has_the_addresses_and_keys_of_its_servers(file: Path) -> None:
    found = ClientFile.read(file)
    assert tuple(found) == SERVERS
    assert credentials_of(found)[SERVERS[1]].server_keys == (OTHER.public,)
    assert tuple(found.only(SERVERS[:1])) == SERVERS[:1] and not credentials_of(SERVERS)
    with pytest.raises(BadInput, match=r"tcp://x:1 is no server of the client file .*alice\.toml"):
        found.only(["tcp://x:1"])


def test_a_client_file_shows_and_pickles_no_secret(file: Path) -> None:
    found, secret = ClientFile.read(file), ALICE.secret.decode()
    with Clone(found, None) as clone:
        shown = f"{found!r} {found} {vars(found)} {clone!r} {clone.describe()} {clone.stats}"
    assert secret not in shown and secret.encode() not in pickle.dumps(found)
    again = pickle.loads(pickle.dumps(found.only(SERVERS[:1])))
    assert tuple(again) == SERVERS[:1] and again.credentials[SERVERS[0]].pair == ALICE


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("secret = ", "scret = ", "'scret', which is not known"),
        (f'secret = "{ALICE.secret.decode()}"\n', "", 'no line secret = "..."'),
        (ALICE.public.decode(), OTHER.public.decode(), "does not belong to its secret key"),
        ("[[servers]]", "[[", "is not TOML"),
        (SERVERS[0], "5556", "the address '5556', which is not"),
        (SERVERS[0], SERVERS[1], "twice"),
        (f'keys = ["{OTHER.public.decode()}"]', "", "has no keys"),
        (OTHER.public.decode(), "abc", "has a server's key that can't be one"),
    ],
    ids=range(8),
)
def test_a_bad_client_file_is_refused_with_path_and_mistake(file: Path, old: str, new: str, words: str) -> None:
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(BadInput) as found:
        Clone(client_file=file)
    assert str(file) in str(found.value) and words in str(found.value)
    assert ALICE.secret.decode() not in str(found.value)


def test_a_client_file_that_is_missing_or_readable_by_others_is_refused(file: Path, tmp_path: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        ClientFile.read(file)
    with pytest.raises(BadInput, match=r"bob\.toml can't be read .*chp keygen"):
        ClientFile.read(tmp_path / "bob.toml")


def test_spark_takes_a_client_file_instead_of_servers_and_pickles_no_secret(file: Path) -> None:
    values = options.parse({"clientFile": str(file)})
    assert tuple(values["servers"]) == SERVERS
    assert ALICE.secret not in pickle.dumps(values)
    with pytest.raises(options.BadOption, match="both options"):
        options.parse({"clientFile": str(file), "servers": SERVERS[0]})


def test_keygen_writes_a_client_file_for_named_servers(tmp_path: Path) -> None:
    keys.write(tmp_path, "server", OTHER)
    name = f"{SERVERS[0]}={tmp_path / 'server.pub'}"
    done = run("keygen", str(tmp_path / "alice"), "--server", name)
    assert done.exit_code == 0, done.output
    found = ClientFile.read(tmp_path / "alice.toml")
    assert tuple(found) == SERVERS[:1] and found.credentials[SERVERS[0]].server_keys == (OTHER.public,)
    assert not (tmp_path / "alice.secret").exists()
    for wrong in (SERVERS[0], f"{SERVERS[0]}={tmp_path / 'nothing.pub'}", f"a:1={tmp_path / 'server.pub'}"):
        bad = run("keygen", str(tmp_path / "bob"), "--server", wrong)
        assert bad.exit_code == 2 and "--server" in bad.output, bad.output


def test_a_command_refuses_a_missing_client_file_and_one_given_beside_servers(file: Path, tmp_path: Path) -> None:
    def said(*words: str, **environ: str) -> str:
        done = run(*words, env={**dict.fromkeys(VARIABLES), **environ})
        assert done.exit_code == 2 and done.output.count("\n") == 1, done.output
        return done.output

    assert str(tmp_path / "bob.toml") in said("status", "--client-file", str(tmp_path / "bob.toml"))
    assert f"--servers and --client-file {file} both name servers" in said(
        "--servers", "tcp://x:1", "status", "--client-file", str(file)
    )
    assert "CHP_SERVERS and CHP_CLIENT_FILE both name servers" in said(
        "status", CHP_SERVERS="tcp://x:1", CHP_CLIENT_FILE=str(file)
    )


def test_an_old_option_or_variable_is_refused_with_its_new_name(file: Path) -> None:
    for words in (["--as", "bob", "status"], ["status", "--as", "bob"]):
        done = run(*words)
        assert (done.exit_code, done.output.partition(": ")[2]) == (2, "--as is gone; use --client-file PATH\n")
    done = run("status", env={**dict.fromkeys(VARIABLES), "CHP_CLIENT": str(file)})
    assert done.exit_code == 2 and "CHP_CLIENT is gone; use CHP_CLIENT_FILE" in done.output
