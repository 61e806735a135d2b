"""The undo log: the earlier values of changed keys, so that an image of a kept number can still be made.

    keep       keeps the state's present number: an image at this number can be made from then on
    before     is called with each segment before the map gets it, and notes the values that its keys have then
    since      returns what was noted after a kept number; the map with these changes undone is the map at that number
    drop       forgets kept numbers, and what was noted for them alone

The log is a chain of layers. Each kept number begins a layer. A change is noted in the last layer only, and only if
this layer does not have the key yet, so a change costs the same however many numbers are kept. The map at a kept number
is the present map, with the layers from that number on laid over it, the oldest on top. While no number is kept there
is no layer, and nothing is noted.

Records say which numbers are kept (`columns.IMAGES`), so both servers keep the same numbers, and a successor makes the
image that its predecessor made. The log is in memory and bounded in bytes: beyond the bound the oldest number is lost.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from chp.batch import Segment
from chp.hashmap import Hashmap
from chp.limits import Limits

# Parallel columns: keys, and the earlier value and revision of each. Revision 0 says that there was no such key.
Columns = tuple[list[str], list[bytes], list[int]]
# The bytes that a key takes in a layer, beside its old value.
ENTRY_BYTES = 200
# Columns with this many keys get no more keys; the layer then begins other columns. So a turn that reads or frees some
# columns stays short.
COLUMN_KEYS_MAX = 4096


class Layer:
    """The earlier values of the keys that changed between the layer's number and the next layer's number."""

    __slots__ = ("bytes", "columns", "keys", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.keys: set[str] = set()
        self.columns: list[Columns] = [([], [], [])]
        self.bytes = 0


class UndoLog:
    """The kept numbers, and the layers from the oldest of them on."""

    def __init__(self, hashmap: Hashmap, free: Callable[[list[Any]], None], limits: Limits) -> None:
        self._map, self._free, self._bytes_max = hashmap, free, limits.undo_bytes_max
        # Each kept number, in order -> the time at which it was last kept.
        self.numbers: dict[int, float] = {}
        self.layers: deque[Layer] = deque()
        self.bytes = 0
        # The numbers that were lost because of the bound on bytes, until they are reported.
        self.lost: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self.numbers

    def keep(self, number: int, now: float) -> None:
        """Keep the number of the present map. It is above all kept numbers, or it is the last of them."""
        if number not in self.numbers:
            self.layers.append(Layer(number))
        self.numbers[number] = now

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget numbers, and the layers that no other number needs."""
        for number in numbers:
            self.numbers.pop(number, None)
        oldest = next(iter(self.numbers), None)
        while self.layers and (oldest is None or self.layers[0].number < oldest):
            layer = self.layers.popleft()
            self.bytes -= layer.bytes
            self._free(layer.columns)

    def older_than(self, since: float) -> list[int]:
        """Return the numbers that were kept before a time."""
        return [number for number, kept in self.numbers.items() if kept < since]

    def before(self, segment: Segment) -> None:
        """Note the values and revisions of the keys of a segment, before the segment is applied."""
        layer = self.layers[-1]
        known, keys = layer.keys, segment.keys
        if known and not known.isdisjoint(keys):
            keys = [key for key in keys if key not in known]
            if not keys:
                return
        known.update(keys)
        if len(layer.columns[-1][0]) >= COLUMN_KEYS_MAX:
            layer.columns.append(([], [], []))
        names, values, revisions = layer.columns[-1]
        old = list(map(self._map.values.get, keys, repeat(b"")))
        names += keys
        values += old
        revisions += map(self._map.revisions.get, keys, repeat(0))
        size = sum(map(len, old)) + ENTRY_BYTES * len(keys)
        layer.bytes += size
        self.bytes += size
        while self.bytes > self._bytes_max and self.numbers:
            oldest = next(iter(self.numbers))
            self.lost.append(oldest)
            self.drop([oldest])

    def since(self, number: int) -> list[Columns]:
        """Return what was noted after a kept number, the latest changes first."""
        return [columns for layer in reversed(self.layers) if layer.number >= number for columns in layer.columns]

    def check(self) -> None:
        """Assert every invariant."""
        assert self.bytes == sum(layer.bytes for layer in self.layers), "the bytes of the undo log add up"
        assert list(self.numbers) == sorted(self.numbers), "kept numbers are in order"
        starts = {layer.number for layer in self.layers}
        assert starts >= self.numbers.keys(), "each kept number begins a layer"
        assert bool(self.layers) == bool(self.numbers), "there are layers while a number is kept"
