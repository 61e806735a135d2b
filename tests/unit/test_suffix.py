"""covers: suffix.py and replay.py: what became of each update that a second active did, by outcome, not by number."""

import random
from collections.abc import Callable
from dataclasses import replace

from chp.access import Rules
from chp.batch import Segment, packb
from chp.keys import public_session
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.pair import follow
from chp_server.core.peer.suffix import CONFLICT, REPLAYED, Ledger, SuffixPart
from chp_server.testing import Cores

X, Y, Z = (letter * 12 + bytes(4) for letter in (b"x", b"y", b"z"))


def revision(pair: Cores, server: str, session: bytes, no: int) -> int:
    """Return the revision that a server acknowledged."""
    return next(int(answer[2]) for answer in pair.answers(session, server) if answer[:2] == (no, "ack"))


def in_sync_with(**values: bytes) -> Cores:
    """Return a pair in sync that holds these keys."""
    pair = Cores()
    pair.put("P", Z, 1, {f"/{name}": value for name, value in values.items()})
    pair.run(0.3)
    return pair


def count_up(pair: Cores, times: int, at: int, first: int = 1, session: bytes = X) -> int:
    """Let a client of both servers raise a counter by P's acknowledgements, and return the last revision."""
    for no in range(first, first + times):
        pair.put("PB", session, no, {"/n": b"%d" % no}, c=[[0], [at]])
        pair.run(0.05)
        at = revision(pair, "P", session, no)
    return at


def part(pair: Cores) -> None:
    """Cut the link until P goes on alone."""
    pair.linked = False
    pair.run(1.5)
    assert not pair.p.pair.in_sync()


def take_over(pair: Cores) -> None:
    """Stop P, and let B take over by votes."""
    pair.stopped = "P"
    pair.run(1.2)
    pair.vote("B")
    pair.run(0.3)
    assert pair.b.active


def meet(pair: Cores) -> None:
    """Heal all faults, and check that B stays active and P follows."""
    pair.stopped, pair.linked = "", True
    pair.run(3.0)
    assert pair.b.active and not pair.p.active and pair.b.pair.in_sync()
    assert pair.p.state.map.values == pair.b.state.map.values


def test_a_chain_of_conditional_sets_of_one_client_is_replayed() -> None:
    """The successor had all ten in its pending list, did the first, and refused the others as parted."""
    pair = in_sync_with(n=b"0")
    start = pair.p.state.map.revisions["/n"]
    part(pair)
    count_up(pair, 10, start)
    assert [answer[1] for answer in pair.answers(X, "P")] == ["ack"] * 10
    take_over(pair)
    assert pair.b.state.map.values["/n"] == b"1"
    assert {answer[1] for answer in pair.answers(X, "B") if answer[0] > 1} == {"parted"}, "not a plain conflict"
    meet(pair)
    assert pair.b.state.map.values["/n"] == b"10"
    assert pair.outcomes() == {"/n": REPLAYED}


def test_a_write_of_another_client_breaks_the_chain_of_conditions() -> None:
    pair = in_sync_with(n=b"0")
    start = pair.p.state.map.revisions["/n"]
    part(pair)
    count_up(pair, 5, start)
    take_over(pair)
    pair.put("B", Y, 1, {"/n": b"theirs"})
    pair.run(0.1)
    meet(pair)
    assert pair.b.state.map.values["/n"] == b"theirs"
    assert pair.outcomes() == {"/n": CONFLICT}


def test_an_equal_value_of_another_client_is_still_a_conflict() -> None:
    """Both raise 0 to 1, one on each server: one of the two is in conflict, whatever the values say."""
    pair = in_sync_with(n=b"0")
    start = pair.p.state.map.revisions["/n"]
    part(pair)
    take_over(pair)
    pair.put("B", Y, 1, {"/n": b"1"}, c=[[0], [start]])
    pair.stopped = ""
    pair.put("P", X, 1, {"/n": b"1"}, c=[[0], [start]])
    # The server has heard no peer for long.
    pair.p.pair.hold_until = 0.0
    pair.run(0.2)
    meet(pair)
    assert pair.outcomes() == {"/n": CONFLICT}
    pair.put("B", X, 1, {"/n": b"1"}, c=[[0], [start]])
    pair.run(0.3)
    assert pair.answers(X, "B")[-1][:2] == (1, "parted"), "its client is told, if it asks again"


