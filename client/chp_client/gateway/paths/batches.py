"""Many sets and deletes in one record: what POST /v1/batch brings, and what every other write is too.

A row is a map, a line of NDJSON or an item of a msgpack array:

    {"set": key, "value": text}      "base64" in place of "value" for bytes; in msgpack "value" may be bytes itself
    {"delete": key}
    ... "ttl": seconds               of a set
    ... "if": "1.42"                 only if the key has this revision ("0": only if it is not there)

All of it is done, in the order given, or if a condition does not hold, nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from itertools import repeat
from typing import Any

from chp.errors import BadFrame, ChpError
from chp.keys import check_column
from chp.limits import DEFAULT
from chp.unpacking import unpack

from ... import checks
from ..problems import Problem

NDJSON, MSGPACK = "application/x-ndjson", ("application/msgpack", "application/vnd.msgpack", "application/x-msgpack")
RESERVED = "/.gateway/"  # what gateways keep for themselves
ROWS_MAX = DEFAULT.batch_items_max - 1  # one more is for an Idempotency-Key
BYTES_MAX = DEFAULT.batch_bytes_max - (65_536 * 2)  # of keys and values, so that it travels as one batch
VALUE_MAX = DEFAULT.value_bytes_max
MEMBERS = frozenset({"set", "delete", "value", "base64", "ttl", "if"})


class Rows:
    """Columns of sets and deletes."""

    def __init__(self, subtrees: tuple[str, ...]) -> None:
        self._subtrees = subtrees
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.deletes: list[int] = []
        self.ttls: tuple[list[int], list[int]] = ([], [])
        self.conditions: tuple[list[int], list[int]] = ([], [])
        self.extras: dict[str, Any] = {}  # what is said of topics and groups with it
        self.bytes = 0

    def add(self, key: object, value: bytes | None, ttl_ms: int | None = None, condition: int | None = None) -> None:
        """A set, or with a value of None a delete; `ChpError` or `Problem` for what can't be done."""
        self.append(key_to_set(key, self._subtrees), value, ttl_ms, condition)

    def append(self, key: str, value: bytes | None, ttl_ms: int | None, condition: int | None) -> None:
        """The same of a key that is checked."""
        at = len(self.keys)
        self.keys.append(key)
        self.values.append(b"" if value is None else checks.value_bytes(value))
        self.bytes += len(key) + len(self.values[-1])
        if value is None:
            self.deletes.append(at)
        if ttl_ms is not None:
            self.ttls[0].append(at)
            self.ttls[1].append(ttl_ms)
        if condition is not None:
            self.conditions[0].append(at)
            self.conditions[1].append(condition)

    def plain(self, given: list[Any]) -> bool:
        """Add rows that set a key to a text, and nothing beside, as columns; whether they were such, and good."""
        try:
            keys = [row["set"] for row in given]
            values = [row["value"].encode() for row in given]
            size = sum(map(len, keys)) + sum(map(len, values))
            if not given or set(map(len, given)) != {2} or size > BYTES_MAX or max(map(len, values)) > VALUE_MAX:
                return False
            check_column(keys, {})
            checks.held_column(keys, self._subtrees)
        except (ChpError, ValueError, TypeError, KeyError, AttributeError):
            return False
        if any(map(str.startswith, keys, repeat(RESERVED))):
            return False
        self.keys, self.values, self.bytes = keys, values, size
        return True

    def room_for(self, keys: int, size: int) -> bool:
        """Whether so many more, of so many bytes, travel in the same batch."""
        return len(self.keys) + keys <= ROWS_MAX and self.bytes + size <= BYTES_MAX

    def extend(self, more: Rows) -> None:
        """These after those that are here; without conditions, which are of a batch as a whole."""
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
    """A key that may be set or deleted here; `ChpError` or `Problem` if it may not."""
    checked = checks.held_key(key, subtrees)
    if checked.startswith(RESERVED):
        raise Problem(403, "reserved", f"keys under {RESERVED} are the gateways' own; use another")
    return checked


def rows_of(kind: str, body: bytes, rows: Rows) -> Rows:
    """What the body brings, added to `rows`; the `Problem` of one that is wrong names its place."""
    if kind == NDJSON and rows.plain(plain_lines(body)):
        return rows
    given = _unpacked(body) if kind in MSGPACK else _lines(kind, body)
    if not given:
        raise Problem(400, "empty", "the batch has no rows; give one a line")
    if len(given) > ROWS_MAX:
        raise Problem(413, "too-large", f"the batch has more than {ROWS_MAX} rows; send it in parts")
    for i, row in enumerate(given, 1):
        add_row(rows, row, i)
    if rows.bytes > BYTES_MAX:
        raise Problem(413, "too-large", f"keys and values have more than {BYTES_MAX} bytes; send them in parts")
    return rows


def add_row(rows: Rows, row: Any, i: int) -> None:
    """Add the i-th of several rows, be it JSON still; the `Problem` of one that is wrong names its place."""
    try:
        _add(rows, json.loads(row) if isinstance(row, bytes) else row)
    except Problem as problem:
        raise Problem(problem.status, problem.code, f"row {i}: {problem.detail}", row=i) from None
    except (ChpError, ValueError, RecursionError) as error:
        raise Problem(400, "bad-row", f"row {i}: {str(error)[:300]}", row=i) from None


def plain_lines(body: bytes) -> list[Any]:
    """All lines as JSON, read as one array; none if one is not as most are: then each is looked at by itself.

    As every line begins with a brace and ends with one, no row has a line end within, but in an array of maps: who asks
    takes none of those.
    """
    text = body.removesuffix(b"\n")
    ends = text.count(b"\n")
    if ends >= ROWS_MAX or not (text.startswith(b"{") and text.endswith(b"}")) or text.count(b"}\n{") != ends:
        return []
    try:
        found: list[Any] = json.loads(b"[%b]" % text.replace(b"\n", b","))
    except (ValueError, RecursionError):
        return []
    return found if len(found) == ends + 1 else []


def _lines(kind: str, body: bytes) -> list[Any]:
    if kind != NDJSON:
        raise Problem(415, "bad-kind", f"Content-Type {kind[:60]!r} is not known here; send {NDJSON} or {MSGPACK[0]}")
    if body.count(b"\n") > ROWS_MAX:
        raise Problem(413, "too-large", f"the batch has more than {ROWS_MAX} rows; send it in parts")
    return [line for line in body.split(b"\n") if line.strip()]


def _unpacked(body: bytes) -> list[Any]:
    try:
        found = unpack(body)
    except (BadFrame, ValueError, TypeError, RecursionError) as error:
        raise Problem(400, "bad-body", f"the body is not msgpack that can be taken ({error!s:.200})") from None
    if not isinstance(found, list):
        raise Problem(400, "bad-body", f"the body is an array of rows, not {type(found).__name__}")
    return found


def _add(rows: Rows, row: Any) -> None:
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
