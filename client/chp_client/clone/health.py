"""The health of a Clone's copy: its state, its position, how late it is, whether it equals the servers' map.

The properties return what the agent knows already. Only `wait_until_synced` and `verify` wait, and only `verify` counts
keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from chp.errors import BadInput
from chp.numbers import Revision, epoch_of, sequence_of

from .. import checks
from ..agent.dispatch import Dispatcher, Listener
from ..agent.mailbox import Mailbox
from ..codecs import Codec, Decoding
from ..core.core import ClientCore
from ..core.events import State, revision_of
from ..errors import Lagging, Refused
from ..port.history import Version, history
from . import comparison

NAMED_MAX = 100  # keys that differ, of however many
NOTHING = Revision(0)


class Check(NamedTuple):
    """What `verify` found; it is true if all is as it should be.

    `ok`            the sums are those of what is held, and contents that were compared are equal
    `keys`, `revision_sum`, `compared_at`   the copy's own fingerprint, and the number at which a server's fingerprint
                    was last equal to it; 0 if no server has sent one yet
    `number`        the number of the server's snapshot with which contents were compared; 0 without a comparison
    `differing`     the first `NAMED_MAX` keys that differ, in order; `differences`: the number of all that differ
    `left_out`      keys that were changed meanwhile, or have an own set under way
    """

    ok: bool
    keys: int
    revision_sum: int
    compared_at: Revision
    number: Revision = NOTHING
    differing: tuple[str, ...] = ()
    differences: int = 0
    left_out: int = 0

    def __bool__(self) -> bool:
        return self.ok


class CopyHealth:
    """The questions that an application asks about its copy."""

    _core: ClientCore
    _mailbox: Mailbox
    _dispatcher: Dispatcher
    _codec: Codec | None
    # The servers, with their keys if it is a client file.
    _source: Sequence[str]

    @property
    def state(self) -> State:
        """CONNECTING, SYNCED, STALE or CLOSED; raises `Lagging` once after a lag, with on_lag="raise"."""
        lag_s = self._mailbox.lagging
        if lag_s is not None:
            self._mailbox.lagging = None
            raise Lagging(f"this Clone was {lag_s:.3f} s behind, more than max_lag_s; it goes on with what it has")
        return self._core.state

    @property
    def staleness_s(self) -> float:
        """For how long the copy has not been known to be current; inf before the first sync.

        At a replica this counts from the active's last word that reached the replica.
        """
        current_at = self._core.freshness.current_at
        return float("inf") if current_at is None else max(0.0, monotonic() - current_at)

    @property
    def lag_s(self) -> float:
        """The delay of the last message, in seconds beyond the shortest delay so far."""
        return self._core.freshness.lag_s

    @property
    def revision(self) -> Revision:
        """The number up to which everything held is complete."""
        return revision_of(self._core.position)

    @property
    def position(self) -> tuple[int, int]:
        """`revision` as epoch and sequence."""
        return epoch_of(self.revision), sequence_of(self.revision)

    @property
    def active(self) -> str | None:
        """The address of the server that is followed: the active of a pair, or a replica; None if no server is."""
        return self._core.active_address

    @property
    def stats(self) -> dict[str, int]:
        """The counters since the Clone was made; a counter that is still 0 is missing."""
        return dict(self._core.stats)

    @property
    def window(self) -> tuple[int, int]:
        """The number of unacknowledged batches and their bytes, with those on their way to the agent."""
        batches, size = self._mailbox.window()
        return batches + bool(self._mailbox.batch.keys), size

    def describe(self) -> str:
        """Return the state of the Clone and its servers in one line."""
        return self._mailbox.describe()

    @property
    def refused(self) -> str:
        """The refusals of connected servers, with their reasons; "" if there are none."""
        with self._mailbox.lock:
            found = [f"{link.address} refuses {why}" for link in self._core.links if (why := link.refuses)]
        return "; ".join(found)

    def _check_admitted(self) -> None:
        """Raise `Refused` if no server admits this client, and `BadInput` if its servers are not one pair's."""
        if misfit := self._core.misfit:
            raise BadInput(misfit)
        if self._core.state is not State.SYNCED and (denied := self._core.denied()):
            code = "key" if any(link.denied for link in self._core.links) else "access"
            raise Refused("; ".join(f"{address}: {why}" for address, why in denied), code, dict(denied))

    def on_state(self, listener: Listener) -> None:
        """Call `listener(state)` at each change of state, on a thread of its own."""
        checks.callback("listener", listener)
        self._dispatcher.listeners.append(listener)

    def _verified(self, timeout: float | None, contents: bool) -> Check:
        timeout, mailbox = checks.wait_s(timeout), self._mailbox
        with mailbox.lock:
            ok, keys, revision_sum, compared_at = self._core.subscriptions.verify()
        if not contents or self._core.chp1.following or self._core.write_only or mailbox.closed:
            return Check(ok, keys, revision_sum, Revision(compared_at))
        found = comparison.compared(mailbox, timeout)
        named = tuple(heapq.nsmallest(NAMED_MAX, found.differing))
        numbers = Revision(compared_at), Revision(found.number)
        ok = ok and not found.differing
        return Check(ok, keys, revision_sum, *numbers, named, len(found.differing), found.left_out)

    def _history(self, key: str, limit: int, timeout: float | None) -> list[Version]:
        decoding = None if self._codec is None else Decoding(self._codec.decode, lambda key, data, error: data)
        return history(self._source, key, decoding, limit, checks.wait_s(timeout))

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._core.state is State.CLOSED
