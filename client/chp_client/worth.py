"""What a Clone's copy is worth: its state, its position, how late it is, whether it equals the servers' map.

Every answer comes from what the agent knows already; only `wait_until_synced` waits, and only `verify` counts.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from chp.numbers import epoch_of, sequence_of

from . import checks
from .core import ClientCore
from .dispatch import Dispatcher, Listener
from .errors import Lagging
from .events import State
from .hub import Hub
from .tickets import Ticket


class Check(NamedTuple):
    """What `verify` found: the copy's own fingerprint, and the number at which a server's was last equal to it.

    `ok` is whether the sums are those of what is held; `compared_at` is 0 if no server has said anything yet.
    """

    ok: bool
    keys: int
    revision_sum: int
    compared_at: int


class Worth:
    """The questions that an application asks about its copy."""

    _core: ClientCore
    _hub: Hub
    _dispatcher: Dispatcher

    def oldest_ticket(self) -> Ticket | None:
        """The ticket that will be settled first; None if nothing is under way."""
        return next(iter(list(self._hub.outstanding)), None)  # of a copy, as the agent takes away without the lock

    @property
    def hub(self) -> Hub:
        """What it shares with its agent (for the parts of this package)."""
        return self._hub

    @property
    def state(self) -> State:
        """CONNECTING, SYNCED, STALE or CLOSED; raises `Lagging` once after a lag, with on_lag="raise"."""
        lag_s = self._hub.lagging
        if lag_s is not None:
            self._hub.lagging = None
            raise Lagging(f"this Clone was {lag_s:.3f} s behind, more than max_lag_s; it goes on with what it has")
        return self._core.state

    @property
    def staleness_s(self) -> float:
        """For how long the copy has not been known to be current; inf before the first sync."""
        current_at = self._core.current_at
        return float("inf") if current_at is None else max(0.0, monotonic() - current_at)

    @property
    def lag_s(self) -> float:
        """How much later than at its best the last message came."""
        return self._core.lag_s

    @property
    def revision(self) -> int:
        """The number up to which everything held is complete."""
        return self._core.position

    @property
    def position(self) -> tuple[int, int]:
        """`revision` as epoch and sequence."""
        return epoch_of(self.revision), sequence_of(self.revision)

    @property
    def active(self) -> str | None:
        """The address of the server that is followed, if one is."""
        return self._core.active_address

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the beginning; those never counted are missing."""
        return dict(self._core.stats)

    @property
    def window(self) -> tuple[int, int]:
        """Unacknowledged batches and bytes, those on their way to the agent included."""
        hub, outbox = self._hub, self._core.outbox
        return len(outbox) + len(hub.sealed) + bool(hub.keys), outbox.size + hub.sealed_bytes

    def describe(self) -> str:
        """The state and the servers, in a line."""
        return self._hub.describe()

    def wait_until_synced(self, timeout: float | None = None) -> None:
        """Return once the copy is complete and current; `TimeoutError` says how the servers look."""
        hub = self._hub
        with hub.lock:
            hub.wait_for(lambda: self._core.state in (State.SYNCED, State.CLOSED), timeout, lambda: "not synced")
            if self._core.state is State.CLOSED:
                raise hub.why_not()

    def on_state(self, listener: Listener) -> None:
        """Call `listener(state)` at each change of state, on a thread of its own."""
        checks.callback("listener", listener)
        self._dispatcher.listeners.append(listener)

    def verify(self) -> Check:
        """Count and sum the copy anew and compare with what it believes, and with what a server last said."""
        with self._hub.lock:
            return Check(*self._core.verify())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.state is State.CLOSED
