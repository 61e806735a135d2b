"""The reading half of a Clone: a mapping over this process's own memory; nothing here waits or sends.

    clone["/a"]   clone.get("/a")   "/a" in clone   len(clone)   for key in clone   clone.snapshot()   clone.entry("/a")

A read is that of a dict. It sees whole records only, because the agent applies each record to the map in one step. On
free-threaded Python only copies of the map have this property: there, a read may show a record that the next read of
another key does not show yet (core/copy/shown.py). Iteration goes over the keys that exist when it begins, since other
programs change the map meanwhile. `snapshot()` and `dict(clone.items())` copy one moment. But `dict(clone)` looks each
key up later, when it may be gone. So the KeyError names `snapshot()` if an iteration began a moment ago. Only the read
of an absent key pays for this check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any, Generic, NamedTuple

from chp.errors import BadValue
from chp.numbers import UNKNOWN, Revision

from .. import checks
from ..agent.mailbox import Mailbox
from ..codecs import SKIPPED, Codec, Decoding, OnBad, V, undecodable
from ..core.core import ClientCore
from ..errors import GoneMeanwhile, outside
from ..renamed import refusing_pattern
from .prefix_view import KeyIndex, PrefixView
from .views import ItemsNow, KeysNow, ValuesNow

# The KeyError of an absent key names `snapshot` for this many seconds after an iteration began. `dict(clone)` of ten
# million keys takes that long.
ITERATED_S = 10.0


class Entry(NamedTuple):
    """A key, its value, the value's revision, and the seconds that are left of its ttl.

    An own set that the servers have not confirmed has no revision yet. Its `pending` is True, its `ttl` is None, and
    its `revision` is 0.1, which no key ever has, so a condition with this revision never holds. To get the entry of the
    servers, wait for the set's ticket first.
    """

    key: str
    value: Any
    revision: Revision
    ttl: float | None

    @property
    def pending(self) -> bool:
        """True if the value is an own set that is not confirmed."""
        return self.revision == UNKNOWN


class CopyReader(Generic[V]):
    """The copy of a Clone as other parts of this package read it: stored bytes, decoded values, errors of reads."""

    def __init__(self, core: ClientCore, mailbox: Mailbox, codec: Codec | None, subtrees: tuple[str, ...]) -> None:
        self._core, self._mailbox, self._codec, self._subtrees = core, mailbox, codec, subtrees
        self._shown = core.shown
        # When the last iteration over keys began.
        self._iterated_at = float("-inf")
        # Keys that `popitem` has not looked at yet.
        self._some: list[str] = []

    def iterates(self) -> None:
        """Note that an iteration over keys begins: a key that is missed soon may have gone meanwhile."""
        self._iterated_at = monotonic()

    def missed(self, key: object) -> KeyError:
        """Return the error for a key that is not there."""
        if isinstance(key, str) and not key.startswith(self._subtrees):
            return outside(key, self._subtrees)
        return (GoneMeanwhile if monotonic() < self._iterated_at + ITERATED_S else KeyError)(key)

    def decoding(self, on_bad: OnBad = "raise") -> Decoding | None:
        """Return the decoding of values, with what becomes of a value that the codec can't take; None for bytes."""
        # The constructor checks `on_bad`.
        decoding = Decoding(bytes if self._codec is None else self._codec.decode, on_bad)
        return None if self._codec is None else decoding

    def decoded(self, values: dict[str, bytes]) -> dict[str, Any]:
        """Return a copy with its values decoded."""
        return _decoded(values, self.decoding())

    def values(self) -> list[Any]:
        """Return the values at this moment."""
        if self._codec is None:
            return list(self._shown.values())
        return [value for _, value in self.items(self.decoding())]

    def items(self, decoding: Decoding | None) -> list[tuple[str, Any]]:
        """Return the items at this moment."""
        return list(_decoded(self._shown.copy(), decoding).items())

    def some_of(self, keys: list[str], decoding: Decoding | None) -> dict[str, Any]:
        """Return these keys with their values, without absent keys."""
        get = self._shown.get
        return _decoded({key: value for key in keys if (value := get(key)) is not None}, decoding)

    def some_key(self) -> str | None:
        """Return a held key, if possible another key than in earlier calls; None if no key is held."""
        try:
            return self._some.pop()
        except IndexError:
            # A check before the pop would not do, as several threads may ask.
            self._some = keys = list(self._shown.keys())
            return keys.pop() if keys else None

    def stored(self, key: str) -> tuple[bytes, Revision] | None:
        """Return the bytes of a key and their revision, `UNKNOWN` for an own set; None if the key is absent."""
        with self._mailbox.lock:
            value = self._shown.get(key)
            if value is None:
                return None
            own = self._mailbox.is_own(key)
            return value, UNKNOWN if own else Revision(
                self._core.subscriptions.of(key).replica.map.revisions.get(key, 0)
            )

    def entry(self, key: str) -> Entry | None:
        """Return a key with its value, its revision and its remaining ttl; None if the key is absent."""
        with self._mailbox.lock:
            value = self._shown.get(key)
            if value is None:
                return None
            hashmap = self._core.subscriptions.of(key).replica.map
            own = self._mailbox.is_own(key)
            revision = UNKNOWN if own else Revision(hashmap.revisions.get(key, 0))
            left = None if own else hashmap.remaining_ms(key, monotonic())
        try:
            decoded = value if self._codec is None else self._codec.decode(value)
        except BadValue as error:
            raise undecodable(key, error) from None
        return Entry(key, decoded, revision, None if left is None else left / 1000)


