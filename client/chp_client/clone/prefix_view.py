"""The keys of a Clone under a prefix, in order: as a mapping, or a range or a page of the mapping.

    rates = clone.prefix("/rates/EUR/")
    for key, value in rates.items(): ...           # sorted
    page = rates.page(100)                          # the first hundred, as a dict
    page = rates.page(100, after=max(page))         # the next

The cost of a read depends on the number of items that it yields, and not on the size of the copy. The first read by
prefix sorts all keys (core/copy/key_order.py), which takes about a second for a million keys. From then on each new key
costs a little. Reading never waits for servers. An iteration goes on while other programs change the map. It yields
each key that exists all the time once, and each value as it is when the iteration comes to its key. `len` goes through
all keys to count them.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain, islice
from typing import Any, Protocol

from .. import checks
from ..agent.mailbox import Mailbox
from ..codecs import Decoding, OnBad
from ..core.copy.key_order import bounds
from .views import PartReader

PAGE = 1000
# The number of keys whose values are looked up together.
STRIDE = 256


class KeyIndex:
    """The order of a Clone's keys for its readers, of any thread."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox, self._subscriptions = mailbox, mailbox.core.subscriptions

    def span(self, low: str, high: str | None) -> tuple[list[str], str | None]:
        """Return some existing keys from `low` on and below `high`, and the key from where to go on; None at the end.

        A key that was shown before the call is not left out.
        """
        order, shown = self._subscriptions.order, self._subscriptions.shown
        with self._mailbox.readers:
            self._catch_up()
            for keys, at in order.spans(low, high):
                there = [key for key in keys if key in shown]
                if 2 * len(there) < len(keys):
                    with self._mailbox.lock:
                        order.clean(at, self._subscriptions.known())
                if there:
                    return there, there[-1] + "\0"
        return [], None

    def _catch_up(self) -> None:
        order, batch = self._subscriptions.order, self._mailbox.batch
        with self._mailbox.lock:
            # These keys are shown already, and are noted when the agent takes them.
            unsent = batch.shown_keys()
            noted = order.take(len(self._subscriptions.shown))
            keys = None
            if not order.live:
                keys = self._subscriptions.begin_order(unsent)
        if keys is not None:
            order.make(keys)
        elif noted or unsent:
            order.add(chain(*noted, unsent))


class Index(Protocol):
    """An object that gives the keys of a range in their order."""

    def span(self, low: str, high: str | None) -> tuple[list[str], str | None]:
        """Return some keys from `low` on and below `high`, and the key from where to go on; None at the end."""


class PrefixView(Mapping[str, Any]):
    """Keys that begin with a prefix, in order; made by `Clone.prefix`."""

    def __init__(
        self,
        clone: Mapping[str, Any],
        reader: PartReader,
        index: Index,
        prefix: str,
        *,
        after: str | None,
        until: str | None,
    ) -> None:
        self._clone, self._reader, self._index = clone, reader, index
        self.prefix, self._until = prefix, until
        self._low, self._high = bounds(prefix, after, until)

    def _has(self, key: object) -> bool:
        return isinstance(key, str) and self._low <= key and (self._high is None or key < self._high)

    def __contains__(self, key: object) -> bool:
        return self._has(key) and key in self._clone

    def __getitem__(self, key: str) -> Any:
        if not self._has(key):
            raise KeyError(key)
        return self._clone[key]

    def __iter__(self) -> Iterator[str]:
        self._reader.iterates()
        return chain.from_iterable(self._spans(self._low))

    def __len__(self) -> int:
        return sum(map(len, self._spans(self._low)))

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def items(self, on_bad: OnBad = "raise") -> ItemsView[str, Any]:
        """Return keys and values in order, without keys deleted meanwhile. `on_bad` is that of `Clone.items`."""
        return _Items(self, self._reader.decoding(on_bad))

    def values(self) -> ValuesView[Any]:
        """Return the values in the order of their keys."""
        return _Values(self)

    def page(self, limit: int = PAGE, after: str | None = None) -> dict[str, Any]:
        """Return the first `limit` items behind the key `after`; an empty dict is the end. Raises `BadInput`."""
        limit, after = checks.page(limit, after)
        low = self._low if after is None else max(self._low, after + "\0")
        found: dict[str, Any] = {}
        for items in self._pieces(low, limit):
            found.update(items)
            if len(found) >= limit:
                break
        return found

    def page_of_keys(self, limit: int = PAGE, after: str | None = None) -> list[str]:
        """Return the first `limit` keys behind the key `after`; an empty list is the end. Raises `BadInput`."""
        limit, after = checks.page(limit, after)
        low = self._low if after is None else max(self._low, after + "\0")
        return list(islice(chain.from_iterable(self._spans(low)), limit))

    def _spans(self, low: str) -> Iterator[list[str]]:
        more: str | None = low
        while more is not None:
            keys, more = self._index.span(more, self._high)
            yield keys

    def _pieces(self, low: str, limit: int | None = None, decoding: Decoding | None = None) -> Iterator[dict[str, Any]]:
        """Yield the items in portions; at most `limit` items in all."""
        left, decoding = limit, decoding or self._reader.decoding()
        for keys in self._spans(low):
            for i in range(0, len(keys), STRIDE):
                items = self._reader.some_of(keys[i : i + (STRIDE if left is None else min(STRIDE, left))], decoding)
                yield items
                if left is not None and (left := left - len(items)) <= 0:
                    return

    def pairs(self, decoding: Decoding | None = None) -> Iterator[tuple[str, Any]]:
        """Yield each key with its value."""
        for items in self._pieces(self._low, decoding=decoding):
            yield from items.items()

    def __repr__(self) -> str:
        return f"<PrefixView {self.prefix!r}: {len(self)} keys>"


class _Items(ItemsView[str, Any]):
    _mapping: PrefixView

    def __init__(self, view: PrefixView, decoding: Decoding | None) -> None:
        super().__init__(view)
        self._decoding = decoding

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._mapping.pairs(self._decoding)


class _Values(ValuesView[Any]):
    _mapping: PrefixView

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.pairs())

    def __contains__(self, value: object) -> bool:
        return any(value == each for each in self)
