"""Clone: a dictionary that many programs share (the Clone pattern of the ZeroMQ Guide).

    with Clone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
        clone.wait_until_synced(timeout=5)
        clone["/rates/EUR/USD"] = b"1.0832"               # a mapping, at the speed of a dict
        ack = clone.set("/rates/EUR/USD", b"1.08", ttl=30).wait(timeout=5)
        for change in clone.watch("/rates/EUR/"): ...

A Clone holds its subtrees in this process's memory. Own sets are visible at once and travel in batches that form by
themselves; a `Ticket` tells when the pair has taken them. Reading never waits and never sees half a record. Writing
waits only when the window of unacknowledged sets is full. A background agent follows whichever server is active.

Any thread may use a Clone. A signal handler must not use it: the handler may interrupt a `set` of the main thread, and
would wait for that `set` for ever. Let the handler set a `threading.Event`, or use `loop.add_signal_handler`. Ctrl-C,
or another exception of a handler, does no harm: an interrupted `set` takes full effect or none.

This module has the methods that block a thread. Making, reading and ending a Clone are in `base`, which `AsyncClone`
shares. Sets go to a `Writer`. `Clone.set` is bound to `Writer.set`, so it costs no further call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Self

from .. import checks
from ..agent.changes import Change
from ..agent.lease import Lease
from ..agent.listeners import ChangeListeners, Listening
from ..agent.tickets import Ticket
from ..agent.waiting import Blocking, at_once
from ..agent.watch import Watch
from ..agent.writer import Items
from ..checks import Ttl, wait_s
from ..codecs import OnBad, V
from ..core.events import Ack, State
from ..port.history import Version
from ..starts import KeyStart
from ..topics.reader import PATIENCE_S
from ..topics.topic import Topic, topics_of
from ..topics.transaction import Transaction
from .atomic import NOTHING, AtomicOperations, flush
from .base import CLOSE_S, BaseClone, Pin
from .health import Check

# The keys that one batch of `clear` deletes, which takes a server some milliseconds.
CLEARED_ITEMS = 4096


class Clone(BaseClone[V], MutableMapping[str, V]):
    """A Clone whose calls block the thread when they wait; see `BaseClone` for the arguments."""

    def _begin(self) -> None:
        self._listeners = ChangeListeners()
        # A subclass may have a `set` of its own.
        if type(self).set is _SET:
            self.set = self._writer.set  # type: ignore[method-assign]  # it saves one call for each set

    # -- setting and deleting

    def set(
        self,
        key: str,
        value: V,
        ttl: Ttl | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Set a key; the ticket is settled when the pair has taken it.

        ttl          seconds, or a `timedelta`, after which the servers delete the key: above 0, at most ten years; None
                     for no end
        if_revision  set only if the key has this revision, a number or text such as 1.42 (0: if the key is absent).
                     Such a set is shown only once it is acknowledged
        timeout      seconds to wait for room in the window (`TimeoutError`); None waits as long as it takes

        Raises `BadKey` (also for a key outside the held subtrees), `BadValue`, `BadTtl`, `BadInput`, `Full` (with
        on_full="raise"), `Closed`, `Forked`. The ticket raises `Refused` or `Conflict` if the servers refuse the set.
        """
        return self._writer.set(key, value, ttl, if_revision, timeout)

    def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Ticket:
        """Set many keys, given as a mapping or as (keys, values); a later item of the same key wins.

        If they fit into one batch (65,536 items, 16 MiB), they appear in other Clones' maps in one step. Else each part
        does. `ttl`, `timeout` and errors are those of `set`.
        """
        return self._writer.set_many(items, ttl, timeout)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key, whether it exists or not. `if_revision`, `timeout` and errors are those of `set`."""
        return self._writer.delete(key, if_revision, timeout)

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys together, whether they exist or not. The errors are those of `set`."""
        return self._writer.delete_many(keys, timeout)

    def __setitem__(self, key: str, value: V) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self._shown:
            raise self._reader.missed(key)
        self.delete(key)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set all items of `other`, as `dict.update` does, in one batch."""
        # `items()` of a Clone is of one moment. Read by key, keys of another Clone could be gone before their values
        # are read.
        items = dict(other.items() if isinstance(other, Mapping) else other, **more)
        if items:
            self.set_many(items)

    def clear(self) -> None:
        """Delete every key that is held here, for all clients, in batches of some thousands, as the window has room.

        Raises `Full` (with on_full="raise") if there is no room, and `Closed`. The keys deleted so far stay deleted.
        Raises `BadInput` if the Clone only writes.
        """
        checks.prefix_held("", self.subtrees, "clear")
        keys = list(self._shown.keys())
        for start in range(0, len(keys), CLEARED_ITEMS):
            self.delete_many(keys[start : start + CLEARED_ITEMS])

    def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; `default`, or KeyError, if there is none.

        Only one of the programs that take a key gets it. The servers delete the key if it is still as this Clone saw
        it, and the call waits until they have. If the copy has no such key, the call waits for a `sync`, which sets
        nothing, and looks again. Raises `BadKey` for a key outside what is held, also with a `default`, and what `set`,
        its ticket and `sync` raise. After a `TimeoutError` the servers may delete the key now or later.
        """
        return at_once(self._atomic(timeout).pop(key, default))

    def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key held here that begins with `prefix`, for every client, and return the number of keys.

        It deletes portions of at most 8,192 keys, and waits until the servers have each portion. Other clients see some
        keys go before the rest, and keys that they set meanwhile may stay. After a `TimeoutError` some keys are gone.
        """
        return at_once(self._atomic(timeout).delete_prefix(prefix))

    def touch(self, key: str, ttl: Ttl | None, timeout: float | None = None) -> Ack:
        """Give a key another time to live, and return once the servers have it; `ttl=None` makes the key permanent.

        The held value is sent again on condition of its revision, so another program's value is never overwritten.
        After a `Conflict` the call tries again, three times at most. If the copy has no such key, the call waits for a
        `sync` and looks again. Raises KeyError for an absent key, `BadKey`, `BadTtl`, and what a ticket's `wait`
        raises.
        """
        return at_once(self._atomic(timeout).touch(key, ttl))

    def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key and return it with its value, as `pop` does; KeyError if there is none after a `sync`."""
        return at_once(self._atomic(timeout).popitem())

    def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """Return the value of a key; if there is none, set it to `default` first.

        All programs get the same value: that of another program, if that program is faster. If the copy has the key,
        the call waits for a `sync`, which sets nothing, and looks again. Raises what `pop` raises.
        """
        return at_once(self._atomic(timeout).setdefault(key, default))

    def _waits(self, timeout: float | None) -> Blocking:
        """Return the waits of one call, which block the thread."""
        return Blocking(self._mailbox, timeout)

    def _atomic(self, timeout: float | None) -> AtomicOperations:
        return AtomicOperations(self._reader, self.prefix, self._writer, self._waits(timeout))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged; raise `TimeoutError`, or the first error of a set.

        An error counts too if a set was refused before, or lost because the Clone was closed. It does not count if
        the set's ticket (`wait` or `error`) or an earlier flush has told it.
        """
        at_once(flush(self._mailbox, self._waits(timeout), wait_s(timeout)))

    def sync(self, timeout: float | None = None) -> Ack:
        """Wait until a read here sees every set of any client that was acknowledged before this call.

        It takes a round trip through the active, and up to a heartbeat more while few sets are made. The promise holds
        if the `Ack` says *replicated*, or if the pair has an arbiter. Without an arbiter, an active that is alone may
        have been replaced behind a cut link. Raises `TimeoutError` after `timeout` seconds, `Closed`, and `BadInput` if
        this Clone holds nothing or follows a server of CHP/1.
        """
        return at_once(self._waits(timeout).done(self._writer.sync))

    def wait_until_synced(self, timeout: float | None = None) -> None:
        """Wait until the copy is complete and current; the `TimeoutError` tells the state of the servers.

        Raises `Refused` with the code "key" if a server does not let this client in and no other server is there.
        Raises `Refused` with the code "access" if the rules do not let this user read the subtrees.
        """
        mailbox, core = self._mailbox, self._core
        with mailbox.lock:
            mailbox.wait_for(
                lambda: core.state in (State.SYNCED, State.CLOSED) or bool(core.denied()), timeout, lambda: "not synced"
            )
            if core.state is State.CLOSED:
                raise mailbox.why_not()
        self._check_admitted()

    def verify(self, timeout: float | None = 30.0, *, contents: bool = True) -> Check:
        """Count and sum the copy anew, and compare its contents with a fresh snapshot of the server that is followed.

        The `Check` names keys that differ. A comparison takes as long as a first sync. With `contents=False` the call
        only counts and sums, at once. It does so too if the Clone is closed, only writes, or follows a server of CHP/1.
        Raises `TimeoutError` if no server serves, or the snapshot is not complete, within `timeout` seconds.
        """
        return self._verified(timeout, contents)

    def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """Return the last versions of a key that the servers' log still holds, the oldest first; see `Version`.

        The active sends all that its log has of the key's folder, such as /rates/EUR/, so the call may take seconds. A
        key that was not set for a long time has no versions. A value that the codec can't decode is shown as bytes.
        Raises `BadKey`, `BadInput`, `Refused`, or `TimeoutError` if no server answers for `timeout` seconds.
        """
        return self._history(key, limit, timeout)

    # -- leases and watches

    def lease(self, ttl: Ttl, timeout: float | None = None) -> Lease:
        """Make a lease, whose keys live together: `with clone.lease(10) as lease: lease.set(key, value)`.

        One small message each third of the ttl keeps all keys of the lease alive. They are deleted together when the
        lease or the Clone is closed, or when this process has been gone for `ttl` seconds. They are also deleted if the
        process was only stopped, or cut off, for that long. The lease is then `lost`, which `on_lost` tells. Raises
        `BadTtl` and the errors of `set`. `timeout` is the time to wait for room in the window.
        """
        return self._new_lease(ttl, timeout)

    def watch(
        self,
        prefix: str = "",
        start: KeyStart = "end",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Watch[V]:
        """Watch keys that begin with `prefix`: each confirmed change once, in the servers' order.

        start      "end": only new changes; "snapshot": first everything held, as sets; "begin": first every change
                   that the log of the active retains, deletes too; or the revision seen last: first every change after
                   it. If the log does not reach back so far, reading raises `NotRetained`
        conflate   True: only the latest change of each key, however slow the reader. False: the reader may be
                   `queue_max` (100,000) changes behind, not counting the largest record; beyond, reading raises
                   `Lagging`
        on_bad     for a value that the codec can't decode: "raise" (`BadValue`; the next change can be read), "skip"
                   the change, or a callable that gets the key, the bytes and the error and returns the value to show

        The `Watch` is an iterator of `Change(key, value, operation, revision, expired)`. Its `batches()` yields
        `Changes`: columns of the changes that came together. Raises `BadInput`, `Closed`, `Forked`.
        """
        return self._open_watch(prefix, start, conflate, queue_max, on_bad)

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(Listening(listener, prefix, opened, self._mailbox.call), start)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """Stop calling a function of `on`, under any prefix, and return True if it was called."""
        return self._listeners.drop(listener)

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction, for `with`: keys, messages and acknowledgements take effect in one step, or none does.

        timeout   seconds that the end of the `with` block waits for the servers; None waits as long as it takes.
                  `Conflict` and `Fenced` name what differed
        """
        return Transaction(self._writer, timeout)

    def topic(self, name: str) -> Topic:
        """Return the topic with a name (docs/topics.md). The servers are not asked yet. Raises `BadInput`."""
        return Topic(self._writer, self._active_first, name)

    def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic (see `Topic.facts`), by name; `Unanswered` if no server serves in time."""
        return topics_of(self._active_first(), timeout)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Wait at most `timeout` seconds for acknowledgements, then end the agent. The copy can still be read.

        Tickets that are still unsettled get `Closed`. A warning in the log counts those that the application did not
        ask about. The call returns when their callbacks have run, or when `timeout` (at least half a second) is over.
        Open leases are ended, and their keys are deleted at once.
        """
        self._end(timeout)

    # A type checker refuses `async with` without help, so it need not see these methods.
    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            raise TypeError("a Clone needs `with`; use: with Clone(...) as clone, or async with AsyncClone(...)")

        async def __aexit__(self, *exc: object) -> None:
            """Do nothing: Python looks for this before it calls `__aenter__`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_SET = Clone.set
__all__ = ["Clone", "Pin"]