class CloneMapping(Mapping[str, V]):
    """The copy of a Clone as a mapping."""

    # The subtrees that are held, none inside another; empty for a write-only Clone.
    subtrees: tuple[str, ...]
    # The map: the confirmed values, and own sets on top.
    _shown: dict[str, bytes]
    _codec: Codec | None
    _mailbox: Mailbox
    _reader: CopyReader[V]

    @property
    def codec(self) -> Codec | None:
        """The codec of values; None if values are bytes ("raw")."""
        return self._codec

    def __getitem__(self, key: str) -> V:
        try:
            value: Any = self._shown[key]
        except KeyError:
            raise self._reader.missed(key) from None
        try:
            return value if self._codec is None else self._codec.decode(value)  # type: ignore[no-any-return]  # a codec's own
        except BadValue as error:
            raise undecodable(key, error) from None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the copy has none, as for a key outside the subtrees."""
        value = self._shown.get(key)
        if value is None:
            return default
        try:
            return value if self._codec is None else self._codec.decode(value)
        except BadValue as error:
            raise undecodable(key, error) from None

    def __contains__(self, key: object) -> bool:
        return key in self._shown

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[str]:
        self._reader.iterates()
        return iter(list(self._shown.keys()))

    @refusing_pattern
    def keys(self) -> KeysNow:
        """Return the keys; an iteration goes over the keys that exist when it begins."""
        return KeysNow(self)

    def values(self) -> ValuesNow:
        """Return the values; an iteration goes over the values of the moment when it begins."""
        return ValuesNow(self, self._reader)

    def items(self, on_bad: OnBad = "raise") -> ItemsNow:
        """Return the items; an iteration goes over the items of the moment when it begins.

        on_bad   for a value that the codec can't decode: "raise" (`BadValue` names its key), "skip" its item, or a
                 callable that gets the key, the bytes and the error and returns the value to show
        """
        return ItemsNow(self, self._reader, self._reader.decoding(on_bad))

    def snapshot(self) -> dict[str, Any]:
        """Return a plain dict of all that is held now; all of it is from one point of the servers' order."""
        return self._reader.decoded(self._shown.copy())

    def prefix(self, prefix: str, after: str | None = None, until: str | None = None) -> PrefixView:
        """Return the keys that begin with `prefix`, with their values: a live mapping, in order.

        after, until   only keys behind `after` and before `until`

        The mapping's `page(limit, after=key)` returns some items at a time. A read costs only as much as it yields.
        Raises `BadInput`.
        """
        checks.prefix_held(prefix, self.subtrees, "read")
        checks.range_of(after, until)
        return PrefixView(self, self._reader, KeyIndex(self._mailbox), prefix, after=after, until=until)

    def entry(self, key: str) -> Entry | None:
        """Return a key with its value, its revision and its remaining ttl; None if the key is absent."""
        return self._reader.entry(key)


def _decoded(values: dict[str, bytes], decoding: Decoding | None) -> dict[str, Any]:
    """Return the items with their values decoded, without the values that are skipped."""
    if decoding is None:
        return values
    shown = decoding.column(list(values), list(values.values()))
    return {key: value for key, value in zip(values, shown, strict=True) if value is not SKIPPED}
