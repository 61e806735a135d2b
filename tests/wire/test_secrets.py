"""Tests that no output for people or programs has a secret key (SPEC.md, section 25).

covers: reprs, statuses, logs, metrics, errors, the audit, command lines, messages to other processes.
"""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp.errors import ChpError
from chp_client import AsyncClone, ClientFile, Clone, Refused
from chp_client.port.admin import Admin
from chp_server.settings import sources
from chp_server.testing import TestServer, free_port
from tests.process.cluster import ServerProcess
from tests.talk import WAIT_S, until
from tests.wire import keys

ALICE, EVE = keys.new_pair(), keys.new_pair()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the directory of a server's keys."""
    return keys.pair_of_directories(tmp_path, ("alice", ALICE))[0]


@pytest.fixture
def secrets(folder: Path) -> Iterator[list[str]]:
    """Return each secret as its file has it, and both halves of each."""
    server = (folder / "server.secret").read_text().partition('secret = "')[2].partition('"')[0]
    whole = [ALICE.secret.decode(), EVE.secret.decode(), server]
    yield [*whole, *(each[:20] for each in whole), *(each[20:] for each in whole)]


def none_in(secrets: list[str], *texts: object) -> None:
    """Check that no secret is in any of these texts."""
    for text in texts:
        assert not [each for each in secrets if each in str(text)], str(text)[:200]


def test_no_output_of_a_client_shows_a_secret_key(
    folder: Path, tmp_path: Path, secrets: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with TestServer(keys=str(folder), audit=str(tmp_path / "audit")) as server:
        known = {server.address: keys.public_of(folder)}
        file = ClientFile.read(keys.client_file(tmp_path / "alice.toml", ALICE, known))
        stranger = ClientFile.read(keys.client_file(tmp_path / "eve.toml", EVE, known))
        with Clone(file) as clone:
            clone.set("/a", b"1").wait(WAIT_S)
            none_in(secrets, repr(clone), clone.stats, vars(file), repr(file), file, repr(AsyncClone(file)))
        none_in(secrets, pickle.dumps(file), repr(file.credentials), json.dumps(list(file)))
        with Clone(stranger) as clone, pytest.raises(Refused) as refused:
            clone.wait_until_synced(WAIT_S)
        with Admin(file, WAIT_S) as admin:
            none_in(secrets, admin.ask(server.address, "status").facts, repr(admin))
        until(lambda: "let in" in (tmp_path / "audit").read_text(), "the audit has her key")
        none_in(secrets, refused.value, refused.value.__dict__, (tmp_path / "audit").read_text())
    none_in(secrets, caplog.text, [vars(record) for record in caplog.records])


@pytest.mark.parametrize("wrong", ["secret = 'short'", 'secret = "%s', "secret = 7", "what = 1"])
def test_errors_of_a_client_file_quote_no_secret(tmp_path: Path, secrets: list[str], wrong: str) -> None:
    path = tmp_path / "alice.toml"
    path.touch(mode=0o600)
    text = wrong % ALICE.secret.decode() if "%s" in wrong else f'{wrong}\nother = "{ALICE.secret.decode()}"'
    path.write_text(f'public = "{ALICE.public.decode()}"\n{text}')
    with pytest.raises(ChpError) as error:
        ClientFile.read(path)
    none_in(secrets, error.value, repr(error.value.__cause__), repr(error.value.__context__))


def test_no_output_of_a_server_shows_a_secret_key(folder: Path, tmp_path: Path, secrets: list[str]) -> None:
    loaded = sources.load(["--keys", str(folder)], {})
    none_in(secrets, sources.show(loaded), repr(loaded.config), loaded.config.describe())
    address = f"tcp://127.0.0.1:{free_port()}"
    server = ServerProcess(tmp_path, "alone", address, None, "--keys", str(folder), "--log-level", "debug")
    file = keys.client_file(tmp_path / "alice.toml", ALICE, {address: keys.public_of(folder)})
    try:
        server.start()
        until(lambda: chp(file, "set", "/a", "1").returncode == 0, "it to serve")
        assert server.process is not None
        shown = Path(f"/proc/{server.process.pid}/cmdline").read_text()
        done = [chp(file, *words) for words in (("status", "--json"), ("get", "/a"), ("keygen", str(tmp_path / "new")))]
        none_in(secrets, shown, *(answer.stdout + answer.stderr for answer in done))
        new = (tmp_path / "new.secret").read_text().partition('secret = "')[2].partition('"')[0]
        assert len(new) == 40 and new not in done[-1].stdout + done[-1].stderr
    finally:
        server.kill()
    none_in(secrets, server.log.read_text())
    none_in(secrets, *(path.read_bytes() for path in (tmp_path / "alone").rglob("*") if path.is_file()))


def chp(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `chp` as alice."""
    argv = [sys.executable, "-m", "chp_client.cli", "--client-file", str(file), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)
