"""The copies of several mounts as one map.

A key belongs to one mount, and is never looked up in the copies of other mounts. The pair of a mount may still hold
keys that belong to a mount inside it, for example while an operator moves a subtree. Such keys are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import compress, repeat
from operator import not_
from typing import Any, NamedTuple

from ..clone.mapping import CopyReader, Entry
from ..clone.prefix_view import KeyIndex
from ..codecs import Codec, V
from ..mount_table import Mounts


class Part(NamedTuple):
    """The copy of one mount."""

    shown: Mapping[str, bytes]
    # The mounts inside this one, whose keys are not shown here.
    hidden: tuple[str, ...]

    def visible(self) -> dict[str, bytes]:
        """Return a copy of the keys and values at this moment that belong to the mount."""
        copy = self.shown.copy() if isinstance(self.shown, dict) else dict(self.shown)
        if not self.hidden:
            return copy
        mask = list(map(not_, map(str.startswith, copy, repeat(self.hidden))))
        return copy if all(mask) else dict(compress(copy.items(), mask))

    def size(self) -> int:
        """Return the number of keys that belong to the mount. It looks at each key if mounts lie inside this one."""
        if not self.hidden:
            return len(self.shown)
        keys = list(self.shown.keys())
        return len(keys) - sum(map(str.startswith, keys, repeat(self.hidden)))


class MountedMap(Mapping[str, bytes]):
    """The maps of several mounts as one. Parts are added before other threads read it."""

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._parts: dict[str, Part] = {}

    def add(self, mount: str, shown: Mapping[str, bytes]) -> None:
        """Add the map of a mount."""
        self._parts[mount] = Part(shown, self._mounts.nested(mount))

    def _of(self, key: object) -> Mapping[str, bytes]:
        if not isinstance(key, str):
            return {}
        mount = self._mounts.find(key)
        part = None if mount is None else self._parts.get(mount)
        return {} if part is None else part.shown

    def __getitem__(self, key: str) -> bytes:
        return self._of(key)[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        return self._of(key).get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._of(key)

    def copy(self) -> dict[str, bytes]:
        """Return all keys and values. The keys and values of one mount are from one moment."""
        found: dict[str, bytes] = {}
        for part in self._parts.values():
            found |= part.visible()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return sum(part.size() for part in self._parts.values())

    # The `values` of `Mapping` would look up each key. A copy is one C-level call for each mount.
    def values(self) -> Any:
        """Return the values."""
        return self.copy().values()


class MountedReader(CopyReader[V]):
    """The copies of all mounts of a view, as other parts of the view read them."""

    def __init__(
        self, shown: MountedMap, codec: Codec | None, subtrees: tuple[str, ...], entry: Callable[[str], Entry | None]
    ) -> None:
        self._shown, self._codec, self._subtrees = shown, codec, subtrees  # type: ignore[assignment]
        self._iterated_at = float("-inf")
        self._some = []
        self._entry = entry

    def entry(self, key: str) -> Entry | None:
        """Return a key with its value, its revision and its remaining ttl; None if the key is absent."""
        return self._entry(key)


class MountedIndex:
    """The order of the keys of all mounts. Each range of keys belongs to one mount and has its order."""

    def __init__(self, mounts: Mounts, indexes: Mapping[str, KeyIndex]) -> None:
        self._mounts, self._indexes = mounts, indexes

    def span(self, low: str, high: str | None) -> tuple[list[str], str | None]:
        """Return some keys from `low` on and below `high`, and the key from where to go on; None at the end."""
        for mount, start, end in self._mounts.ranges(low, high):
            if mount in self._indexes:
                keys, more = self._indexes[mount].span(start, end)
                if keys:
                    return keys, more if more is not None else end
        return [], None
