"""What the application's threads and the agent tell each other: commands, who waits for what, and how it ends.

    application  --command, sets-->      agent's next turn --> core
    application  <--changed, told--      after each turn, whoever waits for room, for a state, for a key

The lock is held from taking the open batch (`openbatch`) until what arrived has been applied, so no own set is ever
shown without being pending; the agent never holds it while it uses a socket. Who sets something while nothing is under
way and the agent sleeps holds it for as long as it takes to send that (`agent`). An application that is ahead of the
agent waits for it (`SEALED_MAX`), which costs less than both of them contending for the interpreter, and one that is
ahead of the servers waits for the window.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock
from time import monotonic

from chp import columns

from ..checks import wait_s
from ..clientfile import Credentials
from ..core.core import ClientCore
from ..core.events import State
from ..core.outbox import cut
from ..errors import Closed, Forked, Full
from .measured import MeasuredClone
from .open_batch import OPEN_ITEMS, SHUT, OpenBatch, PendingBatch
from .tickets import Ticket
from .watch import WatchQueue

log = logging.getLogger("chp_client")
SEALED_MAX = 4
REFUSED_MAX = 1000


class Mailbox:
    """Between two threads; every method with "locked" in its first line wants the lock held by the caller."""

    def __init__(
        self, core: ClientCore, on_full: str, call: Callable[[Callable[[], object]], object] = lambda act: act()
    ) -> None:
        self.core = core
        self.call = call  # for what tickets call back
        self.batch = OpenBatch(core.shown, self.new_ticket)
        self.lock = self.batch.lock
        self.changed = Condition(self.lock)
        self.readers = Lock()  # of those who read the map by the order of its keys; taken before the other
        self.awaiting: set[Callable[[], object]] = set()  # called for an AsyncClone that waits: brief, never raising
        self.commands: deque[Callable[[float], None]] = deque()
        self.refused: deque[Ticket] = deque(maxlen=REFUSED_MAX)  # for flush to tell of, if nobody else was told
        self.watches: list[WatchQueue] = []
        self.stop_at: float | None = None  # when the agent gives up waiting for acknowledgements
        self.forked = False
        self.credentials: dict[str, Credentials] = {}  # of each server, where a client file was given
        self.metrics: MeasuredClone | None = None
        self.lagging: float | None = None  # seconds, when on_lag is "raise" and it happened
        self._on_full = on_full
        self._waiting = 0
        self._failure: Exception | None = None
        _MAILBOXES.add(self)

    def describe(self) -> str:
        """The state of the Clone and its servers, in a line."""
        return self.core.describe(monotonic())

    def new_ticket(self) -> Ticket:
        """Of a batch, or of whatever else is answered."""
        return Ticket(self.describe, self.call)

    @property
    def closed(self) -> bool:
        """Whether nothing can be set any more, for whatever reason."""
        return self.batch.room < 0

    def why_not(self) -> Exception:
        """Why nothing can be set any more."""
        if self.forked:
            return Forked("this Clone belongs to the parent process, where its agent runs; make another in the child")
        if self._failure is not None:
            return Closed(f"this Clone's agent ended: {self._failure!r}; close it and make another")
        return Closed("this Clone is closed; make another")

    def check_open(self) -> None:
        """Raises why nothing can be set any more, if so."""
        if self.batch.room < 0:
            raise self.why_not()

    # -- the application's side

    def command(self, act: Callable[[float], None]) -> None:
        """Let the agent call `act(now)` with the lock held, in its next turn."""
        with self.lock:
            self.check_open()
            self.command_locked(act)

    def command_locked(self, act: Callable[[float], None]) -> None:
        """Locked: the same for one who has looked whether it is open."""
        self.commands.append(act)
        if self.batch.sleeping:
            self.batch.wake()

    def lagged(self, lag_s: float) -> None:
        """The copy is behind by so much: the next read says so; by the agent."""
        self.lagging = lag_s

    def refetch(self, _lag_s: float) -> None:
        """The copy is behind: it is asked for anew; by the agent."""
        with self.lock:
            self.commands.append(self.core.refetch)

    def is_own(self, key: str) -> bool:
        """Locked: whether what is shown of a key is an own set that is not confirmed, here or in the core."""
        return self.batch.shows(key) or self.core.holding.of(key).replica.is_own(key)

    def is_confirmed(self, key: str) -> bool:
        """Whether no own set or delete of this key is on its way."""
        with self.lock:
            return not self.is_own(key)

    def confirmed(self, key: str, timeout: float | None) -> None:
        """Wait until no own set or delete of this key is on its way."""

        def done() -> bool:
            return self.closed or not self.is_own(key)

        with self.lock:
            if not done():
                self.wait_for(done, timeout, lambda: f"{key!r} is not confirmed")
            self.check_open()

    def make_room(self, timeout: float | None, items: int = 0) -> None:
        """Locked: seal an open batch that is full, or has no room for so many; wait until there can be another."""
        self.check_open()
        if timeout is not None:
            wait_s(timeout)
        batch = self.batch
        if len(batch.keys) >= OPEN_ITEMS or len(batch.keys) + items > OPEN_ITEMS:
            batch.seal()
        if not self._no_room():
            return
        if self._on_full == "raise" and self._window_full():
            raise Full(f"the window is full: {self._window()}; wait, or raise window_bytes; {self.describe()}")
        self.wait_for(lambda: self.closed or not self._no_room(), timeout, self._window)
        self.check_open()

    def window(self) -> tuple[int, int]:
        """Batches and bytes that are not settled, those on their way to the agent included; the open one is none."""
        core, batch = self.core, self.batch
        return core.session.open_batches + len(batch.sealed), core.outbox.size + batch.sealed_bytes

    def _window_full(self) -> bool:
        batches, size = self.window()
        return size >= self.core.limits.window_bytes or batches >= self.core.limits.window_batches

    def _no_room(self) -> bool:
        return len(self.batch.sealed) >= SEALED_MAX or self._window_full()

    def _window(self) -> str:
        outbox, batch = self.core.outbox, self.batch
        return f"{outbox.size + batch.sealed_bytes} bytes in {len(outbox) + len(batch.sealed)} batches unacknowledged"

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, what: Callable[[], str]) -> None:
        """Locked: wait until `ready`; `TimeoutError` says `what` was waited for."""
        timeout = wait_s(timeout)
        if self.batch.sleeping:
            self.batch.wake()
        self._waiting += 1
        try:
            if not self.changed.wait_for(ready, timeout):
                raise TimeoutError(f"waited {timeout or 0:.1f} s: {what()}; {self.describe()}")
        finally:
            self._waiting -= 1

    def oldest_ticket(self) -> Ticket | None:
        """The ticket that will be settled first; None if nothing is under way."""
        return next(iter(list(self.batch.outstanding)), None)  # of a copy, as the agent takes away without the lock

    def unsettled(self) -> list[Ticket]:
        """What a flush waits for: sets on their way, and those that were refused and nobody was told of."""
        with self.lock:
            if self.forked:
                raise self.why_not()
            if not self.closed:
                self.batch.seal()
            # lists first, each by one C-level call: the agent adds and takes away without the lock
            waiting = [ticket for ticket in list(self.refused) if not ticket.told]
            waiting += [ticket for ticket in list(self.batch.outstanding) if not ticket.done]
            self.refused.clear()
        return waiting

    def note_refused(self, ticket: Ticket) -> None:
        """Keep it for a flush; those before it that somebody was told of since are let go, with what they hold.

        By the agent alone, without the lock: each step is one C-level call, and a flush may take all in between.
        """
        try:
            while self.refused[0].told:
                self.refused.popleft()
        except IndexError:
            pass
        self.refused.append(ticket)

    def not_flushed(self, waiting: list[Ticket], timeout: float | None) -> TimeoutError:
        """The error of a flush that ran out."""
        left = f"{sum(not ticket.done for ticket in waiting)} batches unacknowledged after {timeout} s"
        return TimeoutError(f"flush: {left}; {self.describe()}")

    def stop(self, timeout: float) -> None:
        """Locked (or by the agent itself): nothing can be set any more; in `timeout` at most the agent ends."""
        self.commands.append(lambda now: self._end_leases())
        self.batch.room, self.stop_at = SHUT, monotonic() + timeout

    def _end_leases(self) -> None:
        """Locked: nobody would refresh them any more; who looks at their keys need not wait for a ttl."""
        self.batch.seal()  # what was set with them goes first
        for lease in self.core.leases.all():
            self.core.leases.drop(lease)
            draft = self.batch.new()
            draft.extras, draft.ticket.asked = {columns.UNLEASE: lease}, True  # nobody can be told if it is lost
            self.batch.push(draft)

    # -- watches

    def add_watch(self, queue: WatchQueue) -> None:
        """Locked: it is told of all that is applied from here on."""
        self.watches = [*self.watches, queue]
        self.core.holding.watch(True)

    def end_watch(self, queue: WatchQueue) -> None:
        """It is told of nothing more."""
        with self.lock:
            self._drop(queue)

    def forget_watch(self, queue: WatchQueue) -> None:
        """Nobody has the Watch any more. The collector may have come upon it anywhere: the agent drops its queue."""
        if not queue.closed:
            queue.closed = True
            self.commands.append(lambda now: self._drop(queue))

    def _drop(self, queue: WatchQueue) -> None:
        self.watches = [other for other in self.watches if other is not queue]
        self.core.holding.watch(bool(self.watches))

    # -- the agent's side

    def has_work(self) -> bool:
        """Whether a turn would find something to do."""
        return bool(self.commands) or (bool(self.batch.keys or self.batch.sealed) and not self.core.full())

    def take(self, now: float) -> None:
        """Locked: give the core everything that has gathered, as far as the window allows."""
        batch, core = self.batch, self.core
        while self.commands:
            self.commands.popleft()(now)
        if not core.full():
            batch.seal()
        while batch.sealed and not core.full():
            self._submit(batch.take(), now)

    def _submit(self, draft: PendingBatch, now: float) -> None:
        parts = cut(draft.segment(), draft.size)
        if len(parts) > 1:
            draft.ticket.expect(len(parts))
        for part in parts:
            self.core.submit(part, draft.ticket, now, shown=draft.shown, size=draft.size if len(parts) == 1 else 0)

    def notify(self) -> None:
        """Wake the application's threads and tasks that wait for room or for a state."""
        if self._waiting:
            with self.lock:
                self.changed.notify_all()
        for tell in tuple(self.awaiting):
            tell()

    def shut(self, failure: Exception | None = None) -> None:
        """Nothing can be set any more; what is unsettled never will be."""
        with self.lock:
            self._failure = failure
            left = self.batch.shut()
            if self.core.state is not State.CLOSED:
                self.core.close()
            self.changed.notify_all()
        if unasked := sum(not ticket.asked for ticket in left):
            some = "1 batch of sets was" if unasked == 1 else f"{unasked} batches of sets were"
            log.warning("%s not acknowledged, and may be lost; flush before you close; %s", some, self.describe())
        reason = f"closed before it was acknowledged{f' ({failure!r})' if failure else ''}"
        for ticket in left:
            self.note_refused(ticket)
            closed = Closed(f"{reason}; {self.describe()}")
            if self.metrics is not None:
                self.metrics.settled(closed, 0.0)
            while not ticket.done:
                ticket.settle(closed)
        for watch in list(self.watches):
            watch.close()
        self.notify()


_MAILBOXES: weakref.WeakSet[Mailbox] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for mailbox in list(_MAILBOXES):
        batch = mailbox.batch
        mailbox.forked, batch.room, batch.sleeping = True, SHUT, False
        mailbox.lock = batch.lock = Lock()  # the old one may be held by a thread that is not here
        mailbox.changed = Condition(mailbox.lock)
        mailbox.readers = Lock()
        mailbox.core.holding.order.drop()  # somebody may have been changing it
        mailbox.core.closed = True  # what is held can be read, and grows old
        for ticket in [batch.ticket, *batch.outstanding]:
            ticket.forked(mailbox.why_not())
        for watch in mailbox.watches:
            watch.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
