"""covers: a batch that was sent again after a split is done once, whichever of repeat and replay comes first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from chp.batch import Segment, decode
from chp.keys import public_session
from chp.limits import DEFAULT
from chp.topics import pack_messages
from chp_server.core.peer.suffix import CONFLICT, REPLAYED, Ledger, SuffixPart
from chp_server.core.state.history import common
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.turn import ALREADY
from chp_server.cores import Cores

X, Y = (letter * 12 + bytes(4) for letter in (b"x", b"y"))
PUBLIC = public_session(X)


def messages(*values: bytes) -> list[list[Any]]:
    """Return the column of a batch that publishes to the topic t."""
    return [["t", len(values), pack_messages(None, list(values))]]


def split() -> Cores:
    """Return a pair of which both are active. Only P has answered batch 2 of a client that both know."""
    pair = Cores()
    pair.put("PB", X, 1, {"/one": b"1"})
    pair.run(0.3)
    pair.linked = False
    pair.run(1.5)
    pair.vote("B")
    pair.run(0.2)
    assert pair.p.active and pair.b.active
    pair.put("P", X, 2, {"/two": b"2"})
    pair.run(0.1)
    return pair


def meet(pair: Cores) -> None:
    """Heal the link, and check that B stays active and P follows."""
    pair.linked = True
    pair.run(3.0)
    assert pair.b.active and not pair.p.active and pair.b.pair.in_sync()
    assert pair.p.state.map.values == pair.b.state.map.values
    sessions = [{i: (s.no, s.skipped) for i, s in core.state.sessions.items()} for core in (pair.p, pair.b)]
    assert sessions[0] == sessions[1]


def repeat_first(pair: Cores, again: Callable[[], None]) -> None:
    again()
    pair.run(0.1)
    meet(pair)


def replay_first(pair: Cores, again: Callable[[], None]) -> None:
    meet(pair)
    again()
    pair.run(0.3)


ORDERS = pytest.mark.parametrize("order", [repeat_first, replay_first])


@ORDERS
@pytest.mark.parametrize(
    ("items", "extras"),
    [
        ({"/three": b"3"}, {}),
        ({}, {"publish": messages(b"a", b"b", b"c")}),
        ({"/three": b"3"}, {"publish": messages(b"a", b"b", b"c"), "once": ["job", 7, False]}),
        ({"/three": b"3"}, {"c": [[0], [0]], "publish": messages(b"a", b"b", b"c")}),
    ],
    ids=["keys", "messages", "once", "conditional"],
)
def test_a_batch_sent_again_after_a_split_is_done_once(
    order: Callable[[Cores, Callable[[], None]], None], items: dict[str, bytes], extras: dict[str, Any]
) -> None:
    pair = split()
    pair.put("P", X, 3, items, **extras)
    pair.run(0.1)
    order(pair, lambda: pair.put("B", X, 3, items, oldest=True, **extras))
    assert pair.answers(X, "B")[-1][:2] == (3, "ack")
    state = pair.b.state
    assert state.map.values == {"/one": b"1", "/two": b"2", **items}
    topic = state.topics.by_name.get("t")
    assert (topic.next if topic else 0) == (3 if "publish" in extras else 0)
    assert pair.outcomes()["/two"] == REPLAYED
    assert state.sessions[PUBLIC].no == 3 and not state.sessions[PUBLIC].skipped


def test_a_server_asks_for_missing_batches_unless_the_client_dropped_them() -> None:
    pair = split()
    pair.put("B", X, 3, {"/three": b"3"})
    pair.run(0.1)
    assert pair.answers(X, "B")[-1] == (3, "expected", 2)
    pair.put("B", Y, 5, {"/five": b"5"})
    pair.run(0.1)
    assert pair.answers(Y, "B")[-1] == (5, "session", 1)
    pair.put("B", Y, 5, {"/five": b"5"}, oldest=True)
    pair.run(0.1)
    assert pair.answers(Y, "B")[-1][:2] == (5, "ack")
    assert pair.b.state.sessions[public_session(Y)].skipped == ((1, 4),)


def test_a_skipped_batch_that_is_replayed_twice_is_done_once() -> None:
    pair = split()
    pair.put("P", X, 3, {}, publish=messages(b"a"))
    pair.run(0.1)
    pair.put("B", X, 4, {"/four": b"4"}, oldest=True)
    pair.run(0.1)
    assert pair.b.state.sessions[PUBLIC].skipped == ((2, 3),)
    meet(pair)
    assert pair.b.state.topics.by_name["t"].next == 1
    assert not pair.b.state.sessions[PUBLIC].skipped
    replays = [frames for turn in pair.turns["P"] for frames in turn.to_peer if frames[0] == b"REPLAY"]
    pair.b.begin_turn(pair.now, pair.now)
    # The server has forgotten this, as if it had been started again.
    pair.b.link.replay._answered = (b"", 0, [], 0)
    pair.b.peer_message(replays[-1])
    pair.b.end_turn()
    assert pair.b.state.topics.by_name["t"].next == 1


def test_a_refused_batch_that_was_the_oldest_records_the_skip_too() -> None:
    pair = split()
    pair.put("B", X, 3, {"/two": b"3"}, oldest=True, c=[[0], [99]])
    pair.run(0.1)
    assert pair.answers(X, "B")[-1][:2] == (3, "revision")
    meet(pair)
    assert pair.b.state.map.values["/two"] == b"2", "batch 2 was not done here, and was handed over"


@pytest.mark.parametrize("strict", [False, True])
def test_a_version_sent_again_by_a_restarted_program_is_done_once(strict: bool) -> None:
    pair = split()
    batch: dict[str, Any] = {"publish": messages(b"a"), "once": ["job", 1, strict]}
    pair.put("P", X, 3, {"/job": b"P"}, **batch)
    pair.run(0.1)
    pair.put("B", Y, 1, {"/job": b"P"}, **batch)
    pair.run(0.1)
    meet(pair)
    assert pair.b.state.topics.by_name["t"].next == 1
    assert pair.outcomes()["/job"] == ALREADY


def test_a_version_that_a_later_one_followed_is_still_known_as_done() -> None:
    pair = split()
    for no, version in ((3, 1), (4, 2)):
        pair.put("P", X, no, {f"/job/{version}": b"1"}, publish=messages(b"m"), once=["job", version, False])
    pair.run(0.1)
    # These batches are of another run of the program, after version 1 was answered.
    for no, version in ((1, 2), (2, 3)):
        pair.put("B", Y, no, {f"/job/{version}": b"1"}, publish=messages(b"m"), once=["job", version, False])
    pair.run(0.1)
    meet(pair)
    assert pair.b.state.topics.by_name["t"].next == 3, "1, 2 and 3, each once"
    assert pair.outcomes()["/job/1"] == REPLAYED
    assert pair.b.state.staging.versions["job"][0] == 3


def test_a_version_that_the_log_does_not_reach_is_a_conflict() -> None:
    pair = split()
    pair.put("P", X, 3, {"/job/1": b"1"}, once=["job", 1, False])
    pair.run(0.1)
    pair.put("B", Y, 1, {"/job/2": b"1"}, once=["job", 2, False])
    pair.run(0.1)
    pair.b.committer.committed.log.clear()
    meet(pair)
    assert "/job/1" not in pair.b.state.map.values
    assert pair.outcomes()["/job/1"] == CONFLICT


def test_a_version_with_a_conflict_is_a_conflict_as_a_whole() -> None:
    """Its free key was once replayed alone, and was set again with the rest (seed 625)."""
    pair = split()
    version: dict[str, Any] = {"publish": messages(b"m"), "once": ["job", 1, False]}
    pair.put("P", X, 3, {"/free": b"job", "/theirs": b"job"}, **version)
    pair.put("B", Y, 1, {"/theirs": b"y"})
    pair.run(0.1)
    meet(pair)
    assert pair.outcomes() == {"/two": REPLAYED, "/free": CONFLICT, "/theirs": CONFLICT}
    assert "/free" not in pair.b.state.map.values and "job" not in pair.b.state.staging.versions
    pair.put("B", Y, 2, {"/free": b"job", "/theirs": b"job"}, **version)
    pair.run(0.3)
    state = pair.b.state
    assert pair.answers(Y, "B")[-1][:2] == (2, "ack") and state.staging.versions["job"][0] == 1
    assert state.map.values["/free"] == state.map.values["/theirs"] == b"job" and state.topics.by_name["t"].next == 1


def test_a_skipped_batch_that_comes_late_is_not_acknowledged() -> None:
    """A server without room had refused it, and died with the refusal (seed 1637)."""
    pair = split()
    pair.put("B", X, 4, {"/four": b"4"}, oldest=True)
    pair.run(0.1)
    answers = pair.answers(X, "B")
    assert answers[-1][:2] == (4, "ack") and pair.b.state.sessions[PUBLIC].skipped == ((2, 3),)
    pair.put("B", X, 3, {"/three": b"3"})
    pair.run(0.1)
    assert pair.answers(X, "B") == answers and "/three" not in pair.b.state.map.values


def test_a_late_skipped_batch_without_content_is_acknowledged_at_the_present_number() -> None:
    """It was acknowledged with revision 1, which stands for a batch that was done long ago (seed 20161)."""
    pair = split()
    pair.put("B", X, 4, {"/four": b"4"}, oldest=True)
    pair.run(0.1)
    number = pair.b.state.number
    pair.put("B", X, 3, {})
    pair.run(0.1)
    assert pair.answers(X, "B")[-1][:3] == (3, "ack", number)


@pytest.mark.parametrize("theirs", ["/job/1", "/job/2"], ids=["the same key", "another key"])
def test_a_version_that_the_active_passed_over_is_not_taken_for_done(theirs: str) -> None:
    """The active got the batches of the program's first run after those of its second run (seed 1245)."""
    pair = split()
    pair.put("B", Y, 1, {theirs: b"2"}, once=["job", 2, False])
    version: dict[str, Any] = {"once": ["job", 1, False]}
    pair.put("B", X, 3, {"/job/1": b"1"}, oldest=True, **version)
    pair.run(0.1)
    assert pair.answers(X, "B")[-1][:2] == (3, "ack") and pair.b.state.map.values.get("/job/1") != b"1"
    ledger = Ledger(common(pair.p.state.history, pair.b.state.history))
    piece = SuffixPart([[PUBLIC, 3]], True, [Segment(["/job/1"], [b"1"], version)])
    take, held = pair.b.link.replay._take, pair.b.state.map
    conflicts = ["/job/1"] if theirs == "/job/1" else []
    assert take(ledger, [piece.to_replay()]) == conflicts
    assert held.values["/job/1"] == (b"2" if conflicts else b"1") and pair.b.state.staging.versions["job"][0] == 2
    revision = held.revisions["/job/1"]
    assert take(ledger, [piece.to_replay()]) == conflicts
    assert held.revisions["/job/1"] == revision, "it is not done twice"


