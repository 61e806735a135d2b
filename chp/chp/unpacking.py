"""Unpacking of msgpack from strangers, with bounds on the memory and the time that a body can take.

A frame of 17 MiB can encode seventeen million empty lists. msgpack builds them in ten seconds and a gigabyte, before
any other check is possible. So objects are weighed while they are built, and the unpacking of too heavy a body stops:

- `list_hook` and `object_hook` weigh each container when it is complete. Nothing is called for keys and values, so a
  batch of a thousand costs what it did.
- An incomplete container is not weighed yet. So the entries of nested arrays are bounded by length times depth: arrays
  are short if msgpack may go as deep as it can, and of any legal length if it may go DEPTH_MAX levels deep. msgpack has
  no option for the depth, but its stack has a fixed size. Arrays of one element in front of the body fill the stack up
  to that depth.
- Extension types are refused. Text has at most TEXT_BYTES_MAX, since one wide character makes Python keep all of it in
  wide characters.

Senders keep to the same weight: `weight_of` is what `unpack` counts, and a `Load` tells when a body is to end. So no
program of ours sends a body that another one refuses.

A body is first read with short arrays, which are enough for nearly every body. If they are not, it is read again with a
bounded depth, which costs a tenth of a millisecond more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from .errors import BadFrame
from .limits import DEFAULT, MIB

# A body of at most this many bytes can't hold many objects, so it is not weighed.
LIGHT = 4096
# The weight of a container beside its entries: a container takes ten times as long to build as a number.
CONTAINER = 16
# A body above this size may have only shorter arrays (SHORT_IN_LARGE) in the first attempt: it could unpack into many
# objects before its first array is complete.
LARGE = MIB
# An array has at most this many entries in the first attempt, at any depth. All nested arrays together have at most a
# thousand times as many.
SHORT, SHORT_IN_LARGE = 8192, 512
# A body with longer arrays may have this many levels. The deepest legal body, a suffix that is replayed, has 9.
DEPTH_MAX = 10
TEXT_BYTES_MAX = 1 << 16
# msgpack names this option in its error for longer text.
LONG_TEXT = "max_str_len"

# Weights are the entries of all containers, and CONTAINER for each container.
# A question has a dozen options.
QUESTION = 1000
# A member may tell the ranges that it has in hand, beside its options.
HAVE = CONTAINER + (1 + 3 + CONTAINER) * DEFAULT.have_max
# Keys, values and sparse columns have at most nine entries an item.
SEGMENT = 16 * DEFAULT.batch_items_max
# Keys and values of messages, and a map of a few headers for each. A message may have more headers if others have
# fewer.
MESSAGES = 2 * SEGMENT
# A state from a journal, or from the peer that was asked for it, is not weighed.
WHOLE_STATE = None
# A body may be a record of several segments (`Committer.full`), a slice, or the records of a feed.
BODY = 20 * DEFAULT.batch_items_max


# The highest weight of one byte: an empty array takes one byte, and is an entry of another array.
BYTE_WEIGHT_MAX = CONTAINER + 1
# The bound for one record: RECORDS, which carries it to a reader, weighs little beside it.
CARRIED = BODY - 1024


class TooMuch(BadFrame):
    """A body that would make more objects than a legal one."""


def weight_of(thing: object) -> int:
    """Return what `unpack` counts for an object: of each array and map in it, its entries and `CONTAINER`."""
    weight, left = 0, [thing]
    while left:
        each = left.pop()
        if isinstance(each, list | tuple):
            weight += len(each) + CONTAINER
            left += [inner for inner in each if type(inner) in _CONTAINERS or isinstance(inner, tuple)]
        elif isinstance(each, dict):
            weight += len(each) + CONTAINER
            left += [inner for inner in each.values() if type(inner) in _CONTAINERS or isinstance(inner, tuple)]
    return weight


_CONTAINERS = frozenset({list, dict})


class Load:
    """The load of one body that is being packed: the bytes of its items, and their weight as a reader counts it."""

    __slots__ = ("_bytes_max", "_weight_max", "bytes", "weight")

    def __init__(self, bytes_max: int, weight_max: int = CARRIED) -> None:
        self._bytes_max, self._weight_max = bytes_max, weight_max
        self.bytes = self.weight = 0

    def takes(self, size: int, weight: int) -> bool:
        """Add an item and return True if it fits, or is the first; else return False, and the caller sends the body."""
        # The item is an entry of the body, too.
        weight += 1
        if self.weight and (self.bytes + size > self._bytes_max or self.weight + weight > self._weight_max):
            return False
        self.bytes += size
        self.weight += weight
        return True

    def begin(self, size: int, weight: int) -> None:
        """Begin another body with an item."""
        self.bytes, self.weight = size, weight + 1


def unpack(body: bytes, weight_max: int | None = BODY, text_max: int = TEXT_BYTES_MAX) -> Any:
    """Return the one object in `body`; raise `TooMuch`, or what msgpack raises, for anything else."""
    if weight_max is None:
        return msgpack.unpackb(body)
    size = len(body)
    if size <= LIGHT:
        entries = size // 2 if size > 128 else 64
        return msgpack.unpackb(body, ext_hook=_no_extension, max_ext_len=0, max_str_len=text_max, max_array_len=entries)
    try:
        return _unpack(body, weight_max, text_max, min(SHORT, size // 2) if size <= LARGE else SHORT_IN_LARGE)
    except BadFrame:
        raise
    # The usual reason is a longer array.
    except ValueError as error:
        if LONG_TEXT in str(error):
            raise
        thing = _unpack(_FILLING + body, weight_max + _FILLING_WEIGHT, text_max, DEFAULT.batch_items_max + 1)
    for _ in _FILLING:
        (thing,) = thing
    return thing


def entry(body: bytes, name: str) -> tuple[int, int] | None:
    """Return (begin, end) of the value of a key in the map that `body` is; None if the key is not there.

    Only the keys of the map are built; the values are skipped.
    """
    unpacker = msgpack.Unpacker(max_array_len=0, max_map_len=0, max_ext_len=0, ext_hook=_no_extension)
    unpacker.feed(body)
    for _ in range(unpacker.read_map_header()):
        key, begin = unpacker.unpack(), unpacker.tell()
        unpacker.skip()
        if key == name:
            return begin, unpacker.tell()
    return None


def _unpack(body: bytes, weight_max: int, text_max: int, array_len_max: int) -> Any:
    weigh = _weighing(weight_max)
    return msgpack.unpackb(
        body,
        list_hook=weigh,
        object_hook=weigh,
        ext_hook=_no_extension,
        max_ext_len=0,
        max_str_len=text_max,
        max_array_len=array_len_max,
        max_map_len=DEFAULT.batch_items_max,
    )


def _weighing(left: int) -> Callable[[Any], Any]:
    def weigh(container: Any) -> Any:
        nonlocal left
        left -= len(container) + CONTAINER
        if left < 0:
            raise TooMuch("it holds more things than any message may; send less at a time")
        return container

    return weigh


def _no_extension(code: int, _data: bytes) -> Any:
    raise BadFrame(f"extension type {code} is not part of any message; send str, bin, numbers, arrays and maps")


def _levels() -> int:
    """Return how deep msgpack lets arrays be nested."""
    low, high = 1, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        try:
            msgpack.unpackb(b"\x91" * middle + b"\xc0")
            low = middle
        except (ValueError, RecursionError):
            high = middle
    return low


_FILLING = b"\x91" * (_levels() - DEPTH_MAX)
_FILLING_WEIGHT = len(_FILLING) * (1 + CONTAINER)
