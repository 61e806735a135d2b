"""What the application's threads and the agent share: the open batch, the queue to the agent, the core, and their lock.

    application  --append-->  open batch  --seal-->  sealed  --agent takes all a turn-->  core (numbered, sent)

No timer forms batches: what is appended while the agent's turn runs is taken by the next one. The lock is held from
taking the open batch until what arrived has been applied, so no own set is ever shown without being pending; the agent
never holds it while it uses a socket. Who sets something while nothing is under way and the agent sleeps holds it for
as long as it takes to send that (`agent`). An application that is ahead of the agent waits for it (`SEALED_MAX`), which
costs less than both of them contending for the interpreter, and one that is ahead of the servers waits for the window.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from threading import Condition, Lock
from time import monotonic
from typing import Any

from chp import columns
from chp.batch import Segment

from .checks import wait_s
from .core import ClientCore
from .errors import Closed, Forked, Full
from .events import State
from .outbox import cut, size_of
from .tickets import Ticket
from .watch import WatchQueue

log = logging.getLogger("chp_client")
OPEN_ITEMS = 8192  # of an open batch: a few milliseconds of an application's time
SEALED_MAX = 4
REFUSED_MAX = 1000


class Draft:
    """Sets that will travel together."""

    __slots__ = ("_index", "_indexed", "deletes", "extras", "keys", "shown", "size", "ticket", "ttls", "values")

    def __init__(self, ticket: Ticket) -> None:
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.deletes: list[int] = []
        self.ttls: tuple[list[int], list[int]] = ([], [])
        self.extras: dict[str, Any] = {}
        self.shown = True
        self.size = 0
        self.ticket = ticket
        self._index: set[str] = set()  # of the first so many keys, for `shows`
        self._indexed = 0

    def segment(self) -> Segment:
        """The columns as the wire has them."""
        if self.deletes:
            self.extras[columns.DELETES] = self.deletes
        if self.ttls[0]:
            self.extras[columns.TTLS] = list(self.ttls)
        return Segment(self.keys, self.values, self.extras or None)

    def shows(self, key: str) -> bool:
        """Whether an own set of this key is shown and in here; however often asked, it looks at each key once."""
        if self.shown and self._indexed < len(self.keys):
            self._index.update(self.keys[self._indexed :])
            self._indexed = len(self.keys)
        return key in self._index


class Hub:
    """Shared state; every method with "locked" in its first line wants the lock held by the caller."""

    def __init__(
        self, core: ClientCore, on_full: str, call: Callable[[Callable[[], object]], object] = lambda act: act()
    ) -> None:
        self.core = core
        self.call = call  # for what tickets call back
        self.shown = core.shown
        self.on_full = on_full
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.waiting = 0
        self.told: set[Callable[[], object]] = set()  # what an AsyncClone that waits wants called: brief, never raising
        self.sealed: deque[Draft] = deque()
        self.sealed_bytes = 0
        self.commands: deque[Callable[[float], None]] = deque()
        self.outstanding: dict[Ticket, None] = {}
        self.refused: deque[Ticket] = deque(maxlen=REFUSED_MAX)  # for flush to tell of, if nobody else was told
        self.watches: list[WatchQueue] = []
        self.sleeping = False
        self.closed = False
        self.stop_at: float | None = None  # when the agent gives up waiting for acknowledgements
        self.failure: Exception | None = None
        self.forked = False
        self.lagging: float | None = None  # seconds, when on_lag is "raise" and it happened
        self.room = OPEN_ITEMS
        self.wake: Callable[[], None] = lambda: None
        self.open = self.draft()
        self.keys, self.values, self.ticket = self.open.keys, self.open.values, self.open.ticket
        _HUBS.add(self)

    def describe(self) -> str:
        """The state of the Clone and its servers, in a line."""
        return self.core.describe(monotonic())

    # -- the application's side

    def seal(self) -> None:
        """Locked: the open batch goes into the queue, a new one is opened."""
        if self.keys:
            self.push(self.open)

    def push(self, draft: Draft, shown: Iterable[tuple[str, bytes]] | None = None) -> None:
        """Locked: a batch goes into the queue, and `shown` into the map; a new one is opened if it was the open one."""
        draft.size = size_of(Segment(draft.keys, draft.values))
        fresh = self.draft() if draft is self.open else self.open
        own = self.shown
        # no calls from here on: what Ctrl-C raises comes before all of it or after all of it
        if shown is not None:
            own |= shown
        self.open, self.keys, self.values, self.ticket = fresh, fresh.keys, fresh.values, fresh.ticket
        self.outstanding[draft.ticket] = None
        self.sealed_bytes += draft.size
        self.sealed.append(draft)
        if self.sleeping:
            self.wake()

    def is_own(self, key: str) -> bool:
        """Locked: whether what is shown of a key is an own set that is not confirmed, here or in the core."""
        if any(draft.shows(key) for draft in (self.open, *self.sealed)):
            return True
        return self.core.channel_of(key).replica.is_own(key)

    def confirmed(self, key: str, timeout: float | None) -> None:
        """Wait until no own set or delete of this key is on its way."""

        def done() -> bool:
            return self.room < 0 or not self.is_own(key)

        with self.lock:
            if not done():
                self.wait_for(done, timeout, lambda: f"{key!r} is not confirmed")
            if self.room < 0:
                raise self.why_not()

    def is_confirmed(self, key: str) -> bool:
        """Whether no own set or delete of this key is on its way."""
        with self.lock:
            return not self.is_own(key)

    def unsent_keys(self) -> set[str]:
        """Locked: the keys of own sets that the agent has not taken yet."""
        return {key for draft in (self.open, *self.sealed) if draft.shown for key in draft.keys}

    def grown(self, draft: Draft) -> None:
        """Locked: something was added to a batch in the queue."""
        self.sealed_bytes -= draft.size
        draft.size = size_of(Segment(draft.keys, draft.values))
        self.sealed_bytes += draft.size

    def draft(self) -> Draft:
        """An empty batch of its own."""
        return Draft(Ticket(self.describe, self.call))

    def make_room(self, timeout: float | None) -> None:
        """Locked: seal a full open batch; wait until the window and the agent can take more."""
        if self.room < 0:
            raise self.why_not()
        if len(self.keys) >= OPEN_ITEMS:
            self.seal()
        if not self._no_room():
            return
        if self.on_full == "raise" and self._window_full():
            raise Full(f"the window is full: {self._window()}; wait, or raise window_bytes; {self.describe()}")
        self.wait_for(lambda: self.room < 0 or not self._no_room(), timeout, self._window)
        if self.room < 0:
            raise self.why_not()

    def _window_full(self) -> bool:
        limits, outbox = self.core.limits, self.core.outbox
        return (
            outbox.size + self.sealed_bytes >= limits.window_bytes
            or self.core.open_batches + len(self.sealed) >= limits.window_batches
        )

    def _no_room(self) -> bool:
        return len(self.sealed) >= SEALED_MAX or self._window_full()

    def _window(self) -> str:
        outbox = self.core.outbox
        return f"{outbox.size + self.sealed_bytes} bytes in {len(outbox) + len(self.sealed)} batches unacknowledged"

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, what: Callable[[], str]) -> None:
        """Locked: wait until `ready`; `TimeoutError` says `what` was waited for."""
        timeout = wait_s(timeout)
        if self.sleeping:
            self.wake()
        self.waiting += 1
        try:
            if not self.changed.wait_for(ready, timeout):
                raise TimeoutError(f"waited {timeout} s: {what()}; {self.describe()}")
        finally:
            self.waiting -= 1

    def why_not(self) -> Exception:
        """Why nothing can be set any more."""
        if self.forked:
            return Forked("this Clone belongs to the parent process, where its agent runs; make another in the child")
        if self.failure is not None:
            return Closed(f"this Clone's agent ended: {self.failure!r}; close it and make another")
        return Closed("this Clone is closed; make another")

    def even(self) -> None:
        """Locked: somebody was interrupted while he appended to the open batch: a key without a value was not set."""
        both = min(len(self.keys), len(self.values))
        del self.keys[both:], self.values[both:]

    def mend(self, draft: Draft) -> None:
        """Locked: somebody was interrupted while he did the agent's work with `draft`; the agent does it."""
        if draft is not self.open and draft not in self.sealed and not self.core.has(draft.ticket):
            self.sealed.appendleft(draft)
        self.sealed_bytes = sum(each.size for each in self.sealed)

    def command(self, act: Callable[[float], None]) -> None:
        """Let the agent call `act(now)` with the lock held, in its next turn."""
        with self.lock:
            if self.room < 0:
                raise self.why_not()
            self.commands.append(act)
            if self.sleeping:
                self.wake()

    # -- the agent's side

    def has_work(self) -> bool:
        """Whether a turn would find something to do."""
        return bool(self.commands) or (bool(self.keys or self.sealed) and not self.core.full())

    def take(self, now: float) -> None:
        """Locked: give the core everything that has gathered, as far as the window allows."""
        while self.commands:
            self.commands.popleft()(now)
        if not self.core.full():
            self.seal()
        while self.sealed and not self.core.full():
            self._submit(self.sealed.popleft(), now)
        if not self.sealed:
            self.sealed_bytes = 0

    def _submit(self, draft: Draft, now: float) -> None:
        segment = draft.segment()
        self.sealed_bytes -= draft.size
        parts = cut(segment, draft.size)
        if len(parts) > 1:
            draft.ticket.expect(len(parts))
        for part in parts:
            self.core.submit(part, draft.ticket, now, shown=draft.shown, size=draft.size if len(parts) == 1 else 0)

    def notify(self) -> None:
        """Wake the application's threads and tasks that wait for room or for a state."""
        if self.waiting:
            with self.lock:
                self.changed.notify_all()
        for tell in tuple(self.told):
            tell()

    def shut(self, failure: Exception | None = None) -> None:
        """Nothing can be set any more; what is unsettled never will be."""
        with self.lock:
            self.failure = failure
            self.room = -1
            self.seal()
            left, self.outstanding = list(self.outstanding), {}
            if self.core.state is not State.CLOSED:
                self.core.close()
            self.changed.notify_all()
        if unasked := sum(not ticket.asked for ticket in left):
            some = "1 batch of sets was" if unasked == 1 else f"{unasked} batches of sets were"
            log.warning("%s not acknowledged, and may be lost; flush before you close; %s", some, self.describe())
        reason = f"closed before it was acknowledged{f' ({failure!r})' if failure else ''}"
        for ticket in left:
            self.refused.append(ticket)
            while not ticket.done:
                ticket.settle(Closed(f"{reason}; {self.describe()}"))
        for watch in list(self.watches):
            watch.close()
        self.notify()


_HUBS: weakref.WeakSet[Hub] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for hub in list(_HUBS):
        hub.forked, hub.room, hub.sleeping = True, -1, False
        hub.lock = Lock()  # the old one may be held by a thread that is not here
        hub.changed = Condition(hub.lock)
        hub.core.state = State.CLOSED  # what is held can be read, and grows old
        for ticket in [hub.ticket, *hub.outstanding]:
            ticket.forked(hub.why_not())
        for watch in hub.watches:
            watch.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