@pytest.mark.parametrize("theirs", ["/job/1", "/job/2"], ids=["the same key", "another key"])
@pytest.mark.parametrize("done", [False, True], ids=["passed over", "done"])
def test_the_loser_does_not_take_a_passed_over_version_for_done(theirs: str, done: bool) -> None:
    """The active had the batches of both runs before the servers met, so the loser sees its batch in the state."""
    pair = split()
    version: dict[str, Any] = {"once": ["job", 1, False], "publish": messages(b"m")}
    pair.put("P", X, 3, {"/job/1": b"1"}, **version)
    first: list[Callable[[], object]] = [partial(pair.put, "B", X, 3, {"/job/1": b"1"}, oldest=True, **version)]
    second: list[Callable[[], object]] = [partial(pair.put, "B", Y, 1, {theirs: b"2"}, once=["job", 2, False])]
    for put in first + second if done else second + first:
        put()
        pair.run(0.1)
    meet(pair)
    wins = not done and theirs == "/job/1"
    state = pair.b.state
    assert state.map.values["/job/1"] == (b"2" if theirs == "/job/1" else b"1")
    assert state.topics.by_name["t"].next == 1 if not wins else "t" not in state.topics.by_name
    assert pair.outcomes()["/job/1"] == (CONFLICT if wins else REPLAYED)
    assert state.staging.versions["job"][0] == 2


