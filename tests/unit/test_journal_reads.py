"""covers: core.py, message_pages.py: a journal read is an effect of one turn, and an input to the next turn."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from chp.batch import decode, packb
from chp.headers import Messages, Refused
from chp.messages import ICANHAZ
from chp.topics import pack_messages
from chp.versions import VERSION
from chp_server.core.asks import Vote
from chp_server.core.pair import follow
from chp_server.core.questions.message_pages import READ_BYTES_A_TURN, MessagePages
from chp_server.core.state.journal import JournalDamaged
from chp_server.core.state.record_log import LoggedMessages
from chp_server.core.updates.turn import ReadMessages, ReadSpans, Turn
from chp_server.store.memory_store import MessageShelf
from tests.unit.server_talk import Talk
from tests.unit.test_topics import Kept, read_all

PUBLISHER = b"p" * 16


class Reading(Talk):
    """A lone server with messages in its journal. The test answers its reads."""

    def __init__(self) -> None:
        self.shelf, self.published = MessageShelf(), 0
        super().__init__(durability=1)

    def publish(self, *values: bytes) -> Turn:
        self.published += 1
        told = [["t", len(values), pack_messages(None, list(values))]]
        self.set(PUBLISHER, self.published, {}, publish=told)
        return self.turn(0.0)

    def turn(self, seconds: float = 1.0) -> Turn:
        turn = super().turn(seconds)
        for op in turn.journal:
            self.shelf.keep(getattr(op, "messages", ()))
        return turn

    def read(self, after: int) -> None:
        options = {"id": 1, "chp": VERSION, "topic": "t", "after": after, "credit": 8}
        self.core.request([b"reader", ICANHAZ, b"", packb(options)])

    def answer(self, turn: Turn) -> None:
        for read in turn.reads:
            assert isinstance(read, ReadMessages)
            self.core.page(read, self.shelf.read(*astuple(read)))


def given(turn: Turn) -> list[tuple[int, int]]:
    """Return the offsets of the rows that a reader gets."""
    rows = []
    for _, messages in (*turn.deliveries, *turn.replies):
        for frames in messages:
            header, items = decode(frames[-1])
            if isinstance(header, Messages):
                rows += [(item[0], item[1]) for item in items]
    return rows


def test_messages_read_from_the_journal_are_delivered_in_the_next_turn() -> None:
    talk = Reading()
    talk.publish(b"1", b"2")
    talk.read(0)
    asking = talk.turn(0.0)
    [read] = asking.reads
    assert given(asking) == [] and isinstance(read, ReadMessages) and read.offset == 0
    assert talk.core.next_deadline() <= talk.now, "the next turn comes at once"
    talk.answer(asking)
    assert given(talk.turn(0.0)) == [(0, 2)]


def test_a_reader_at_the_end_of_a_topic_needs_no_journal_read() -> None:
    talk = Reading()
    talk.publish(b"1")
    talk.read(-1)
    talk.turn(0.0)
    turns = [talk.publish(b"2"), talk.turn(0.0)]
    assert [given(turn) for turn in turns] == [[], [(1, 1)]], "as soon as it is in the journal"
    assert [turn.reads for turn in turns] == [[], []]


def test_a_reader_of_a_damaged_row_gets_a_refusal() -> None:
    talk = Reading()
    talk.publish(b"1")
    talk.read(0)
    [read] = talk.turn(0.0).reads
    talk.core.page(read, JournalDamaged("row 1 is not what was written"))
    [(_, [frames])] = talk.turn(0.0).deliveries
    header, _ = decode(frames[-1])
    assert isinstance(header, Refused) and header.code == "damaged"


def test_journal_reads_of_a_turn_are_bounded_and_served_in_order() -> None:
    pages = MessagePages()
    for offset in range(40):
        assert pages.find(1, offset, 99, 9, 1 << 20) is None
    assert pages.find(1, 39, 99, 10, 1 << 20) is None, "who asks again keeps its place"
    first = pages.due()
    assert [read.offset for read in first] == list(range(READ_BYTES_A_TURN >> 21))
    assert sum(len(pages.due()) for _ in range(4)) == 40 - len(first)


def test_an_empty_journal_read_is_remembered_for_one_turn_only() -> None:
    """The journal may get what it lacks in the next turn. A reader that passed over it then would miss messages."""
    pages = MessagePages()
    assert pages.find(1, 0, 99, 9, 100) is None
    [read] = pages.due()
    pages.came(read, [])
    assert pages.find(1, 0, 99, 9, 100) == []
    assert pages.find(1, 0, 99, 10, 100) is None, "of later records nobody has looked"
    pages.due()
    assert pages.find(1, 0, 99, 9, 100) is None


def test_rows_of_later_records_are_not_shown() -> None:
    pages = MessagePages()
    pages.keep([LoggedMessages(1, 0, 2, 5, 0, b""), LoggedMessages(1, 2, 2, 6, 0, b"")])
    assert [row.stored.first for row in pages.find(1, 0, 99, 5, 1 << 20) or ()] == [0]
    assert pages.find(1, 2, 99, 5, 1 << 20) == []


def test_the_next_rows_are_read_ahead_but_not_behind_the_end() -> None:
    pages = MessagePages()
    pages.keep([LoggedMessages(1, 0, 2, 5, 0, b"")])
    assert pages.find(1, 0, 4, 9, 100) and [read.offset for read in pages.due()] == [2]
    assert pages.find(1, 0, 2, 9, 100) and pages.due() == []


class Parting(Kept):
    """A pair of which both become active, so that one yields when they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.publish("P", 1, b"both")
        self.run(0.5)
        self.linked = False
        self.vote("B")
        self.publish("B", 1, b"B alone", session=b"B" * 16)
        self.publish("P", 2, b"P alone")
        self.run(0.5)
        self.linked = True

    def read(self, name: str, read: ReadMessages | ReadSpans) -> Any:
        self.asked.append((name, read, self.cores[name].state.number))
        return super().read(name, read)

    def until_end(self) -> str:
        """Run until END is in the mail of the server that yields, and return its name."""
        for _ in range(400):
            self.run(0.05)
            for name, mail in self._mail.items():
                if any(frames[0] == follow.END for frames in mail):
                    return name
        raise AssertionError("nobody gave way")