def test_a_batch_that_the_successor_refused_for_good_is_a_conflict() -> None:
    """A batch that one server refused for good is not done by the other; Y was first at P, X at B."""
    pair = in_sync_with(n=b"0")
    start = pair.p.state.map.revisions["/n"]
    part(pair)
    pair.put("B", X, 1, {"/n": b"x"}, c=[[0], [start]])
    pair.put("P", Y, 1, {"/n": b"y"}, c=[[0], [start]])
    pair.put("B", Y, 1, {"/n": b"y"}, c=[[0], [start]])
    pair.run(0.1)
    take_over(pair)
    assert pair.answers(Y, "B")[-1][:2] == (1, "revision")
    meet(pair)
    assert pair.b.state.map.values["/n"] == b"x" and pair.outcomes() == {"/n": CONFLICT}


def test_each_batch_of_a_record_of_two_clients_has_its_own_outcome() -> None:
    """One batch was done by both servers and one only here, and each gets its own outcome."""
    pair = in_sync_with(a=b"0", b=b"0")
    part(pair)
    pair.put("PB", X, 1, {"/a": b"x"})
    pair.put("P", Y, 1, {"/b": b"y"})
    pair.run(0.05)
    take_over(pair)
    pair.put("B", Z, 2, {"/a": b"later"})
    pair.run(0.1)
    meet(pair)
    assert pair.b.state.map.values == {"/a": b"later", "/b": b"y"}, "x was done before, and is not done again"
    assert pair.outcomes() == {"/a": "already", "/b": REPLAYED}
    before = pair.b.state.number
    for session in (X, Y):
        pair.put("B", session, 1, {"/a": b"again", "/b": b"again"})
    pair.run(0.3)
    assert pair.b.state.number == before, "both count as done"


def test_a_refusal_waits_for_the_passive_as_an_acknowledgement_does() -> None:
    """A successor that never had the record might do what was refused because of it."""
    pair = in_sync_with(n=b"0")
    pair.put("P", X, 1, {"/n": b"x"})
    pair.put("P", Y, 1, {"/n": b"y"}, c=[[0], [7]])
    pair.now += 0.05
    turn = pair.turn("P")
    assert turn.acks == [] and len(pair.p.committer.acks.waiting) > 0
    pair.run(0.2)
    assert pair.answers(Y)[-1][:2] == (1, "revision")


def test_each_acknowledged_raise_of_a_split_counts_or_is_a_conflict() -> None:
    """Random order of raises by two clients at both servers: the counter is what the accounts say."""
    for seed in range(40):
        rng = random.Random(seed)
        pair = in_sync_with(n=b"0")
        at = {"P": pair.p.state.map.revisions["/n"], "B": pair.p.state.map.revisions["/n"]}
        part(pair)
        nos = {X: 0, Y: 0}
        for _ in range(rng.randint(1, 4)):
            session = rng.choice((X, Y))
            nos[session] += 1
            pair.put("PB", session, nos[session], {"/n": b"%d" % sum(nos.values())}, c=[[0], [at["P"]]])
            pair.run(0.05)
            at["P"] = pair.p.state.map.revisions["/n"]
        take_over(pair)
        wrote = rng.random() < 0.5
        if wrote:
            pair.put("B", Z, 2, {"/n": b"theirs"})
            pair.run(0.1)
        meet(pair)
        value, outcome = pair.b.state.map.values["/n"], pair.outcomes().get("/n")
        assert value == (b"theirs" if wrote else b"%d" % sum(nos.values())), seed
        assert (outcome == CONFLICT) == (wrote and sum(nos.values()) > 1), (seed, outcome)


def test_a_client_is_not_sent_back_while_the_suffix_is_awaited() -> None:
    """Otherwise the client would send the rest in a new session, and the suffix would bring it again."""
    pair = in_sync_with(n=b"0")
    part(pair)
    pair.put("P", X, 1, {"/a": b"1"})
    pair.put("P", X, 2, {"/b": b"2"})
    pair.run(0.1)
    pair.vote("B")
    pair.linked = True
    while pair.b.committer.view.suffix_due < pair.now:
        pair.run(0.05)
    pair.put("B", X, 3, {"/c": b"3"})
    assert pair.b.active and pair.b.state.sessions.get(public_session(X)) is None, "its suffix has not come yet"
    meet(pair)
    assert not [answer for answer in pair.answers(X, "B") if answer[1] in ("session", "expected")]
    pair.put("B", X, 3, {"/c": b"3"})
    pair.run(2.5)
    assert pair.answers(X, "B")[-1][:2] == (3, "ack")
    pair.put("B", Y, 2, {"/d": b"4"})
    pair.run(0.1)
    assert pair.answers(Y, "B")[-1][:2] == (2, "session"), "later, whoever is unknown is told"


