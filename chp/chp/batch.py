"""CHP/2 bodies: columns of keys and values in one msgpack array (SPEC.md, section 13).

    body     = [header, item, ...]          header[0] is the kind, which decides what the items are
    segment  = [keys, values, extras]       columns of equal length; extras is nil or a map of sparse columns

A batch of a thousand updates is one `msgpack.unpackb` to read and one `dict.update(zip(...))` to apply; nothing here
loops over keys unless a sparse column asks for it. A body is one msgpack object, so that a segment's bytes can be
passed on as they came: `join` puts an array head and a header in front of segments that are already encoded.

`segment_of` checks a segment from a peer before other code reads it. Errors are `BadFrame`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import msgpack
from msgpack import Packer

from . import columns
from .errors import BadFrame
from .headers import (
    ACK,
    APPLIED,
    BATCH,
    DURABILITY_NAMES,
    EPOCH,
    GREETING,
    HEARTBEAT,
    JOURNALED,
    KIND_NAMES,
    KTHXBAI,
    RECORDS,
    REFUSED,
    REPLICATED,
    REPLY,
    STATE,
    SYNC,
    Batch,
    Header,
    expect,
    fields_of,
    header_of,
)
from .limits import DEFAULT
from .unpacking import (
    BODY,
    CONTAINER,
    HAVE,
    LIGHT,
    LONG_TEXT,
    QUESTION,
    SEGMENT,
    TEXT_BYTES_MAX,
    TooMuch,
    entry,
    unpack,
    weight_of,
)

# The kinds are those of `headers`; callers import them from here too.
__all__ = [
    "ACK",
    "APPLIED",
    "BATCH",
    "COLUMNS",
    "DURABILITY_NAMES",
    "EPOCH",
    "GREETING",
    "HEARTBEAT",
    "JOURNALED",
    "KIND_NAMES",
    "KTHXBAI",
    "RECORDS",
    "REFUSED",
    "REPLICATED",
    "REPLY",
    "STATE",
    "SYNC",
    "Segment",
    "array_head",
    "decode",
    "decode_segment",
    "encode",
    "items_of",
    "join",
    "narrow",
    "packb",
    "peek",
    "record_of",
    "runs_of",
    "segment_of",
    "select",
    "split",
    "unpackb",
]


# A value above this many bytes is encoded apart, as a copy of it costs more than a few lines of Python. msgpack encodes
# such a value as bin 32.
LARGE = 1 << 16
# Only segments with at most this many values are searched for large ones. A longer search would cost what it saves.
LARGE_AMONG = 64
_BIN_32 = struct.Struct(">BI")
# A time in milliseconds since 1970 is at most this: the beginning of the year 10000.
TIME_MS_MAX = 253_402_300_800_000
# Columns that are one array.
FLAT = frozenset({columns.DELETES, columns.UUIDS, columns.ONCE})
# The weight of a segment without items.
PLAIN = 3 * CONTAINER + 3


def _column_weight(name: str, column: Any) -> int:
    """Return the weight of a sparse column. For a column that may be long, the lengths of its arrays are enough."""
    if name in columns.PAIRED and type(column) is not int:
        return 3 * CONTAINER + 2 + 2 * len(column[0])
    if name in FLAT:
        return CONTAINER + len(column)
    if name == columns.PLACED:
        return 2 * CONTAINER + 2 + len(column[1]) * (CONTAINER + 6)
    if name == columns.EXPECT:
        return CONTAINER + len(column) * (CONTAINER + 3)
    return weight_of(column)


@dataclass(slots=True)
class Segment:
    """Columns of updates: `keys[i]` is set to `values[i]`, or deleted if the column DELETES has i."""

    keys: list[str]
    values: list[bytes]
    extras: dict[str, Any] | None = None
    # The lowest and the highest key; None until they are known.
    _bounds: tuple[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def items(self) -> int:
        """The count of its items."""
        return len(self.keys)

    @property
    def bounds(self) -> tuple[str, str]:
        """The lowest and the highest key. They are remembered, so no key may be added after the first read."""
        if self._bounds is None:
            self._bounds = min(self.keys), max(self.keys)
        return self._bounds

    def know_bounds(self, low: str, high: str) -> None:
        """Note the lowest and the highest key, which the caller knows."""
        self._bounds = low, high

    @property
    def weight(self) -> int:
        """The weight of the segment as its reader counts it. It is computed without a look at the items."""
        plain = PLAIN + 2 * len(self.keys)
        if self.extras is None:
            return plain
        columns_weight = sum(_column_weight(name, column) for name, column in self.extras.items())
        return plain + CONTAINER + len(self.extras) + columns_weight

    def encode(self) -> bytes:
        """Return the segment as it stands in a body."""
        if 0 < len(self.values) <= LARGE_AMONG and max(map(len, self.values)) > LARGE:
            return self._joined()
        return packb((self.keys, self.values, self.extras))

    def _joined(self) -> bytes:
        """Return the segment encoded with one copy of each large value.

        msgpack copies each value twice, and again whenever its buffer grows.
        """
        pieces = [array_head(3), packb(self.keys), array_head(len(self.values))]
        for value in self.values:
            pieces += (_BIN_32.pack(0xC6, len(value)), value) if len(value) > LARGE else (packb(value),)
        return b"".join([*pieces, packb(self.extras)])

    def describe(self) -> str:
        """Return one line for logs and transcripts: `/a=1 /b deleted (+3 more) ttl=2500`."""
        extras = self.extras or {}
        deleted = set(extras.get(columns.DELETES, ()))
        shown = [
            f"{k} deleted" if i in deleted else f"{k}={v.decode(errors='replace')[:20]}"
            for i, (k, v) in enumerate(zip(self.keys[:4], self.values[:4], strict=True))
        ]
        more = [f"(+{len(self.keys) - 4} more)"] if len(self.keys) > 4 else []
        return " ".join([*shown, *more, *columns.in_words(extras)])


def packb(thing: object) -> bytes:
    """Return msgpack in the form of this protocol, which keeps str and bin apart."""
    packed: bytes = Packer().pack(thing)
    return packed


def unpackb(body: bytes, what: str, weight_max: int | None = BODY, text_max: int = TEXT_BYTES_MAX) -> Any:
    """Return the one msgpack object in `body`; raise `BadFrame`, which names `what`, if it is bad or too heavy."""
    try:
        return unpack(body, weight_max, text_max)
    except TooMuch as error:
        raise BadFrame(f"{what} is too much: {error}; see SPEC.md") from None
    except Exception as error:
        if LONG_TEXT in str(error):
            raise BadFrame(f"{what} has text of more than {text_max} bytes, such as no key may have") from None
        # msgpack raises ValueError, its subclasses, and OverflowError for ill-formed input
        raise BadFrame(f"{what} is not one msgpack object ({type(error).__name__}: {error}); see SPEC.md") from None


OPTIONS = "the options of ICANHAZ?"


def decode_options(body: bytes) -> Any:
    """Return the options of a request. The ranges in hand of a member (`have`) have a weight limit of their own."""
    if len(body) <= LIGHT or (have := _entry(body, "have")) is None:
        return unpackb(body, OPTIONS, QUESTION)
    begin, end = have
    # The value of `have` is replaced by nil.
    options = unpackb(body[:begin] + b"\xc0" + body[end:], OPTIONS, QUESTION)
    return {**options, "have": unpackb(body[begin:end], "the 'have' of ICANHAZ?", HAVE)}


def peek_id(body: bytes) -> int | None:
    """Return the id of a request without a check of its other options; None if there is no valid id."""
    place = _entry(body, "id")
    if place is None:
        return None
    try:
        found = unpackb(body[place[0] : place[1]], OPTIONS, QUESTION)
    except BadFrame:
        return None
    return found if type(found) is int else None


def _entry(body: bytes, name: str) -> tuple[int, int] | None:
    """Return (begin, end) of an option's value; None if the option is missing, or if the options are no msgpack map."""
    try:
        return entry(body, name)
    # msgpack raises several kinds of errors for ill-formed input; `unpackb` of the whole body says what is wrong.
    except Exception:
        return None


