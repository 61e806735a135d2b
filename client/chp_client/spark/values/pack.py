"""Arrow columns, encoded as the columns of a segment without a Python object for each row.

    keys, values, extras   ->   0x93  array of str  array of bin  map       (SPEC.md, section 13)

In msgpack a text or binary is a head, which has the length, and then the bytes. So a column is heads and bytes in turn.
Arrow joins them. If all elements have one length, as keys often have, the column is a table of bytes with the head in
front of each row. The result equals, byte for byte, what `Segment.encode` makes of the lists.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chp.batch import array_head, packb
from chp.errors import BadKey
from chp.keys import COMMANDS, check_column
from chp.limits import DEFAULT

NOTHING = pa.scalar(b"", pa.large_binary())
FACTORS = np.random.default_rng(2).integers(0, 1 << 64, DEFAULT.key_bytes_max // 8, np.uint64) | np.uint64(1)


@dataclass(slots=True)
class PackedRows:
    """The parts of one segment: columns of keys and values, without nulls, and the sparse columns."""

    key_column: pa.LargeStringArray
    value_column: pa.LargeBinaryArray
    extras: dict[str, Any] | None

    @property
    def keys(self) -> list[str]:
        """The keys, as a list."""
        keys: list[str] = self.key_column.to_pylist()
        return keys

    @property
    def values(self) -> list[bytes]:
        """The values, as a list."""
        values: list[bytes] = self.value_column.to_pylist()
        return values

    @property
    def duplicates(self) -> int:
        """The number of rows whose key comes again in a later row."""
        return 0 if _all_differ(self.key_column) else len(self.key_column) - len(set(self.keys))

    def encode(self, **more: Any) -> bytes:
        """Return the segment, with `more` sparse columns."""
        columns = (*packed(self.key_column, text=True), *packed(self.value_column, text=False))
        return b"".join((b"\x93", *columns, packb({**(self.extras or {}), **more} or None)))


def packed(column: Any, *, text: bool) -> tuple[bytes, Any]:
    """Return a column as an msgpack array: its head, and its elements."""
    n = len(column)
    offsets, octets = buffers(column)
    lengths = np.diff(offsets)
    head = array_head(n)
    if n == 0:
        return head, b""
    first = int(lengths[0])
    if (lengths == first).all():
        return head, _same_length(octets[offsets[0] : offsets[-1]].reshape(n, first), _head(first, text))
    kinds = pa.array(lengths).dictionary_encode()
    heads = pa.array([_head(length, text) for length in kinds.dictionary.to_pylist()], pa.large_binary())
    joined = pc.binary_join_element_wise(heads.take(kinds.indices), column.cast(pa.large_binary()), NOTHING)
    offsets, octets = buffers(joined)
    return head, octets[offsets[0] : offsets[-1]]


def _same_length(octets: Any, head: bytes) -> Any:
    table = np.empty((len(octets), len(head) + octets.shape[1]), np.uint8)
    table[:, : len(head)] = np.frombuffer(head, np.uint8)
    table[:, len(head) :] = octets
    return table


def buffers(column: Any) -> tuple[Any, Any]:
    """Return the offsets and the bytes of a column of large text or binary, as arrays of numpy."""
    _, offsets, octets = column.buffers()
    begin = column.offset
    where = np.frombuffer(offsets, np.int64)[begin : begin + len(column) + 1] if len(column) else np.zeros(1, np.int64)
    return where, np.frombuffer(octets, np.uint8) if octets is not None else np.zeros(0, np.uint8)


def _head(length: int, text: bool) -> bytes:
    """Return the head of a text or binary of `length` bytes."""
    if text and length < 32:
        return bytes((0xA0 | length,))
    size = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    kind = (0xD9 if text else 0xC4) + (size >> 1)
    return bytes((kind,)) + length.to_bytes(size, "big")


def _all_differ(column: Any) -> bool:
    """Return True if all keys differ. Return False if some may be equal, or if they are not all of one length.

    A key is a row of 64-bit words. The words, times random odd factors, are added up for each key. Equal keys have
    equal sums, so all keys differ if all sums differ.
    """
    offsets, octets = buffers(column)
    lengths = np.diff(offsets)
    if len(lengths) == 0 or (lengths != lengths[0]).any():
        return False
    n, length = len(lengths), int(lengths[0])
    words = np.zeros((n, -(-length // 8)), np.uint64)
    words.view(np.uint8)[:, :length] = octets[offsets[0] : offsets[-1]].reshape(n, length)
    sums = (words * FACTORS[: words.shape[1]]).sum(axis=1, dtype=np.uint64)
    sums.sort()
    return bool((sums[1:] != sums[:-1]).all())


def check_keys(column: Any) -> None:
    """Raise `BadKey` for the first key that can't be a key, as `check_column` does. The column has no nulls."""
    if len(column) and not _plain(column):
        try:
            check_column(column.to_pylist(), {})
        except UnicodeDecodeError as error:
            raise BadKey(f"a key is not UTF-8: {error}; mend it in the job") from None


def _plain(column: Any) -> bool:
    """Return True if all keys are ASCII, have an allowed length and begin with a slash, and so need no more checks."""
    offsets, octets = buffers(column)
    lengths = np.diff(offsets)
    if lengths.min() == 0 or lengths.max() > DEFAULT.key_bytes_max:
        return False
    first = octets[offsets[:-1]]
    slashes = bool((first == ord("/")).all()) and not any(command.startswith("/") for command in COMMANDS)
    return slashes and int(octets[offsets[0] : offsets[-1]].max()) < 0x80
