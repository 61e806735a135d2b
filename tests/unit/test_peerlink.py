"""covers: peerlink.py, handshake.py: a stranger on P+3 changes nothing while the peer lives."""

import logging
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from chp.headers import State
from chp.limits import DEFAULT
from chp_server import logs
from chp_server.core.asks import RiseAbove, Vote
from chp_server.core.core import ServerCore
from chp_server.core.updates.turn import Fact
from chp_server.shell import reactor as facts
from chp_server.testing import Cores

ONE = b"1" * 16
LINE, NEW_LINE = b"stranger", b"new line"


@pytest.fixture
def pair() -> Cores:
    """Return a pair in sync, whose servers know each other's secret."""
    made = Cores()
    for name, core in made.cores.items():
        core.pair.config = replace(core.pair.config, secret=name.lower().encode() * 16)
    made.put("PB", ONE, 1, {"/k": b"1"})
    made.run(1.0)
    return made


def forged(of: ServerCore, **said: Any) -> list[bytes]:
    """Return a forged STATE that looks like that of a server."""
    body = msgpack.unpackb(of.link.state_message()[1])
    return [b"STATE", msgpack.packb({**body, "server": b"f" * 16, **said})]


FORGERIES: list[dict[str, Any]] = [
    {"echo": b""},
    {"echo": b"f" * 16, "number": 0, "digest": 0},
    {"echo": b"", "digest": 12345},
    {"echo": b"", "state": int(State.ACTIVE), "number": 9 << 48 | 7, "epoch": 9},
    {"echo": b"", "state": int(State.PRIMARY), "number": 0, "store": b""},
    {"echo": b"", "store": b"another's store!"},
    {"echo": b"", "version": 99},
]


@pytest.mark.parametrize("said", FORGERIES, ids=repr)
@pytest.mark.parametrize("at", ["P", "B"])
def test_a_stranger_with_a_connection_of_its_own_changes_nothing(pair: Cores, at: str, said: dict[str, Any]) -> None:
    core, other = pair.cores[at], pair.cores["B" if at == "P" else "P"]
    follower, peer = core.pair.follower, core.pair.peer
    said = {"number": core.state.number + 5, **said}
    for _ in range(100):
        core.peer_message(forged(other, **said), LINE)
        core.peer_message([b"LEAVE", other.pair.server], LINE)
        core.peer_message([b"CONFIRM", msgpack.packb([core.state.store, 1 << 60, b"", 0])], LINE)
    assert core.pair.follower is follower and core.pair.peer is peer
    pair.run(1.0)
    assert pair.p.active and pair.p.pair.in_sync() and pair.b.pair.in_sync()
    assert not core.link.waits_for and core.link.incompatible is None and core.committer.counts["strangers"] >= 100


def test_a_peer_on_a_new_connection_is_heard_at_once(pair: Cores) -> None:
    # The peer can't know that this number is history.
    ahead = {"number": pair.b.state.number + 1}
    pair.b.peer_message(forged(pair.p, server=pair.p.pair.server, **ahead), NEW_LINE)
    assert pair.b.pair.peer is not None and pair.b.pair.peer.number == ahead["number"]


def test_a_restarted_peer_is_accepted_by_its_place_in_the_history(pair: Cores) -> None:
    pair.p.peer_message(forged(pair.b, echo=b""), NEW_LINE)
    assert pair.p.pair.peer is not None and pair.p.pair.peer.server == b"f" * 16


def test_a_copy_of_the_peers_data_directory_is_no_peer_while_the_peer_lives(pair: Cores) -> None:
    """An operator starts it as a third server. The passive took it for the active, and became active beside it."""
    pair.connection(True)
    pair.run(0.5)
    for _ in range(20):
        pair.run(0.1)
        pair.b.peer_message(forged(pair.p, echo=b"", state=int(State.PRIMARY)), LINE)
        pair.turn("B")
    assert not pair.b.active and pair.b.pair.in_sync() and pair.b.committer.counts["strangers"] == 20
    copy = forged(pair.p, echo=b"", state=int(State.PRIMARY))
    pair.put("PB", ONE, 2, {"/later": b"1"})
    pair.run(0.5)
    pair.stopped = "P"
    pair.run(3 * pair.b.pair.config.heartbeat_s)
    pair.b.peer_message(copy, LINE)
    pair.turn("B")
    assert not pair.b.active, "a stop of the peer is no end, as its connection stands"
    pair.connection(False)
    pair.turn("B")
    pair.b.peer_message(forged(pair.p, echo=b""), NEW_LINE)
    assert pair.b.pair.peer is not None and pair.b.pair.peer.server == b"f" * 16, "its next run has the same proof"


