"""The rows of messages that readers of topics need: each row is read from the journal once for all readers.

The last rows are kept in memory, because readers that keep up read the same ones. A row is decoded when a member needs
a part of it. A member that has all slots gets the stored bytes. Any other member gets the messages of its slots, and a
mask. The mask has a byte for each message of the row, which says whether the message is there.

    find     returns kept rows; what is not kept is read at the end of the turn
    due      returns the reads of this turn
    came     takes what a read has found; an empty result is remembered for one turn only
    keep     keeps the messages of this turn's records, so readers at the end of a topic wait for no read

Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from chp.batch import array_head, packb, unpackb
from chp.errors import ChpError
from chp.limits import DEFAULT
from chp.topics import (
    ALL_SLOTS,
    NO_HEADERS,
    SLOTS,
    Headers,
    has_headers,
    pack_messages,
    slot_mask,
    slots_of,
    unpack_messages,
    unpack_with_headers,
)
from chp.unpacking import CONTAINER, Load

from ..state.record_log import LoggedMessages
from ..updates.turn import ReadMessages

# At most this many bytes of rows, as stored, are kept in memory.
KEPT_BYTES = 32 << 20
# At most this many messages go into one batch, because a reader takes no more.
BATCH_MAX = DEFAULT.batch_items_max
# The weight of an item of MESSAGES, without its batches.
ITEM_WEIGHT = 2 * CONTAINER + 6
# The bytes of the smallest batch.
BATCH_BYTES_MIN = 7
# One answer has at most this many bytes, unless its first row alone has more.
PAGE_BYTES_MAX = 8 << 20
# At most this many bytes of rows, as stored, are decoded at the same time, or one larger row.
DECODED_BYTES = 8 << 20
# The row of the last single message is kept for at most this many topics.
NEAR_MAX = 8
# The slots of messages are noted when a row is decoded, for `shares_of_slots`: of this many rows of a topic, about
# this many slots of each row, and for this many topics.
LATELY_ROWS, LATELY_SLOTS, LATELY_TOPICS = 8, 1024, 64
# A read takes at least this many bytes, because a reader gets several pages in a turn.
READ_BYTES = 2 << 20
# No further read begins in a turn once its reads may bring this many bytes. Other reads wait for the next turns.
READ_BYTES_A_TURN = 16 << 20


@dataclass(slots=True)
class MessageRow:
    """A row of the journal, and its columns once a member needed a part of it."""

    stored: LoggedMessages
    keys: list[str] | None = None
    values: list[bytes] | None = None
    headers: list[Headers] | None = None
    slots: bytes = b""

    def decode(self) -> None:
        """Decode all batches of the row into four columns: keys, values, headers and slots."""
        keys: list[str] = []
        values: list[bytes] = []
        headers: list[Headers] = []
        slots, named = [], False
        for body in unpackb(self.stored.body, "messages", None):
            some, more, carried = unpack_with_headers(body)
            slots.append(slots_of(some, self.stored.first + len(values), len(more)))
            keys += some if some is not None else [""] * len(more)
            if carried is not None:
                headers += [NO_HEADERS] * (len(values) - len(headers))
                headers += carried
            values += more
            named |= some is not None
        if headers:
            headers += [NO_HEADERS] * (len(values) - len(headers))
        self.keys, self.values, self.slots = keys if named else None, values, b"".join(slots)
        self.headers = headers or None

    def clear(self) -> None:
        """Forget the columns."""
        self.keys, self.values, self.headers, self.slots = None, None, None, b""


class MessagePages:
    """The rows in memory, and the reads that are asked for."""

    def __init__(self) -> None:
        # The reads that are asked for, by topic and offset, the oldest first.
        self._asked: dict[tuple[int, int], ReadMessages] = {}
        # What the reads of the last turn found, by topic and offset, with the number up to which each was read.
        self._came: dict[tuple[int, int], tuple[int, Sequence[LoggedMessages] | ChpError]] = {}
        # The rows that are kept, by topic and first offset.
        self._rows: OrderedDict[tuple[int, int], MessageRow] = OrderedDict()
        self._bytes = self._decoded = 0
        # The rows of the last single messages, by topic.
        self._near: OrderedDict[int, MessageRow] = OrderedDict()
        # Slots of messages of the rows that were decoded last, by topic.
        self._lately: OrderedDict[int, deque[bytes]] = OrderedDict()

    def find(self, topic: int, offset: int, end: int, number: int, bytes_max: int) -> list[MessageRow] | None:
        """Return the rows from an offset on, of records up to a number, and of about `bytes_max` bytes.

        Return None if the journal has to be read first; the caller asks again in the next turn. Raise `ChpError` if
        the journal is damaged there. Rows after the last kept one, up to the topic's `end`, are read ahead.
        """
        found: list[MessageRow] = []
        size, at = 0, offset
        while (row := self._rows.get((topic, offset))) is not None:
            if row.stored.number > number or (found and size + len(row.stored.body) > bytes_max):
                return found
            found.append(row)
            size += len(row.stored.body)
            offset = row.stored.end
        if not found:
            return self._of_journal(topic, at, number, bytes_max)
        if offset < end:
            self._ask(topic, offset, number, bytes_max)
        return found

    def _of_journal(self, topic: int, offset: int, number: int, bytes_max: int) -> list[MessageRow] | None:
        upto, rows = self._came.get((topic, offset), (-1, ()))
        if isinstance(rows, ChpError):
            raise rows
        found: list[MessageRow] = []
        size = 0
        for stored in rows:
            if stored.number > number or (found and size + len(stored.body) > bytes_max):
                break
            found.append(self._rows.get((topic, stored.first)) or MessageRow(stored))
            size += len(stored.body)
        if not found and upto != number:
            self._ask(topic, offset, number, bytes_max)
            return None
        return found

    def _ask(self, topic: int, offset: int, number: int, bytes_max: int) -> None:
        self._asked[topic, offset] = ReadMessages(topic, offset, number, max(bytes_max, READ_BYTES))

    def due(self) -> list[ReadMessages]:
        """Return the reads of this turn, and forget what the last reads found."""
        self._came.clear()
        reads: list[ReadMessages] = []
        while self._asked and sum(read.bytes_max for read in reads) < READ_BYTES_A_TURN:
            reads.append(self._asked.pop(next(iter(self._asked))))
        return reads

    def came(self, read: ReadMessages, found: Sequence[LoggedMessages] | ChpError) -> None:
        """Take what a read has found, even if another part of the server asked for that read."""
        self._came[read.topic, read.offset] = read.number, found
        if not isinstance(found, ChpError):
            self.keep(found)

    def keep(self, rows: Iterable[LoggedMessages]) -> None:
        """Keep rows that were read, or that belong to a record of this turn."""
        for row in rows:
            self._keep(MessageRow(row))

    def _keep(self, row: MessageRow) -> None:
        key = row.stored.topic, row.stored.first
        if key in self._rows:
            return
        self._rows[key] = row
        self._bytes += len(row.stored.body)
        while self._bytes > KEPT_BYTES:
            _, gone = self._rows.popitem(last=False)
            self._bytes -= len(gone.stored.body)
            self._decoded -= len(gone.stored.body) if gone.values is not None else 0

    def clear(self) -> None:
        """Forget all rows: they may not be part of the history any more."""
        self._rows.clear()
        self._asked.clear()
        self._came.clear()
        self._near.clear()
        self._lately.clear()
        self._bytes = self._decoded = 0

    def item(self, row: MessageRow, slots: int, start: int, stop: int, *, plain: bool = False) -> tuple[bytes, int]:
        """Return a row's messages of some slots between two offsets, as an item, and their count; b"" and 0 if none.

        If the member is of an older version (`plain`), the messages are without headers.
        """
        stored = row.stored
        if slots == ALL_SLOTS and start <= stored.first and stop >= stored.end:
            return item_of(stored, plain=plain), stored.n
        if row.values is None:
            self._decode(row)
        mask = row.slots.translate(slot_mask(slots))
        before, behind = max(0, start - stored.first), max(0, stored.end - stop)
        if before or behind:
            mask = bytes(before) + mask[before : stored.n - behind] + bytes(behind)
        n = mask.count(1)
        if not n:
            return b"", 0
        values = list(compress(row.values or (), mask))
        keys = None if row.keys is None else list(compress(row.keys, mask))
        carried = None if row.headers is None or plain else list(compress(row.headers, mask))
        parts = [slice(i, i + BATCH_MAX) for i in range(0, n, BATCH_MAX)]
        bodies = [
            pack_messages(keys and keys[part], values[part], carried[part] if carried and any(carried[part]) else None)
            for part in parts
        ]
        fields = [stored.first, stored.n, stored.number, stored.wall_ms, bodies, mask]
        return b"".join((array_head(6), *map(packb, fields))), n

    # -- single messages

    def near(self, topic: int, offset: int) -> MessageRow | None:
        """Return the row of an offset if a single message of that row was sent lately."""
        row = self._near.get(topic)
        return row if row is not None and row.stored.first <= offset < row.stored.end else None

    def slots_in(self, topic: int, start: int, stop: int) -> int | None:
        """Return the slots of the messages between two offsets; None unless all of their rows are kept here."""
        rows = sorted(
            (row.stored.first, row) for (of, _), row in self._rows.items()
            if of == topic and row.stored.first < stop and row.stored.end > start
        )  # fmt: skip
        slots, at = 0, start
        for first, row in rows:
            if first > at:
                return None
            if row.values is None:
                self._decode(row)
            for slot in set(row.slots[at - first : stop - first]):
                slots |= 1 << slot
            at = row.stored.end
        return slots if at >= stop else None

    def offsets(self, row: MessageRow, slots: int, start: int) -> Iterator[int]:
        """Yield the offsets of a row's messages of some slots, from an offset on."""
        if row.values is None:
            self._decode(row)
        mask, at = row.slots.translate(slot_mask(slots)), max(0, start - row.stored.first) - 1
        while (at := mask.find(1, at + 1)) >= 0:
            yield row.stored.first + at

    def slot_of(self, row: MessageRow, offset: int) -> int:
        """Return the slot of a message of a row."""
        if row.values is None:
            self._decode(row)
        return row.slots[offset - row.stored.first]

    def message(self, row: MessageRow, offset: int) -> tuple[str, bytes, Headers]:
        """Return the key (or ""), the value and the headers of a message of a row."""
        if row.values is None:
            self._decode(row)
        at, values = offset - row.stored.first, row.values or []
        return row.keys[at] if row.keys else "", values[at], row.headers[at] if row.headers else NO_HEADERS

    def single(self, row: MessageRow, offset: int, *, plain: bool = False) -> bytes:
        """Return one message of a row as an item of MESSAGES."""
        self._near[row.stored.topic] = row
        while len(self._near) > NEAR_MAX:
            self._near.popitem(last=False)
        key, value, headers = self.message(row, offset)
        body = pack_messages([key] if key else None, [value], None if plain or not headers else [headers])
        stored = row.stored
        return b"".join((array_head(5), *map(packb, (offset, 1, stored.number, stored.wall_ms, [body]))))

    def shares_of_slots(self, topic: int) -> dict[int, float]:
        """Return the fraction of a topic's latest messages that each slot has; slots without messages are left out."""
        counts = Counter(b"".join(self._lately.get(topic, (bytes(range(SLOTS)),))))
        return {1 << slot: n / counts.total() for slot, n in counts.items()}

    def _decode(self, row: MessageRow) -> None:
        row.decode()
        topic = row.stored.topic
        self._lately.setdefault(topic, deque(maxlen=LATELY_ROWS)).append(
            row.slots[:: max(1, len(row.slots) // LATELY_SLOTS)]
        )
        self._lately.move_to_end(topic)
        if len(self._lately) > LATELY_TOPICS:
            self._lately.popitem(last=False)
        self._decoded += len(row.stored.body)
        if self._decoded > DECODED_BYTES:
            for other in self._rows.values():
                if other is not row and other.values is not None:
                    other.clear()
            self._decoded = len(row.stored.body)


def item_of(row: LoggedMessages, *, plain: bool = False) -> bytes:
    """Return a whole row as an item of MESSAGES; without headers if its reader is of an older version (`plain`)."""
    body = without_headers(row.body) if plain else row.body
    return b"".join((array_head(5), *map(packb, (row.first, row.n, row.number, row.wall_ms)), body))


def without_headers(body: bytes) -> bytes:
    """Return the batches of a row without the headers of their messages."""
    bodies = unpackb(body, "messages", None)
    if not any(map(has_headers, bodies)):
        return body
    return packb([pack_messages(*unpack_messages(each)) if has_headers(each) else each for each in bodies])


def load_of_page() -> Load:
    """Return a new counter that bounds the rows of one answer (see `takes_row`)."""
    return Load(PAGE_BYTES_MAX)


def takes_row(load: Load, row: LoggedMessages, size: int) -> bool:
    """Count a row of which `size` bytes are sent; return False if it does not fit. The first row always fits."""
    return load.takes(size, ITEM_WEIGHT + min(row.n, size // BATCH_BYTES_MIN))