ITEMS_MAX = DEFAULT.batch_items_max
# An acknowledgement names at most this many positions: one for each history whose messages it acknowledges.
POSITIONS_MAX = 16
# All threads share this packer, which is safe because packing is one call.
_pack_header: Callable[[Sequence[object]], bytes] = Packer().pack
_SHORT_HEADS = [bytes((0x90 | n,)) for n in range(16)]


def array_head(n: int) -> bytes:
    """Return the bytes in front of the elements of an msgpack array of `n`."""
    if n < 16:
        return _SHORT_HEADS[n]
    return struct.pack(">BH", 0xDC, n) if n < 1 << 16 else struct.pack(">BI", 0xDD, n)


def join(header: Sequence[object], items: Sequence[bytes] = ()) -> bytes:
    """Return a body from the fields of its header and from items that are encoded already."""
    return b"".join((array_head(1 + len(items)), _pack_header(header), *items))


def encode(header: Header, items: Sequence[bytes] = ()) -> bytes:
    """Return a body from its header and from items that are encoded already."""
    n = 1 + len(items)
    head = _SHORT_HEADS[n] if n < 16 else array_head(n)
    return b"".join((head, _pack_header(fields_of(header)), *items))


def decode(body: bytes, weight_max: int | None = BODY) -> tuple[Header, list[Any]]:
    """Return the checked header of a body, and its items as msgpack decoded them."""
    parts = _parts(body, weight_max)
    header = header_of(parts[0])
    del parts[0]
    return header, parts


