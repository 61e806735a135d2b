"""Tests of two servers that meet: the openers of epochs and the digest prove a history, and numbers do not.

covers: one store with split histories, neither active; equal numbers; damage; foreign stores; roles; versions; epochs
that others claim; an empty server; a snapshot that replaces rows of higher numbers
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chp.batch import Segment, packb, unpackb
from chp.headers import State
from chp.keys import RESERVED_KEY
from chp.numbers import EPOCH_MAX, epoch_of, number, pack
from chp.versions import VERSION
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair import follow
from chp_server.core.pair.arbitration import Members
from chp_server.core.state.epochs import JUMPS, REGAIN_S, Epochs
from chp_server.core.state.history import EpochEntry, Position, common, holds
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.turn import Append, Remember, Turn
from chp_server.store.store_url import open_journal

from .server_talk import forced

BEAT_S = 0.25


def server(name: str, run: int = 1, **config: Any) -> ServerCore:
    settings = {"has_peer": True, "solo_wait_s": 1.0, "heartbeat_s": BEAT_S, "peer_timeout_s": 30.0, **config}
    return ServerCore(CoreConfig(primary=name == "P", name=name, **settings), bytes([run]) * 16, 0.0)


def turn(core: ServerCore, now: float, *heard: list[bytes]) -> Turn:
    core.begin_turn(now, now)
    for frames in heard:
        core.peer_message(frames)
    return core.end_turn()


def put(core: ServerCore, now: float, no: int, key: str, client: bytes) -> Turn:
    core.begin_turn(now, now)
    core.collect([RESERVED_KEY, pack(no), client * 16, b"", Segment([key], [b"v"]).encode()])
    return core.end_turn()


def alone(name: str, keys: int, run: int = 1) -> list[bytes]:
    """Return the records of a server that opened a new store and set keys."""
    core = ServerCore(CoreConfig(primary=name == "P", name=name), bytes([run]) * 16, 0.0)
    done = [turn(core, 0.0)] + [put(core, no / 10, no, f"/{name}/{no}", client=name.encode()) for no in range(1, keys)]
    return [op.body for each in done for op in each.journal if isinstance(op, Append)]


def restarted(name: str, bodies: list[bytes], run: int, **config: Any) -> ServerCore:
    """Return a server that finds these records in its journal."""
    core = server(name, run, **config)
    for body in bodies:
        core.committer.committed.log.append(core.committer.committed.follow(body, 0.0))
    return core


def went_on(bodies: list[bytes], name: str, keys: int, run: int) -> list[bytes]:
    """Return the records after these with which a server of the pair went on alone."""
    core = restarted(name, bodies, run, solo_wait_s=0.0)
    done = [turn(core, 0.1)]
    done += [put(core, 1 + no / 10, no, f"/{name}/{no}", client=name.encode()) for no in range(1, keys + 1)]
    assert core.active
    return bodies + [op.body for each in done for op in each.journal if isinstance(op, Append)]


def talk(one: ServerCore, other: ServerCore, seconds: float = 4.0) -> list[Turn]:
    """Let them hear each other, turn by turn, for so long."""
    now, done = max(one.turn.now, other.turn.now), []
    until_s = now + seconds
    said: dict[str, list[list[bytes]]] = {"one": [], "other": []}
    while now < until_s:
        now += 0.05
        first = turn(one, now, *said["other"])
        second = turn(other, now, *said["one"])
        # There are no journals, so a state that was taken over needs no writing.
        one.pair.replacing = other.pair.replacing = None
        said = {
            "one": first.to_peer + first.opened + first.confirm,
            "other": second.to_peer + second.opened + second.confirm,
        }
        done += [first, second]
    return done


def facts(turns: list[Turn], event: str) -> list[dict[str, Any]]:
    return [fact.fields for each in turns for fact in each.facts if fact.event == event]


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (2, 5), (5, 2)])
def test_servers_with_parted_histories_of_one_store_agree_without_loss(ours: int, theirs: int) -> None:
    """Both were active and have ended, so neither serves, and numbers do not tell the right history."""
    shared = alone("P", 2)
    one = restarted("P", went_on(shared, "P", ours, 5), 7)
    other = restarted("B", went_on(shared, "B", theirs, 6), 8)
    assert one.state.store == other.state.store and not one.active and not other.active
    turns = talk(one, other)
    active, passive = (one, other) if one.active else (other, one)
    assert active.active and passive.pair.bstate is State.PASSIVE and active.pair.in_sync()
    assert active.state.proof() == passive.state.proof()
    assert active.state.map.values == passive.state.map.values
    wanted = {"/P/1", *(f"/P/{i + 1}" for i in range(ours)), *(f"/B/{i + 1}" for i in range(theirs))}
    assert set(active.state.map.values) == wanted, "what only one had is replayed"
    assert facts(turns, "histories parted") and facts(turns, "suffix"), "both say so"


def test_equal_numbers_of_parted_histories_are_told_apart() -> None:
    """An epoch that was opened twice gives equal numbers, for which 0.1 said `in sync` though each key differed."""
    shared = alone("P", 2)
    one = restarted("P", went_on(shared, "P", 3, 5), 7)
    # A copy of its disk went on elsewhere.
    other = restarted("B", went_on(shared, "P", 3, 6), 8)
    assert one.state.number == other.state.number and one.state.proof() != other.state.proof()
    turns = talk(one, other)
    assert facts(turns, "histories parted")
    assert one.state.proof() == other.state.proof() and one.state.map.values == other.state.map.values


def test_a_passive_whose_records_differ_is_not_in_sync_and_gets_the_whole_state() -> None:
    one, other = server("P", peer_timeout_s=1.0), server("B", 2, peer_timeout_s=1.0)
    talk(one, other, 1.0)
    assert one.pair.in_sync()
    other.state.digest ^= 1
    epoch = other.state.epoch
    other.state.history[epoch] = other.state.history[epoch]._replace(digest=other.state.digest)
    turns = talk(one, other)
    assert facts(turns, "histories parted") or facts(turns, "the passive differs")
    assert one.state.proof() == other.state.proof() and one.pair.in_sync()


@pytest.mark.parametrize("name", ["P", "B"])
def test_servers_with_different_stores_leave_each_other_unchanged(name: str) -> None:
    ours = restarted("P", alone("P", 3), 7)
    theirs = restarted("B", alone("B", 9, run=9), 8)
    before = ours.state.proof(), theirs.state.proof()
    if name == "P":
        turn(ours, 1.1)
        assert ours.active
        theirs.turn.now = theirs.pair.listens_since = 1.0
        before = ours.state.proof(), theirs.state.proof()
    turns = talk(ours, theirs)
    assert (ours.state.proof(), theirs.state.proof()) == before
    assert ours.active is (name == "P") and theirs.pair.bstate is State.BACKUP
    assert facts(turns, "foreign peer")
    for core in (ours, theirs):
        said = core.status()["misfit"]
        assert said["kind"] == "foreign" and ours.state.store.hex() in said["text"]
        assert theirs.state.store.hex() in said["text"] and "empty data directory" in said["text"]


def test_a_server_that_met_a_foreign_store_serves_only_if_forced() -> None:
    ours, theirs = restarted("P", alone("P", 3), 7), restarted("B", alone("B", 9, run=9), 8)
    turns = talk(ours, theirs, 3.0)
    assert not ours.active and ours.link.waits_for
    remembered = [op for each in turns for op in each.journal if isinstance(op, Remember)]
    assert {op.value for op in remembered} == {ours.state.store, theirs.state.store} and len(remembered) == 2
    refused = forced(ours)
    assert "runs, and holds the store" in refused and "stop it first" in refused
    turn(ours, 40.0)
    assert not ours.active and "chp switch --force" in ours.link.waits_for
    assert theirs.state.store.hex() in ours.link.waits_for
    assert "'forced': True" in forced(ours)
    told = turn(ours, 40.1)
    assert ours.active and not ours.link.waits_for and not ours.link.foreign
    assert [op.value for op in told.journal if isinstance(op, Remember)] == [b""]


def test_a_restarted_server_minds_a_foreign_store_until_its_peer_is_heard() -> None:
    ours, theirs = restarted("P", alone("P", 3), 7), restarted("B", alone("B", 9, run=9), 8)
    talk(ours, theirs)
    again = restarted("P", alone("P", 3), 10)
    again.link.foreign = ours.link.foreign
    turn(again, 30.0)
    assert not again.active
    talk(again, server("B", 11), 2.0)
    assert again.active and not again.link.foreign


def test_a_server_started_without_a_peer_serves_despite_a_foreign_store() -> None:
    core = restarted("P", alone("P", 3), 7, has_peer=False)
    core.link.foreign = b"F" * 16
    turn(core, 0.1)
    assert core.active


def test_a_forged_state_message_does_not_end_an_active_or_a_passive() -> None:
    one, other = server("P"), server("B", 2)
    talk(one, other, 1.0)
    for core in (one, other):
        forged = server("P" if core is one else "B", 3)
        turn(core, 1.1, forged.link.state_message())
        assert not core.link.ends
    talk(one, other, 2.0)
    assert one.active and one.pair.in_sync()


def test_a_starting_server_ends_if_both_servers_are_primary() -> None:
    core = server("P")
    turn(core, 0.1, server("P", 3).link.state_message())
    said = [frames[0] for beat in (1, 2, 3) for frames in turn(core, 0.1 + beat * BEAT_S).to_peer]
    assert said.count(follow.STATE) >= 1 and not core.link.ends, "the other one is to hear of it"
    turn(core, 0.2 + 4 * BEAT_S)
    assert core.link.ends == "both servers are --primary; start one of them as the other"


def test_an_active_primary_does_not_end_if_it_hears_another_primary() -> None:
    core, other = server("P"), server("B", 2)
    turn(core, 0.1, server("P", 3).link.state_message())
    talk(core, other, 1.0)
    assert core.active
    turn(core, 20.0, server("P", 4).link.state_message())
    turn(core, 60.0, server("P", 4).link.state_message())
    assert core.active and not core.link.ends


def said_of(core: ServerCore, **fields: Any) -> list[bytes]:
    return [follow.STATE, packb({**unpackb(core.link.state_message()[1], "STATE"), **fields})]


def test_a_server_of_version_0_1_is_an_incompatible_peer() -> None:
    core, old = restarted("P", alone("P", 3), 7), server("B", 2)
    said = unpackb(old.link.state_message()[1], "STATE")
    for name in ("version", "store", "opener", "digest", "settings"):
        del said[name]
    turn(core, 2.0, [follow.STATE, packb({**said, "follows": False})])
    misfit = core.status()["misfit"]
    assert misfit["kind"] == "version" and "version 2" in misfit["text"] and f"this program {VERSION}" in misfit["text"]
    turn(core, 2.2)
    assert not core.active
    types = {"number": int, "epoch": int, "server": bytes, "name": str, "primary": bool, "in_sync": bool}
    types["follows"] = bool
    ours = unpackb(core.link.state_message()[1], "STATE")
    assert [type(ours[name]) for name in types] != list(types.values()), "0.1 says: of the same version, please"


def test_a_pair_works_at_the_lower_version_and_reports_the_difference() -> None:
    one, other = server("P"), server("B", 2)
    later = said_of(other, version=9)
    done = turn(one, 0.1, later)
    assert one.committer.view.version == VERSION and one.pair.peer is not None
    assert "version" in facts([done], "settings differ")[0]


class TestClaims:
    def test_forged_states_of_far_epochs_leave_a_pair_in_sync(self) -> None:
        """After such a state 0.1 opened epoch 32,767, and could open no other."""
        one, other = server("P"), server("B", 2)
        talk(one, other, 1.0)
        for epoch in (200, 32_765):
            for state in (State.ACTIVE, State.PASSIVE):
                forged = said_of(other, state=int(state), number=number(epoch, 9), epoch=epoch, server=b"x" * 16)
                turn(one, 1.2, forged)
        turns = talk(one, other, 5.0)
        active = one if one.active else other
        assert active.active and active.pair.in_sync() and active.state.epoch < 16
        again = server("B", 5)
        opened = [epoch_of(op.last) for each in turns for op in each.journal if isinstance(op, Append)]
        assert opened and max(opened) < 16
        talk(active, again, 3.0)
        assert again.state.proof() == active.state.proof()

    def test_six_hundred_resumes_of_high_epochs_use_up_few_epochs(self) -> None:
        """0.1 opened 16,382 of 32,767."""
        core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
        turn(core, 0.0)
        for i in range(600):
            core.begin_turn(1 + i / 10, 0.0)
            options = {"chp": 3, "id": i, "from": number(core.state.epoch + 63, 5), "proof": [core.state.store, b"x"]}
            core.request([b"reader", b"ICANHAZ?", b"", packb(options)])
            core.end_turn()
        assert core.state.epoch <= 2 * JUMPS

    def test_an_epoch_claim_for_another_store_is_ignored(self) -> None:
        core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
        turn(core, 0.0)
        core.begin_turn(1.0, 0.0)
        options = {"chp": 3, "id": 1, "from": number(9, 5), "proof": [b"x" * 16, b"x"]}
        core.request([b"reader", b"ICANHAZ?", b"", packb(options)])
        core.end_turn()
        assert core.state.epoch == 1

    def test_a_server_rises_above_the_epoch_that_a_client_has_seen(self) -> None:
        core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
        turn(core, 0.0)
        core.begin_turn(1.0, 0.0)
        options = {"chp": 3, "id": 1, "from": number(4, 5), "proof": [core.state.store, b"x"]}
        core.request([b"reader", b"ICANHAZ?", b"", packb(options)])
        core.end_turn()
        assert core.state.epoch == 5

    def test_epoch_credit_returns_slowly_and_uses_at_most_half_of_all_epochs(self) -> None:
        epochs, ours, now = Epochs(0.0), 1, 0.0
        for _ in range(100_000):
            epochs.hear(ours + JUMPS)
            above = epochs.above(ours, now)
            if above > ours:
                ours = epochs.spend(ours, now) + 1
            now += 60.0
        assert ours <= EPOCH_MAX // 2 + 2
        assert ours <= JUMPS + 2 * now / REGAIN_S + 2


def test_a_position_is_proved_by_its_opener_and_by_a_known_digest() -> None:
    history = {1: EpochEntry(number(1, 9), 77, b"a"), 3: EpochEntry(number(3, 20), 88, b"c")}

    def at(n: int, opener: bytes, digest: int) -> Position:
        return Position(b"s", n, opener, digest)

    assert holds(history, at(number(1, 9), b"a", 77), None)
    assert not holds(history, at(number(1, 9), b"a", 78), None)
    assert not holds(history, at(number(1, 9), b"b", 77), None)
    assert holds(history, at(number(1, 5), b"a", 5), None), "by its opener alone"
    assert not holds(history, at(number(1, 5), b"a", 5), 6)
    assert not holds(history, at(number(1, 10), b"a", 5), None)
    assert not holds(history, at(number(2, 10), b"a", 5), None)
    theirs = {1: history[1], 2: EpochEntry(number(2, 12), 5, b"b"), 3: EpochEntry(number(3, 15), 5, b"x")}
    assert common(history, theirs) == number(1, 9)
    assert common(history, {**theirs, 3: EpochEntry(number(3, 15), 5, b"c")}) == number(3, 15)
    assert common(history, {3: EpochEntry(number(3, 20), 5, b"c")}) == 0, "the same place with another digest"
    assert common(history, {}) == 0


def test_a_state_that_replaces_another_history_replaces_rows_of_higher_numbers_too(tmp_path: Path) -> None:
    """In 0.1 the server ended with exit code 4: `row 1.3 does not follow 1.41`."""
    for url in (f"sqlite:{tmp_path}", "memory:"):
        journal = open_journal(url)
        journal.load()
        journal.append([LoggedRow(number(1, i), number(1, i), b"old %d" % i) for i in range(1, 42)])
        journal.sync()
        journal.begin_snapshot(number(1, 2))
        journal.put_snapshot(b"the other history")
        journal.commit_snapshot(number(1, 2), alone=True)
        journal.append([LoggedRow(number(1, 3), number(1, 3), b"new")])
        journal.sync()
        assert journal.read_after(number(1, 2), 1 << 20) == [LoggedRow(number(1, 3), number(1, 3), b"new")]
        journal.close()
    journal = open_journal(f"sqlite:{tmp_path}")
    loaded = journal.load()
    assert list(loaded.snapshot) == [b"the other history"] and [row.body for row in loaded.rows] == [b"new"]
    journal.close()


def test_a_server_that_recovered_for_long_listens_for_its_peer_before_serving() -> None:
    core = ServerCore(CoreConfig(primary=True, has_peer=True, solo_wait_s=3.0, bootstrap=True), b"s" * 16, 0.0)
    served = []
    # Its first turn comes after ten seconds of recovery.
    for n in range(16):
        core.begin_turn(10.0 + n / 4, 0.0)
        core.end_turn()
        served.append(core.active)
    assert served.index(True) == 12


def test_old_peer_messages_do_not_make_a_server_serve_after_a_stop() -> None:
    """The peer may have died and serve again by now, so its old messages do not count."""
    core, peer = restarted("P", alone("P", 3), 2), restarted("B", alone("P", 2), 3)
    said = peer.link.state_message()
    turn(core, 0.1)
    turn(core, 18.0, said)
    assert not core.active
    turn(core, 18.1, said)
    assert core.active


def test_an_empty_server_does_not_serve_before_a_peer_with_a_store() -> None:
    """A server whose disk was replaced does not begin before the one with a store, though the set names only it."""
    core = server("P", has_arbiter=True)
    core.begin_turn(0.1, 0.1, (10.0, Members(0, frozenset({"primary"}), 0)))
    core.peer_message(restarted("B", alone("P", 3), 2).link.state_message())
    core.end_turn()
    assert not core.active and not core.state.number
