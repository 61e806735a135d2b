"""What the client's core knows: servers, channels, own sets, requests under way, and the effects gathered so far.

The core is built in layers, an idea in a file each: this state; `following` (which server, how channels get complete);
`sending` (own sets until they are acknowledged); `core` (inputs, time). Only the top is used from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chp.errors import ChpError
from chp.keys import session_topic
from chp.limits import DEFAULT, Limits
from chp.messages import HUGZ

from .backlog import Backlogs
from .channel import Channel
from .classic import Classic
from .events import Ack, Effects, State
from .leases import Leases
from .link import Link
from .outbox import Batch, Outbox

PULSE = "/.chp/pulse/"  # a write-only client holds nothing; on this channel it hears the active's heartbeats


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the client waits for what."""

    silence_s: float = 1.0  # at least; never less than four of the active's heartbeats
    vote_s: float = 0.2
    unheard_s: float = 2.5  # before a server that said nothing is asked in CHP/2: a HUGZ of CHP/1 comes each second
    sync_retry_s: float = 2.0  # without a chunk
    resend_s: float = 2.0  # without an acknowledgement
    refused_retry_s: float = 1.0
    mend_s: float = 0.1  # before a copy that was mended and differs again is mended once more; then twice as long
    mend_s_max: float = 30.0
    deaf_s: float = 5.0  # without a word on P+1 of a server that lives, while nobody else is heard


class CoreState:
    """Everything a client's core keeps between two inputs."""

    def __init__(
        self,
        session: bytes,
        subtrees: Sequence[str],
        servers: Sequence[str],
        now: float,
        *,
        shown: dict[str, bytes] | None = None,
        limits: Limits = DEFAULT,
        timing: Timing | None = None,
        max_lag_s: float | None = None,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.shown: dict[str, bytes] = {} if shown is None else shown
        self.limits = limits
        self.timing = timing or Timing()
        self.chance = chance  # from 0 to 1: that of many clients not all ask at the same time
        self.stats: Counter[str] = Counter()
        self.links = [Link(i, address) for i, address in enumerate(servers)]
        self.outbox = Outbox(session)
        self.leases = Leases()
        self.write_only = not subtrees
        self.channels = [Channel(s, self.shown, self.stats, limits, self._own_batches) for s in (subtrees or (PULSE,))]
        self.backlogs = Backlogs(limits.join_buffer_bytes)
        self.active: Link | None = None
        self.epoch = 0
        self.state = State.CONNECTING
        self.current_at: float | None = None  # when the copy was last known to be complete
        self.closed = False
        self.max_lag_s = max_lag_s
        self.lag_s = 0.0
        self._lag_base: float | None = None
        self._by_topic = {channel.topic: channel for channel in self.channels}
        self._own_topic = session_topic(self.outbox.public)
        self._requests: dict[int, Channel] = {}
        self._votes: dict[int, int] = {}  # the newest vote by server
        self._last_id = 0
        self._unsettled: list[tuple[list[Channel], int, Any, Ack | Exception]] = []
        self._vote_at = now + self.timing.silence_s
        self._progress_at = now
        self._resend_wait_s = self.timing.resend_s
        self._effects = Effects()
        self.classic = Classic(self)
        for link in self.links:
            topics = (HUGZ, self._own_topic, *self._by_topic)
            self._effects.subscribe += [(link.index, topic) for topic in topics]

    def take(self) -> Effects:
        """The effects since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    def take_publish(self) -> list[tuple[int, list[bytes]]]:
        """Of the effects since the last call, those that `submit` has."""
        publish, self._effects.publish = self._effects.publish, []
        return publish

    def idle(self) -> bool:
        """Whether a batch submitted now goes to a server at once, and nothing else has to happen."""
        return self.state is State.SYNCED and self.active is not None and not self.outbox.batches

    @property
    def effects(self) -> Effects:
        """Where effects are gathered (for the parts of the core)."""
        return self._effects

    @property
    def own_topic(self) -> bytes:
        """The topic of our acknowledgements."""
        return self._own_topic

    def full(self) -> bool:
        """Whether no more batches should be submitted for now."""
        return self.open_batches >= self.limits.window_batches or self.outbox.size >= self.limits.window_bytes

    @property
    def open_batches(self) -> int:
        """Own batches that are not settled: not acknowledged, or not in the copy yet."""
        return len(self.outbox) + len(self._unsettled)

    def settle_held(self, *, all_of_them: bool = False) -> None:
        """Settle what waited until the copy holds it; the application then reads at least what it was told."""
        held, self._unsettled = self._unsettled, []
        for entry in held:
            channels, upto, handle, result = entry
            if all_of_them or all(channel.live and channel.at >= upto for channel in channels):
                self._effects.settled.append((handle, result))
            else:
                self._unsettled.append(entry)

    @property
    def active_address(self) -> str | None:
        """The server that is followed."""
        if self.classic.following:
            return self.classic.address
        return None if self.active is None else self.active.address

    def channel_of(self, key: str) -> Channel:
        """The channel a key belongs to (the first for one that is not held)."""
        for channel in self.channels:
            if key.startswith(channel.subtree):
                return channel
        return self.channels[0]

    def _garbage(self, i: int, error: ChpError) -> None:
        self.stats["garbage"] += 1
        self._effects.notes.append(f"{self.links[i].address}: {error}")

    def silence_s(self) -> float:
        """How long the active may be silent."""
        heartbeat_s = self.active.heartbeat_s if self.active is not None else 0.0
        return max(self.timing.silence_s, 4 * heartbeat_s)

    def _silent(self, now: float) -> bool:
        return self.active is None or now - self.active.heard_at > self.silence_s()

    def _is_heard(self, now: float) -> bool:
        """Whether the active is, on each channel."""
        if self._silent(now):
            return False
        since = now - self.silence_s()
        return self.write_only or all(channel.heard_at >= since for channel in self.channels)

    def _update_state(self, now: float) -> None:
        if self._unsettled:
            self.settle_held()
        following = self.classic.is_alive(now) if self.classic.following else self._is_heard(now)
        if self.closed:
            state = State.CLOSED
        elif following and all(channel.live for channel in self.channels):
            state = State.SYNCED
            self.current_at = self.active.heard_at if self.active is not None else self.classic.heard_at
        elif self.current_at is not None:
            state = State.STALE
        else:
            state = State.CONNECTING
        if state is not self.state:
            if self.state is State.SYNCED:
                self._vote_at = min(self._vote_at, now)
            self.state = state
            self._effects.states.append(state)

    def update_state(self, now: float) -> None:
        """Look at the state again (for the parts of the core)."""
        self._update_state(now)

    # what the layers above do: sending.py and core.py override each of these, and nobody makes a CoreState itself

    def _own_batches(self, after: int, upto: int) -> list[Batch]:
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError

    def _resend(self, link: Link, start: int) -> None:
        raise NotImplementedError

    def settle(self, batch: Batch, revision: int, durability: str, known_at: int = 0) -> None:
        """A batch is acknowledged."""
        raise NotImplementedError

    def refuse(self, batch: Batch, code: str, detail: object, now: float) -> None:
        """A batch was taken by nobody."""
        raise NotImplementedError