def test_a_batch_in_partial_conflict_replays_its_free_keys_without_the_message() -> None:
    """The message stays out, while the keys must be set as the file says; they were once dropped (seed 120140)."""
    batch = Segment(["/free", "/theirs"], [b"1", b"1"], {"publish": [["t", 1, b"m"]]})
    state = in_sync_with(theirs=b"0").p.state
    # The present value has been written since.
    common = state.number - 1
    taken, updates = Ledger(common).judge(SuffixPart([[X, 1]], True, [batch]), state, lambda _key: False)
    assert [update.outcome for update in updates] == [REPLAYED, CONFLICT]
    assert taken is not None and not taken.whole and taken.segments == [Segment(["/free"], [b"1"], None)]


def test_a_repeated_answer_to_a_replay_counts_once() -> None:
    """An active that was stopped answers a message and its repetition; the next message was once dropped (13656)."""
    pair = Cores(limits=replace(DEFAULT, part_bytes=1))
    part(pair)
    for no in range(1, 6):
        pair.put("P", X, no, {f"/{no}": b"1"})
        pair.run(0.1)
    take_over(pair)
    pair.stopped, pair.linked = "", True
    for _ in range(60):
        pair.run(0.05)
        pair._mail["P"] += [frames for frames in pair._mail["P"] if frames[0] == follow.REPLAYED]
    assert pair.b.active and pair.b.state.map.values == {f"/{no}": b"1" for no in range(1, 6)}


def test_a_version_of_an_application_of_another_user_is_a_conflict() -> None:
    """Otherwise the active would take that user's next versions for done (seed 13023)."""
    pair = Cores()
    part(pair)
    pair.put("P", X, 1, {"/a": b"1"}, once=["app", 1000, False])
    pair.run(0.1)
    take_over(pair)
    pair.put("B", Y, 1, {"/b": b"1"}, once=["app", 1, False])
    pair.run(0.1)
    pair.p.state.staging.own("app", "mallory")
    pair.b.state.staging.own("app", "alice")
    # Owners count while there are rules.
    pair.b.state.access.rules = Rules.of({"users": {}})
    meet(pair)
    assert pair.outcomes()["/a"] == CONFLICT
    assert {core.state.staging.versions["app"].version for core in (pair.p, pair.b)} == {1}


def replayed_after(happens: Callable[[Cores], None]) -> Cores:
    """Return a pair whose passive replayed version 1000 of mallory's, after something happened at the active."""
    pair = Cores()
    part(pair)
    pair.put("P", X, 1, {"/a": b"1"}, once=["app", 1000, False])
    pair.run(0.1)
    take_over(pair)
    pair.p.state.staging.own("app", "mallory")
    pair.stopped, pair.linked = "", True
    while not (held := [frames for frames in pair._mail["B"] if frames[0] == follow.REPLAY]):
        pair.turn("B")
        pair.now += 0.05
        pair.turn("P")
    pair._mail["B"] = [frames for frames in pair._mail["B"] if frames[0] != follow.REPLAY]
    happens(pair)
    pair._mail["B"] += held
    pair.run(0.5)
    return pair


def test_a_waiting_version_is_not_counted_if_another_user_took_the_application() -> None:
    """Between the take-over and its REPLAY a passive may write a whole state, and learns of no new user."""

    def alice_begins(pair: Cores) -> None:
        pair.put("B", Y, 1, {"/b": b"1"}, once=["app", 1, False])
        pair.turn("B")
        pair.b.state.staging.own("app", "alice")

    pair = replayed_after(alice_begins)
    assert {core.state.staging.versions["app"].version for core in (pair.p, pair.b)} == {1}
    assert "/a" not in pair.b.state.map.values