def split(body: bytes, weight_max: int | None = BODY) -> list[Any]:
    """Return the header and items of a body as msgpack decoded them; the header is checked as in `decode`."""
    parts = _parts(body, weight_max)
    header_of(parts[0])
    return parts


def _parts(body: bytes, weight_max: int | None) -> list[Any]:
    parts = unpackb(body, "the body", weight_max)
    if type(parts) is not list or not parts:
        raise BadFrame("the body is not an array that begins with a header")
    return parts


def items_of(body: bytes) -> list[bytes]:
    """Return the bytes of each item of a body that was decoded before, as its sender made them."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    n = unpacker.read_array_header()
    unpacker.skip()
    begin, items = unpacker.tell(), []
    for _ in range(n - 1):
        unpacker.skip()
        end = unpacker.tell()
        items.append(body[begin:end])
        begin = end
    return items


# `peek_answer` reads this many bytes. The heads of two arrays, the kind and the id of the question take fewer.
ANSWER_BYTES = 32


def peek(body: bytes, bytes_max: int = 4096) -> tuple[Header, int] | None:
    """Return the header of a body and the place of its first item without unpacking the items, or None.

    The result is None if the header is longer than `bytes_max`, or if this is no body; `decode` says then what is
    wrong.
    """
    unpacker = msgpack.Unpacker()
    unpacker.feed(body[:bytes_max])
    try:
        unpacker.read_array_header()
        return header_of(unpacker.unpack()), unpacker.tell()
    except Exception:
        return None


def peek_answer(body: bytes) -> tuple[int, int] | None:
    """Return the kind of an answer and the id of its question, however long its header is; None if this is no body."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(body[:ANSWER_BYTES])
    try:
        unpacker.read_array_header()
        unpacker.read_array_header()
        kind, request_id = unpacker.unpack(), unpacker.unpack()
    except Exception:
        return None
    return (kind, request_id) if type(kind) is int and type(request_id) is int else None


def decode_segment(body: bytes) -> Segment:
    """Return the segment in the body of a KVSET; raise `BadFrame` if it is malformed or one of its keys is too long."""
    return segment_of(unpackb(body, "the batch", SEGMENT, DEFAULT.key_bytes_max))


def record_of(item: object) -> tuple[Batch, list[Segment]]:
    """Return the header and segments of an item of RECORDS, which is a whole BATCH."""
    if type(item) is not list or not item:
        raise BadFrame("an item of RECORDS is a whole body")
    return expect(Batch, item[0]), [segment_of(each) for each in item[1:]]


def segment_of(thing: object) -> Segment:
    """Return a `Segment` from a decoded array; passes in C check its columns."""
    if type(thing) is not list or len(thing) != 3:
        raise BadFrame("a segment is an array of keys, values and extras")
    keys, values, extras = thing
    n = len(keys) if type(keys) is list else -1
    if type(values) is not list or len(values) != n:
        raise BadFrame("a segment's keys and values are arrays of the same length")
    if n > ITEMS_MAX:
        raise BadFrame(f"a segment has at most {ITEMS_MAX} items, not {n}; split it")
    try:
        "".join(keys)
    except TypeError:
        raise BadFrame("a segment's keys are text, each of them") from None
    if list(map(type, values)).count(bytes) != n:
        raise BadFrame("a segment's values are bytes (msgpack bin), each of them")
    if extras is not None:
        _check_extras(extras, n)
    return Segment(keys, values, extras)


