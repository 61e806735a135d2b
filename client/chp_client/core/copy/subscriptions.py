"""The map that a client holds: its channels as one map, and its own sets on top of it.

This part answers questions about the map, and shows own sets. It asks no server and takes no message from one;
`channels` does that.
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

# A write-only client holds no keys. On this channel it hears the heartbeats of the active.
PULSE = "/.chp/pulse/"


class Subscriptions:
    """The channels of one client. No subtree lies inside another."""

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
        """True if no channel misses anything."""
        for channel in self.all:  # noqa: SIM110 (each look of a generator is a call)
            if not channel.live:
                return False
        return True

    @property
    def position(self) -> int:
        """The highest number up to which the whole copy is complete."""
        if len(self.all) == 1:
            return self.all[0].at
        return min([channel.at for channel in self.all])

    @property
    def count(self) -> int:
        """The number of confirmed keys in the copy."""
        return sum(len(channel.replica.map.revisions) for channel in self.all)

    def of(self, key: str) -> CopyChannel:
        """Return the channel of a key, or the first channel for a key that is not held."""
        return next((channel for channel in self.all if key.startswith(channel.subtree)), self.all[0])

    def watch(self, on: bool) -> None:
        """Start or stop gathering the changes of all channels. It costs a little time for each record."""
        for channel in self.all:
            channel.watching = on and not self.write_only

    def held(self, prefix: str, unsent: set[str]) -> Changed:
        """Return the confirmed keys under a prefix by revision, without those that have an unconfirmed own set."""
        return in_order([channel.replica.held(prefix, unsent) for channel in self.all])

    # -- the order of the keys

    def begin_order(self, unsent: set[str]) -> list[str]:
        """Note new keys from here on. Return all present keys, with those that own deletes hide."""
        self.order.begin(len(self.shown))
        hidden = unsent.union(*(c.replica.waiting() for c in self.all))
        keys = list(self.shown.keys())
        keys += hidden.difference(self.shown)
        return keys

    def known(self) -> list[Container[str]]:
        """Return the containers of the keys that the order must keep.

        These keys are shown, have a revision, or have an own set on its way.
        """
        replicas = [channel.replica for channel in self.all]
        return [self.shown, *(r.map.revisions for r in replicas), *(r.waiting() for r in replicas)]

    def _note(self, keys: list[str]) -> None:
        """Note the keys of own sets in the order, except for keys with a revision, which the order knows."""
        for channel in self.all:
            keys = list(filterfalse(channel.replica.map.revisions.__contains__, keys))
        if keys:
            self.order.note(keys)

    def verify(self) -> tuple[bool, int, int, int]:
        """Check the sums of all channels.

        The result is True if each sum is right, then the number of keys, the sum of their revisions, and the number
        that was last compared with the server.
        """
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
        """Show an own set at once."""
        if not self.write_only:
            self.all[0].replica.show(segment)

    def pend(self, batch: SentBatch) -> None:
        """Wait for the confirmation of an own batch that is shown."""
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
        """Return the channels of the batch's keys that are not complete up to a number."""
        extras = batch.extras or {}
        # This is a `sync`, which waits for everything that was acknowledged before it.
        if batch.shown and not batch.keys and not extras:
            return [channel for channel in self.all if not channel.live or channel.at < upto]
        if self.write_only or columns.STAGE in extras or not (batch.keys or columns.COMMIT in extras):
            return []
        behind = []
        for channel in self.all:
            if not channel.live or channel.at < upto:
                behind.append(channel)
        if not behind or columns.COMMIT in extras:
            return behind
        return [channel for channel in behind if any(key.startswith(channel.subtree) for key in batch.keys)]

    def is_current(self, since: float) -> bool:
        """Return True if no channel misses anything, and each was heard since that time."""
        for channel in self.all:  # noqa: SIM110 (each look of a generator is a call)
            if not channel.live or (channel.heard_at < since and not self.write_only):
                return False
        return True

    def check(self) -> None:
        """Assert the invariants of each channel."""
        for channel in self.all:
            channel.check()
