"""One channel's part of the map: what the servers confirmed, and own sets shown before they are.

    shown      key -> bytes, one dict for all channels of a Clone; what the application reads
    map        revisions, deadlines and fingerprint of this channel (chp.hashmap), its values being `shown`
    pending    own keys whose echo has not come: key -> number of the own batch that last set it

Rules:
- A record is shown by one C-level call, so no reader ever sees half of it.
- A key with a pending own set keeps the own value: what others wrote before is sequenced before it, and would only flip
  the value back and forth. Its revision is noted all the same, so the fingerprint is the channel's.
- The echo of an own batch confirms all own numbers up to it. An echo that holds nothing else has nothing to show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain, repeat
from operator import call

from chp import columns
from chp.batch import Segment, narrow
from chp.hashmap import Hashmap

from ..events import Changed
from .key_order import KeyOrder

ROTATE_AT = 32_768


class UnconfirmedSets:
    """Own keys not confirmed yet, in two generations so that confirming never walks over keys.

    Batches are folded into the generations only when somebody asks `among`; one that is confirmed before that, as all
    are while nobody else writes, costs nothing.
    """

    __slots__ = ("_fresh", "_old", "_old_last", "_young", "_young_last", "confirmed", "last")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing is pending: a session begins, or has been given up."""
        self._fresh: deque[tuple[int, list[str]]] = deque()
        self._old: dict[str, int] = {}
        self._young: dict[str, int] = {}
        self._old_last = self._young_last = self.last = self.confirmed = 0

    def add(self, keys: list[str], no: int) -> None:
        """These keys are shown as own batch `no` has them."""
        self._fresh.append((no, keys))
        self.last = no

    def confirm(self, no: int) -> None:
        """Every own batch up to `no` has come back."""
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
        """The keys of own batches before `no` that are still waiting for their echo."""
        if not self:
            return set()
        self._fold()
        return {key for each in (self._old, self._young) for key, n in each.items() if self.confirmed < n < no}

    def without(self, unanswered: Collection[int]) -> set[str]:
        """The keys that still wait for the echo of a batch which is answered, whether those before it are or not."""
        if not self:
            return set()
        self._fold()
        numbers = {**self._old, **self._young}
        return {key for key, n in numbers.items() if n > self.confirmed and n not in unanswered}

    def among(self, keys: Iterable[str]) -> set[str]:
        """Which of `keys` are still waiting for an echo."""
        if not self:
            return set()
        self._fold()
        keys = list(keys)
        if self._young.keys().isdisjoint(keys) and self._old.keys().isdisjoint(keys):
            return set()
        young, old, confirmed = self._young.get, self._old.get, self.confirmed
        return {k for k in keys if (young(k) or old(k, 0)) > confirmed}

    def keys(self) -> set[str]:
        """All keys still waiting."""
        self._fold()
        return self.among({**self._old, **self._young})

    def drop(self, keys: set[str]) -> None:
        """These keys are not waited for any more: the set was refused."""
        self._fold()
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


