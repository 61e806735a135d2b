"""The undo log: what changed keys were at the numbers of which an image may still be asked for.

    keep       keeps the state's present number: an image of it can be made from then on
    before     is called with each segment before the map gets it, and notes what its keys are
    since      returns what was noted after a kept number; the map with this undone is the map at that number
    drop       forgets kept numbers, and what was noted for them alone

The log is a chain of layers. A kept number begins a layer. A change goes into the last layer only, if the layer does
not have the key yet, so a change costs the same however many numbers are kept. The map at a kept number is the present
map, with the layers from that number on laid over it, the oldest on top. While no number is kept there is no layer, and
nothing is noted.

The numbers are kept by records (`columns.IMAGES`), so both servers keep the same ones, and a successor makes the image
that its predecessor made. The log is in memory and bounded in bytes: beyond the bound the oldest number is lost. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from chp.batch import Segment
from chp.hashmap import Hashmap
from chp.limits import Limits

# Parallel columns: keys, and the value and the revision that each was. Revision 0 says that there was no such key.
Columns = tuple[list[str], list[bytes], list[int]]
# The bytes that a key takes in a layer, beside its old value.
ENTRY_BYTES = 200
# Columns of so many keys are followed by others, because some columns are looked through, or freed, in one turn.
COLUMN_KEYS_MAX = 4096


class Layer:
    """What keys were before they changed, between a number and the next layer's."""

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
        # Each kept number, in order, with the time since which it is kept.
        self.numbers: dict[int, float] = {}
        self.layers: deque[Layer] = deque()
        self.bytes = 0
        # The numbers that were lost to the bound, until they are reported.
        self.lost: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self.numbers

    def keep(self, number: int, now: float) -> None:
        """Keep the number of the map as it is now; it is above those that are kept, or the last of them."""
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
        """Note what the keys of a segment are, before it is applied."""
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
        """Return what changed keys were after a kept number, what changed last first."""
        return [columns for layer in reversed(self.layers) if layer.number >= number for columns in layer.columns]

    def check(self) -> None:
        """Assert every invariant."""
        assert self.bytes == sum(layer.bytes for layer in self.layers), "the bytes of the undo log add up"
        assert list(self.numbers) == sorted(self.numbers), "kept numbers are in order"
        starts = {layer.number for layer in self.layers}
        assert starts >= self.numbers.keys(), "each kept number begins a layer"
        assert bool(self.layers) == bool(self.numbers), "there are layers while a number is kept"