def test_a_state_is_taken_over_in_the_turn_after_the_journal_was_read() -> None:
    pair = Parting()
    name = pair.until_end()
    core, before = pair.cores[name], pair.cores[name].state
    pair.asked.clear()
    turn = pair.turn(name)
    assert [type(read) for _, read, _ in pair.asked] == [ReadSpans] and turn.reads
    assert core.state is before and not turn.saves, "nothing has changed before it came"
    assert core.next_deadline() <= pair.now, "and the next turn comes at once"
    after = pair.turn(name)
    assert core.state is not before
    assert [save.name.startswith("suffix-") for save in after.saves] == [True]


def test_peer_messages_behind_a_state_wait_until_the_state_is_taken_over() -> None:
    pair = Parting()
    name = pair.until_end()
    core, other = pair.cores[name], pair.cores["P" if name == "B" else "B"]
    pair._mail[name].append([follow.LEAVE, other.pair.server])
    pair.turn(name)
    assert core.pair.peer is not None and not core.pair.peer.left, "it came behind END, which is not done"
    assert not core.do(Vote()), "and nobody serves a half of it"
    pair.turn(name)
    assert core.pair.peer.left


@pytest.mark.parametrize("in_memory", [None, ()], ids=["dropped", "restarted"])
def test_messages_of_a_suffix_are_read_from_the_journal_in_pages(in_memory: tuple[()] | None) -> None:
    """Messages that the log does not have are in the journal alone, which forgets them when the state is replaced."""
    pair = Parting()
    name = pair.until_end()
    for record in pair.cores[name].committer.committed.log.after(0, 1 << 60):
        record.messages = in_memory
    pair.asked.clear()
    pair.turn(name)
    pair.turn(name)
    kinds = [type(read) for at, read, _ in pair.asked if at == name]
    assert kinds == [ReadSpans, ReadMessages]
    pair.run(8.0)
    assert sorted(read_all(pair, "P", "t")) == sorted(read_all(pair, "B", "t")) == [b"B alone", b"P alone", b"both"]


def test_a_damaged_journal_ends_a_server_asked_for_backfill() -> None:
    pair = Kept()
    pair.publish("P", 1, b"a")
    pair.run(0.5)
    topic = pair.p.state.topics.by_name["t"].id
    pair.p.link.backfill.on_lack(packb([topic, 0, 1]), pair.p.turn.effects)
    [read] = pair.p.turn.effects.reads
    with pytest.raises(JournalDamaged):
        pair.p.page(read, JournalDamaged("row 1"))