def test_a_restarted_peer_is_heard_behind_its_earlier_last_words(pair: Cores) -> None:
    """A server that was stopped finds both in one turn, and that the connection broke (seed 152)."""
    pair.connection(True)
    pair.run(0.5)
    pair.connection(False)
    pair.connection(True)
    core, pair.stopped = pair.b, "P"
    connection, pair._connection["B"] = pair._connection["B"], []
    core.begin_turn(pair.now + 5, pair.now + 5, None, connection)
    core.peer_message(pair.p.link.state_message())
    core.peer_message(forged(pair.p, echo=b""), NEW_LINE)
    assert core.pair.peer is not None and core.pair.peer.server == b"f" * 16


def test_a_restarted_peer_is_heard_if_last_words_came_between_connections(pair: Cores) -> None:
    """The words of a run may come after its connection broke. They are none of the next connection (seed 929)."""
    pair.connection(True)
    pair.run(0.5)
    core, pair.stopped = pair.b, "P"
    pair.connection(False)
    pair.turn("B")
    pair.now += 0.1
    core.begin_turn(pair.now, pair.now, None, [])
    core.peer_message(pair.p.link.state_message())
    pair.now += 0.1
    pair.connection(True)
    pair.turn("B")
    core.peer_message(forged(pair.p, echo=b""), NEW_LINE)
    assert core.pair.peer is not None and core.pair.peer.server == b"f" * 16


def test_a_passive_does_not_take_over_while_a_possible_successor_speaks(pair: Cores) -> None:
    """The peer's next run may have served alone while this server was stopped (seed 70053)."""
    pair.stopped = "P"
    pair.run(0.5)
    serves = {"echo": b"", "number": 8 << 48 | 99, "epoch": 8, "digest": 7, "state": int(State.ACTIVE)}
    pair.b.peer_message(forged(pair.p, **serves), NEW_LINE)
    assert pair.b.committer.counts["strangers"] == 1
    pair.run(0.75)
    assert not pair.b.pair.peer_lives() and not pair.b.do(Vote()) and not pair.b.active
    pair.run(0.5)
    assert pair.b.do(Vote()) and pair.b.state.epoch > 8, "it fell silent too"


def stopped(pair: Cores) -> dict[str, Any]:
    """Stop P, which is active, for long; return the words of a run of B that has become active meanwhile."""
    pair.connection(True)
    pair.run(0.5)
    pair.stopped, pair.linked = "PB", False
    pair.run(3.5)
    pair.stopped = "B"
    pair.turn("P")
    return {"echo": b"", "number": 8 << 48 | 99, "epoch": 8, "digest": 7, "state": int(State.ACTIVE)}


def test_an_active_after_a_stop_acknowledges_nothing_while_a_possible_successor_speaks(pair: Cores) -> None:
    serves = stopped(pair)
    pair.put("P", ONE, 2, {"/k": b"2"})
    while pair.p.pair.peer_lives():
        pair.p.peer_message(forged(pair.b, **serves), NEW_LINE)
        pair.run(0.25)
    # The last heartbeat of the stranger came before the run before it was taken for gone.
    pair.run(0.2)
    assert not [answer for answer in pair.answers(ONE, "P") if answer[0] == 2]
    pair.p.peer_message(forged(pair.b, **serves), NEW_LINE)
    pair.run(0.1)
    assert not pair.p.active and not [answer for answer in pair.answers(ONE, "P") if answer[0] == 2]


