"""Messages as members of groups get them: rows are read once for all of them, and each gets the part of its slots.

The rows that were read last are kept, decoded once somebody wanted a part: members that keep up read the same ones. Of
a row a member gets the stored bytes if it has all slots, or else a selection by one mask, with a byte for each message
that tells whether it is there.

What is not kept is asked for, and read of the journal at the end of the turn (`due`); it is here in the next turn
(`came`), and for that turn only it is also known where the journal has nothing. Messages that a record of this turn
has placed are kept at once, so who is at the end of a topic waits for no read. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from chp.batch import array_head, packb, unpackb
from chp.errors import ChpError
from chp.limits import DEFAULT
from chp.topics import ALL_SLOTS, pack_messages, slot_mask, slots_of, unpack_messages
from chp.unpacking import CONTAINER, Load

from ..state.record_log import LoggedMessages
from ..updates.turn import ReadMessages

KEPT_BYTES = 32 << 20  # of rows, as stored
BATCH_MAX = DEFAULT.batch_items_max  # messages of one batch, as a reader takes it
ITEM_WEIGHT = 2 * CONTAINER + 6  # of an item of MESSAGES, beside its batches
BATCH_BYTES_MIN = 7  # of one of them
PAGE_BYTES_MAX = 8 << 20  # of one answer to a member of a group, unless one row has more
DECODED_BYTES = 8 << 20  # of those that are decoded too, as stored
# At least so many bytes are read at once: a reader gets several pages in a turn, each of a whole row at least.
READ_BYTES = 2 << 20
# What is asked for beyond these bytes is read in the next turns.
READ_BYTES_A_TURN = 16 << 20


@dataclass(slots=True)
class MessageRow:
    """A row of the journal, and its columns once somebody wanted a part of it."""

    stored: LoggedMessages
    keys: list[str] | None = None
    values: list[bytes] | None = None
    slots: bytes = b""

    def decode(self) -> None:
        """All batches of the row, as one column each."""
        keys: list[str] = []
        values: list[bytes] = []
        slots, named = [], False
        for body in unpackb(self.stored.body, "messages", None):
            some, more = unpack_messages(body)
            slots.append(slots_of(some, self.stored.first + len(values), len(more)))
            keys += some if some is not None else [""] * len(more)
            values += more
            named |= some is not None
        self.keys, self.values, self.slots = keys if named else None, values, b"".join(slots)


class MessagePages:
    """See the module."""

    def __init__(self) -> None:
        # Both are by topic and offset. What was asked for first is read first; what came has its read's last number.
        self._asked: dict[tuple[int, int], ReadMessages] = {}
        self._came: dict[tuple[int, int], tuple[int, Sequence[LoggedMessages] | ChpError]] = {}
        self._rows: OrderedDict[tuple[int, int], MessageRow] = OrderedDict()  # by topic and first offset
        self._bytes = self._decoded = 0

    def find(self, topic: int, offset: int, end: int, number: int, bytes_max: int) -> list[MessageRow] | None:
        """Return the rows from an offset on, of records up to a number: about so many bytes.

        None if the journal has to be read first: ask again in the next turn. Raise `ChpError` if it is damaged there.
        What comes behind the last row that is kept, up to the topic's `end`, is read ahead.
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
        """Return what the journal is to be asked for in this turn; what came for this turn is forgotten."""
        self._came.clear()
        reads: list[ReadMessages] = []
        while self._asked and sum(read.bytes_max for read in reads) < READ_BYTES_A_TURN:
            reads.append(self._asked.pop(next(iter(self._asked))))
        return reads

    def came(self, read: ReadMessages, found: Sequence[LoggedMessages] | ChpError) -> None:
        """Take what the journal has; the read may have been asked for by another part."""
        self._came[read.topic, read.offset] = read.number, found
        if not isinstance(found, ChpError):
            self.keep(found)

    def keep(self, rows: Iterable[LoggedMessages]) -> None:
        """Keep rows that were read, or that a record of this turn has placed."""
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
        """Forget what was read: it may be no part of the history any more."""
        self._rows.clear()
        self._asked.clear()
        self._came.clear()
        self._bytes = self._decoded = 0

    def item(self, row: MessageRow, slots: int, start: int, stop: int) -> tuple[bytes, int]:
        """A row's messages of some slots between two offsets, as an item, and how many; nothing if there are none."""
        stored = row.stored
        if slots == ALL_SLOTS and start <= stored.first and stop >= stored.end:
            return item_of(stored), stored.n
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
        starts = range(0, n, BATCH_MAX)
        bodies = [
            pack_messages(None if keys is None else keys[i : i + BATCH_MAX], values[i : i + BATCH_MAX]) for i in starts
        ]
        fields = [stored.first, stored.n, stored.number, stored.wall_ms, bodies, mask]
        return b"".join((array_head(6), *map(packb, fields))), n

    def _decode(self, row: MessageRow) -> None:
        row.decode()
        self._decoded += len(row.stored.body)
        if self._decoded > DECODED_BYTES:
            for other in self._rows.values():
                if other is not row and other.values is not None:
                    other.keys, other.values, other.slots = None, None, b""
            self._decoded = len(row.stored.body)


def item_of(row: LoggedMessages) -> bytes:
    """A whole row as an item of MESSAGES."""
    return b"".join((array_head(5), *map(packb, (row.first, row.n, row.number, row.wall_ms)), row.body))


def load_of_page() -> Load:
    """Return what bounds the rows of one answer."""
    return Load(PAGE_BYTES_MAX)


def takes_row(load: Load, row: LoggedMessages, size: int) -> bool:
    """Add a row to an answer, of which `size` bytes are sent, if a reader takes both; the first always."""
    return load.takes(size, ITEM_WEIGHT + min(row.n, size // BATCH_BYTES_MIN))