def _check_extras(extras: object, n: int) -> None:
    if type(extras) is not dict:
        raise BadFrame("a segment's extras are nil or a map")
    for name, column in extras.items():
        check = _EXTRAS.get(name)
        if check is not None and not check(column, n):
            raise BadFrame(f"the sparse column {name!r} is not of its form, or names an item that is not there")


def _indices(column: object, n: int) -> bool:
    if type(column) is not list:
        return False
    return not column or (set(map(type, column)) == {int} and min(column) >= 0 and max(column) < n)


def _ttl_ok(ms: object) -> bool:
    return type(ms) is int and 0 < ms <= DEFAULT.ttl_s_max * 1000


def _sparse(column: object, n: int, ok: Callable[[object], bool]) -> bool:
    return (
        type(column) is list
        and len(column) == 2
        and _indices(column[0], n)
        and type(column[1]) is list
        and len(column[0]) == len(column[1])
        and all(map(ok, column[1]))
    )


def _number_ok(n: object) -> bool:
    return type(n) is int and 0 <= n < 1 << 63


def _id_ok(thing: object) -> bool:
    return type(thing) is bytes and len(thing) == 16


def _bytes_ok(thing: object) -> bool:
    return type(thing) is bytes


def _runs_ok(column: object, n: int) -> bool:
    return (
        type(column) is list
        and all(type(r) is list and len(r) == 2 and _number_ok(r[0]) and type(r[1]) is int and r[1] > 0 for r in column)
        and sum(r[1] for r in column) == n
    )


def _lease_ok(column: object, n: int) -> bool:
    if type(column) is not list or not 2 <= len(column) <= 3:
        return False
    return _id_ok(column[0]) and _ttl_ok(column[1]) and all(type(owner) is bytes for owner in column[2:])


def _stage_ok(column: object, n: int) -> bool:
    return type(column) is list and len(column) == 2 and _id_ok(column[0]) and _name_ok(column[1])


def _name_ok(thing: object) -> bool:
    return type(thing) is str and 0 < len(thing) <= 256


def _commit_ok(column: object, n: int) -> bool:
    if n or type(column) is not list or len(column) != 5:
        return False
    transaction, application, version, parts, replace = column
    return (
        _id_ok(transaction)
        and (application == "" or _name_ok(application))
        and _number_ok(version)
        and type(parts) is list
        and all(type(p) is list and len(p) == 2 and _name_ok(p[0]) and _number_ok(p[1]) for p in parts)
        and (replace is None or type(replace) is str)
    )


def _topic_ok(thing: object) -> bool:
    return type(thing) is str and 0 < len(thing) <= 200


def _publish_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 3 and _topic_ok(each[0]) and _number_ok(each[1]) and type(each[2]) is bytes
        for each in column
    )


def _made_ok(column: object, n: int) -> bool:
    return (
        type(column) is list
        and len(column) == 2
        and _topic_ok(column[0])
        and (column[1] is None or type(column[1]) is dict)
    )


def _placed_ok(column: object, n: int) -> bool:
    return (
        type(column) is list
        and len(column) == 2
        and _number_ok(column[0])
        and type(column[1]) is list
        and all(
            type(each) is list and len(each) == 5 and _topic_ok(each[0]) and all(map(_number_ok, each[1:]))
            for each in column[1]
        )
    )


def _group_ok(column: object, n: int) -> bool:
    if type(column) is not list or len(column) != 3:
        return False
    return _topic_ok(column[0]) and _topic_ok(column[1]) and (column[2] is None or type(column[2]) is dict)


def _join_ok(column: object, n: int) -> bool:
    if type(column) is not list or len(column) != 4:
        return False
    topic, group, member, name = column
    return _topic_ok(topic) and _topic_ok(group) and _id_ok(member) and type(name) is str and len(name) <= 256


def _slots_ok(thing: object) -> bool:
    return type(thing) is bytes and len(thing) == 32


def _positions_ok(thing: object) -> bool:
    return type(thing) is list and 0 < len(thing) <= POSITIONS_MAX and all(
        type(at) is list and len(at) == 3 and _number_ok(at[0]) and type(at[1]) is bytes and type(at[2]) is bytes
        for at in thing
    )  # fmt: skip