def test_a_possible_successor_delays_no_ack_once_the_peer_has_spoken(pair: Cores) -> None:
    # No server rises above an epoch that is that high.
    serves = {**stopped(pair), "number": 1000 << 48 | 99, "epoch": 1000}
    pair.stopped, pair.linked = "", True
    pair.run(0.5)
    pair.put("P", ONE, 2, {"/k": b"2"})
    for _ in range(6):
        pair.p.peer_message(forged(pair.b, **serves), NEW_LINE)
        pair.run(0.25)
    assert [answer[:2] for answer in pair.answers(ONE, "P") if answer[0] == 2] == [(2, "ack")]


def test_a_peer_with_a_new_disk_is_heard_after_a_silence(pair: Cores) -> None:
    new = {"echo": b"", "number": 0, "digest": 0, "store": b"", "opener": b"", "state": int(State.BACKUP)}
    pair.linked = False
    pair.run(2.0)
    pair.p.peer_message(forged(pair.b, **new), NEW_LINE)
    assert pair.p.pair.peer is not None and pair.p.pair.peer.number == 0


def test_long_names_and_settings_told_by_the_peer_are_cut(pair: Cores) -> None:
    settings = {"heartbeat_s": "x" * 10_000, "retain_bytes": 7, "retain_s": 5.0, "y" * 10_000: 1}
    pair.p.peer_message(forged(pair.b, name="n" * 10_000, settings=settings))
    status = pair.p.status()["peer"]
    assert status["name"] == "n" * 64 and status["settings_differ"].keys() == {"retain_bytes", "retain_s"}


@pytest.mark.parametrize("event", sorted(facts.SAID_BY_OTHERS))
def test_log_events_caused_by_others_are_limited_and_counted(event: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = logs.get_log(__name__)
    for i in range(100):
        facts.log_fact(log, Fact("info", event, {"name": str(i)}))
    assert len(caplog.records) <= 5
    log.flush(everything=True)
    assert caplog.records[-1].facts["more"] >= 90  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["STATE", "BEAT"])
def test_a_takeover_opens_an_epoch_above_the_epoch_of_a_possible_successor(pair: Cores, kind: str) -> None:
    number = 7 << 48 | 99
    pair.stopped = "P"
    pair.run(0.5)
    if kind == "STATE":
        said = forged(pair.p, echo=b"", number=number, epoch=7, digest=7, state=int(State.ACTIVE))
    else:
        at = [pair.b.state.store, number, b"o" * 16, 7]
        said = [b"BEAT", msgpack.packb([b"r" * 16, 500, int(State.ACTIVE), at])]
    pair.b.peer_message(said, NEW_LINE)
    pair.run(6.0)
    pair.b.do(Vote())
    assert pair.b.active and pair.b.state.epoch == 8


def test_a_passive_takes_over_if_the_active_dies_while_sending_the_state() -> None:
    pair = Cores(replace(DEFAULT, sync_chunk_bytes=2000))
    for no in range(1, 51):
        pair.put("PB", b"z" * 12 + bytes(4), no, {f"/{no}": bytes(1000)})
    pair.run(1.0)
    assert pair.b.pair.in_sync()
    before = pair.b.state.number
    pair.b.link.want_whole()
    while pair.b.link.loader is None:
        for name in "BP":
            pair.now += 0.05
            pair.turn(name)
    pair.b.do(Vote())
    assert not pair.b.active, "the active lives"
    pair.stopped = "P"
    pair.run(6.0)
    pair.b.do(Vote())
    assert pair.b.active and pair.b.link.loader is None and pair.b.state.number >= before


def test_an_active_that_opens_a_higher_epoch_tells_it_in_the_same_turn(pair: Cores) -> None:
    """The other server may be active too, in an epoch below, and goes on until it hears of it (seed 15751)."""
    pair.p.begin_turn(pair.now + 0.01, 0.0)
    pair.p.do(RiseAbove(pair.p.state.epoch + 2))
    turn = pair.p.end_turn()
    assert b"STATE" in {frames[0] for frames in [*turn.to_peer, *turn.opened]}
