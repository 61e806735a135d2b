"""Keys, values and items of a Clone: live for `in` and `len`, and a snapshot for each iteration.

Other programs change the map while one iterates; `list(dict)` is one C-level call, so what is gone through is the map
as it was at one moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from ..codecs import Decoding, OnBad, V


class Decoded(Mapping[str, V]):
    """What is viewed: a mapping that gives its values decoded, all or some of them as they are at one moment."""

    @abstractmethod
    def decoding(self, on_bad: OnBad = "raise") -> Decoding | None:
        """How values are shown; None for bytes as they are."""

    @abstractmethod
    def decoded_values(self) -> list[Any]:
        """The values at this moment."""

    @abstractmethod
    def decoded_items(self, decoding: Decoding | None) -> list[tuple[str, Any]]:
        """The items at this moment."""

    @abstractmethod
    def iterates(self) -> None:
        """Note that an iteration over keys begins."""

    @abstractmethod
    def some_of(self, keys: list[str], decoding: Decoding | None) -> dict[str, Any]:
        """These keys with their values; what is not there is left out."""


class KeysNow(KeysView[str]):
    """Keys."""

    _mapping: Decoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)


class ValuesNow(ValuesView[Any]):
    """Values."""

    _mapping: Decoded

    def __contains__(self, value: object) -> bool:
        return value in self._mapping.decoded_values()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping.decoded_values())


class ItemsNow(ItemsView[str, Any]):
    """Keys with values."""

    _mapping: Decoded

    def __init__(self, mapping: Decoded, decoding: Decoding | None) -> None:
        super().__init__(mapping)
        self._decoding = decoding

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._mapping.decoded_items(self._decoding))
