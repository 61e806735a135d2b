"""The keys of one channel: what the servers confirmed, and own sets that are shown before they are confirmed.

    shown      key -> bytes; one dict for all channels of a Clone, which the application reads
    map        the revisions, deadlines and fingerprint of this channel (chp.hashmap); its values are `shown`
    pending    own keys without an echo: key -> number of the own batch that set it last

An own set is one that this client made. Its echo is the record in which the servers publish it.

Rules:
- One step shows a record, so no copy ever has half of it (shown.py).
- A key with a pending own set keeps the own value. A set of another client that came before has a lower revision, and
  showing it would only flip the value back and forth. The revision of that set is noted all the same, so that the
  fingerprint stays equal to that of the servers.
- The echo of an own batch confirms all own numbers up to it. If it holds no other batch, there is nothing to show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import chain
from operator import attrgetter

from chp import columns
from chp.batch import Segment, narrow
from chp.hashmap import Hashmap

from ..events import Changed
from .key_order import KeyOrder
from .shown import exchange

ROTATE_AT = 32_768
_KEYS, _VALUES = attrgetter("keys"), attrgetter("values")


class UnconfirmedSets:
    """The own keys that are not confirmed yet, in two generations, so confirming never walks over keys.

    Batches enter the generations only when a reader needs them. A batch that is confirmed before that costs nothing.
    While no other client writes, each batch is confirmed before that.
    """

    __slots__ = ("_fresh", "_old", "_old_last", "_young", "_young_last", "confirmed", "last")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all keys, as a session begins or was given up."""
        self._fresh: deque[tuple[int, list[str]]] = deque()
        self._old: dict[str, int] = {}
        self._young: dict[str, int] = {}
        self._old_last = self._young_last = self.last = self.confirmed = 0

    def add(self, keys: list[str], no: int) -> None:
        """Note that these keys are shown as own batch `no` set them."""
        self._fresh.append((no, keys))
        self.last = no

    def confirm(self, no: int) -> None:
        """Confirm every own batch up to `no`."""
        if no <= self.confirmed:
            return
        self.confirmed = no
        while self._fresh and self._fresh[0][0] <= no:
            self._fresh.popleft()
        if no >= self._young_last:
            self._old, self._young = {}, {}
        elif self._old and no >= self._old_last:
            self._old, self._old_last, self._young = self._young, self._young_last, {}

    def _fold(self) -> None:
        while self._fresh:
            no, keys = self._fresh.popleft()
            self._young.update(dict.fromkeys(keys, no))
            self._young_last = no
            if not self._old and len(self._young) >= ROTATE_AT:
                self._old, self._old_last, self._young = self._young, no, {}

    def __bool__(self) -> bool:
        return bool(self._fresh or self._young or self._old)

    def before(self, no: int) -> set[str]:
        """Return the keys of own batches before `no` that still wait for their echo."""
        if not self:
            return set()
        self._fold()
        return {key for each in (self._old, self._young) for key, n in each.items() if self.confirmed < n < no}

    def without(self, unanswered: Collection[int]) -> set[str]:
        """Return the keys that still wait for the echo of an answered batch.

        Batches before it may be unanswered.
        """
        if not self:
            return set()
        self._fold()
        numbers = {**self._old, **self._young}
        return {key for key, n in numbers.items() if n > self.confirmed and n not in unanswered}

    def among(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that still wait for an echo."""
        if not self:
            return set()
        self._fold()
        keys = list(keys)
        if self._young.keys().isdisjoint(keys) and self._old.keys().isdisjoint(keys):
            return set()
        young, old, confirmed = self._young.get, self._old.get, self.confirmed
        return {k for k in keys if (young(k) or old(k, 0)) > confirmed}

    def keys(self) -> set[str]:
        """Return all keys that still wait for an echo."""
        self._fold()
        return self.among({**self._old, **self._young})

    def drop(self, keys: set[str]) -> None:
        """Stop waiting for these keys, as their set was refused."""
        self._fold()
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


class Replica:
    """The keys of a channel, as confirmed and as shown."""

    __slots__ = ("map", "order", "orphans", "pending", "shown", "subtree", "untold")

    def __init__(self, shown: dict[str, bytes], subtree: str = "", order: KeyOrder | None = None) -> None:
        self.shown = shown
        self.subtree = subtree
        # The order of all shown keys, not only of this channel's.
        self.order = KeyOrder() if order is None else order
        self.map = Hashmap(ordered=False)
        self.map.values = shown
        self.pending = UnconfirmedSets()
        # Keys that were shown and then refused. The next snapshot removes them, unless it has them.
        self.orphans: set[str] = set()
        # Keys that were not told at the start of a watch, because an own set of them was pending.
        self.untold: set[str] = set()

    def show(self, segment: Segment) -> None:
        """Show an own set at once."""
        if self.order.live:
            self.order.note(segment.keys)
        if segment.extras and columns.DELETES in segment.extras:
            self._show_some([segment], set())
        else:
            self.shown.update(zip(segment.keys, segment.values, strict=True))

    def apply(self, segments: list[Segment], revision: int, own: int, echo_only: bool, now: float) -> list[Segment]:
        """Apply a record, and return its segments that lie in the subtree.

        `own` is the highest own batch number in it (0: none), and `echo_only` says that all of it is own. All segments
        lie in the subtree unless the publishing server made a mistake.
        """
        revisions, deletes = self.map.revisions, False
        before = len(revisions)
        for segment in segments:
            self.map.note(segment, revision, now)
            deletes = deletes or (segment.extras is not None and columns.DELETES in segment.extras)
        if own:
            self.pending.confirm(own)
        if echo_only:
            return segments
        # Without a delete and with as many keys as before, no key is new.
        if self.order.live and (deletes or len(revisions) != before):
            for segment in segments:
                self.order.note(segment.keys)
        if self.subtree and (deletes or len(revisions) != before):
            # Only a new key can lie outside the subtree, and a delete in the record may hide that a key is new.
            segments = self._inside(segments)
        held = self.pending.among(chain.from_iterable(map(_KEYS, segments))) if self.pending else set()
        if held or deletes:
            self._show_some(segments, held)
        else:
            pairs = map(zip, map(_KEYS, segments), map(_VALUES, segments))
            self.shown.update(chain.from_iterable(pairs))
        return segments

    def _inside(self, segments: list[Segment]) -> list[Segment]:
        inside = [narrow(segment, self.subtree) for segment in segments]
        for segment, kept in zip(segments, inside, strict=True):
            if kept is not segment:
                self.map.forget([key for key in segment.keys if not key.startswith(self.subtree)])
        return [segment for segment in inside if segment is not None]

    def _show_some(self, segments: list[Segment], held: set[str]) -> None:
        final: dict[str, bytes] = {}
        gone: set[str] = set()
        for segment in segments:
            final.update(zip(segment.keys, segment.values, strict=True))
            deleted = set(self.map.deleted_by(segment))
            gone.difference_update(segment.keys)
            gone |= deleted
        for key in gone | held:
            final.pop(key, None)
        exchange(self.shown, gone - held, final)

    def doubt(self, answered: set[str], unanswered: Collection[int]) -> None:
        """Let the next snapshot decide about own sets that an earlier epoch answered and may have lost."""
        self.orphans |= answered
        self.pending.drop(answered & self.pending.without(unanswered))

    def replace(self, fresh: Hashmap, own: int, want_changes: int = 0, *, anew: bool = False) -> Changed | None:
        """Replace the copy by a snapshot. Return the difference as of number `want_changes`, or None if that is 0.

        The difference is what a watch was not told: first new values by revision, then deleted keys. A key that was set
        again to its old value is no difference. `anew` says that the snapshot is of another history, in which the same
        revision means another set.
        """
        # These sets are in the snapshot, or they are lost.
        answered = self.pending.before(own + 1)
        self.pending.confirm(own)
        self.order.drop()
        old = self.map
        gone = old.revisions.keys() - fresh.revisions.keys() if old.revisions else set()
        changed = self._difference(fresh, gone, want_changes, anew) if want_changes else None
        gone |= (self.orphans | answered) - fresh.revisions.keys()
        self.untold = self.untold & self.pending.keys() if self.untold else self.untold
        self.orphans = set()
        values = fresh.values
        if self.pending:
            held = self.pending.keys()
            gone -= held
            for key in held:
                values.pop(key, None)
        exchange(self.shown, gone, values)
        fresh.values = self.shown
        self.map = fresh
        return changed

    def _difference(self, fresh: Hashmap, gone: set[str], number: int, anew: bool) -> Changed:
        known, told, revision, value = self.map.revisions, self.shown, fresh.revisions, fresh.values
        # The shown values of these keys are not the values that watches were told.
        own = self.pending.keys() | self.orphans
        untold = self.untold & self.orphans
        differs = revision if anew else [k for k, r in revision.items() if known.get(k) != r or k in untold]
        newer = [k for k in differs if k not in known or k in own or told.get(k) != value[k]]
        newer.sort(key=revision.__getitem__)
        lost = sorted(gone)
        values: list[bytes | None] = list(map(value.__getitem__, newer))
        values += [None] * len(lost)
        return Changed(newer + lost, values, list(map(revision.__getitem__, newer)) + [number] * len(lost))

    def held(self, prefix: str, unsent: set[str]) -> Changed:
        """Return the confirmed keys that begin with `prefix`, the oldest revision first.

        The result leaves out keys with a pending own set, and the keys in `unsent`, whose sets have not reached the
        core. The echo of such a set will tell the value.
        """
        waiting, shown = self.pending.keys() | self.orphans | unsent, self.shown
        found = [
            (revision, key)
            for key, revision in self.map.revisions.items()
            if key.startswith(prefix) and key not in waiting and key in shown
        ]
        found.sort()
        self.untold |= {key for key in waiting if key.startswith(prefix)}
        return Changed([k for _, k in found], [shown[k] for _, k in found], [r for r, _ in found])

    def waiting(self) -> set[str]:
        """Return the keys of own sets and deletes that are not confirmed."""
        return self.pending.keys() | self.orphans

    def is_own(self, key: str) -> bool:
        """Return True if the shown value of a key is an unconfirmed own set."""
        return key in self.orphans or bool(self.pending.among([key]))

    def check(self) -> None:
        """Assert that the map is consistent. The AssertionError names what is not."""
        revisions, held = self.map.revisions, self.pending.keys()
        assert self.map.revision_sum == sum(revisions.values()), "the fingerprint is the map's"
        missing = revisions.keys() - self.shown.keys() - held
        assert not missing, f"{len(missing)} confirmed keys are not shown, such as {min(missing)!r}"
