"""Two clients and one key in one turn: each has to be told a revision of its own. covers: commit.py"""

from dataclasses import replace
from typing import Any

from chp.batch import ACK, Segment, split
from chp.keys import RESERVED_KEY, public_session, session_topic
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.state.state import ReplicatedState
from chp_server.core.turn import Turn

ONE, TWO = b"1" * 16, b"2" * 16


def core(limits: Limits = DEFAULT) -> ServerCore:
    made = ServerCore(CoreConfig(), b"s" * 16, 0.0, limits)
    made.begin_turn(0.0, 0.0)
    made.end_turn()
    return made


def batch(session: bytes, no: int, value: bytes, **extras: object) -> list[bytes]:
    return [RESERVED_KEY, pack(no), session, b"", Segment(["/k"], [value], dict(extras) or None).encode()]


def revisions(turn: Turn, session: bytes) -> list[int]:
    bodies = [split(m[4])[0] for m in turn.acks if m[0] == session_topic(public_session(session))]
    return [run[2] for header in bodies if header[0] == ACK for run in header[1]]


def test_two_clients_that_write_a_key_in_one_turn_are_told_different_revisions() -> None:
    server = core()
    server.begin_turn(1.0, 1.0)
    server.collect(batch(ONE, 1, b"one"))
    server.collect(batch(TWO, 1, b"two"))
    turn = server.end_turn()
    first, second = revisions(turn, ONE), revisions(turn, TWO)
    assert first != second
    server.begin_turn(2.0, 2.0)
    server.collect(batch(ONE, 2, b"unseen", c=[[0], first]))
    server.end_turn()
    assert server.state.map.values["/k"] == b"two"


def test_a_plain_set_after_a_batch_gets_a_record_of_its_own_if_it_writes_the_same_key() -> None:
    server = core()
    server.begin_turn(1.0, 1.0)
    server.collect(batch(ONE, 1, b"one"))
    server.collect([b"/k", bytes(8), b"u" * 16, b"", b"plain"])
    turn = server.end_turn()
    assert server.state.map.values["/k"] == b"plain"
    assert server.state.map.revisions["/k"] != revisions(turn, ONE)[0]


def test_a_client_that_writes_its_own_key_twice_does_not_split_the_record() -> None:
    server = core()
    server.begin_turn(1.0, 1.0)
    server.collect(batch(ONE, 1, b"a"))
    server.collect(batch(ONE, 2, b"b"))
    assert len(server.end_turn().journal) == server.commits.counts["records"] == 1


def again(server: ServerCore, now: float, no: int) -> list[int]:
    server.begin_turn(now, now)
    server.collect(batch(ONE, no, b"again"))
    return revisions(server.end_turn(), ONE)


def test_a_batch_that_comes_again_is_told_its_own_revision() -> None:
    """Told its session's last one, it could set /k on that condition, over the second client's value."""
    server = core()
    told = []
    for no in (1, 2, 3):
        server.begin_turn(no, no)
        server.collect(batch(TWO, no, b"two"))
        server.collect(batch(ONE, no, b"one"))
        told += revisions(server.end_turn(), ONE)
    assert [again(server, 4.0 + no, no) for no in (1, 2, 3)] == [[revision] for revision in told]
    copy = ReplicatedState(DEFAULT)
    copy.load_rest(split(list(server.state.rest(9.0))[-1])[1], 9.0)
    assert copy.sessions == server.state.sessions, "and whoever catches up by a snapshot knows it too"


def test_a_revision_that_is_forgotten_is_given_as_one_that_no_key_has() -> None:
    server = core(replace(DEFAULT, runs_max=2))
    told = []
    for no in (1, 2, 3):
        server.begin_turn(no, no)
        server.collect(batch(ONE, no, b"one"))
        told += revisions(server.end_turn(), ONE)
    assert [again(server, 4.0 + no, no) for no in (1, 2, 3)] == [[1], [told[1]], [told[2]]]


def test_a_lease_is_opened_and_ended_also_by_a_batch_of_which_no_item_is_newer() -> None:
    server, lease = core(), b"L" * 16
    server.begin_turn(1.0, 1.0)
    server.collect(batch(TWO, 1, b"newer"))
    server.end_turn()
    columns: list[dict[str, Any]] = [{"lease": [lease, 5000]}, {"unlease": lease}]
    for no, column in enumerate(columns, 1):
        server.begin_turn(1.0 + no, 1.0)
        server.collect(batch(ONE, no, b"older", n=[[0], [1]], **column))
        server.end_turn()
        assert (lease in server.state.leases) == (no == 1)
    assert server.state.map.values["/k"] == b"newer"