def test_an_application_keeps_its_user_when_its_version_is_replayed() -> None:
    """Another user that took it later would find its versions done that it never did."""
    pair = replayed_after(lambda _pair: None)
    assert {core.state.staging.owner_of("app") for core in (pair.p, pair.b)} == {"mallory"}
    assert {core.state.staging.versions["app"].version for core in (pair.p, pair.b)} == {1000}


def test_a_replayed_key_keeps_its_lease_beyond_the_log() -> None:
    """The states tell of the key alone: without the lease that it was to end with, it would stay for ever."""
    pair = Cores(limits=replace(DEFAULT, log_records_max=3))
    pair.put("PB", X, 1, {}, lease=[b"L" * 16, 60_000])
    pair.run(0.3)
    part(pair)
    pair.put("P", Y, 1, {}, lease=[b"M" * 16, 60_000])
    pair.run(0.1)
    pair.put("P", X, 2, {"/old": b"1"}, l=b"L" * 16)
    pair.put("P", Y, 2, {"/new": b"1"}, l=b"M" * 16)
    pair.run(0.1)
    for no in range(1, 10):
        pair.put("P", Z, no, {"/plain": b"%d" % no})
        pair.run(0.1)
    take_over(pair)
    meet(pair)
    assert pair.outcomes() == {"/old": REPLAYED, "/new": CONFLICT, "/plain": REPLAYED}
    assert pair.b.state.lease_of == {"/old": b"L" * 16}


def test_an_expiry_beyond_the_log_is_a_conflict_and_not_a_delete() -> None:
    """The key got its ttl after the split, in a record that the log has dropped (seed 120351)."""
    pair = Cores(limits=replace(DEFAULT, log_records_max=3))
    pair.put("PB", Z, 1, {"/ends": b"0", "/deleted": b"0"})
    pair.run(0.3)
    part(pair)
    pair.put("P", X, 1, {"/ends": b"1"}, t=100)
    pair.put("P", X, 2, {"/deleted": b""}, d=[0])
    pair.run(1.0)
    assert not pair.p.state.map.values
    for no in range(2, 10):
        pair.put("P", Z, no, {"/plain": b"%d" % no})
        pair.run(0.1)
    take_over(pair)
    meet(pair)
    assert pair.outcomes() == {"/ends": CONFLICT, "/deleted": REPLAYED, "/plain": REPLAYED}


def test_a_classic_set_is_done_once_where_the_log_does_not_reach_back() -> None:
    """The states tell of its key alone; its uuid goes with them, as the other server may have it pending."""
    pair = Cores(limits=replace(DEFAULT, log_records_max=3))
    kvset = [b"/classic", pack(0), b"u" * 16, b"", b"1"]
    part(pair)
    pair.p.collect(kvset)
    for no in range(1, 10):
        pair.run(0.1)
        pair.put("P", Z, no, {"/plain": b"%d" % no})
    take_over(pair)
    meet(pair)
    revision_of = pair.b.state.map.revisions["/classic"]
    pair.b.collect(kvset)
    pair.run(0.5)
    assert pair.b.state.map.revisions["/classic"] == revision_of
    assert list(pair.b.state.uuids) == list(pair.p.state.uuids) == [b"u" * 16]


def test_a_malformed_answer_to_a_replay_changes_nothing() -> None:
    pair = in_sync_with(n=b"0")
    part(pair)
    pair.put("P", X, 1, {"/x": b"1"})
    pair.run(0.2)
    take_over(pair)
    pair.stopped, pair.linked = "", True
    replay = pair.p.link.replay
    while not (replay._waiting and replay._sent_at > 0):
        pair.now += 0.05
        pair.turn("B")
        pair.turn("P")
    pair.p.begin_turn(pair.now, pair.now)
    wrong: list[tuple[object, object]] = [(["/x"], "x"), ([], None), ([], -1), ([], True), ("/x", 1), ([b"/x"], 1)]
    for answer in [*wrong, (None, 1), ({"/x": 1}, 1)]:
        pair.p.peer_message([follow.REPLAYED, packb([replay._id, *answer])])
    pair.p.end_turn()
    assert len(replay._waiting) == 1
    pair.run(3.0)
    assert pair.b.state.map.values["/x"] == b"1" and pair.outcomes() == {"/x": REPLAYED}
    assert "suffix handed over" in [fact.event for turn in pair.turns["P"] for fact in turn.facts]
