"""Clone: a dictionary that many programs share (the Clone pattern of the ZeroMQ Guide).

    with Clone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
        clone.wait_until_synced(timeout=5)
        clone["/rates/EUR/USD"] = b"1.0832"               # a mapping, at the speed of a dict
        ack = clone.set("/rates/EUR/USD", b"1.08", ttl=30).wait(timeout=5)
        for change in clone.watch("/rates/EUR/"): ...

It holds its subtrees in this process's memory. Own sets are visible at once and travel in batches that form by
themselves; a `Ticket` tells when the pair has taken them. Reading never waits and never sees half a record. Writing
waits only when the window of unacknowledged sets is full. A background agent follows whichever server is active.

Any thread may use it. A handler of a signal must not: it runs in the middle of what the main thread does, which may be
`set`, and would wait for it for ever. Let it set a `threading.Event`, or use `loop.add_signal_handler`. Ctrl-C, and
whatever else a handler raises, is no harm: what it interrupts was set wholly or not at all.

Here are the verbs of a thread; the making, reading and the end are of `base`, as of an `AsyncClone`. What is set goes
to a `Writer`; `Clone.set` is bound to that one's, and costs nothing beside.
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
    """The verbs of a thread; see `BaseClone` for the arguments."""

    def _begin(self) -> None:
        self._listeners = ChangeListeners()
        # A subclass may have a `set` of its own. Otherwise this saves one call for each set.
        if type(self).set is _SET:
            self.set = self._writer.set  # type: ignore[method-assign]

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
        if_revision  only if the key's revision is this one, a number or text such as 1.42 (0: if it is absent); shown
                     once it is acknowledged
        timeout      seconds to wait for room in the window (`TimeoutError`); None waits as long as it takes

        Raises `BadKey` (also for a key outside what is held), `BadValue`, `BadTtl`, `BadInput`, `Full` (with
        on_full="raise"), `Closed`, `Forked`. What the servers say of it, `Refused` or `Conflict`, the ticket raises.
        """
        return self._writer.set(key, value, ttl, if_revision, timeout)

    def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Ticket:
        """Set many keys, given as a mapping or as (keys, values); a later item of the same key wins.

        They are in other Clones' maps together, in one step, if they fit one batch (65,536 items, 16 MiB); of more,
        each part is. `ttl`, `timeout` and errors as of `set`.
        """
        return self._writer.set_many(items, ttl, timeout)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key, whether it is there or not; `if_revision`, the timeout and what is raised as of `set`."""
        return self._writer.delete(key, if_revision, timeout)

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys together, whether they are there or not; raises as `set` does."""
        return self._writer.delete_many(keys, timeout)

    def __setitem__(self, key: str, value: V) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self._shown:
            raise self._reader.missed(key)
        self.delete(key)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set all items of `other`, as `dict.update` does, in one batch."""
        # The items of a mapping are one moment. The keys of another Clone may go before their values are read.
        items = dict(other.items() if isinstance(other, Mapping) else other, **more)
        if items:
            self.set_many(items)

    def clear(self) -> None:
        """Delete every key that is held here, for everybody: some thousands a batch, as fast as the window has room.

        What was deleted stays so if there is no room in the middle of it: `Full` (with on_full="raise"), `Closed`.
        `BadInput` of a Clone that only writes.
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

        The value that is held is sent again on condition of its revision, so another program's value is never
        overwritten. A `Conflict` is tried again three times. Where the copy has no such key this waits for a `sync`
        and looks again. Raises KeyError for an absent key, `BadKey`, `BadTtl`, and what a ticket's `wait` raises.
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
        """Wait until every set made so far is acknowledged; else `TimeoutError`, or the first error of them.

        That includes sets which were refused (or lost, as the Clone was closed) before, if nobody was told: neither
        by their ticket's `wait` or `error`, nor by an earlier flush.
        """
        at_once(flush(self._mailbox, self._waits(timeout), wait_s(timeout)))

    def sync(self, timeout: float | None = None) -> Ack:
        """Return once a read here sees every set that anybody was acknowledged before this call, by any Clone.

        That is a round trip through the active, and up to a heartbeat more where little is set. The promise is kept if
        the `Ack` says *replicated*, or if the pair has an arbiter; an active alone without one may have been replaced
        behind a cut link. `TimeoutError` after `timeout` seconds; `BadInput` if nothing is held, or of CHP/1; `Closed`.
        """
        return at_once(self._waits(timeout).done(self._writer.sync))

    def wait_until_synced(self, timeout: float | None = None) -> None:
        """Return once the copy is complete and current; `TimeoutError` says how the servers look.

        Raises `Refused`, with the code "key", if a server does not let this client in, and no other is there; with
        "access" if the rules keep from its user what it is to hold.
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

        Keys that differ are named. It takes as long as a first sync; `contents=False` only counts and sums, at once, as
        does a Clone that is closed, only writes, or follows a server of CHP/1. `TimeoutError` if no server serves, or
        the snapshot is not here, in `timeout` seconds.
        """
        return self._verified(timeout, contents)

    def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """The last versions of a key that the servers' log still holds, the oldest first; see `Version`.

        The active is asked for all that the log has of the key's folder, such as /rates/EUR/, so it may take seconds. A
        key that was not set for long has none. A value that the codec can't take is shown as bytes. Raises `BadKey`,
        `BadInput`, `Refused`, or `TimeoutError` if no server answers for `timeout` seconds.
        """
        return self._history(key, limit, timeout)

    # -- leases and watches

    def lease(self, ttl: Ttl, timeout: float | None = None) -> Lease:
        """Make a lease, whose keys live together: `with clone.lease(10) as lease: lease.set(key, value)`.

        One small message each third of the ttl keeps all its keys. They go together when the lease or the Clone is
        closed, or when this process is gone for `ttl` seconds. They also go if the process was only stopped, or cut
        off, for so long. The lease is then `lost`, which `on_lost` tells. Raises `BadTtl` and the errors of `set`.
        `timeout` is the time to wait for room in the window.
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
        """Changes of keys that begin with `prefix`: each once, in the servers' order, own ones when they are confirmed.

        start      "end": only what is new; "snapshot": first everything held, as sets; "begin": first every change
                   that the log of the active retains, deletes too; a revision, the one seen last: first every change
                   after it. If the log does not reach back so far, reading raises `NotRetained`
        conflate   only the latest change of each key, however slow the reader; else it may be `queue_max` (100,000)
                   changes behind, not counting the largest record: one more, and reading it raises `Lagging`
        on_bad     for a value that the codec can't take: "raise" (`BadValue`, and the next one can be read), "skip" its
                   change, or a callable that is told the key, the bytes and the error and returns what to show

        The `Watch` is an iterator of `Change(key, value, operation, revision, expired)`; its `batches()` gives
        `Changes`, which are columns of what came together. Raises `BadInput`, `Closed`, `Forked`.
        """
        return self._open_watch(prefix, start, conflate, queue_max, on_bad)

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(Listening(listener, prefix, opened, self._mailbox.call), start)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """Stop calling a function of `on`, under any prefix, and return True if it was called."""
        return self._listeners.drop(listener)

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction, for `with`: keys, messages and acknowledgements take effect in one step, or none does.

        timeout   seconds that its end waits for the servers; None: as long as it takes. `Conflict` and `Fenced` name
                  what differed
        """
        return Transaction(self._writer, timeout)

    def topic(self, name: str) -> Topic:
        """Return a log of messages, by its name (docs/topics.md). Nothing is asked yet. Raises `BadInput`."""
        return Topic(self._writer, self._active_first, name)

    def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic, as `Topic.facts` does, by name. `Unanswered` if no server serves in time."""
        return topics_of(self._active_first(), timeout)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Wait at most `timeout` seconds for acknowledgements, then end the agent; what is held can still be read.

        Tickets that are unsettled then get `Closed`, and a warning in the log counts those that nobody asked about. It
        returns when their callbacks were called, or `timeout` (at least half a second) is over. Open leases are ended,
        and their keys go at once.
        """
        self._end(timeout)

    # A checker of types refuses this by itself.
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
