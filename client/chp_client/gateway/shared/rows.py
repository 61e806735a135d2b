"""Rows: many sets and deletes in one record. Every write of the gateway consists of rows.

A row of POST /v1/batch is a map: a line of NDJSON, or an item of a msgpack array. A map has these members:

    {"set": key, "value": text}      "base64" in place of "value" for bytes; in msgpack "value" may be bytes itself
    {"delete": key}
    ... "ttl": seconds               for a set
    ... "if": "1.42"                 only if the key has this revision; "0" means that it is absent

All rows are done in the order given. If a condition does not hold, none is done.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from itertools import repeat
from typing import Any

import msgpack

from chp.errors import ChpError
from chp.keys import check_column
from chp.limits import DEFAULT
from chp.unpacking import TEXT_BYTES_MAX

from ... import checks
from ..problems import Problem
from ..slices import SLICE_BYTES, SLICE_ROWS, Steps, blocks, document

NDJSON, MSGPACK = "application/x-ndjson", ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")
# The subtree of keys that gateways keep for themselves.
RESERVED = "/.gateway/"
# A request has at most this many rows. One more row is left for the marker of an Idempotency-Key.
ROWS_MAX = DEFAULT.batch_items_max - 1
# The keys and values of one batch have at most this many bytes.
BYTES_MAX = DEFAULT.batch_bytes_max - (65_536 * 2)
VALUE_MAX = DEFAULT.value_bytes_max
# A row has at most this many values. Unknown members fit too, so that the error can name one.
THINGS = 16
MEMBERS = frozenset({"set", "delete", "value", "base64", "ttl", "if"})


class BatchRows:
    """The columns of sets and deletes."""

    def __init__(self, subtrees: tuple[str, ...]) -> None:
        self._subtrees = subtrees
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.deletes: list[int] = []
        self.ttls: tuple[list[int], list[int]] = ([], [])
        self.conditions: tuple[list[int], list[int]] = ([], [])
        # Columns of topics and groups, which travel in the same record.
        self.extras: dict[str, Any] = {}
        # The topics and the keys that these columns name. One mount has to have all topics and keys of the rows.
        self.topics: list[str] = []
        self.related: list[str] = []
        self.bytes = 0

    def add(self, key: object, value: bytes | None, ttl_ms: int | None = None, condition: int | None = None) -> None:
        """Check and add a set, or with a value of None a delete; raise `ChpError` or `Problem` for a bad one."""
        self.append(key_to_set(key, self._subtrees), value and checks.value_bytes(value), ttl_ms, condition)

    def append(self, key: str, value: bytes | None, ttl_ms: int | None, condition: int | None) -> None:
        """Add a set or a delete whose key and value are checked."""
        at = len(self.keys)
        self.keys.append(key)
        self.values.append(value or b"")
        self.bytes += len(key) + len(self.values[-1])
        if value is None:
            self.deletes.append(at)
        if ttl_ms is not None:
            self.ttls[0].append(at)
            self.ttls[1].append(ttl_ms)
        if condition is not None:
            self.conditions[0].append(at)
            self.conditions[1].append(condition)

    def add_plain(self, given: list[Any]) -> bool:
        """Add rows that only set a key to a text; add none and return False if one is of another form or bad."""
        try:
            keys = [row["set"] for row in given]
            values = [row["value"].encode() for row in given]
            if not given or set(map(len, given)) != {2} or max(map(len, values)) > VALUE_MAX:
                return False
            check_column(keys, {})
            checks.held_column(keys, self._subtrees)
        except (ChpError, ValueError, TypeError, KeyError, AttributeError):
            return False
        if any(map(str.startswith, keys, repeat(RESERVED))):
            return False
        self.keys += keys
        self.values += values
        self.bytes += sum(map(len, keys)) + sum(map(len, values))
        return True

    def check_bytes(self) -> None:
        """Raise `Problem` if there are more bytes than one batch may have."""
        if self.bytes > BYTES_MAX:
            raise Problem(413, "too-large", f"keys and values have more than {BYTES_MAX} bytes; send them in parts")

    def room_for(self, keys: int, size: int) -> bool:
        """Return True if this many more keys, with `size` bytes in all, fit into the same batch."""
        return len(self.keys) + keys <= ROWS_MAX and self.bytes + size <= BYTES_MAX

    def extend(self, more: BatchRows) -> None:
        """Append other rows. They must have no conditions, as a condition would decide about the whole batch."""
        first = len(self.keys)
        self.keys += more.keys
        self.values += more.values
        self.bytes += more.bytes
        if more.deletes:
            self.deletes += [first + at for at in more.deletes]
        if more.ttls[0]:
            self.ttls[0].extend([first + at for at in more.ttls[0]])
            self.ttls[1].extend(more.ttls[1])


def key_to_set(key: object, subtrees: tuple[str, ...]) -> str:
    """Return a key that may be set or deleted here; raise `ChpError` or `Problem` for any other key."""
    checked = checks.held_key(key, subtrees)
    if checked.startswith(RESERVED):
        check_reserved(checked)
    return checked


def check_reserved(key: str) -> None:
    """Raise `Problem` for a key that gateways keep for themselves."""
    if key.startswith(RESERVED):
        raise Problem(403, "reserved", f"keys under {RESERVED} are the gateways' own; use another")


def kind_of(text: str) -> str:
    """Return the kind of rows that a Content-Type names; raise `Problem` for any other kind."""
    kind = text.partition(";")[0].strip().lower()
    if kind != NDJSON and kind not in MSGPACK:
        raise Problem(415, "bad-kind", f"Content-Type {kind[:60]!r} is not known here; send {NDJSON} or {MSGPACK[0]}")
    return kind


def rows_of(kind: str, body: bytes, rows: BatchRows) -> Steps[BatchRows]:
    """Add the rows of a body to `rows`; the `Problem` of a bad row names its place."""

    def add_line(line: Any, i: int) -> None:
        add_row(rows, line, i)

    def add_lines(given: list[Any]) -> bool:
        return rows.add_plain(given)

    if kind == NDJSON:
        for _ in read_lines(body, add_lines, add_line):
            rows.check_bytes()
            yield
    else:
        yield from _unpacked(body, rows)
    if not rows.keys:
        raise Problem(400, "empty", "the batch has no rows; give one a line")
    rows.check_bytes()
    return rows


def add_row(rows: BatchRows, row: Any, i: int) -> None:
    """Add the i-th row, parsed or as JSON; the `Problem` of a bad row names its place."""
    try:
        _add(rows, json.loads(row) if isinstance(row, bytes) else row)
    except Problem as problem:
        raise Problem(problem.status, problem.code, f"row {i}: {problem.detail}", row=i) from None
    except (ChpError, ValueError, RecursionError) as error:
        raise bad_row(i, error) from None


def bad_row(i: int, error: Exception) -> Problem:
    """Return the `Problem` of the i-th row."""
    return Problem(400, "bad-row", f"row {i}: {str(error)[:300]}", row=i)


def read_lines(body: bytes, plain: Callable[[list[Any]], bool], one: Callable[[Any, int], None]) -> Steps[None]:
    """Read NDJSON: give the rows of a block to `plain`, and each line to `one` if `plain` takes none.

    Lines are counted before any line is parsed. A short line is given to `one` as bytes, and a long line parsed.
    """
    if body.count(b"\n") > ROWS_MAX:
        raise Problem(413, "too-large", f"there are more than {ROWS_MAX} rows; send them in parts")
    i = 0
    for block in blocks(body):
        given = _plain_lines(block)
        if given and plain(given):
            i += len(given)
        else:
            i = yield from _each_line(block, one, i)
        if i > ROWS_MAX:
            raise Problem(413, "too-large", f"there are more than {ROWS_MAX} rows; send them in parts")
        yield


def _each_line(block: bytes, one: Callable[[Any, int], None], i: int) -> Steps[int]:
    """Give each line of a block to `one`; return the number of rows so far."""
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        i += 1
        if len(line) <= SLICE_BYTES:
            one(line, i)
        else:
            try:
                row = yield from document(line, 1, THINGS)
            except ValueError as error:
                raise bad_row(i, error) from None
            one(row, i)
        if i % SLICE_ROWS == 0:
            yield
    return i


def _plain_lines(block: bytes) -> list[Any]:
    """Parse all lines as one array; return no rows if a line does not begin and end with a brace.

    Then only a row with an array of maps can have a line end inside, and the callers refuse such a row.
    """
    text = block.removesuffix(b"\n")
    ends = text.count(b"\n")
    if len(block) > SLICE_BYTES or not (text.startswith(b"{") and text.endswith(b"}")) or text.count(b"}\n{") != ends:
        return []
    try:
        found: list[Any] = json.loads(b"[%b]" % text.replace(b"\n", b","))
    except (ValueError, RecursionError):
        return []
    return found if len(found) == ends + 1 else []


def _unpacked(body: bytes, rows: BatchRows) -> Steps[None]:
    """Read an array of rows in msgpack. The header of the array tells the number of rows before the first is read."""
    count, begin = _array_header(body)
    if count > len(body):
        raise _not_packed("it ends before its rows do")
    if count > ROWS_MAX:
        raise Problem(413, "too-large", f"the batch has more than {ROWS_MAX} rows; send it in parts")
    reader = _row_reader(body[begin:])
    for i in range(1, count + 1):
        try:
            row = reader.unpack()
        except (msgpack.OutOfData, ValueError, TypeError, RecursionError) as error:
            raise _not_packed(f"row {i}: {str(error) or 'it ends before its rows do'}") from None
        add_row(rows, row, i)
        if i % SLICE_ROWS == 0:
            rows.check_bytes()
            yield
    if begin + reader.tell() != len(body):
        raise _not_packed("there is more behind its rows")


def _array_header(body: bytes) -> tuple[int, int]:
    """Return the length of the array in a body, and the place of its first item.

    msgpack allocates a whole array when it reads the header, so the rows are read with a small bound on arrays.
    """
    first = body[0] if body else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    size = {0xDC: 2, 0xDD: 4}.get(first, 0)
    if not size or len(body) <= size:
        raise _not_packed("it is an array of rows")
    return int.from_bytes(body[1 : 1 + size], "big"), 1 + size


def _row_reader(body: bytes) -> msgpack.Unpacker:
    """Return a reader of rows, which refuses a row with an array or a map inside."""
    reader = msgpack.Unpacker(
        max_buffer_size=max(len(body), 1),
        max_str_len=TEXT_BYTES_MAX,
        max_array_len=THINGS,
        max_map_len=THINGS,
        max_ext_len=0,
        list_hook=_flat_list,
        object_pairs_hook=_flat_map,
    )
    reader.feed(body)
    return reader


def _flat_list(things: list[Any]) -> list[Any]:
    if any(type(each) in (list, dict) for each in things):
        raise ValueError("a row is a map, and holds no array")
    return things


def _flat_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if any(type(value) in (list, dict) for _, value in pairs):
        raise ValueError("a row is a map, and holds no other map and no array")
    return dict(pairs)


def _not_packed(why: str) -> Problem:
    return Problem(400, "bad-body", f"the body is not msgpack that can be taken ({why:.200})")


def _add(rows: BatchRows, row: Any) -> None:
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        raise Problem(400, "bad-row", 'a row is a map such as {"set": "/a", "value": "1"}')
    if unknown := row.keys() - MEMBERS:
        raise Problem(
            400, "bad-row", f"no member {min(unknown)[:60]!r} is known; there are {', '.join(sorted(MEMBERS))}"
        )
    if ("set" in row) == ("delete" in row):
        raise Problem(400, "bad-row", 'a row has either "set" or "delete", and its key')
    condition = None if "if" not in row else checks.revision("if", row["if"])
    if "set" in row:
        rows.add(row["set"], _value(row), checks.ttl_in_ms(row.get("ttl")), condition)
    elif row.keys() & {"value", "base64", "ttl"}:
        raise Problem(400, "bad-row", "a delete has neither value nor ttl")
    else:
        rows.add(row["delete"], None, None, condition)


def _value(row: dict[str, Any]) -> bytes:
    if ("value" in row) == ("base64" in row):
        raise Problem(400, "bad-row", 'a set has either "value" or "base64"')
    value: Any = row.get("value", row.get("base64"))
    if "base64" in row:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise Problem(400, "bad-value", "base64 is not base64; encode the bytes so, with their padding") from None
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise Problem(400, "bad-value", f"a value is text, not {type(value).__name__}; write it as text, or as base64")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Problem(400, "bad-value", "the value has a lone surrogate; give it as base64") from None
