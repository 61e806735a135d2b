"""What a client holds: its channels as one map, and its own sets on top of that.

It asks nobody and is told nothing by servers: `channels` does that. Everything here is a question, or an own set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from itertools import filterfalse

from chp import columns
from chp.batch import Segment
from chp.limits import Limits
from chp.numbers import U64_MASK

from ..events import Changed, in_order
from ..outbox import SentBatch
from .channel import CopyChannel
from .key_order import KeyOrder

PULSE = "/.chp/pulse/"  # a write-only client holds nothing; on this channel it hears the active's heartbeats


class Subscriptions:
    """The channels of one client, none inside another."""

    def __init__(
        self,
        subtrees: Sequence[str],
        shown: dict[str, bytes],
        own_batches: Callable[[int, int], list[SentBatch]],
        limits: Limits,
        stats: Counter[str],
        *,
        unanswered: Callable[[], Collection[int]],
    ) -> None:
        self.write_only = not subtrees
        self.shown = shown
        self.order = KeyOrder()
        self.all = [
            CopyChannel(s, shown, stats, limits, own_batches, order=self.order, unanswered=unanswered)
            for s in (subtrees or (PULSE,))
        ]

    @property
    def live(self) -> bool:
        """Whether nothing is missing."""
        return all(channel.live for channel in self.all)

    @property
    def position(self) -> int:
        """The highest number up to which everything held is complete."""
        return min(channel.at for channel in self.all)

    @property
    def count(self) -> int:
        """How many keys are held and confirmed."""
        return sum(len(channel.replica.map.revisions) for channel in self.all)

    def of(self, key: str) -> CopyChannel:
        """The channel a key belongs to (the first for one that is not held)."""
        return next((channel for channel in self.all if key.startswith(channel.subtree)), self.all[0])

    def watch(self, on: bool) -> None:
        """Whether changes are to be told at all: it costs a little a record."""
        for channel in self.all:
            channel.watching = on and not self.write_only

    def held(self, prefix: str, unsent: set[str]) -> Changed:
        """What is confirmed under a prefix, by revision; no key of an own set that is not (`unsent`, and others)."""
        return in_order([channel.replica.held(prefix, unsent) for channel in self.all])

    # -- the order of the keys

    def begin_order(self, unsent: set[str]) -> list[str]:
        """New keys are noted from here on; all there are now, those that own deletes hide too."""
        self.order.begin(len(self.shown))
        hidden = unsent.union(*(c.replica.waiting() for c in self.all))
        keys = list(self.shown)
        keys += hidden.difference(self.shown)
        return keys

    def known(self) -> list[Container[str]]:
        """What the order has to know: all that is shown, has a revision, or is an own set on its way."""
        replicas = [channel.replica for channel in self.all]
        return [self.shown, *(r.map.revisions for r in replicas), *(r.waiting() for r in replicas)]

    def _note(self, keys: list[str]) -> None:
        """Own sets: what has a revision is known to the order."""
        for channel in self.all:
            keys = list(filterfalse(channel.replica.map.revisions.__contains__, keys))
        if keys:
            self.order.note(keys)

    def verify(self) -> tuple[bool, int, int, int]:
        """Whether each channel's sums are those of its map; keys and revision sum in all; the number last compared."""
        ok, keys, total, compared = True, 0, 0, []
        for channel in self.all:
            revisions = channel.replica.map.revisions
            summed = sum(revisions.values())
            ok = ok and summed == channel.replica.map.revision_sum
            ok = ok and not revisions.keys() - self.shown.keys() - channel.replica.pending.keys()
            keys, total = keys + len(revisions), total + summed
            compared.append(channel.compared[0] if channel.compared else 0)
        return ok, keys, total & U64_MASK, min(compared)

    # -- own sets

    def show(self, segment: Segment) -> None:
        """Make an own set visible at once."""
        if not self.write_only:
            self.all[0].replica.show(segment)

    def pend(self, batch: SentBatch) -> None:
        """What is shown of an own batch waits for its confirmation."""
        if not batch.shown:
            return
        if self.order.live:
            self._note(batch.keys)
        if len(self.all) == 1:
            self.all[0].replica.pending.add(batch.keys, batch.no)
            return
        for channel in self.all:
            keys = [key for key in batch.keys if key.startswith(channel.subtree)]
            if keys:
                channel.replica.pending.add(keys, batch.no)

    def lacking(self, batch: SentBatch, upto: int) -> list[CopyChannel]:
        """The channels of the batch's keys that are not complete up to a number."""
        extras = batch.extras or {}
        if batch.shown and not batch.keys and not extras:  # a `sync`, which waits for all that came before it
            return [channel for channel in self.all if not channel.live or channel.at < upto]
        if self.write_only or columns.STAGE in extras or not (batch.keys or columns.COMMIT in extras):
            return []
        behind = [channel for channel in self.all if not channel.live or channel.at < upto]
        if columns.COMMIT in extras:
            return behind
        return [channel for channel in behind if any(key.startswith(channel.subtree) for key in batch.keys)]

    def are_heard(self, since: float) -> bool:
        """Whether something has come on each of them."""
        if not self.write_only:
            for channel in self.all:
                if channel.heard_at < since:
                    return False
        return True

    def check(self) -> None:
        """Assert the invariants of each channel."""
        for channel in self.all:
            channel.check()
