"""The feed: every record after a number, out of the log or, as far as that does not reach back, of the journal.

    records    RECORDS chunks and KTHXBAI; or REFUSED, if neither reaches back to where the reader was
    probe      how far a feed would reach, by numbers or by time: the numbers alone

Each is an iterator over messages, as any other stream (syncs.py), and gives an empty one while it waits for a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chp import headers
from chp.batch import encode, peek
from chp.digest import NOTHING
from chp.errors import BadInput
from chp.numbers import describe, pack, sequence_of

from ..state.record_log import LoggedRow, Record
from ..updates.committed import Committed
from ..updates.open_record import HEADER_BYTES_MAX
from ..updates.turn import Frames, Read
from .syncs import reply, resume_parts

PAGE_BYTES = 4 << 20
READS_A_TURN = 4  # the others get their sets and heartbeats in between


@dataclass(slots=True)
class FeedPage:
    """Records that follow on a number; None if what is kept does not reach back to it."""

    waits: bool = True
    records: list[Record] | None = field(default=None)


class FeedPages:
    """What was asked for and has not come."""

    def __init__(self) -> None:
        self._asked: dict[Read, FeedPage] = {}

    def ask(self, after: int, bytes_max: int) -> FeedPage:
        """A page that will have come when it no longer waits."""
        return self._asked.setdefault(Read(after, bytes_max), FeedPage())

    def due(self) -> list[Read]:
        """What was asked for first."""
        return list(self._asked)[:READS_A_TURN]

    def came(self, read: Read, rows: Sequence[LoggedRow] | None) -> None:
        """What the journal has."""
        page = self._asked.pop(read, None)
        if page is not None:  # else whoever asked has left
            page.waits = False
            page.records = None if rows is None else [Record(row.first - 1, *row) for row in rows]

    def clear(self) -> None:
        """Nobody waits any more."""
        self._asked.clear()


Messages = Iterator[list[Frames]]
RECORDS_A_TURN = 1_024  # whose headers a probe looks at: about 5 ms


class Feeds:
    """What readers of the feed are answered."""

    def __init__(self, committed: Committed, counts: Counter[str]) -> None:
        self._committed, self._counts = committed, counts
        self.pages = FeedPages()

    def records(
        self,
        request_id: int,
        after: int,
        whose: list[bytes] | None,
        *,
        subtree: str,
        until: int,
        indices: Iterator[int] | None = None,
    ) -> Messages:
        """The records after `after`; `whose` is what the reader knows of that number, None if nothing."""
        state = self._committed.state
        if not (yield from self._goes_on(after, whose)):
            yield from self._retained(request_id)
            return
        self._counts["feeds"] += 1
        until = min(until, state.number)
        end = headers.Kthxbai(request_id, until, 0, 0, None, True, *NOTHING, state.whose(until))
        records = self._between(after, until)
        yield from resume_parts(
            records, after, subtree, end, self._committed.limits, opener=state.opener_of, indices=indices
        )

    def probe(self, request_id: int, after: int, whose: list[bytes] | None, *, most: int, at: int = 0) -> Messages:
        """Where a feed after `after` would end if it had about `most` numbers, at least a record; 0 is no bound.

        With `at`, a wall clock in ms, where the records end that come before the first one of then or later.
        """
        state = self._committed.state
        number = newest = state.number
        if after and not (yield from self._goes_on(after, whose)):
            yield from self._retained(request_id)
            return
        oldest, opener = (yield from self._oldest()), state.opener_of
        if at:
            number = yield from self._boundary(after or oldest, newest, at=at)
        elif most and sequence_of(newest) - sequence_of(after) > most:
            number = yield from self._boundary(after, newest, most=most)
        facts = {"number": number, "newest": newest, "oldest": oldest, "store": state.store}
        facts |= {"opener": opener(number), "oldest_opener": opener(oldest)}
        yield [self._say(headers.Reply(request_id, facts))]

    def _say(self, header: headers.Header) -> Frames:
        return reply(pack(self._committed.state.number), encode(header))

    def _retained(self, request_id: int) -> Messages:
        """What a reader is told that was too far behind."""
        oldest = yield from self._oldest()
        yield [self._say(headers.Refused(request_id, "retained", oldest))]

    def _goes_on(self, after: int, whose: list[bytes] | None) -> Generator[list[Frames], None, bool]:
        """Whether the number is of our history, as far as the reader knows whose it is, and what follows is here."""
        state = self._committed.state
        if after and not state.is_ours(after, state.whose(after) if whose is None else whose):
            return False
        return (yield from _whole(self._page(after, 1))) is not None

    def _oldest(self) -> Generator[list[Frames], None, int]:
        """The lowest number after which everything is still here."""
        oldest = self._committed.log.oldest
        if (yield from _whole(self._page(0, 1))) is not None:
            return 0
        return self._committed.state.number if oldest is None else oldest

    def _boundary(self, after: int, newest: int, *, most: int = 0, at: int = 0) -> Generator[list[Frames], None, int]:
        best, looked_at = after, 0
        for record in self._between(after, newest):
            looked_at += 1
            if record is None or looked_at % RECORDS_A_TURN == 0:
                yield []
            if record is None:
                continue
            peeked = peek(record.body, HEADER_BYTES_MAX)
            header = None if peeked is None else peeked[0]
            if at and getattr(header, "wall_ms", 0) >= at:
                break
            if header is None or (isinstance(header, headers.Batch) and header.more):
                continue  # more of this record follows
            if most and best > after and sequence_of(record.last) - sequence_of(after) > most:
                break
            best = record.last
        return best

    def _between(self, after: int, until: int) -> Iterator[Record | None]:
        """Records, and None as often as somebody asks before the next page is here."""
        while after < until:
            page = self._page(after)
            while page.waits:
                yield None
            if not page.records:
                raise BadInput(f"the records after {describe(after)} are not retained any more; raise --retain-bytes")
            for record in page.records:
                if record.first > until:
                    return
                yield record
                after = record.last

    def _page(self, after: int, bytes_max: int = PAGE_BYTES) -> FeedPage:
        log = self._committed.log
        if log.reaches(after):
            return FeedPage(waits=False, records=log.after(after, bytes_max))
        return self.pages.ask(after, bytes_max)


def _whole(page: FeedPage) -> Generator[list[Frames], None, Any]:
    """Its records, once they have come."""
    while page.waits:
        yield []
    return page.records
