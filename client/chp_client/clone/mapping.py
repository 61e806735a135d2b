"""The reading half of a Clone: a mapping over this process's own memory; nothing here waits or sends.

    clone["/a"]   clone.get("/a")   "/a" in clone   len(clone)   for key in clone   clone.snapshot()   clone.entry("/a")

A read is a dict's own, and sees whole records only: the agent changes the map in one C-level call a record. Iteration
goes over the keys there are at its beginning, since others change the map meanwhile. `snapshot()` and
`dict(clone.items())` are a copy of one moment. But `dict(clone)` asks for each value by its key, which may be gone by
then: a KeyError names `snapshot()` if an iteration began a moment ago. Only a miss pays for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any, NamedTuple

from chp.numbers import UNKNOWN, Revision

from .. import checks
from ..agent.mailbox import Mailbox
from ..codecs import SKIPPED, Codec, Decoding, OnBad, V
from ..core.core import ClientCore
from ..errors import GoneMeanwhile, outside
from ..renamed import refusing_pattern
from .prefix_view import KeyIndex, PrefixView
from .views import Decoded, ItemsNow, KeysNow, ValuesNow

# A missed key names `snapshot` as the remedy for so long after an iteration began: `dict(clone)` of ten million keys.
ITERATED_S = 10.0


class Entry(NamedTuple):
    """A key, its value, the revision that the value has, and its ttl in seconds left.

    While the value is an own set that the servers have not confirmed, it has no revision yet: `pending` is True, the
    revision is 0.1, which no key ever has (so that a condition made of it is never met), and the ttl None. Wait for the
    set's ticket first: once that is settled, the entry is the servers'.
    """

    key: str
    value: Any
    revision: Revision
    ttl: float | None

    @property
    def pending(self) -> bool:
        """Whether the value is an own set that is not confirmed."""
        return self.revision == UNKNOWN


class CloneMapping(Decoded[V]):
    """What is held, as a mapping."""

    subtrees: tuple[str, ...]  # that are held, none inside another; empty for a write-only Clone
    _shown: dict[str, bytes]  # the map: what the servers confirmed, and own sets on top
    _codec: Codec | None
    _core: ClientCore
    _mailbox: Mailbox
    _iterated_at = float("-inf")  # when the last iteration over keys began
    _some: list[str]  # keys that `popitem` has not looked at yet

    @property
    def codec(self) -> Codec | None:
        """What makes values of bytes; None if they are bytes ("raw")."""
        return self._codec

    def __getitem__(self, key: str) -> V:
        try:
            value: Any = self._shown[key]
        except KeyError:
            raise self._missed(key) from None
        return value if self._codec is None else self._codec.decode(value)  # type: ignore[no-any-return]  # a codec's own

    def _missed(self, key: object) -> KeyError:
        """Return the error for a key that is not there."""
        if isinstance(key, str) and not key.startswith(self.subtrees):
            return outside(key, self.subtrees)
        return (GoneMeanwhile if monotonic() < self._iterated_at + ITERATED_S else KeyError)(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default`, also for a key outside the subtrees."""
        value = self._shown.get(key)
        if value is None:
            return default
        return value if self._codec is None else self._codec.decode(value)

    def __contains__(self, key: object) -> bool:
        return key in self._shown

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[str]:
        self.iterates()
        return iter(list(self._shown))

    def iterates(self) -> None:
        """Note that an iteration over keys begins: a key that is missed soon may have gone meanwhile."""
        self._iterated_at = monotonic()

    @refusing_pattern
    def keys(self) -> KeysNow:
        """Return the keys; iterating goes over those there are at its beginning."""
        return KeysNow(self)

    def values(self) -> ValuesNow:
        """The values; iterating goes over those there are at its beginning."""
        return ValuesNow(self)

    def items(self, on_bad: OnBad = "raise") -> ItemsNow:
        """Keys and values; iterating goes over those there are at its beginning.

        on_bad   for a value that the codec can't take: "raise" (`BadValue` names its key), "skip" its item, or a
                 callable that is told the key, the bytes and the error and returns what to show
        """
        return ItemsNow(self, self.decoding(on_bad))

    def decoded_values(self) -> list[Any]:
        """The values at this moment."""
        if self._codec is None:
            return list(self._shown.values())
        return [value for _, value in self.decoded_items(self.decoding())]

    def decoded_items(self, decoding: Decoding | None) -> list[tuple[str, Any]]:
        """The items at this moment."""
        return list(_decoded(self._shown.copy(), decoding).items())

    def snapshot(self) -> dict[str, Any]:
        """A plain dict of all that is held at this moment, at one point of the servers' order."""
        return self.decoded(self._shown.copy())

    def decoded(self, values: dict[str, bytes]) -> dict[str, Any]:
        """A copy with its values decoded."""
        return _decoded(values, self.decoding())

    def decoding(self, on_bad: OnBad = "raise") -> Decoding | None:
        """How values are shown, and what becomes of one that the codec can't take; None for bytes as they are."""
        decoding = Decoding(bytes if self._codec is None else self._codec.decode, on_bad)  # on_bad is looked at
        return None if self._codec is None else decoding

    def some_of(self, keys: list[str], decoding: Decoding | None) -> dict[str, Any]:
        """These keys with their values; what is not there is left out."""
        get = self._shown.get
        return _decoded({key: value for key in keys if (value := get(key)) is not None}, decoding)

    def prefix(self, prefix: str, after: str | None = None, until: str | None = None) -> PrefixView:
        """Return the keys that begin with `prefix`, with their values: a live mapping, in order.

        after, until   only keys behind the one and before the other

        Its `page(limit, after=key)` gives some at a time. It costs what it yields. Raises `BadInput`.
        """
        checks.prefix_held(prefix, self.subtrees, "read")
        checks.range_of(after, until)
        return PrefixView(self, KeyIndex(self._mailbox), prefix, after, until)

    def some_key(self) -> str | None:
        """A key that is held, another one each time it is asked as long as there are some; None if there is none."""
        try:
            return self._some.pop()
        except IndexError:  # looked at and taken in one step, as several threads may ask
            self._some = keys = list(self._shown)
            return keys.pop() if keys else None

    def stored(self, key: str) -> tuple[bytes, Revision] | None:
        """Return the bytes of a key and their revision, `UNKNOWN` for an own set; None if the key is absent."""
        with self._mailbox.lock:
            value = self._shown.get(key)
            if value is None:
                return None
            own = self._mailbox.is_own(key)
            return value, UNKNOWN if own else Revision(self._core.holding.of(key).replica.map.revisions.get(key, 0))

    def entry(self, key: str) -> Entry | None:
        """The key with its value and what belongs to that, revision and remaining ttl; None if it is not there."""
        with self._mailbox.lock:
            value = self._shown.get(key)
            if value is None:
                return None
            hashmap = self._core.holding.of(key).replica.map
            own = self._mailbox.is_own(key)
            revision = UNKNOWN if own else Revision(hashmap.revisions.get(key, 0))
            left = None if own else hashmap.remaining_ms(key, monotonic())
        decoded = value if self._codec is None else self._codec.decode(value)
        return Entry(key, decoded, revision, None if left is None else left / 1000)


def _decoded(values: dict[str, bytes], decoding: Decoding | None) -> dict[str, Any]:
    """The same with values decoded, without those that are left out."""
    if decoding is None:
        return values
    shown = decoding.column(list(values), list(values.values()))
    return {key: value for key, value in zip(values, shown, strict=True) if value is not SKIPPED}
