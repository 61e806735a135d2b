"""covers: state/topics.py, missing_messages.py, delivery.py, member.py; chp/topics.py: offsets, bounds, deliveries."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from chp.batch import Segment, decode, packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import Messages as Told
from chp.headers import Refused
from chp.keys import RESERVED_KEY, public_session
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp.topics import Settings, check_topic, pack_messages, unpack_messages
from chp_server.core.asks import Vote
from chp_server.core.questions.delivery import TopicDelivery
from chp_server.core.questions.message_pages import MessagePages
from chp_server.core.state.leases import LeaseOwner, LeaseTable
from chp_server.core.state.missing_messages import FILL, MissingMessages, answer, asked
from chp_server.core.state.record_log import LoggedMessages
from chp_server.core.state.topics import Topics
from chp_server.core.state.verdicts import Refusal
from chp_server.core.updates.open_record import ROW_BYTES, OpenRecord
from chp_server.core.updates.turn import Append, Fill, ReadMessages, ReadSpans, Replace, Turn
from chp_server.store.memory_store import MessageShelf
from chp_server.testing import Cores

SESSION = b"s" * 16


def publish(topic: str, *values: bytes) -> dict[str, Any]:
    return {"publish": [[topic, len(values), pack_messages(None, list(values))]]}


def check(topics: Topics, extras: dict[str, Any]) -> None:
    topics.check(extras, LeaseTable(), LeaseOwner(b"client"))


def rows(topic: int, *sizes: int) -> list[LoggedMessages]:
    """Return consecutive rows with so many messages each, of the records 1, 2, ..."""
    out, at = [], 0
    for number, n in enumerate(sizes, 1):
        body = packb([pack_messages(None, [b"%d" % i for i in range(at, at + n)])])
        out.append(LoggedMessages(topic, at, n, number, 1000 * number, body))
        at += n
    return out


# -- what may be said


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "ü", 7])
def test_invalid_topic_names_are_refused(name: object) -> None:
    with pytest.raises(BadInput, match="name"):
        check_topic(name)


@pytest.mark.parametrize(
    "told",
    [{"keep": "few"}, {"keep": "time"}, {"max_age_s": 5}, {"keep": "size"}, {"max_bytes": 0}, {"max_messages": True},
     {"colour": 1}, 7],
)  # fmt: skip
def test_invalid_topic_settings_are_refused(told: object) -> None:
    with pytest.raises(BadInput):
        Settings.of(told)


@pytest.mark.parametrize(
    "body",
    [b"", packb([]), packb([None, []]), packb([None, ["text"]]), packb([["a"], [b"1", b"2"]]), packb([[b"a"], [b"1"]]),
     packb({"a": 1})],
)  # fmt: skip
def test_malformed_messages_are_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        unpack_messages(body)


def test_a_batch_with_a_wrong_message_count_is_refused() -> None:
    topics, body = Topics(DEFAULT), pack_messages(["a", "b"], [b"1", b"2"])
    check(topics, {"publish": [["t", 2, body]]})
    with pytest.raises(BadFrame, match="not as many"):
        check(topics, {"publish": [["t", 3, body]]})
    check(topics, {"publish": [["t", 2, body]], "stage": [b"x" * 16, "0"]})
    with pytest.raises(BadFrame, match="stage them before"):
        check(topics, {"publish": [["t", 2, body]], "commit": [b"x" * 16, "", 0, [["0", 1]], None]})
    with pytest.raises(BadFrame, match="send two"):
        check(topics, {"publish": [["t", 2, body]], "topic": ["t", {}]})


# -- offsets


def test_offsets_are_dense_and_equal_on_active_and_passive() -> None:
    active, passive = Topics(DEFAULT), Topics(DEFAULT)
    for n in (1, 3, 2):
        _, said = active.place("t", n, bytes(10), 7)
        active.apply({"placed": [7, [said]]})
        passive.apply({"placed": [7, [said]]})
    topic = active.by_name["t"]
    assert (topic.first, topic.next, topic.bytes) == (0, 6, 30)
    assert passive.to_list() == active.to_list()
    active.check_all()
    with pytest.raises(BadFrame, match="was due"):
        passive.apply({"placed": [7, [["t", 9, 1, 10, 0]]]})


def test_a_topic_made_anew_begins_at_0_with_a_new_id() -> None:
    topics = Topics(DEFAULT)
    topics.place("t", 5, b"x", 1)
    topics.apply({"topic": ["t", None]})
    assert topics.take_trimmed()[1] > 1 << 60
    topic, said = topics.place("t", 1, b"x", 1)
    assert (topic.id, said[1]) == (2, 0)


def test_messages_of_a_record_are_put_into_rows_of_bounded_size() -> None:
    topics, record = Topics(DEFAULT), OpenRecord(DEFAULT)
    bodies = [bytes([i]) * (ROW_BYTES // 2) for i in range(3)]
    for body in bodies:
        record.place(Segment([], [], {"publish": [["t", 10, body], ["u", 1, b"x"]]}), topics, 7)
    found = record.take_messages(5, 7)
    assert sorted((row.topic, row.first, row.n) for row in found) == [(1, 0, 20), (1, 20, 10), (2, 0, 3)]
    assert [part for row in found if row.topic == 1 for part in unpackb(row.body, "", None)] == bodies
    assert record.take_messages(5, 7) == []


def test_a_refusal_by_a_topic_bound_tells_the_figures() -> None:
    topics = Topics(DEFAULT)
    topics.apply({"topic": ["t", {"max_messages": 3}]})
    check(topics, publish("t", b"1", b"2", b"3"))
    topics.place("t", 2, b"x", 1)
    with pytest.raises(Refusal, match="has 2 messages and may have 3; 2 more"):
        check(topics, publish("t", b"1", b"2"))
    topics.apply({"topic": ["b", {"max_bytes": 5}]})
    with pytest.raises(Refusal, match="bytes"):
        check(topics, publish("b", b"123456"))


def test_a_topic_cannot_be_made_twice_or_removed_if_missing() -> None:
    topics = Topics(DEFAULT)
    check(topics, {"topic": ["t", {}]})
    topics.apply({"topic": ["t", {}]})
    with pytest.raises(Refusal, match="already"):
        check(topics, {"topic": ["t", {}]})
    check(topics, {"topic": ["t", None]})
    with pytest.raises(Refusal, match="no topic u"):
        check(topics, {"topic": ["u", None]})


def test_topics_are_trimmed_by_size_and_by_time() -> None:
    topics = Topics(DEFAULT)
    topics.apply({"topic": ["n", {"keep": "size", "max_messages": 4}]})
    topics.apply({"topic": ["b", {"keep": "size", "max_bytes": 25}]})
    topics.apply({"topic": ["t", {"keep": "time", "max_age_s": 10}]})
    for wall_ms in (1000, 5000, 9000):
        for name in "nbt":
            topics.place(name, 3, bytes(10), wall_ms)
    assert topics.due(15_500) == [["n", 5], ["b", 3], ["t", 6]]
    topics.apply({"trim": topics.due(15_500)})
    assert [topic.first for topic in topics.by_name.values()] == [5, 3, 6]
    assert topics.by_name["b"].bytes == 20
    assert topics.due(15_500) == []
    topics.place("b", 1, bytes(100), 9000)
    assert topics.due(9000) == [["b", 9]], "the last batch stays, though it alone is too large"


def test_marks_are_merged_and_still_sum_to_the_bytes() -> None:
    topics = Topics(DEFAULT)
    for i in range(5000):
        topics.place("t", 1, bytes(7), i)
    topic = topics.by_name["t"]
    assert len(topic.marks) <= DEFAULT.topic_marks_max
    topics.check_all()
    again = Topics(DEFAULT)
    again.load(unpackb(packb(topics.to_list()), "a state"))
    assert again.to_list() == topics.to_list()


# -- who gets what


class Delivering(TopicDelivery):
    """A delivery with what its journal has."""

    def __init__(self, limits: Limits) -> None:
        self.kept, self.pages = MessageShelf(), MessagePages()
        super().__init__(limits, self.pages)


def told(delivery: Delivering, topics: Topics, now: float, number: int, confirmed: int | None) -> list[Any]:
    out = []
    written = delivery.written
    given = list(delivery.pump(topics, (), now, number, confirmed))
    while reads := delivery.pages.due():
        # The next turn comes at once, and reads the journal in its state of then.
        delivery.written = written
        for read in reads:
            delivery.pages.came(read, delivery.kept.read(*astuple(read)))
        given += delivery.pump(topics, (), now, number, confirmed)
    for _, messages in given:
        header, items = decode(messages[0][4])
        out.append(
            (header.upto, [item[:2] for item in items]) if isinstance(header, Told) else (header.code,)
            if isinstance(header, Refused) else header
        )  # fmt: skip
    return out


def delivering(*sizes: int, limits: Limits = DEFAULT) -> tuple[Delivering, Topics]:
    topics, delivery = Topics(limits), Delivering(limits)
    for n in sizes:
        topics.place("t", n, b"x", 1)
    delivery.kept.keep(rows(1, *sizes))
    return delivery, topics


def test_a_reader_gets_only_messages_that_the_passive_has_confirmed() -> None:
    delivery, topics = delivering(2, 3, 4)
    delivery.open((b"r", 1), topics.by_name["t"], 1, 8, 0.0)
    assert told(delivery, topics, 0.0, 3, 2) == [(1, [])], "nothing is in the journal yet: the reader is told so"
    assert told(delivery, topics, 0.1, 3, 2) == [(5, [[0, 2], [2, 3]])], "the row that its offset lies in, and the next"
    assert told(delivery, topics, 0.2, 3, 2) == []
    assert not delivery.ready((), topics, 2)
    assert delivery.ready((), topics, 3)
    assert told(delivery, topics, 0.3, 3, 3) == [(9, [[5, 4]])]
    assert told(delivery, topics, 1.5, 3, 3) == [(9, [])], "once a second: the server lives"


def test_credit_bounds_the_pages_sent_to_a_reader() -> None:
    delivery, topics = delivering(*[1] * 5, limits=replace(DEFAULT, messages_page_bytes=1))
    delivery.open((b"r", 1), topics.by_name["t"], 0, 2, 0.0)
    told(delivery, topics, 0.0, 5, None)
    assert told(delivery, topics, 0.1, 5, None) == [(1, [[0, 1]]), (2, [[1, 1]])]
    assert told(delivery, topics, 0.1, 5, None) == []
    delivery.grant(b"r", 1, 1, 0.2)
    assert told(delivery, topics, 0.2, 5, None) == [(3, [[2, 1]])]
    delivery.close(b"r")
    assert len(delivery) == 0


def test_a_reader_gets_several_pages_in_a_turn() -> None:
    delivery, topics = delivering(*[1] * 9, limits=replace(DEFAULT, messages_page_bytes=1))
    delivery.open((b"r", 1), topics.by_name["t"], 0, 3, 0.0)
    told(delivery, topics, 0.0, 9, None)
    assert told(delivery, topics, 0.1, 9, None) == [(1, [[0, 1]]), (2, [[1, 1]]), (3, [[2, 1]])]


def test_messages_that_are_missing_are_passed_over() -> None:
    delivery, topics = delivering(2, 3)
    delivery.kept = MessageShelf()
    delivery.open((b"r", 1), topics.by_name["t"], 0, 8, 0.0)
    told(delivery, topics, 0.0, 2, None)
    assert told(delivery, topics, 2.0, 2, None) == [(5, [])]


def test_a_reader_is_told_that_its_topic_was_removed() -> None:
    delivery, topics = delivering(2)
    delivery.open((b"r", 1), topics.by_name["t"], 0, 8, 0.0)
    topics.apply({"topic": ["t", None]})
    topics.place("t", 1, b"x", 1)
    assert told(delivery, topics, 0.0, 2, None) == [("topic",)]
    assert len(delivery) == 0


# -- filling in


def test_messages_that_a_journal_lacks_are_asked_for_page_by_page() -> None:
    topics, mine, theirs, filling = Topics(DEFAULT), MessageShelf(), MessageShelf(), MissingMessages()
    for n in (2, 3, 4):
        topics.place("t", n, b"x", 1)
    theirs.keep(rows(1, 2, 3, 4))
    mine.keep(rows(1, 2, 3, 4)[1:2])
    filling.begin(topics, mine.spans(9))
    assert filling.messages == 6
    for now in (0.0, 0.1, 0.2, 0.3):
        question = filling.ask(now, 1.0)
        if question is not None:
            topic, first, end = asked(question[1])
            mine.keep(filling.fill(answer(topic, end, theirs.read(topic, first, 9, 1 << 20))[1]))
    assert filling.messages == 0
    assert mine.spans(9) == theirs.spans(9) == {1: [[0, 9]]}


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    filling = MissingMessages()
    assert filling.fill(packb([1, 5, [list(rows(1, 5)[0])]])) == []
    assert FILL == b"FILL"


# -- two servers


def read_all(pair: Kept, name: str, topic: str) -> list[bytes]:
    found = pair.cores[name].state.topics.by_name[topic]
    taken = []
    for row in pair.shelves[name].read(found.id, 0, 1 << 62, 1 << 62):
        taken += [value for body in unpackb(row.body, "messages") for value in unpack_messages(body)[1]]
    return taken


class Kept(Cores):
    """A pair whose servers keep messages."""

    def __init__(self, **config: Any) -> None:
        self.shelves = {name: MessageShelf() for name in "PB"}
        super().__init__(**config)

    def write(self, name: str, turn: Turn) -> None:
        for op in turn.journal:
            if isinstance(op, Replace):
                self.shelves[name].drop_after(op.shared)
            elif isinstance(op, Append | Fill):
                self.shelves[name].keep(op.messages)

    def read(self, name: str, read: ReadMessages | ReadSpans) -> Any:
        shelf = self.shelves[name]
        return shelf.spans(read.number) if isinstance(read, ReadSpans) else shelf.read(*astuple(read))

    def publish(self, where: str, no: int, *values: bytes, session: bytes = SESSION) -> None:
        self.kvset(where, no, [], session=session, **publish("t", *values))

    def kvset(self, where: str, no: int, keys: list[str], *, session: bytes = SESSION, **extras: Any) -> None:
        body = Segment(keys, [b"v"] * len(keys), extras).encode()
        for name in where:
            self.cores[name].collect([RESERVED_KEY, pack(no), session, b"", body])


def test_a_message_is_on_both_servers_and_acknowledged_as_replicated() -> None:
    pair = Kept()
    pair.publish("P", 1, b"message a", b"b")
    pair.run(0.5)
    assert read_all(pair, "P", "t") == read_all(pair, "B", "t") == [b"message a", b"b"]
    assert [word[:2] + word[3:] for word in pair.answers(SESSION)] == [(1, "ack", 2)]
    assert b"message" not in b"".join(
        record.body for record in pair.p.committer.committed.log.after(pair.p.state.number - 1, 1 << 20)
    )
    pair.publish("P", 1, b"message a", b"b")
    pair.run(0.5)
    assert pair.p.state.topics.by_name["t"].next == 2, "sent again, it is not there twice"


def test_messages_of_a_server_that_was_active_alone_go_through_the_other() -> None:
    pair = Kept()
    pair.publish("P", 1, b"both")
    pair.run(0.5)
    pair.linked = False
    pair.publish("P", 2, b"P alone")
    pair.run(3.0)
    pair.b.do(Vote())
    pair.publish("B", 1, b"B alone", session=b"t" * 16)
    pair.run(1.0)
    pair.linked = True
    pair.run(8.0)
    assert read_all(pair, "P", "t") == read_all(pair, "B", "t")
    assert sorted(read_all(pair, "P", "t")) == [b"B alone", b"P alone", b"both"]
    assert pair.p.state.topics.to_list() == pair.b.state.topics.to_list()
    assert public_session(SESSION) in pair.b.state.sessions


def test_fetched_messages_are_waited_for_until_the_journal_has_them() -> None:
    """The journal is written after readers were served, so in that turn they would skip the gap (seed 164)."""
    pair = Kept()
    pair.publish("P", 1, b"a")
    pair.run(0.5)
    filler, topic = pair.p.link.backfill, pair.p.state.topics.by_name["t"].id
    filler._missing.lacks = {topic: [[0, 1]]}
    assert filler.waits(pair.p.turn.effects)
    filler.on_fill(answer(topic, 1, pair.shelves["B"].read(topic, 0, pair.b.state.number, 1))[1], pair.p.turn.effects)
    assert filler.waits(pair.p.turn.effects) and filler.lacks == 0
    assert [type(op) for op in pair.turn("P").journal] == [Fill]
    assert not filler.waits(pair.p.turn.effects)


def test_staged_messages_come_to_both_servers_in_parts_of_the_record() -> None:
    pair = Kept(limits=replace(DEFAULT, part_bytes=3000))
    values = [b"%04d" % i * 250 for i in range(40)]
    for i in range(20):
        pair.kvset("P", i + 1, [f"/{i}"], stage=[b"t" * 16, "0"], **publish("t", *values[2 * i : 2 * i + 2]))
    pair.kvset("P", 21, [], commit=[b"t" * 16, "job", 1, [["0", 20]], None])
    pair.run(0.5)
    assert read_all(pair, "P", "t") == read_all(pair, "B", "t") == values
    kept = [record for record in pair.p.committer.committed.log.after(0, 1 << 30) if record.messages]
    assert len(kept) > 9 and max(record.weight for record in kept) < 3000 + 3000, "each with some of them"
    rows = [row for record in kept for row in record.messages or ()]
    assert {row.number for row in rows} == {pair.p.state.number}, "nobody is given the first before the last is there"
    assert pair.p.state.topics.to_list() == pair.b.state.topics.to_list()
