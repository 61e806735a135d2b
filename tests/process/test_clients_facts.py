"""Tests that clients do not have the defects of the Guide's clients, which docs/sources.md lists as G-05 to G-24.

test_clients_load.py and test_clients_failover.py test G-09 to G-12 and G-14 to G-16 under load.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chp_client import BadKey, Clone, State
from chp_server.testing import TestServer, free_port
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess


@pytest.mark.slow
def test_sets_made_while_a_server_was_down_never_overwrite_newer_ones(tmp_path: Path) -> None:
    """G-05: such sets waited in clients' sockets until the server returned, and were replayed at the next failover."""
    with ProcessPair(tmp_path, "--store", "memory:") as pair, Clone(pair.servers) as one, Clone(pair.servers) as two:
        passive = pair.backup if pair.active() is pair.primary else pair.primary
        passive.kill()
        for i in range(50):
            one.set("/k", b"old %d" % i).wait(WAIT_S)
        passive.start()
        pair.wait_in_sync()
        newest = two.set("/k", b"new").wait(WAIT_S)
        # There are two failovers, one to each server.
        for _ in range(2):
            active = pair.active()
            assert active is not None
            active.kill()
            two.set("/after", b"1").wait(WAIT_S)
            until(lambda: one.state is two.state is State.SYNCED and "/after" in one, "the others to follow")
            entry = two.entry("/k")
            assert one["/k"] == two["/k"] == b"new" and entry is not None and entry.revision == newest.revision
            active.start()
            pair.wait_in_sync()


def test_a_client_refuses_a_key_outside_its_subtree(server: TestServer) -> None:
    """The Guide's client kept such a key locally, and never updated it again."""
    with Clone(server.address, subtree="/a/") as clone, Clone(server.address) as whole:
        with pytest.raises(BadKey, match="outside"):
            clone.set("/b/1", b"1")
        with pytest.raises(BadKey, match="outside"):
            clone.update({"/a/1": b"1", "/b/1": b"1"})
        clone.set("/a/2", b"1").wait(WAIT_S)
        until(lambda: "/a/2" in whole, "the set that was good")
        assert set(clone) == set(whole) == {"/a/2"}


@pytest.mark.slow
def test_a_lone_primary_that_restarts_serves_without_a_vote(tmp_path: Path) -> None:
    """The Guide's primary waited for a vote, but its HUGZ kept clients from voting. So it sent no update ever again."""
    address, nobody = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    flags = ("--heartbeat-s", "0.1", "--peer-timeout-s", "1", "--solo-wait-s", "1", "--store", "memory:", "--bootstrap")
    server = ServerProcess(tmp_path, "primary", address, nobody, *flags).start()
    try:
        with Clone([address, nobody]) as clone:
            for i in range(2):
                clone.set(f"/{i}", b"1").wait(WAIT_S)
                server.kill()
                server.start()
            clone.set("/last", b"1").wait(WAIT_S)
            until(lambda: clone.state is State.SYNCED and "/last" in clone, "the copy to be current")
    finally:
        server.kill()


def test_clients_follow_a_server_whose_numbers_restart(server: TestServer) -> None:
    """The Guide's clients discarded all updates until the server had passed their number."""
    with Clone(server.address) as reader, Clone(server.address, subtree=None) as writer:
        reader.wait_until_synced(WAIT_S)
        writer.set_many({f"/old/{i}": b"1" for i in range(5000)}).wait(WAIT_S)
        until(lambda: len(reader) == 5000, "the old keys")
        server.restart()
        ack = writer.set("/new", b"1").wait(WAIT_S)
        assert ack.sequence < 5000
        until(lambda: reader.snapshot() == {"/new": b"1"}, "the reader to follow")


def test_a_client_refuses_words_of_the_protocol_as_keys(server: TestServer) -> None:
    """A key named KTHXBAI cut every later snapshot short; one named HUGZ was ignored by clients."""
    with Clone(server.address) as clone:
        for word in ("KTHXBAI", "HUGZ", "ICANHAZ?"):
            with pytest.raises(BadKey, match=word.replace("?", r"\?")):
                clone.set(word, b"1")
            with pytest.raises(BadKey):
                clone.set_many({"/a": b"1", word: b"1"})
        like = ["HUGZ/", "HUGZ2", "/KTHXBAI", "KTHXBA", "zzz"]
        clone.set_many(dict.fromkeys(like, b"1")).wait(WAIT_S)
        with Clone(server.address) as fresh:
            fresh.wait_until_synced(WAIT_S)
            assert set(fresh) == set(like)


def test_clock_steps_cause_no_failover_or_expiry(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the Guide's programs a step caused failover or mass expiry."""
    real, step = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + step[0])
    with Clone(server.address) as clone, Clone(server.address, max_lag_s=60.0) as careful:
        careful.wait_until_synced(WAIT_S)
        clone.set_many(dict.fromkeys([f"/{i}" for i in range(100)], b"1"), ttl=600).wait(WAIT_S)
        for by in (7200.0, -7200.0):
            step[0] = by
            for i in range(5):
                clone.set("/beat", b"%d" % i).wait(WAIT_S)
            until(lambda: len(careful) == 101 and careful["/beat"] == b"4", "the other to follow")
            entry = careful.entry("/1")
            assert entry is not None and entry.ttl is not None and entry.ttl > 500
            assert clone.state is State.SYNCED and clone.stats.get("failovers", 0) == 0
            until(lambda: careful.state is State.SYNCED, "the careful one to be current")
            assert careful.stats.get("lags", 0) <= 1


def test_a_client_works_on_after_requests_for_missing_keys(server: TestServer) -> None:
    """A get of a missing key killed the agent."""
    with Clone(server.address) as clone:
        clone.wait_until_synced(WAIT_S)
        for _ in range(1000):
            assert clone.get("/none") is None and "/none" not in clone and clone.entry("/none") is None
        for act in (lambda: clone["/none"], lambda: clone.__delitem__("/none"), lambda: clone.pop("/none")):
            with pytest.raises(KeyError):
                act()
        clone.delete("/none").wait(WAIT_S)
        clone.delete_many(["/none", "/never"]).wait(WAIT_S)
        assert clone.set("/there", b"1").wait(WAIT_S) and dict(clone) == {"/there": b"1"}
