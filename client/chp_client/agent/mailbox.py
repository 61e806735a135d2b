"""The mailbox between the application's threads and the agent: commands, own sets, waiting threads, and the end.

    application  --command, sets-->      agent's next turn --> core
    application  <--changed, told--      after each turn, to threads that wait for room, for a state or for a key

The agent holds the lock from the time it takes the open batch until it has applied what arrived. So an own set is never
shown without being pending. The agent never holds the lock while it uses a socket. An application's thread that sends
in place of the agent holds the lock until the message is sent (`agent`).

An application that is ahead of the agent waits for the agent (`SEALED_MAX`). That costs less than a contest of both
threads for the interpreter. An application that is ahead of the servers waits for room in the window.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, RLock
from time import monotonic

from chp import columns

from ..checks import wait_s
from ..clientfile import Credentials
from ..core.copy.shown import LockedDict
from ..core.core import ClientCore
from ..core.events import State
from ..core.outbox import cut
from ..errors import Closed, Forked, Full
from ..locks import Lock
from .measured import MeasuredClone
from .open_batch import SHUT, OpenBatch, PendingBatch
from .tickets import Ticket
from .watch import WatchQueue

log = logging.getLogger("chp_client")
SEALED_MAX = 4
REFUSED_MAX = 1000


class Mailbox:
    """The mailbox of one Clone. A method with "(locked)" in its docstring needs the lock held by its caller."""

    def __init__(
        self, core: ClientCore, on_full: str, call: Callable[[Callable[[], object]], object] = lambda act: act()
    ) -> None:
        self.core = core
        # The function that runs a callback of a ticket.
        self.call = call
        # Make a ticket for a batch, or for anything else that gets an answer.
        self.new_ticket: Callable[[], Ticket] = partial(Ticket, self.describe, call)
        self.batch = OpenBatch(self.new_ticket)
        self.lock = self.batch.lock
        self.changed = Condition(self.lock)
        # The lock of threads that read keys in order. It is taken before the other lock.
        self.readers = Lock()
        # The wake-ups of waiting AsyncClones. They are brief and never raise.
        self.awaiting: set[Callable[[], object]] = set()
        self.commands: deque[Callable[[float], None]] = deque()
        # The refused tickets that `flush` raises, unless the application was told already.
        self.refused: deque[Ticket] = deque(maxlen=REFUSED_MAX)
        self.watches: list[WatchQueue] = []
        # The time when the agent stops waiting for acknowledgements.
        self.stop_at: float | None = None
        self.forked = False
        # The credentials for each server, if a client file was given.
        self.credentials: dict[str, Credentials] = {}
        self.metrics: MeasuredClone | None = None
        # The lag in seconds, if it exceeded the bound and on_lag is "raise".
        self.lagging: float | None = None
        self._on_full = on_full
        # The number of threads that wait at `changed`.
        self.waiting = 0
        self._failure: Exception | None = None
        _MAILBOXES.add(self)

    def describe(self) -> str:
        """Return the state of the Clone and its servers in one line."""
        return self.core.describe(monotonic())

    @property
    def closed(self) -> bool:
        """True if nothing can be set any more, for whatever reason."""
        return self.batch.room < 0

    def why_not(self) -> Exception:
        """Return the error that tells why nothing can be set any more."""
        if self.forked:
            return Forked("this Clone belongs to the parent process, where its agent runs; make another in the child")
        if self._failure is not None:
            return Closed(f"this Clone's agent ended: {self._failure!r}; close it and make another")
        return Closed("this Clone is closed; make another")

    def check_open(self) -> None:
        """Raise the error of `why_not` if nothing can be set any more."""
        if self.batch.room < 0:
            raise self.why_not()

    # -- the application's side

    def command(self, act: Callable[[float], None]) -> None:
        """Let the agent call `act(now)` in its next turn, with the lock held."""
        with self.lock:
            self.check_open()
            self.command_locked(act)

    def command_locked(self, act: Callable[[float], None]) -> None:
        """Let the agent call `act(now)` in its next turn (locked). The caller has checked that the Clone is open."""
        self.commands.append(act)
        if self.batch.sleeping:
            self.batch.wake()

    def lagged(self, lag_s: float) -> None:
        """Let the next read raise, as the copy lags by `lag_s`. The agent calls this."""
        self.lagging = lag_s

    def refetch(self, _lag_s: float) -> None:
        """Fetch the copy again, as it lags. The agent calls this."""
        with self.lock:
            self.commands.append(self.core.refetch)

    def is_own(self, key: str) -> bool:
        """Return True if the shown value of a key is an unconfirmed own set, here or in the core (locked)."""
        return self.batch.shows(key) or self.core.subscriptions.of(key).replica.is_own(key)

    def is_confirmed(self, key: str) -> bool:
        """Return True if no own set or delete of this key is on its way."""
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
        """Wait until a batch can be opened (locked).

        The open batch is sealed first if it is full, or has no room for `items` more.
        """
        batch = self.batch
        if batch.room < 0:
            raise self.why_not()
        if timeout is not None:
            wait_s(timeout)
        if len(batch.keys) >= batch.most or len(batch.keys) + items > batch.most:
            batch.seal()
        if len(batch.sealed) < SEALED_MAX and not self._window_full():
            return
        if self._on_full == "raise" and self._window_full():
            raise Full(f"the window is full: {self._window()}; wait, or raise window_bytes; {self.describe()}")
        self.wait_for(lambda: self.closed or not self._no_room(), timeout, self._window)
        self.check_open()

    def window(self) -> tuple[int, int]:
        """Return the number of unsettled batches and their bytes.

        They include those on their way to the agent, but not the open batch.
        """
        core, batch = self.core, self.batch
        return core.session.open_batches + len(batch.sealed), core.outbox.size + batch.sealed_bytes

    def _window_full(self) -> bool:
        core, batch, limits = self.core, self.batch, self.core.limits
        outbox, unsettled = core.outbox, core.session.unsettled
        if outbox.size + batch.sealed_bytes >= limits.window_bytes:
            return True
        return len(outbox.batches) + len(unsettled) + len(batch.sealed) >= limits.window_batches

    def _no_room(self) -> bool:
        return len(self.batch.sealed) >= SEALED_MAX or self._window_full()

    def _window(self) -> str:
        outbox, batch = self.core.outbox, self.batch
        return f"{outbox.size + batch.sealed_bytes} bytes in {len(outbox) + len(batch.sealed)} batches unacknowledged"

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, what: Callable[[], str]) -> None:
        """Wait until `ready()` (locked). A `TimeoutError` tells what was waited for."""
        timeout = wait_s(timeout)
        if self.batch.sleeping:
            self.batch.wake()
        self.waiting += 1
        try:
            if not self.changed.wait_for(ready, timeout):
                raise TimeoutError(f"waited {timeout or 0:.1f} s: {what()}; {self.describe()}")
        finally:
            self.waiting -= 1

    def oldest_ticket(self) -> Ticket | None:
        """Return the ticket that will be settled first, or None if no set is under way."""
        # This iterates over a copy, as the agent removes tickets without the lock.
        return next(iter(list(self.batch.outstanding)), None)

    def unsettled(self) -> list[Ticket]:
        """Return the tickets that a flush waits for.

        These are the sets on their way, and the refused ones that the application was not told of.
        """
        with self.lock:
            if self.forked:
                raise self.why_not()
            if not self.closed:
                self.batch.seal()
            # The agent adds and removes tickets without the lock, so each copy has to be one step. On a Python without
            # the GIL, `list` of a deque and `tuple` of a set are no single step. `copy` is one.
            waiting = [ticket for ticket in self.refused.copy() if not ticket.told]
            waiting += [ticket for ticket in list(self.batch.outstanding) if not ticket.done]
            self.refused.clear()
        return waiting

    def note_refused(self, ticket: Ticket) -> None:
        """Keep a refused ticket for a flush. Drop those before it that the application was told of.

        Only the agent calls this, without the lock. Each step is one C-level call, and a flush may take all tickets in
        between.
        """
        self._drop_told()
        self.refused.append(ticket)

    def _drop_told(self) -> None:
        """Drop the oldest refused tickets that the application was told of. Only the agent calls this."""
        try:
            while self.refused[0].told:
                self.refused.popleft()
        except IndexError:
            pass

    def not_flushed(self, waiting: list[Ticket], timeout: float | None) -> TimeoutError:
        """Return the error of a flush that ran out of time."""
        left = f"{sum(not ticket.done for ticket in waiting)} batches unacknowledged after {timeout} s"
        return TimeoutError(f"flush: {left}; {self.describe()}")

    def stop(self, timeout: float) -> None:
        """Refuse all further sets (locked, or called by the agent). The agent ends within `timeout`."""
        self.commands.append(lambda now: self._end_leases())
        self.batch.room, self.stop_at = SHUT, monotonic() + timeout

    def _end_leases(self) -> None:
        """End all leases (locked).

        No agent would refresh them. Ending them now spares other clients the wait for the ttl.
        """
        for lease in self.core.leases.all():
            self._end_lease(lease)

    def _end_lease(self, lease: bytes) -> None:
        """End a lease, unless it is ended or lost already (locked)."""
        if lease not in self.core.leases.all():
            return
        # The open batch goes first, as it may hold sets under this lease.
        self.batch.seal()
        self.core.leases.drop(lease)
        pending = self.batch.new()
        # `asked` keeps this batch out of the warning about lost sets.
        pending.extras, pending.ticket.asked = {columns.UNLEASE: lease}, True
        self.batch.push(pending)

    def forget_lease(self, lease: bytes) -> None:
        """Let the agent end the lease of a collected Consumer.

        The garbage collector may run at any point, so this takes no lock.
        """
        self.commands.append(lambda now: self._end_lease(lease))

    # -- watches

    def add_watch(self, queue: WatchQueue) -> None:
        """Tell this queue all changes that are applied from here on (locked)."""
        self.watches = [*self.watches, queue]
        self.core.subscriptions.watch(True)

    def end_watch(self, queue: WatchQueue) -> None:
        """Tell this queue no more changes."""
        with self.lock:
            self._drop(queue)

    def forget_watch(self, queue: WatchQueue) -> None:
        """Let the agent drop the queue of a collected Watch.

        The garbage collector may run at any point, so this takes no lock.
        """
        if not queue.closed:
            queue.closed = True
            self.commands.append(lambda now: self._drop(queue))

    def _drop(self, queue: WatchQueue) -> None:
        self.watches = [other for other in self.watches if other is not queue]
        self.core.subscriptions.watch(bool(self.watches))

    # -- the agent's side

    def has_work(self) -> bool:
        """Return True if a turn would find something to do."""
        return bool(self.commands) or (bool(self.batch.keys or self.batch.sealed) and not self.core.full())

    def take(self, now: float) -> None:
        """Give the core everything that has gathered, as far as the window allows (locked)."""
        batch, core = self.batch, self.core
        while self.commands:
            self.commands.popleft()(now)
        if self.refused:
            # The traceback of an error keeps the objects of the frames that it went through, such as a Consumer.
            self._drop_told()
        if not (batch.keys or batch.sealed) or core.full():
            return
        if batch.keys:
            batch.seal()
        self._submit(batch.take(), now)
        while batch.sealed and not core.full():
            self._submit(batch.take(), now)

    def _submit(self, pending: PendingBatch, now: float) -> None:
        parts = cut(pending.segment(), pending.size)
        if len(parts) > 1:
            pending.ticket.expect(len(parts))
        for part in parts:
            self.core.submit(
                part, pending.ticket, now, shown=pending.shown, size=pending.size if len(parts) == 1 else 0
            )

    def notify(self) -> None:
        """Wake the application's threads and tasks that wait for room or for a state."""
        if self.waiting:
            with self.lock:
                self.changed.notify_all()
        # The copy is one step. Tasks add and discard wake-ups without the lock.
        for tell in self.awaiting.copy():
            tell()

    def shut(self, failure: Exception | None = None) -> None:
        """Refuse all further sets. Settle the open tickets with an error."""
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
        # A thread that does not exist in the child may hold the old lock.
        mailbox.lock = batch.lock = Lock()
        mailbox.changed = Condition(mailbox.lock)
        mailbox.readers = Lock()
        # A thread of the parent may have been changing the order, or the map, at the fork.
        mailbox.core.subscriptions.order.drop()
        if isinstance(mailbox.core.shown, LockedDict):
            mailbox.core.shown.lock = RLock()
        # The child can read the copy, which is not updated any more.
        mailbox.core.closed = True
        for ticket in [batch.ticket, *batch.outstanding]:
            ticket.forked(mailbox.why_not())
        for watch in mailbox.watches:
            watch.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
