"""A replica: the numbers, bodies and digests of the pair, and what it does when upstream is silent."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from chp.access import VOUCH
from chp.batch import Segment, decode, encode, packb, unpackb
from chp.digest import NOTHING
from chp.headers import Ack, Batch, Greeting, Kthxbai, Records, Refused, Reply, State, Sync, expect, request_of
from chp.keys import RESERVED_KEY, channel_topic, public_session, session_topic
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.versions import VERSION
from chp_server.core.performing import Step, steps
from chp_server.core.replica.age import Age
from chp_server.core.replica.own_channels import header_in
from chp_server.core.replica.passed_reads import PassedRead, PassedReads
from chp_server.core.replica.upstream import CREDIT, SETS, UPDATES
from chp_server.core.updates.authorizer import VOUCHED, Signed
from chp_server.core.updates.turn import Frames
from chp_server.cores import STEP_S, Cores

from .client_frames import n
from .replicas import WithReplica
from .test_performing import Recorder, full_turn

SESSIONS = [bytes([i]) * 12 + bytes(4) for i in range(1, 4)]
SUBTREES = ("", "/a/", "/b/")


def test_a_replica_has_the_numbers_the_bodies_and_the_digests_of_the_pair() -> None:
    pair = WithReplica()
    assert pair.r.active
    for subtree in SUBTREES:
        pair.listen(subtree, "P", "R")
    chance, nos = random.Random(7), dict.fromkeys(SESSIONS, 0)
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            session = chance.choice(SESSIONS)
            nos[session] += 1
            key = chance.choice(["/a/x", "/a/y", "/b/x", "/c"])
            items = {key: None if chance.random() < 0.2 else b"v" * chance.randrange(9)}
            if chance.random() < 0.3:
                pair.put("P", session, nos[session], items, t=chance.randrange(100, 400))
            else:
                pair.put("P", session, nos[session], items)
        if chance.random() < 0.2:
            pair.cores["P"].collect([b"/a/plain", bytes(8), chance.randbytes(16), b"", b"old"])
        pair.run(0.05)
    pair.run(1.0)
    assert pair.r.state.proof() == pair.p.state.proof()
    assert pair.r.state.map.values == pair.p.state.map.values
    assert pair.r.state.map.revisions == pair.p.state.map.revisions
    for subtree in SUBTREES:
        assert pair.batches("P", subtree)
        assert pair.batches("R", subtree) == pair.batches("P", subtree)
        channels = [core.committer.committed.channels for core in (pair.p, pair.r)]
        assert channels[0].digest_of(subtree) == channels[1].digest_of(subtree)
    pair.r.state.check()


def test_a_replica_publishes_a_staged_commit_in_the_parts_of_the_active() -> None:
    pair = WithReplica()
    for subtree in SUBTREES:
        pair.listen(subtree, "P", "R")
    transaction = b"t" * 16
    for i in range(5):
        items = {f"/{'ab'[j % 2]}/{i}.{j}": bytes(400_000) for j in range(4)}
        pair.put("P", SESSIONS[0], i + 1, items, stage=[transaction, f"{i}.0"])
        pair.run(0.05)
    commit = [transaction, "app", 1, [[f"{i}.0", 1] for i in range(5)], None]
    pair.put("P", SESSIONS[0], 6, {}, commit=commit)
    pair.run(1.0)
    assert len(pair.batches("P", "")) > 1
    for subtree in SUBTREES:
        assert pair.batches("R", subtree) == pair.batches("P", subtree)
    assert pair.r.state.proof() == pair.p.state.proof()


def test_chp_1_readers_hear_equal_messages_at_replica_and_active() -> None:
    """A staged update is not heard before its commit, and takes no number from those beside it."""
    pair, transaction = WithReplica(), b"t" * 16
    for core in (pair.p, pair.r):
        core.subscription([b"reader", b"\x01"])
    pair.put("P", SESSIONS[0], 1, {"/staged": b"1"}, stage=[transaction, "0.0"])
    pair.p.collect([b"/plain", bytes(8), b"u" * 16, b"", b"2"])
    pair.run(0.5)
    heard = {at: [frames for frames in pair.published[at] if frames[0][:1] == b"/"] for at in ("P", "R")}
    assert heard["R"] == heard["P"] and [frames[0] for frames in heard["R"]] == [b"/plain"]
    pair.put("P", SESSIONS[0], 2, {}, commit=[transaction, "app", 1, [["0.0", 1]], None])
    pair.run(0.5)
    heard = {at: [frames for frames in pair.published[at] if frames[0][:1] == b"/"] for at in ("P", "R")}
    assert heard["R"] == heard["P"] and [frames[0] for frames in heard["R"]] == [b"/plain", b"/staged"]


def test_a_replica_publishes_a_record_in_the_parts_of_the_active() -> None:
    pair = WithReplica(replace(DEFAULT, part_bytes=1000))
    for subtree in SUBTREES:
        pair.listen(subtree, "P", "R")
    segments = [Segment([f"/{'ab'[i % 2]}/{i}"], [bytes(600)], None) for i in range(8)]
    pair.p.committer.commit_in_parts(pair.p.turn, segments)
    pair.run(0.5)
    assert len(pair.batches("P", "")) > 1 and len(pair.batches("P", "/a/")) > 1, "it has parts"
    for subtree in SUBTREES:
        assert pair.batches("R", subtree) == pair.batches("P", subtree)


def test_a_replica_that_lost_its_stream_goes_on_by_records() -> None:
    pair = WithReplica()
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(0.5)
    pair.cut.add("R")
    pair.put("P", SESSIONS[0], 2, {"/k": b"2"})
    pair.run(2.0)
    assert not pair.r.active
    pair.cut.clear()
    pair.run(2.0)
    assert pair.r.active and pair.r.state.proof() == pair.p.state.proof()
    said = [fact.fields["by"] for turn in pair.turns["P"] for fact in turn.facts if fact.event == "a replica follows"]
    assert said[0] in ("records", "whole state") and set(said[1:]) == {"records"}


def test_a_replica_takes_the_whole_state_if_the_records_that_it_lacks_are_gone() -> None:
    pair = WithReplica(replace(DEFAULT, log_records_max=2))
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(0.5)
    pair.cut.add("R")
    for no in range(2, 9):
        pair.put("P", SESSIONS[0], no, {"/k": b"%d" % no})
        pair.run(0.1)
    pair.cut.clear()
    pair.run(2.0)
    assert pair.r.active and pair.r.state.proof() == pair.p.state.proof()


def test_a_silent_upstream_makes_a_replica_passive_and_its_heartbeats_stop() -> None:
    pair = WithReplica()
    pair.listen("/a/", "R")
    pair.run(0.5)
    pair.cut.add("R")
    pair.run(1.5)
    pair.published["R"].clear()
    pair.run(1.0)
    assert pair.r.pair.bstate is State.PASSIVE and pair.published["R"] == []
    assert pair.r.load()["age"] > 1500
    pair.r.request([b"c", ICANHAZ, b"/a/", packb({"chp": 5, "id": 9, "from": 0})])
    pair.run(0.1)
    assert next(header for header in pair.answers_to(b"c") if isinstance(header, Refused)).code == "passive"


def test_a_replica_follows_the_successor_and_its_clients_resume() -> None:
    pair = WithReplica()
    pair.put("PB", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(0.5)
    before = pair.r.state.number
    whose = pair.r.state.whose(before)
    pair.stopped = "P"
    pair.run(6.0)
    assert pair.b.active and pair.r.active and pair.r.state.epoch == 2
    pair.put("B", SESSIONS[0], 2, {"/k": b"2"})
    pair.run(0.5)
    pair.r.request([b"c", ICANHAZ, b"", packb({"chp": 5, "id": 9, "from": before, "proof": whose})])
    pair.run(0.1)
    (end,) = [header for header in pair.answers_to(b"c") if isinstance(header, Kthxbai)]
    assert end.resumed and end.number == pair.b.state.number


def test_a_reader_that_is_ahead_waits_and_resumes() -> None:
    pair = WithReplica()
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.turn("P")
    late = pair.take_lines("R")
    ahead = pair.p.state.number
    assert ahead > pair.r.state.number and pair.r.active
    pair.r.request([b"c", ICANHAZ, b"", packb({"chp": 5, "id": 9, "from": ahead, "proof": pair.p.state.whose(ahead)})])
    pair.replica_turn("R")
    assert pair.answers_to(b"c") == []
    pair.give_lines("R", late)
    pair.replica_turn("R")
    (end,) = [header for header in pair.answers_to(b"c") if isinstance(header, Kthxbai)]
    assert end.resumed and end.number == ahead


def test_a_resume_that_stays_ahead_is_refused_as_busy() -> None:
    pair = WithReplica()
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.turn("P")
    pair.take_lines("R")
    ahead = pair.p.state.number
    assert ahead > pair.r.state.number and pair.r.active
    asked = {"chp": 5, "from": ahead, "proof": pair.p.state.whose(ahead)}
    pair.r.request([b"c", ICANHAZ, b"", packb({**asked, "id": 9})])
    pair.r.request([b"d", ICANHAZ, b"", packb({**asked, "id": 10, "feed": True})])
    pair.stopped = "PB"
    pair.run(0.7)
    (refused,) = pair.answers_to(b"c")
    assert isinstance(refused, Refused) and refused.code == "busy", "it waited, and the record did not come"
    assert any(line == b"Q\x00d" for line, *_ in pair.sent_up)


def test_a_replica_passes_on_a_set_and_its_acknowledgement() -> None:
    pair = WithReplica()
    topic = session_topic(public_session(SESSIONS[0]))
    pair.r.subscription([b"c", b"\x01" + topic])
    pair.run(0.3)
    greeted = [frames for frames in pair.published["R"] if frames[0] == topic]
    assert greeted, "the own channel is greeted once upstream has greeted it"
    pair.r.collect([RESERVED_KEY, (1).to_bytes(8), SESSIONS[0], b"", b"\x93\x91\xa2/k\x91\xc4\x011\xc0"])
    pair.run(1.0)
    acks = [frames for frames in pair.published["R"] if frames[0] == topic][len(greeted) :]
    assert len(acks) == 1 and pair.r.state.map.values == {"/k": b"1"}


def test_a_replica_passes_on_a_refusal_that_names_many_keys() -> None:
    pair = WithReplica()
    topic = session_topic(public_session(SESSIONS[0]))
    pair.r.subscription([b"c", b"\x01" + topic])
    pair.run(0.3)
    keys = [f"/{i}/{'k' * 50}" for i in range(300)]
    body = Segment(keys, [b""] * len(keys), {"c": [list(range(300)), [n(7)] * 300]}).encode()
    pair.r.collect([RESERVED_KEY, (1).to_bytes(8), SESSIONS[0], b"", body])
    pair.run(1.0)
    [refused] = [decode(frames[4])[0] for frames in pair.published["R"] if frames[0] == topic][1:]
    assert isinstance(refused, Refused) and len(packb(refused.detail)) > 4096


def test_a_replica_takes_a_page_of_messages_of_any_length() -> None:
    facts = {"fill": bytes(1 << 20)}
    assert header_in(encode(Reply(7, facts))) == Reply(7, facts)


def test_a_replica_forgets_a_read_with_its_answer_of_any_length() -> None:
    reads = PassedReads()
    for no in range(3):
        assert reads.begin(b"c", no, PassedRead("", 0.0), 2)
        reads.heard(b"c", [b"", b"", b"", b"", encode(Reply(no, {"rows": bytes(10_000)}))])


def test_a_server_of_another_pair_gets_no_sets() -> None:
    pair = WithReplica()
    topic = session_topic(public_session(SESSIONS[0]))
    pair.r.subscription([b"c", b"\x01" + topic])
    pair.run(0.3)
    told = Greeting(VERSION, State.PASSIVE, n(1), 250, b"s" * 16, "b", None, pair.p.state.store)
    kvset = [RESERVED_KEY, (1).to_bytes(8), SESSIONS[0], b"", b"\x93\x91\xa2/k\x91\xc4\x011\xc0"]

    def sent_after(store: bytes) -> list[Frames]:
        other = [topic, n(1).to_bytes(8), b"", b"", encode(told._replace(store=store))]
        pair.give_lines("R", [(UPDATES + b"\1", other)])
        pair.replica_turn("R")
        pair.sent_up.clear()
        pair.r.collect(kvset)
        pair.replica_turn("R")
        return [frames for frames in pair.sent_up if frames[0][:1] == SETS]

    assert [frames[0] for frames in sent_after(b"x" * 16)] == [SETS + b"\0"]
    assert [frames[0] for frames in sent_after(pair.p.state.store)] == [SETS + b"\0", SETS + b"\1"]


def test_an_acknowledgement_comes_behind_the_record_of_its_batch() -> None:
    """An answer that overtakes the record on its way waits at the replica until the record is published."""
    pair = WithReplica()
    own, everything = session_topic(public_session(SESSIONS[0])), channel_topic("")
    for topic in (own, everything):
        pair.r.subscription([b"c", b"\x01" + topic])
    pair.run(0.3)
    pair.r.collect([RESERVED_KEY, (1).to_bytes(8), SESSIONS[0], b"", b"\x93\x91\xa2/k\x91\xc4\x011\xc0"])
    pair.replica_turn("R")
    lines = []
    for _ in range(8):
        Cores.run(pair, STEP_S)
        lines += pair.take_lines("R")
    early = [(line, frames) for line, frames in lines if line[:1] == UPDATES]
    assert any(frames[0] == own for _, frames in early)
    pair.published["R"].clear()
    pair.give_lines("R", early)
    pair.replica_turn("R")
    assert own not in [frames[0] for frames in pair.published["R"]]
    pair.give_lines("R", [each for each in lines if each not in early])
    pair.replica_turn("R")
    kinds = [type(decode(frames[4])[0]) for frames in pair.published["R"] if len(frames) == 5]
    assert kinds.index(Batch) < kinds.index(Ack)


def test_a_replica_passes_on_questions_to_the_active() -> None:
    pair = WithReplica()
    pair.r.request([b"c", ICANHAZ, b"\x02leases\x03", packb({"chp": 5, "id": 3})])
    pair.run(0.3)
    assert [request_of(header) for header in pair.answers_to(b"c")] == [3]
    assert b"c" in pair.r.requests.passed
    pair.r.requests.gone(b"c")
    turn = pair.replica_turn("R")
    assert [b"Q\x00c"] in turn.to_peer, "the client's connection ends"


def test_questions_go_to_the_successor_after_a_failover() -> None:
    pair = WithReplica()
    asks = [b"c", ICANHAZ, b"\x02leases\x03", packb({"chp": 5, "id": 3})]
    pair.r.request(asks)
    pair.run(0.3)
    pair.stopped = "P"
    pair.run(6.0)
    assert pair.r.active and pair.r.upstream.source == 1
    pair.r.request(asks)
    pair.run(0.3)
    assert [request_of(header) for header in pair.answers_to(b"c")] == [3, 3]


def resume(pair: WithReplica, start: int, request_id: int = 9, *, at: str = "R", **more: Any) -> None:
    """Ask a replica for what changed after a number."""
    asked = {"chp": 5, "id": request_id, "from": start, "proof": pair.p.state.whose(start), **more}
    pair.replicas[at].request([b"c", ICANHAZ, b"", packb(asked)])
    pair.run(0.5)


@pytest.fixture
def restarted() -> tuple[WithReplica, int]:
    """A pair whose replica has restarted without data, and a number before those that it has records of."""
    pair = WithReplica(row=True)
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(0.5)
    before = pair.r.state.number
    for no in range(2, 5):
        pair.put("P", SESSIONS[0], no, {"/k": b"%d" % no})
        pair.run(0.1)
    pair.start("R")
    pair.start("R2")
    pair.run(3.0)
    assert pair.r.active and pair.replicas["R2"].active and not pair.r.committer.committed.log.reaches(before)
    return pair, before


@pytest.mark.parametrize("at", ["R", "R2"])
def test_a_replica_that_lacks_the_records_passes_the_resume(restarted: tuple[WithReplica, int], at: str) -> None:
    pair, before = restarted
    snapshots = pair.p.committer.counts["snapshots"]
    # P publishes the channel too, so that it has a digest of it.
    pair.p.subscription([b"listener", b"\x01" + channel_topic("")])
    pair.run(0.1)
    assert pair.p.committer.committed.channels.digest_of("") != NOTHING
    resume(pair, before, at=at)
    *records, end = pair.answers_to(b"c")
    assert isinstance(end, Kthxbai) and end.resumed and end.number == pair.p.state.number
    assert (end.since, end.digest) == NOTHING, "the digest of upstream's channel says nothing of this replica's channel"
    assert records and all(isinstance(header, Records) for header in records)
    assert pair.p.committer.counts["snapshots"] == snapshots
    assert not pair.replicas[at].requests.passed, "the connection for it has ended"
    assert any(not frames for line, *frames in pair.sent_up if line == b"Q\x00c")


def test_a_watch_from_a_revision_reads_what_the_pair_retains(restarted: tuple[WithReplica, int]) -> None:
    pair, before = restarted
    resume(pair, before, feed=True)
    *records, end = pair.answers_to(b"c")
    assert isinstance(end, Kthxbai) and records and all(isinstance(header, Records) for header in records)
    resume(pair, before, 10, feed=True, probe=0)
    assert isinstance(pair.answers_to(b"c")[-1], Reply)
    resume(pair, 1 << 40, 11, feed=True)
    refused = pair.answers_to(b"c")[-1]
    assert isinstance(refused, Refused) and refused.code == "retained"
    assert not pair.r.requests.passed


def test_a_replica_sends_a_snapshot_if_the_active_lacks_the_records_too() -> None:
    pair = WithReplica(replace(DEFAULT, log_records_max=2), row=True)
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(0.5)
    before = pair.r.state.number
    for no in range(2, 9):
        pair.put("P", SESSIONS[0], no, {"/k": b"%d" % no})
        pair.run(0.1)
    snapshots = pair.p.committer.counts["snapshots"]
    for request_id, at in enumerate(["R", "R2"]):
        resume(pair, before, request_id, at=at)
        sync, end = pair.answers_to(b"c")[-2:]
        assert isinstance(sync, Sync) and isinstance(end, Kthxbai) and not end.resumed
    assert pair.p.committer.counts["snapshots"] == snapshots


def test_a_resume_that_upstream_does_not_answer_is_answered_by_the_replica(restarted: tuple[WithReplica, int]) -> None:
    pair, before = restarted
    pair.deaf = True
    resume(pair, before)
    assert pair.answers_to(b"c") == []
    pair.run(1.5)
    resume(pair, before, 10)
    end = pair.answers_to(b"c")[-1]
    assert isinstance(end, Kthxbai) and not end.resumed and end.request == 10


@pytest.mark.parametrize("without", ["an upstream", "a place"])
def test_a_resume_is_refused_as_busy_without_an_upstream_or_a_place(
    restarted: tuple[WithReplica, int], without: str
) -> None:
    pair, before = restarted
    if without == "an upstream":
        pair.r.upstream.source = None
    else:
        pair.r.upstream.passed_max = 0
    asked = {"chp": 5, "id": 9, "from": before, "proof": pair.p.state.whose(before)}
    pair.r.request([b"c", ICANHAZ, b"", packb(asked)])
    pair.replica_turn("R")
    (refused,) = pair.answers_to(b"c")
    assert isinstance(refused, Refused) and refused.code == "busy"


def test_replicas_stand_in_a_row_and_tell_hops_and_age() -> None:
    pair = WithReplica(row=True)
    pair.put("P", SESSIONS[0], 1, {"/k": b"1"})
    pair.run(1.0)
    second = pair.replicas["R2"]
    assert second.active and second.state.proof() == pair.p.state.proof()
    assert (pair.r.load()["hops"], second.load()["hops"]) == (1, 2)
    assert pair.r.requests.replicas.status()[0]["name"] == "R2"
    pair.cut.add("R")
    pair.run(1.0)
    assert second.load()["age"] > 700, "the age counts from the last word of the active"
    pair.run(1.0)
    assert not second.active


def test_words_of_the_active_keep_their_age_while_a_replica_is_stopped() -> None:
    pair = WithReplica()
    pair.stopped = "R"
    pair.run(3.0)
    lines = pair.take_lines("R")
    first = next(i for i, (line, _) in enumerate(lines) if line[:1] == b"P")
    pair.give_lines("R", lines[: first + 1])
    pair.replica_turn("R")
    assert 1500 < pair.r.load()["age"] <= 3000, "what came first waited for the whole stop"
    pair.give_lines("R", lines[first + 1 :])
    pair.replica_turn("R")
    assert pair.r.load()["age"] < 500


def test_a_word_of_the_active_counts_once_the_replica_has_its_number() -> None:
    pair = WithReplica()
    pair.stopped = "R"
    for no in range(1, CREDIT + 20):
        pair.put("P", SESSIONS[0], no, {"/k": b"%d" % no})
        pair.run(0.05)
    pair.stopped = ""
    pair.replica_turn("R")
    assert pair.r.state.number < pair.p.state.number
    assert pair.r.load()["age"] > 500, "the active's last word is new, and tells a number that is not here"
    pair.run(1.0)
    assert pair.r.state.number == pair.p.state.number and pair.r.load()["age"] < 500


def test_cut_off_replicas_tell_the_time_since_the_active_spoke() -> None:
    pair = WithReplica(row=True)
    pair.stopped = "PB"
    pair.run(5.0)
    ages = [pair.replicas[name].load()["age"] for name in ("R", "R2")]
    assert min(ages) > 4500 and max(ages) < 6000
    pair.upstream = {"R": ("R2",), "R2": ("R",)}
    pair.start("R")
    pair.run(2.0)
    assert pair.r.load()["age"] > 1500, "it has heard nothing since its start"


def test_a_replica_knows_why_it_has_no_upstream() -> None:
    pair = WithReplica(row=True)
    pair.run(1.0)
    assert [pair.replicas[name].upstream.trouble() for name in ("R", "R2")] == ["", ""]
    pair.stopped = "PB"
    pair.run(8.0)
    assert pair.r.upstream.trouble().startswith("no server answers")
    assert pair.replicas["R2"].upstream.trouble().startswith("servers answer there, and none of them is active")


def test_the_age_counts_the_shortest_delay_of_a_word_as_zero() -> None:
    age, wall_s = Age(100.0), 5000.0
    age.ask(100.0)
    ways = [0.02, 0.01, 0.5, 0.01]
    # The first word may be as old as the question that it answers.
    lates = [1.0, 0.0, 0.49, 0.0]
    for i, (way_s, late_s) in enumerate(zip(ways, lates, strict=True), 1):
        now = 100.0 + i
        assert age.word(n(i), 0.0, wall_s + i - way_s, now, n(i))
        assert now - age.current_at == pytest.approx(late_s)
    age.word(n(5), 0.0, wall_s - 3600, 105.0, n(5))
    assert age.current_at == 105.0, "the active's clock was set back"
    age.word(n(6), 2.5, wall_s - 3599, 106.0, n(5))
    assert age.current_at == 105.0, "the word tells of a number that is not here"
    assert not age.holds(n(5)) and age.holds(n(6)) and age.current_at == 105.0
    for i in range(7, 2000):
        age.word(n(i), 0.0, wall_s - 3606 + i * 0.999, 100.0 + i, n(i))
        assert 100.0 + i - age.current_at <= 0.61, "a clock that is slow by a thousandth"


def test_replicas_that_follow_each_other_end() -> None:
    pair = WithReplica()
    pair.upstream = {"R": ("R2",), "R2": ("R",)}
    for name in ("R", "R2"):
        pair.start(name)
    pair.run(5.0)
    assert any("follows this replica" in core.upstream.ends for core in pair.replicas.values())


@pytest.mark.parametrize(("told", "ends"), [(7, False), (8, True)])
def test_the_ninth_hop_is_refused(told: int, ends: bool) -> None:
    pair = WithReplica()
    pair.start("R")
    pair.p.requests.replicas.load = lambda: {"hops": told, "age": 0}
    pair.run(2.0)
    assert pair.r.active is not ends and bool(pair.r.upstream.ends) is ends


def test_a_replica_with_data_of_another_store_ends() -> None:
    pair, other = WithReplica(), WithReplica()
    core = pair.start("R")
    core.committer.committed.state = other.p.state
    core.committer.committed.state.store = b"x" * 16
    pair.run(3.0)
    assert "hold the store" in core.upstream.ends


def test_a_greeting_tells_the_load() -> None:
    pair = WithReplica()
    told, plain = (expect(Greeting, unpackb(core.heartbeats.greeting(), "it")[0]) for core in (pair.r, pair.p))
    assert told.replica is not None and told.replica.keys() == {"hops", "age", "readers", "cpu"}
    assert plain.replica is None


def test_a_replica_without_room_says_passive_until_there_is_some() -> None:
    pair = WithReplica()
    waits = steps(pair.r, full_turn(), Recorder(full=["write"]))
    next(step for step in waits if step is Step.NO_ROOM)
    told = expect(Greeting, unpackb(pair.r.heartbeats.greeting(), "it")[0])
    assert told.state == State.PASSIVE and pair.r.status()["state"] == "passive"
    list(waits)
    pair.run(1.0)
    assert pair.r.active


def test_a_message_for_a_user_needs_the_right_to_vouch() -> None:
    pair = WithReplica(keyed=True)
    body = b"\x93\x91\xa2/k\x91\xc4\x011\xc0"
    sets = [[RESERVED_KEY, no.to_bytes(8), SESSIONS[0], b"", body] for no in (1, 2)]
    rules = {"roles": {}, "users": {"bob": {"write": [""]}, "r1": {"admin": [VOUCH]}, "eve": {"write": [""]}}}
    pair.p.committer.keep_access(pair.p.turn, user="root", rules=rules)
    pair.p.collect(Signed([VOUCHED, b"bob", *sets[0]], "eve"))
    pair.run(0.3)
    assert pair.p.committer.counts["garbage_collector"] == 1 and not pair.p.state.map.values
    pair.p.collect(Signed([VOUCHED, b"bob", *sets[0]], "r1"))
    pair.run(0.3)
    assert pair.p.state.map.values == {"/k": b"1"}
    assert set(pair.p.state.access.owners.values()) == {"bob"}
    pair.p.collect(Signed([VOUCHED, b"no name", *sets[1]], "r1"))
    assert pair.p.committer.counts["garbage_collector"] == 2


def test_a_replica_whose_user_may_not_vouch_any_more_is_dropped() -> None:
    pair = WithReplica()
    assert len(pair.p.requests.replicas) == 1
    pair.p.committer.keep_access(pair.p.turn, user="root", rules={"roles": {}, "users": {}})
    pair.run(0.1)
    assert len(pair.p.requests.replicas) == 0
    pair.run(2.0)
    assert not pair.r.active, "it is refused from then on"


def test_a_replica_without_keys_does_not_serve_a_pair_with_rules() -> None:
    pair = WithReplica()
    pair.r.committer.keep_access(pair.r.turn, user="root", rules={"roles": {}, "users": {}})
    pair.run(0.2)
    assert pair.r.state.access.changed, "it has the rules"
    assert not pair.r.active and "--keys" in pair.r.link.ends
