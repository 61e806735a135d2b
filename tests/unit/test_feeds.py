"""covers: core/questions/feeds.py: the feed, out of the log or of pages of the journal that come a turn later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chp.batch import KTHXBAI, RECORDS, REFUSED, REPLY, Segment, packb, split
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.questions import feeds
from chp_server.core.questions.feeds import READS_A_TURN
from chp_server.core.state.journal import RetainedDamaged
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.turn import Append, Read, ReadOldest, Turn

# The log in memory is short, and only the journal has the rest.
SHORT = replace(DEFAULT, log_records_max=2)
READER, SESSION = b"reader", b"1" * 16


class Fed:
    """A lone server with a short log, and its journal's rows."""

    def __init__(self, wall_s: Callable[[int], float] = lambda no: 0.0, log: Limits = SHORT) -> None:
        self.core = ServerCore(CoreConfig(name="a"), b"s" * 16, 0.0, log)
        self.rows: list[LoggedRow] = []
        self.now = 0.0
        for no in range(7):
            self.core.begin_turn(self.now, wall_s(no))
            if no:
                body = Segment(["/k"], [b"%d" % no], None).encode()
                self.core.collect([RESERVED_KEY, pack(no), SESSION, b"", body])
            self.end()

    def ask(self, reader: bytes = READER, **options: Any) -> None:
        self.core.request([reader, ICANHAZ, b"", packb({"id": 1, "chp": 3, "feed": True, **options})])

    def end(self) -> Turn:
        turn = self.core.end_turn()
        self.rows += [op.row() for op in turn.journal if isinstance(op, Append)]
        return turn

    def turn(self, **options: Any) -> Turn:
        self.now += 0.01
        self.core.begin_turn(self.now, 0.0)
        if options:
            self.ask(**options)
        return self.end()

    def give(self, turn: Turn, *, retained: bool = True, oldest: tuple[int, bool] = (0, True)) -> None:
        """Answer the reads of a turn, as performing does."""
        for read in turn.reads:
            if isinstance(read, ReadOldest):
                self.core.page(read, oldest if retained else (self.core.state.number, True))
                continue
            assert isinstance(read, Read)
            rows = [row for row in self.rows if row.last > read.after] if retained else None
            self.core.page(read, rows)


def said(turn: Turn) -> list[Any]:
    """Return the headers of a turn's answers."""
    return [split(frames[4])[0] for _, messages in turn.replies for frames in messages]


@pytest.fixture
def fed() -> Fed:
    return Fed()


def test_a_feed_reads_records_in_the_log_without_a_page(fed: Fed) -> None:
    turn = fed.turn(**{"from": fed.rows[-2].last})
    assert [header[0] for header in said(turn)] == [RECORDS] and not turn.reads


def test_a_feed_from_before_the_log_waits_for_a_journal_page(fed: Fed) -> None:
    turn = fed.turn(**{"from": 0})
    heads: list[Any] = []
    turns = 0
    while not heads or heads[-1][0] != KTHXBAI:
        assert turns < 10 and (turns or not said(turn)), "nothing is told before the journal was asked"
        fed.give(turn)
        assert fed.core.next_deadline() <= fed.now, "it goes on at once"
        turn = fed.turn()
        heads += said(turn)
        turns += 1
    assert [header[0] for header in heads] == [RECORDS, KTHXBAI]


def test_a_feed_from_before_the_retained_records_is_told_where_they_begin(fed: Fed) -> None:
    turn = fed.turn(**{"from": fed.rows[0].last})
    while not (heads := said(turn)):
        assert turn.reads
        fed.give(turn, retained=False)
        turn = fed.turn()
    assert heads == [[REFUSED, 1, "retained", fed.core.committer.committed.log.start]]


def test_a_probe_says_how_far_a_feed_reaches_over_several_pages(fed: Fed) -> None:
    turn = fed.turn(**{"from": 0, "probe": 2})
    while not (heads := said(turn)):
        assert turn.reads
        fed.give(turn)
        turn = fed.turn()
    ((kind, _, facts),) = heads
    assert kind == REPLY and facts["number"] == fed.rows[1].last and facts["oldest"] == 0


