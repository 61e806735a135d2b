"""Tests of client files: they admit all kinds of clients, and a refused client soon hears why.

covers: admission.py; Clone, AsyncClone, Admin, Feed, Port and `chp` with a client file; changing a server's key
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from chp import keyfiles
from chp.errors import BadInput
from chp_client import AsyncClone, ClientFile, Clone, Refused, State
from chp_client.port.admin import Admin, AdminDenied
from chp_client.port.admin import AdminReply as Answered
from chp_client.port.ask import QuestionPort
from chp_client.port.feed import Feed
from chp_client.recording.recorder import record
from chp_client.spark.live import live
from chp_server.testing import Pair, TestServer
from tests.talk import until
from tests.wire import keys
from tests.wire.keys import ALICE

EVE = keys.new_pair()
LONG_S = 30.0


def test_a_known_key_is_admitted_for_every_kind_of_client(keyed_pair: Pair, tmp_path: Path) -> None:
    file = ClientFile.read(keys.client_file(tmp_path / "alice.toml", ALICE, keys.known(keyed_pair)))
    with Clone(file) as clone:
        assert clone.set("/a", b"1").wait(LONG_S).durability == "replicated"
        clone.wait_until_synced(LONG_S)
        assert clone.verify()
    with Admin(file, LONG_S) as admin:
        assert all(isinstance(answer, Answered) for answer in admin.ask_all("status").values())
    with Feed(file) as feed:
        assert [r.keys for chunk in feed.fetch(0, LONG_S) for r in chunk] == [["/a"]]
    with QuestionPort(file, LONG_S) as port:
        assert port.ask("", image=0, prefix="", count=True)["keys"] == 1
    asyncio.run(_async(file.path))
    done = chp("--client-file", file.path, "get", "/a")
    assert (done.returncode, done.stdout) == (0, "1")


async def _async(path: str) -> None:
    async with AsyncClone(client_file=path) as clone:
        await clone.wait_until_synced(LONG_S)
        assert clone["/a"] == b"1"


def test_a_live_table_and_a_recorder_take_a_client_file(keyed_pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "alice.toml"
    table = pickle.loads(pickle.dumps(live(client_file=path)))
    with pytest.raises(BadInput, match=r"alice\.toml can't be read"):
        table.get("/a")
    keys.client_file(path, ALICE, keys.known(keyed_pair))
    with Clone(client_file=path) as clone:
        clone.set("/a", b"1").wait(LONG_S)
    assert table["/a"] == b"1" and ALICE.secret not in pickle.dumps(table)
    table.close()
    ends = Event()
    ends.set()
    assert record(None, tmp_path / "log", client_file=path, stop=ends, timeout_s=LONG_S).rows == 1


def chp(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `chp`."""
    return subprocess.run(
        [sys.executable, "-m", "chp_client.cli", *words], capture_output=True, text=True, timeout=LONG_S, check=False
    )


@pytest.mark.parametrize("who", ["unknown", "wrong server", "no key"])
def test_a_client_that_is_not_admitted_is_told_the_reason(keyed_pair: Pair, tmp_path: Path, who: str) -> None:
    known = keys.known(keyed_pair)
    there = known if who != "wrong server" else dict.fromkeys(known, EVE.public)
    given = {"unknown": EVE, "wrong server": ALICE}.get(who)
    servers = list(there) if given is None else ClientFile.read(keys.client_file(tmp_path / "c.toml", given, there))
    why = {"unknown": "does not know", "wrong server": "has another key", "no key": "lets in only"}[who]
    with Clone(servers) as clone, pytest.raises(Refused, match=why) as told:
        clone.wait_until_synced(LONG_S)
    assert told.value.code == "key"
    with Admin(servers, LONG_S) as admin:
        assert all(isinstance(a, AdminDenied) and why in a.text for a in admin.ask_all("status").values())
    with Feed(servers) as feed, pytest.raises(Refused, match=why):
        feed.facts(LONG_S)
    with QuestionPort(servers, LONG_S) as port, pytest.raises(Refused, match=why):
        port.ask("", image=0, prefix="")
    with pytest.raises(Refused, match=why):
        asyncio.run(_refused(servers))


async def _refused(servers: list[str] | ClientFile) -> None:
    async with AsyncClone(servers) as clone:
        await clone.wait_until_synced(LONG_S)


def test_a_refused_client_syncs_once_its_key_is_admitted(keyed_pair: Pair, tmp_path: Path) -> None:
    with Clone(client_file=keys.client_file(tmp_path / "eve.toml", EVE, keys.known(keyed_pair))) as clone:
        with pytest.raises(Refused):
            clone.wait_until_synced(LONG_S)
        for server in (keyed_pair.primary, keyed_pair.backup):
            keys.admit(Path(str(server.config.keys)), "eve", EVE)
        until(lambda: clone.state is State.SYNCED, "it tries on")
        clone.set("/a", b"1").wait(LONG_S)


def test_a_server_may_change_its_key_if_the_client_file_has_both(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE))
    new = keys.new_pair()
    with TestServer(keys=str(a), store=f"sqlite:{tmp_path / 'data'}") as server:
        path = keys.client_file(tmp_path / "alice.toml", ALICE, {server.address: keys.public_of(a)})
        old = keys.public_of(a).decode()
        path.write_text(path.read_text().replace(f'["{old}"]', f'["{old}", "{new.public.decode()}"]'))
        with Clone(client_file=path) as clone:
            clone.set("/a", b"1").wait(LONG_S)
            server.kill()
            (a / "server.secret").write_text(keyfiles.secret_text("server", new))
            server.start()
            clone.set("/b", b"2").wait(LONG_S)
            clone.wait_until_synced(LONG_S)