class Replica:
    """A channel's keys, as confirmed and as shown."""

    __slots__ = ("map", "order", "orphans", "pending", "shown", "subtree", "untold")

    def __init__(self, shown: dict[str, bytes], subtree: str = "", order: KeyOrder | None = None) -> None:
        self.shown = shown
        self.subtree = subtree
        self.order = KeyOrder() if order is None else order  # of all keys shown, not only of this channel's
        self.map = Hashmap(ordered=False)
        self.map.values = shown
        self.pending = UnconfirmedSets()
        self.orphans: set[str] = set()  # shown, then refused: to go with the next snapshot unless it has them
        self.untold: set[str] = set()  # left out of what a watch began with, as an own set of them was pending

    def show(self, segment: Segment) -> None:
        """Show an own set at once."""
        if self.order.live:
            self.order.note(segment.keys)
        if segment.extras and columns.DELETES in segment.extras:
            self._show_some([segment], set())
        else:
            self.shown.update(zip(segment.keys, segment.values, strict=True))

    def apply(self, segments: list[Segment], revision: int, own: int, echo_only: bool, now: float) -> list[Segment]:
        """Apply a record; `own` is the highest own batch number in it (0: none), `echo_only` that all of it is own.

        Returns what of it lies in the subtree, which is all, unless something is wrong with who published it.
        """
        before = len(self.map)
        for segment in segments:
            self.map.note(segment, revision, now)
        if own:
            self.pending.confirm(own)
        if echo_only:
            return segments
        deletes = any(s.extras is not None and columns.DELETES in s.extras for s in segments)
        if self.order.live and (deletes or len(self.map) != before):  # else no key of it is new
            for segment in segments:
                self.order.note(segment.keys)
        if self.subtree and (deletes or len(self.map) != before):
            segments = self._inside(segments)  # only what is new here can be a stranger, and a delete may hide that
        keys = [segment.keys for segment in segments]
        held = self.pending.among(chain.from_iterable(keys)) if self.pending else set()
        if held or deletes:
            self._show_some(segments, held)
        else:
            self.shown.update(chain.from_iterable(map(zip, keys, [s.values for s in segments])))
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
        """Own sets that an earlier epoch answered, and may have lost: the next snapshot says what their keys have."""
        self.orphans |= answered
        self.pending.drop(answered & self.pending.without(unanswered))

    def replace(self, fresh: Hashmap, own: int, want_changes: int = 0, *, anew: bool = False) -> Changed | None:
        """Put a snapshot in the place of what is held; the difference, as of number `want_changes` unless that is 0.

        The difference is what a watcher was not told: other values, by revision, then what is gone. A key that has the
        value it had, though it was set again, is no difference. `anew`: it is of another history, in which the same
        revision means another set.
        """
        answered = self.pending.before(own + 1)  # in the snapshot, or lost
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
        own = self.pending.keys() | self.orphans  # what is shown of these is not what was told
        untold = self.untold & self.orphans
        differs = revision if anew else [k for k, r in revision.items() if known.get(k) != r or k in untold]
        newer = [k for k in differs if k not in known or k in own or told.get(k) != value[k]]
        newer.sort(key=revision.__getitem__)
        lost = sorted(gone)
        values: list[bytes | None] = list(map(value.__getitem__, newer))
        values += [None] * len(lost)
        return Changed(newer + lost, values, list(map(revision.__getitem__, newer)) + [number] * len(lost))

    def held(self, prefix: str, unsent: set[str]) -> Changed:
        """What is confirmed and begins with `prefix`; the oldest revision first.

        A key with an own set that is pending, or in `unsent` on its way here, is left out: its echo will tell.
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
        """Keys of own sets and deletes that are not confirmed."""
        return self.pending.keys() | self.orphans

    def is_own(self, key: str) -> bool:
        """Whether what is shown of a key is an own set that is not confirmed."""
        return key in self.orphans or bool(self.pending.among([key]))

    def check(self) -> None:
        """Assert that the map is consistent in itself; raises AssertionError naming what is not."""
        revisions, held = self.map.revisions, self.pending.keys()
        assert self.map.revision_sum == sum(revisions.values()), "the fingerprint is the map's"
        missing = revisions.keys() - self.shown.keys() - held
        assert not missing, f"{len(missing)} confirmed keys are not shown, such as {min(missing)!r}"


def exchange(shown: dict[str, bytes], gone: set[str], fresh: dict[str, bytes]) -> None:
    """Delete and set in one C-level call: no other thread runs in between, so no reader sees half of it."""
    if gone:
        delete: Callable[[], object] = partial(deque, map(shown.pop, gone, repeat(None)), 0)
        update: Callable[[], object] = partial(shown.update, fresh)
        deque(map(call, (delete, update)), 0)
    else:
        shown.update(fresh)