def test_a_probe_finds_the_last_record_before_a_moment() -> None:
    fed = Fed(wall_s=lambda no: 1.0 + no)
    at = {ms: fed_probe(fed, at=ms) for ms in (1_000, 2_001, 3_000, 4_500, 60_000)}
    assert [facts["oldest"] for facts in at.values()] == [0] * 5
    ends = [row.last for row in fed.rows]
    assert at[1_000]["number"] == 0, "nothing is before it"
    assert at[2_001]["number"] == ends[1], "the record of 2.0 s, and not that of 3.0 s"
    assert at[3_000]["number"] == ends[1] and at[4_500]["number"] == ends[3], "what is of that moment comes after it"
    assert at[60_000]["number"] == at[60_000]["newest"] == ends[-1]


def test_a_probe_of_many_records_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RECORDS_A_TURN", 2)
    fed = Fed(wall_s=lambda no: 1.0 + no, log=DEFAULT)
    turn, turns = fed.turn(**{"from": 0, "probe": 0, "at": 60_000}), 1
    while not (heads := said(turn)):
        assert fed.core.next_deadline() <= fed.now, "it goes on at once"
        turn, turns = fed.turn(), turns + 1
    assert turns == 4 and heads[0][2]["number"] == fed.rows[-1].last


def fed_probe(fed: Fed, *, at: int) -> dict[str, Any]:
    turn = fed.turn(**{"from": 0, "probe": 0, "at": at})
    while not (heads := said(turn)):
        fed.give(turn)
        turn = fed.turn()
    facts: dict[str, Any] = heads[0][2]
    return facts


def probed(fed: Fed, oldest: tuple[int, bool], rows: list[LoggedRow]) -> dict[str, Any]:
    """Return the answer to a probe while the journal has these rows, and says that they begin there."""
    turn = fed.turn(**{"from": fed.rows[-1].last, "probe": 0})
    fed.rows[:] = rows
    while not (heads := said(turn)):
        fed.give(turn, oldest=oldest)
        turn = fed.turn()
    facts: dict[str, Any] = heads[0][2]
    return facts


def test_a_probe_tells_the_oldest_record_of_the_journal(fed: Fed) -> None:
    rows, log = list(fed.rows), fed.core.committer.committed.log
    begin, end = rows[1].last, rows[2].last
    assert probed(fed, (begin, True), rows[2:])["oldest"] == begin < (log.start or 0)
    assert probed(fed, (begin, False), rows[2:])["oldest"] == end, "the first parts of that record may be gone"


def test_damaged_retained_records_are_reported_and_no_reader_gets_them(fed: Fed) -> None:
    turn = fed.turn(**{"from": fed.rows[0].last})
    for read in turn.reads:
        fed.core.page(read, RetainedDamaged("row id 1: its checksum does not match"))
    later = fed.rows[1].last
    turn = fed.turn()
    facts = turn.facts
    while not (heads := said(turn)):
        fed.give(turn, oldest=(later, True))
        turn = fed.turn()
    assert heads == [[REFUSED, 1, "retained", later]]
    assert [(fact.level, fact.event) for fact in facts] == [("warning", "retained records damaged")]
    assert fed.core.committer.counts["retained_damaged"] == 1


def test_readers_at_one_position_share_a_page_and_turns_read_few(fed: Fed) -> None:
    fed.core.begin_turn(1.0, 0.0)
    for i in range(20):
        fed.ask(b"reader %d" % i, **{"from": 0})
    assert len(fed.end().reads) == 1
    pages = fed.core.requests.feeds.pages
    for after in range(100):
        pages.ask(after, 1)
    assert len(fed.turn().reads) == READS_A_TURN


def test_a_page_that_no_reader_waits_for_is_ignored(fed: Fed) -> None:
    turn = fed.turn(**{"from": 0})
    fed.core.requests.clear()
    fed.give(turn)
    assert not fed.turn().replies
