"""Clients in processes of their own under full load: stopped, joining, away, watching; each ends equal to the server.

What a copy must hold at a number is known by arithmetic (puppets.py). The classic programs fail each of these
without a word: G-09 to G-12 of docs/sources.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import WAIT_S, until

from .cluster import ServerProcess
from .puppets import BASE, Puppet, digest_of, expected, sleep_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STOPPED_S = 10.0


def server_in(directory: Path, store: str = "memory:", *flags: str) -> ServerProcess:
    """Return a lone server on free ports."""
    address = f"tcp://127.0.0.1:{free_port()}"
    return ServerProcess(directory, "primary", address, None, "--heartbeat-s", "0.1", "--store", store, *flags)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Start a server in memory, in its own process."""
    made = server_in(tmp_path).start()
    yield made
    made.kill()


def test_a_client_stopped_for_10_s_under_load_ends_with_all_updates(server: ServerProcess) -> None:
    """G-10: the Guide's client applied about 19,000 of 30,000 updates, without a warning."""
    with Puppet(server.address) as reader, Puppet(server.address, subtree=None, window_bytes=100_000) as writer:
        base = writer.ask("write", pad=200)
        before = records(server)
        reader.stop_process()
        stopped_at = time.monotonic()
        # Publish more than can wait for the reader: a thousand messages at the server's mark, and the kernel's buffers.
        until(lambda: records(server) > before + 3000, "enough load to be missed")
        sleep_until(stopped_at + STOPPED_S)
        reader.continue_process()
        updates = writer.ask("end")
        said = reader.ask("content", at_least=base + updates)
        assert said["digest"] == digest_of({BASE: b"", **expected(updates, 200)})
        assert said["ok"] and said["stats"]["holes"] >= 1 and said["stats"].get("mismatches", 0) == 0


def records(server: ServerProcess) -> int:
    """Return the number of records that a server has published."""
    said = server.status()
    return int(said["counts"]["records"]) if said else 0


def test_hundreds_of_clients_join_under_full_load_and_miss_nothing(server: ServerProcess) -> None:
    """G-09: updates between subscription and snapshot were lost for good."""
    with ExitStack() as stack:
        writer = stack.enter_context(Puppet(server.address, subtree=None, window_bytes=200_000))
        joiners = [stack.enter_context(Puppet(server.address, subtree=None)) for _ in range(2)]
        base = writer.ask("write")
        for joiner in joiners:
            joiner.tell("join", times=150, base=base)
        said = [joiner.answer() for joiner in joiners]
        assert sum(each["joins"] for each in said) == 300
        assert sum(each["mismatches"] for each in said) == 0
        assert writer.ask("end") > 0


@pytest.mark.parametrize("retained", ["1073741824", "65536"], ids=["resumed", "by-snapshot"])
def test_keys_deleted_while_a_client_was_away_are_gone(tmp_path: Path, retained: str) -> None:
    """G-11: the Guide's client did not clear its map on a resync, so deleted keys lived on."""
    server = server_in(tmp_path, "sqlite:" + str(tmp_path / "store"), "--retain-memory-bytes", retained).start()
    try:
        with Clone(server.address) as other, Puppet(server.address) as reader:
            other.set_many({f"/{i}": b"old" for i in range(5000)}).wait(WAIT_S)
            reader.ask("content", at_least=other.position[1])
            reader.stop_process()
            other.delete_many([f"/{i}" for i in range(0, 5000, 2)]).wait(WAIT_S)
            # The death of the server loses the messages on their way to the stopped client.
            server.kill()
            server.start()
            ticket = other.set_many({f"/{i}": b"x" * 100 for i in range(0, 5000, 3)})
            ticket.wait(WAIT_S)
            other.delete_many([f"/{i}" for i in range(0, 5000, 5)]).wait(WAIT_S)
            reader.continue_process()
            until(
                lambda: other.verify(contents=False).compared_at >= ticket.wait(0).revision, "the other to be complete"
            )
            said = reader.ask("content", at_least=other.position[1])
            assert said["digest"] == digest_of(dict(other)) and said["ok"]
            assert "/10" not in other and "/2" not in other and other["/3"] == b"x" * 100 and len(other) == said["keys"]
    finally:
        server.kill()


def test_20_watchers_with_default_settings_see_all_of_a_burst(server: ServerProcess) -> None:
    """Redis lost 47 to 60 % of such deliveries silently. Here a watcher sees all, or lags and ends equal."""
    n = 60_000
    with ExitStack() as stack:
        puppets = [stack.enter_context(Puppet(server.address, subtree=None)) for _ in range(4)]
        for puppet in puppets:
            puppet.ask("watch", watchers=5)
        with Clone(server.address, subtree=None) as writer:
            for i in range(n):
                writer.set(f"/burst/{i}", b"x" * 100)
            writer.flush(WAIT_S)
        for puppet in puppets:
            puppet.tell("watched", keys=n)
        watchers = [watcher for puppet in puppets for watcher in puppet.answer()]
    assert len(watchers) == 20
    wanted = digest_of({f"/burst/{i}": b"x" * 100 for i in range(n)})
    for each in watchers:
        assert each["digest"] == wanted and each["stats"].get("mismatches", 0) == 0
        if each["lagging"]:
            # This watcher raised `Lagging`, so it may have missed changes.
            continue
        assert each["seen"] == n and each["in_order"], each
        assert each["changes"] == n, f"a key was told twice: {each}"


def test_sets_made_right_after_connecting_arrive(tmp_path: Path) -> None:
    """G-12: the Guide's client lost all five such sets, while a local get showed them.

    Here the sets arrive even if no server runs yet.
    """
    server = server_in(tmp_path)
    early = [Clone(server.address, subtree=None if i % 2 else "") for i in range(10)]
    tickets = [clone.set(f"/early/{i}", b"1") for i, clone in enumerate(early)]
    try:
        assert [clone.get(f"/early/{i}") for i, clone in enumerate(early)] == [b"1", None] * 5
        server.start()
        for ticket in tickets:
            ticket.wait(WAIT_S)
        for i in range(20):
            with Clone(server.address) as late:
                late.set(f"/late/{i}", b"1")
        with Clone(server.address) as reader:
            reader.wait_until_synced(WAIT_S)
            assert set(reader) == {f"/early/{i}" for i in range(10)} | {f"/late/{i}" for i in range(20)}
    finally:
        for clone in early:
            clone.close(0)
        server.kill()