def _ack_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and 4 <= len(each) <= 5 and _topic_ok(each[0]) and _topic_ok(each[1]) and _id_ok(each[2])
        and type(each[3]) is list and 0 < len(each[3]) <= 256 and all(map(_positions_ok, each[4:]))
        and all(
            type(move) is list and len(move) == 3 and _slots_ok(move[0]) and _number_ok(move[1]) and _number_ok(move[2])
            for move in each[3]
        )
        for each in column
    )  # fmt: skip


def _assign_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 3 and _topic_ok(each[0]) and _topic_ok(each[1]) and type(each[2]) is list
        and all(type(m) is list and len(m) == 2 and _slots_ok(m[0]) and type(m[1]) is bytes for m in each[2])
        for each in column
    )  # fmt: skip


def _nack_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 4 and _topic_ok(each[0]) and _topic_ok(each[1]) and _id_ok(each[2])
        and type(each[3]) is list and len(each[3]) <= 256
        and all(
            type(back) is list and len(back) == 4 and _slots_ok(back[0]) and all(map(_number_ok, back[1:3]))
            and (back[3] is None or type(back[3]) is str)
            for back in each[3]
        )
        for each in column
    )  # fmt: skip


def _of_slots_ok(column: object, *, why: bool) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 3 and _topic_ok(each[0]) and _topic_ok(each[1]) and type(each[2]) is list
        and all(
            type(one) is list and len(one) == 2 + why and _slots_ok(one[0]) and _number_ok(one[1])
            and all(type(text) is str for text in one[2:])
            for one in each[2]
        )
        for each in column
    )  # fmt: skip


def _when_ok(thing: object) -> bool:
    """Return True for a time in milliseconds; below 0 it is a delay from now."""
    return type(thing) is int and -TIME_MS_MAX <= thing <= TIME_MS_MAX


def _schedule_ok(column: object, n: int) -> bool:
    return type(column) is list and len(column) <= ITEMS_MAX and all(
        type(each) is list and len(each) == 6 and _entry_ok(each) for each in column
    )  # fmt: skip


def _entry_ok(entry: list[Any]) -> bool:
    topic, name, when, every, unless, messages = entry[:6]
    return (
        _topic_ok(topic) and _topic_ok(name) and _when_ok(when) and _when_ok(every) and every >= 0
        and (unless is None or type(unless) is str) and type(messages) is bytes
    )  # fmt: skip


def _cancel_ok(column: object, n: int) -> bool:
    return type(column) is list and len(column) <= ITEMS_MAX and all(
        type(each) is list and len(each) == 2 and all(map(_topic_ok, each)) for each in column
    )  # fmt: skip


def _scheduled_ok(column: object, n: int) -> bool:
    return (
        type(column) is list and len(column) == 2 and _when_ok(column[0]) and type(column[1]) is list
        and all(type(e) is list and len(e) == 7 and _entry_ok(e) and type(e[6]) is str for e in column[1])
    )  # fmt: skip


def _fired_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 3 and all(map(_topic_ok, each[:2])) and _when_ok(each[2]) for each in column
    )


def _expect_ok(column: object, n: int) -> bool:
    return type(column) is list and len(column) <= ITEMS_MAX and all(
        type(each) is list and len(each) == 2 and type(each[0]) is str and _number_ok(each[1]) for each in column
    )  # fmt: skip


def _once_ok(column: object, n: int) -> bool:
    if type(column) is not list or len(column) != 3:
        return False
    return _name_ok(column[0]) and _number_ok(column[1]) and type(column[2]) is bool


def _skipped_ok(column: object, n: int) -> bool:
    return type(column) is list and 2 <= len(column) <= 3 and _id_ok(column[0]) and all(map(_number_ok, column[1:]))


def _images_ok(column: object, n: int) -> bool:
    if type(column) is not list or len(column) != 2:
        return False
    return type(column[0]) is bool and type(column[1]) is list and all(map(_number_ok, column[1]))


def _trim_ok(column: object, n: int) -> bool:
    return type(column) is list and all(
        type(each) is list and len(each) == 2 and _topic_ok(each[0]) and _number_ok(each[1]) for each in column
    )


