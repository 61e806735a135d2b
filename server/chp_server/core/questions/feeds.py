"""The feed: every record after a number, in order.

    records    yields RECORDS chunks and a KTHXBAI; or REFUSED, if the records after the number are gone
    probe      yields one Reply with numbers only: how far a feed would reach, by count or by time

Records come from the log in memory. Older ones are read from the journal, a page at a time, at the end of a turn. Each
answer is an iterator over messages, as all streams are (syncs.py). It yields an empty list while it waits for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from chp import headers
from chp.batch import encode, peek
from chp.digest import NOTHING
from chp.errors import BadInput
from chp.numbers import describe, pack, sequence_of

from ..state.commit_record import decoded, in_updates, is_commit, staged_in
from ..state.record_log import LoggedRow, Record
from ..state.staging import StagedBatch
from ..updates.committed import Committed
from ..updates.open_record import HEADER_BYTES_MAX
from ..updates.turn import Frames, Read, ReadOldest
from .syncs import reply, resume_parts

PAGE_BYTES = 4 << 20
# If staged batches have fewer rows than this on average, the records of several batches are read together.
SMALL_BATCH = 1000
# At most this many pages are read in a turn, so that other work, such as sets and heartbeats, need not wait long.
READS_A_TURN = 4


OLDEST = ReadOldest()


@dataclass(slots=True)
class FeedPage:
    """A page of the records after a number. `records` is None if the journal lacks them, or until they come.

    The answer to `OLDEST` has no records. It has `begin`: the number where the journal's rows begin, and True if a
    record surely begins there.
    """

    waits: bool = True
    records: list[Record] | None = field(default=None)
    begin: tuple[int, bool] = (0, False)


class FeedPages:
    """The pages that are to be read from the journal."""

    def __init__(self) -> None:
        self._asked: dict[Read | ReadOldest, FeedPage] = {}

    def ask(self, after: int, bytes_max: int) -> FeedPage:
        """Ask the journal for a page, and return it; it is filled when its `waits` is False."""
        return self._asked.setdefault(Read(after, bytes_max), FeedPage())

    def ask_oldest(self) -> FeedPage:
        """Ask the journal where its records begin, and return the page that will tell it."""
        return self._asked.setdefault(OLDEST, FeedPage())

    def due(self) -> list[Read | ReadOldest]:
        """Return the pages that are read at the end of this turn, the oldest question first."""
        return list(self._asked)[:READS_A_TURN]

    def came(self, read: Read | ReadOldest, found: Any) -> None:
        """Fill a page with what a read has found: rows, or None if the journal does not reach back so far."""
        page = self._asked.pop(read, None)
        # There is no page if `clear` was called meanwhile.
        if page is None:
            return
        page.waits = False
        if isinstance(read, ReadOldest):
            page.begin = found
        else:
            rows: Sequence[LoggedRow] | None = found
            page.records = None if rows is None else [Record(row.first - 1, *row) for row in rows]

    def clear(self) -> None:
        """Forget all pages: the streams that wait for them have ended."""
        self._asked.clear()


Messages = Iterator[list[Frames]]
# A probe reads the headers of this many records in a turn, which takes about 5 ms.
RECORDS_A_TURN = 1_024


class Feeds:
    """The answers to readers of the feed."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self.pages = FeedPages()
        # The end of the last record that names staged batches which are gone.
        self._gone = 0
        # What `_end_of_first` found last: where the journal's rows began, and the end of the record there.
        self._first = (0, 0)

    def records(
        self,
        request_id: int,
        after: int,
        whose: list[bytes] | None,
        *,
        subtree: str,
        until: int,
        indices: Iterator[int],
        passes: Callable[[], bool],
    ) -> Messages:
        """Yield the records after `after`. `whose` is the proof that the reader has of that number, or None.

        If the records are gone, `passes` may pass the question to another server. It is not called after the first
        chunk was sent.
        """
        state = self._committed.state
        if not (yield from self._goes_on(after, whose)):
            if next(indices) > 0 or not passes():
                yield from self._retained(request_id)
            return
        self._committed.counts["feeds"] += 1
        until = min(until, state.number)
        end = headers.Kthxbai(request_id, until, 0, 0, None, True, *NOTHING, state.whose(until))
        records = self._between(after, until, rows=True)
        yield from resume_parts(
            records, after, subtree, end, self._committed.limits, opener=state.opener_of, indices=indices
        )

    def probe(
        self,
        request_id: int,
        after: int,
        whose: list[bytes] | None,
        *,
        most: int,
        at: int = 0,
        passes: Callable[[], bool],
    ) -> Messages:
        """Yield the number at which a feed after `after` would end.

        The feed has about `most` numbers, but at least one record; 0 is no bound. `at` is a wall clock in ms: if it is
        given, the feed ends before the first record of that time or later. If the records are gone, `passes` may pass
        the question to another server.
        """
        state = self._committed.state
        number = newest = state.number
        if after and not (yield from self._goes_on(after, whose)):
            if not passes():
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
        """Yield the refusal for a reader that asks for records which are gone."""
        oldest = yield from self._oldest()
        yield [self._say(headers.Refused(request_id, "retained", oldest))]

    def _goes_on(self, after: int, whose: list[bytes] | None) -> Generator[list[Frames], None, bool]:
        """Return True if `after` is in our history, as far as `whose` proves it, and the records after it are here."""
        state = self._committed.state
        if after < self._gone:
            return False
        if after and not state.is_ours(after, state.whose(after) if whose is None else whose):
            return False
        return (yield from _whole(self._page(after, 1))) is not None

    def _oldest(self) -> Generator[list[Frames], None, int]:
        """Return the lowest number after which all records are still here, in the journal or in memory."""
        log, before = self._committed.log, -1
        while log.oldest != 0:
            page = self.pages.ask_oldest()
            yield from _whole(page)
            begin, exact = page.begin
            if begin == before or (log.start is not None and log.start <= begin):
                return max(self._gone, self._committed.state.number if log.oldest is None else log.oldest)
            found = begin if exact else (yield from self._end_of_first(begin))
            if found is not None:
                return max(self._gone, found)
            # The rows there are damaged, or were deleted meanwhile.
            before = begin
        return self._gone

    def _end_of_first(self, begin: int) -> Generator[list[Frames], None, int | None]:
        """Return the end of the record that the row after `begin` belongs to; None if it can't be read.

        The first parts of that record may be gone.
        """
        if self._first[0] == begin:
            return self._first[1]
        after, bytes_max = begin, 1
        while records := (yield from _whole(self.pages.ask(after, bytes_max))):
            end: int | None = next((record.last for record in records if not _more(_header(record))), None)
            if end is not None:
                self._first = begin, end
                return end
            after, bytes_max = records[-1].last, PAGE_BYTES
        return None

    def _boundary(self, after: int, newest: int, *, most: int = 0, at: int = 0) -> Generator[list[Frames], None, int]:
        best, looked_at = after, 0
        for record in self._between(after, newest):
            looked_at += 1
            if record is None or looked_at % RECORDS_A_TURN == 0:
                yield []
            if record is None:
                continue
            header = _header(record)
            if at and getattr(header, "wall_ms", 0) >= at:
                break
            if header is None or _more(header):
                continue
            if most and best > after and sequence_of(record.last) - sequence_of(after) > most:
                break
            best = record.last
        return best

    def _between(self, after: int, until: int, *, rows: bool = False) -> Iterator[Record | None]:
        """Yield the records after `after`, and None while the next page is being read.

        With `rows`, a record that names staged batches is replaced by UPDATEs with the contents of these batches.
        """
        while after < until:
            page = self._page(after)
            while page.waits:
                yield None
            if not page.records:
                raise _not_retained(after)
            for record in page.records:
                if record.first > until:
                    return
                if rows and is_commit(record.body):
                    yield from self._in_updates(record)
                else:
                    yield record
                after = record.last

    def _in_updates(self, record: Record) -> Iterator[Record | None]:
        """Yield UPDATEs with the contents of the staged batches that a record names."""
        header, items = decoded(record.body)
        try:
            batches = record.staged or self._staged(header)
            yield from in_updates(header, items, batches, self._committed.limits.part_bytes)
        except BadInput:
            # The journal dropped the batches before the record. From now on this record counts as gone too.
            self._gone = max(self._gone, record.last)
            raise

    def _staged(self, header: headers.Commit) -> Iterator[StagedBatch | None]:
        """Yield the batches that a record names, from the records that staged them; None while these are read."""
        count = sum(len(numbers) for _, _, numbers in header.parts)
        # The records of small batches are read together, even if they belong to several parts.
        bytes_max = PAGE_BYTES if header.last - header.first < SMALL_BATCH * count else 1
        near: dict[int, Record] = {}
        for part, crc, numbers in header.parts:
            found, known = 0, 0
            for number in dict.fromkeys(numbers):
                after, more = number - 1, True
                while more:
                    if after not in near:
                        page = self._page(after, bytes_max)
                        while page.waits:
                            yield None
                        if not page.records:
                            raise _not_retained(header.prev)
                        near = dict(zip([after, *(each.last for each in page.records)], page.records, strict=False))
                    record = near[after]
                    batches, more = staged_in(record.body, header.transaction, part)
                    after = record.last
                    for batch in batches:
                        found, known = found + 1, crc32(batch.body, known)
                        yield batch
            if (found, known) != (len(numbers), crc):
                raise _not_retained(header.prev)

    def _page(self, after: int, bytes_max: int = PAGE_BYTES) -> FeedPage:
        log = self._committed.log
        if log.reaches(after):
            return FeedPage(waits=False, records=log.after(after, bytes_max))
        return self.pages.ask(after, bytes_max)


def _not_retained(after: int) -> BadInput:
    return BadInput(
        f"the records after {describe(after)} are not retained any more; raise --retain-bytes, or with "
        "--store memory: --retain-memory-bytes"
    )


def _header(record: Record) -> headers.Header | None:
    peeked = peek(record.body, HEADER_BYTES_MAX)
    return None if peeked is None else peeked[0]


def _more(header: headers.Header | None) -> bool:
    """Return True if more parts of a record follow."""
    return isinstance(header, headers.Batch) and header.more


def _whole(page: FeedPage) -> Generator[list[Frames], None, Any]:
    """Yield an empty list until a page is filled, then return its records."""
    while page.waits:
        yield []
    return page.records