def test_an_unconditional_set_after_a_version_in_conflict_is_replayed() -> None:
    pair = split()
    pair.put("P", X, 3, {"/free": b"job", "/bound": b"job", "/theirs": b"job"}, once=["job", 1, False])
    pair.put("B", Y, 1, {"/theirs": b"y"})
    pair.run(0.1)
    pair.put("P", X, 4, {"/free": b"later"})
    pair.put("P", X, 5, {"/bound": b"later"}, c=[[0], [pair.p.state.map.revisions["/bound"]]])
    pair.run(0.1)
    meet(pair)
    assert pair.outcomes() == {"/two": REPLAYED, "/free": REPLAYED, "/bound": CONFLICT, "/theirs": CONFLICT}
    assert pair.b.state.map.values["/free"] == b"later" and "/bound" not in pair.b.state.map.values


def test_a_state_tells_what_was_skipped() -> None:
    pair = split()
    pair.put("B", X, 3, {"/three": b"3"}, oldest=True)
    pair.run(0.1)
    body = list(pair.b.state.rest(pair.now))[-1]
    loaded = ReplicatedState(DEFAULT)
    loaded.load_rest(decode(body)[1][0], pair.now)
    session = loaded.sessions[PUBLIC]
    assert (session.no, session.skipped) == (3, ((2, 2),))
    assert [revision for *_, revision in session.runs] == [run[2] for run in pair.b.state.sessions[PUBLIC].runs]


def test_a_session_remembers_a_bounded_number_of_skips() -> None:
    pair = split()
    for i in range(DEFAULT.skips_of_session_max + 2):
        pair.put("B", Y, 10 * i + 10, {"/y": b"1"}, oldest=True)
        pair.run(0.05)
    session = pair.b.state.sessions[public_session(Y)]
    before = session.skipped
    assert len(before) == DEFAULT.skips_of_session_max
    first, last = before[-1]
    pair.b.state.record_batch(public_session(Y), first + 1, 1, 0.0)
    assert session.skipped == (*before[1:-1], (first, first), (first + 2, last)), "a state tells as many (seed 2894)"
