"""Keys, values and items of a Clone: live for `in` and `len`, and a snapshot for each iteration.

Other programs change the map while one iterates; `list(dict)` is one C-level call, so what is gone through is the map
as it was at one moment.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..codecs import Decoding
    from .reading import Reading


class KeysNow(KeysView[str]):
    """Keys."""

    _mapping: Reading

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)


class ValuesNow(ValuesView[Any]):
    """Values."""

    _mapping: Reading

    def __contains__(self, value: object) -> bool:
        return value in self._mapping.decoded_values()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping.decoded_values())


class ItemsNow(ItemsView[str, Any]):
    """Keys with values."""

    _mapping: Reading

    def __init__(self, mapping: Reading, decoding: Decoding | None) -> None:
        super().__init__(mapping)
        self._decoding = decoding

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._mapping.decoded_items(self._decoding))