_EXTRAS: dict[object, Callable[[Any, int], bool]] = {
    columns.DELETES: lambda column, n: _indices(column, n) and len(set(column)) == len(column),
    columns.TTLS: lambda column, n: _ttl_ok(column) or _sparse(column, n, _ttl_ok),
    columns.CONDITIONS: lambda column, n: _sparse(column, n, _number_ok),
    columns.LEASED: lambda column, n: _id_ok(column),
    columns.UNLESS_NEWER: lambda column, n: _sparse(column, n, _number_ok),
    columns.STAGE: _stage_ok,
    columns.COMMIT: _commit_ok,
    columns.DONE: lambda column, n: type(column) is list and len(column) == 3,
    columns.ABORT: lambda column, n: _id_ok(column),
    columns.ENDED: lambda column, n: column is True,
    columns.REVISIONS: _runs_ok,
    columns.LEASE: _lease_ok,
    columns.REFRESH: lambda column, n: _id_ok(column),
    columns.UNLEASE: lambda column, n: _id_ok(column),
    columns.UUIDS: lambda column, n: (
        type(column) is list and len(column) in (n, n or len(column)) and all(map(_bytes_ok, column))
    ),
    columns.PROPERTIES: lambda column, n: _sparse(column, n, _bytes_ok),
    columns.PUBLISH: _publish_ok,
    columns.TOPIC: _made_ok,
    columns.PLACED: _placed_ok,
    columns.TRIM: _trim_ok,
    columns.GROUP: _group_ok,
    columns.JOIN: _join_ok,
    columns.ACK: _ack_ok,
    columns.ASSIGN: _assign_ok,
    columns.NACK: _nack_ok,
    columns.FAILED: lambda column, n: _of_slots_ok(column, why=True),
    columns.ASIDE: lambda column, n: _of_slots_ok(column, why=False),
    columns.EXPECT: _expect_ok,
    columns.SCHEDULE: _schedule_ok,
    columns.CANCEL: _cancel_ok,
    columns.SCHEDULED: _scheduled_ok,
    columns.FIRED: _fired_ok,
    columns.ONCE: _once_ok,
    columns.SKIPPED: _skipped_ok,
    columns.IMAGES: _images_ok,
}

COLUMNS = frozenset(_EXTRAS)


def narrow(segment: Segment, prefix: str) -> Segment | None:
    """Return the part of a segment whose keys begin with `prefix`: the segment itself if all do, None if none does.

    Two comparisons decide for a whole column: if the lowest and the highest key begin with a prefix, all keys do.
    """
    keys = segment.keys
    if segment.extras and columns.STAGE in segment.extras:
        return None
    if not keys or not prefix:
        return segment if keys else None
    low, high = segment.bounds
    if low.startswith(prefix) and high.startswith(prefix):
        return segment
    if high < prefix or (low > prefix and not low.startswith(prefix)):
        return None
    return select(segment, [key.startswith(prefix) for key in keys])


def shown(segment: Segment) -> Segment:
    """Return a segment with only the columns that readers of a subtree get; the segment itself if it has no others."""
    if not segment.extras or segment.extras.keys() <= columns.SHOWN:
        return segment
    extras = columns.without(segment.extras, segment.extras.keys() - columns.SHOWN)
    return Segment(segment.keys, segment.values, extras or None)


def select(segment: Segment, mask: list[bool]) -> Segment | None:
    """Return the items of a segment that the mask selects, with their sparse columns; None if it selects none."""
    kept = list(compress(segment.keys, mask))
    if not kept:
        return None
    extras = None if segment.extras is None else _narrow_extras(segment.extras, mask)
    return Segment(kept, list(compress(segment.values, mask)), extras)


def _narrow_extras(extras: dict[str, Any], mask: list[bool]) -> dict[str, Any]:
    places: dict[int, int] = {}
    for old in compress(range(len(mask)), mask):
        places[old] = len(places)
    out = dict(extras)
    if columns.DELETES in out:
        out[columns.DELETES] = [places[i] for i in out[columns.DELETES] if mask[i]]
    if columns.UUIDS in out:
        out[columns.UUIDS] = list(compress(out[columns.UUIDS], mask))
    for name in columns.PAIRED:
        column = out.get(name)
        if type(column) is list:
            pairs = [(places[i], x) for i, x in zip(*column, strict=True) if mask[i]]
            out[name] = [[i for i, _ in pairs], [x for _, x in pairs]]
    return out


def runs_of(revisions: Iterable[int]) -> list[list[int]]:
    """Return revisions as runs `[revision, count]`: keys that were written together share a revision."""
    runs: list[list[int]] = []
    last = -1
    for revision in revisions:
        if revision == last:
            runs[-1][1] += 1
        else:
            runs.append([revision, 1])
            last = revision
    return runs
