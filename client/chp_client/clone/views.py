"""Keys, values and items of a Clone: live for `in` and `len`, and a snapshot for each iteration.

Other programs change the map during an iteration. `list(dict)` is one C-level call, so an iteration goes over the map
as it was at one moment.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Protocol

from ..codecs import Decoding, OnBad


class Reader(Protocol):
    """An object that gives all values, decoded, as they are at one moment."""

    def values(self) -> list[Any]:
        """Return the values at this moment."""

    def items(self, decoding: Decoding | None) -> list[tuple[str, Any]]:
        """Return the items at this moment."""


class PartReader(Protocol):
    """An object that gives the values of some keys, decoded, as they are at one moment."""

    def iterates(self) -> None:
        """Note that an iteration over keys begins."""

    def decoding(self, on_bad: OnBad = "raise") -> Decoding | None:
        """Return the decoding of values; None for bytes."""

    def some_of(self, keys: list[str], decoding: Decoding | None) -> dict[str, Any]:
        """Return these keys with their values, without absent keys."""


class KeysNow(KeysView[str]):
    """The keys of a Clone."""

    _mapping: Mapping[str, Any]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)


class ValuesNow(ValuesView[Any]):
    """The values of a Clone."""

    def __init__(self, mapping: Mapping[str, Any], reader: Reader) -> None:
        super().__init__(mapping)
        self._reader = reader

    def __contains__(self, value: object) -> bool:
        return value in self._reader.values()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._reader.values())


class ItemsNow(ItemsView[str, Any]):
    """The keys of a Clone with their values."""

    def __init__(self, mapping: Mapping[str, Any], reader: Reader, decoding: Decoding | None) -> None:
        super().__init__(mapping)
        self._reader, self._decoding = reader, decoding

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._reader.items(self._decoding))
