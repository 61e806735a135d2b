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

`reading` and `worth` are its questions; here are its making, its end, and all that changes something. What is set goes
to a `Writer`, which knows the batches and the agent; `Clone.set` is bound to that one's, and costs nothing beside.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from threading import current_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

from chp.errors import BadInput, BadTtl
from chp.keys import CLIENT_BYTES
from chp.numbers import Revision

from .. import checks
from ..agent.about import about
from ..agent.agent import Agent
from ..agent.changes import Change
from ..agent.dispatch import Dispatcher, Listener
from ..agent.listening import Listeners, Listening, decorator
from ..agent.mailbox import Mailbox
from ..agent.measured import Measured, Metrics
from ..agent.tickets import Ticket
from ..agent.watch import Watch, WatchQueue
from ..clientfile import ClientFile, credentials_of
from ..codecs import Codec, OnBad, V
from ..connecting import target
from ..core.core import ClientCore, Timing
from ..core.events import Ack
from ..topics.reader import PATIENCE_S
from ..topics.together import Together
from ..topics.topic import Topic, topics_of
from ..typed import Typed, codec_of
from .lease import Lease
from .reading import Reading
from .taking import NOTHING, Blocking, Taking, at_once, flush
from .worth import Worth
from .writer import Items, Writer

CLEARED_ITEMS = 4096  # deleted by one batch of `clear`: each is some milliseconds of the server
CLOSE_S = 5.0
FORGOTTEN_S = 1.0
CALLBACKS_S = 0.5  # at least, for those of the tickets that the closing settles
_names = itertools.count(1)
Told = TypeVar("Told", bound=Callable[[Change], object])


class Pin(NamedTuple):
    """All that is held at one moment; see `Clone.pin`."""

    values: dict[str, Any]
    revision: Revision  # up to which it is complete
    resyncs: int  # snapshots before it: a server that lost all may come to the same number with something else


class Clone(Reading[V], Worth, MutableMapping[str, V]):
    """A replicated dictionary; see the module for how it is used.

    servers        one or two addresses, `tcp://host:P`, `host:P` or (of this host) `ipc://dir/P`; or one text, a comma
                   between; or `chp://host:P,host:P/subtree/?codec=json`; None for CHP_SERVERS, else the local pair;
                   or a `ClientFile` (see `from_file`)
    subtree        what to hold: "" for everything, "/name/", or None to write only; `subtrees` for several, at most 64
    codec          "raw" (bytes), "text", "json", "msgpack", an object with encode and decode, or a type of values, as a
                   dataclass: `Clone(codec=Rate)`, or `Clone[Rate]()`, which a checker of types knows too (see `typed`)
    window_bytes   unacknowledged sets kept for resending, 64 MiB; `on_full` "block" (the default) or "raise" when it is
                   full
    silence_s      how long the active may be silent before the other is asked: 1 s, and never less than four of its
                   heartbeats; `stale_s` is another name for it
    max_lag_s      how late messages may come, None for no bound; `on_lag` "resync" (the default), "raise" (the next
                   read of `state` raises `Lagging`), or a callable that is told the seconds
    on_state       called with each new `State`, on a thread of its own
    name           what its agent's thread is called
    metrics        what is told of acknowledgements, refusals, states and changes; see `Metrics`

    It returns at once, whether a server is there or not (`wait_until_synced` waits). Raises `BadInput`, `BadSubtree`.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        subtree: str | None = "",
        *,
        subtrees: Sequence[str] | None = None,
        codec: str | Codec | type[V] = "raw",
        window_bytes: int | None = None,
        on_full: Literal["block", "raise"] = "block",
        silence_s: float | None = None,
        stale_s: float | None = None,
        max_lag_s: float | None = None,
        on_lag: Literal["resync", "raise"] | Callable[[float], object] = "resync",
        on_state: Listener | None = None,
        name: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        endpoints, subtree, codec = target(servers, subtree, codec, several=subtrees is not None)
        held = checks.subtrees_of(subtree, subtrees)
        if on_full not in ("block", "raise"):
            raise BadInput(f"on_full={on_full!r} is not 'block' or 'raise'")
        if on_lag not in ("resync", "raise") and not callable(on_lag):
            raise BadInput(f"on_lag={on_lag!r} is not 'resync', 'raise' or a callable")
        if silence_s is not None and stale_s is not None:
            raise BadInput("both silence_s and stale_s are given; they are two names of one setting")
        if on_state is not None:
            checks.callback("on_state", on_state)
        silence = checks.seconds("silence_s", silence_s) or checks.seconds("stale_s", stale_s)
        self.name = name or f"{os.getpid()}-{next(_names)}"
        self.subtrees = tuple(held)
        self._codec = codec_of(codec)
        core = ClientCore(
            secrets.token_bytes(CLIENT_BYTES) + bytes(4),  # the count of its sessions begins at 0
            held,
            [endpoint[0] for endpoint in endpoints],
            monotonic(),
            limits=checks.limits_with(window_bytes),
            timing=Timing(silence_s=silence) if silence else None,
            max_lag_s=checks.seconds("max_lag_s", max_lag_s),
            chance=random.random,
            who=about(self.name, held),
        )
        self._dispatcher = Dispatcher()
        self._mailbox = mailbox = Mailbox(core, on_full, self._dispatcher.put)
        mailbox.credentials = credentials_of(servers)
        mailbox.metrics = None if metrics is None else Measured(metrics)
        self._writer = Writer(mailbox, self.subtrees, self._codec)
        self._shown = core.shown
        self._core = core
        self._some = []
        self._source = servers if isinstance(servers, ClientFile) else [endpoint[0] for endpoint in endpoints]
        self._listeners = Listeners()
        if callable(on_lag):
            self._dispatcher.lag = self._dispatcher.later(on_lag)
        else:
            self._dispatcher.lag = mailbox.lagged if on_lag == "raise" else mailbox.refetch
        if on_state is not None:
            self._dispatcher.listeners.append(on_state)
        if self._codec is None:
            self.get = self._shown.get  # type: ignore[method-assign, assignment]  # a dict's own speed
        if type(self).set is _SET:  # nobody has put another in its place
            self.set = self._writer.set  # type: ignore[method-assign]  # one call less for each set
        self._agent = Agent(mailbox, endpoints, self._dispatcher, self.name)
        self._agent.start()
        # when nobody has the writer any more: who keeps only `clone.set` goes on setting
        self._servers: Sequence[str] = (
            servers if isinstance(servers, ClientFile) else [endpoint[0] for endpoint in endpoints]
        )
        self._finalizer = weakref.finalize(self._writer, _stop, mailbox, self._agent, os.getpid(), FORGOTTEN_S)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *arguments: Any, **named: Any) -> Self:
        """The same with a client file in place of the servers: their addresses and keys, and this client's.

        Raises `BadInput` for what is wrong with the file. A server that does not let it in is tried on;
        `wait_until_synced` raises `Refused` with the code "key" if none of them does.
        """
        return cls(ClientFile.read(path), *arguments, **named)

    if not TYPE_CHECKING:  # a checker takes Clone[Rate] for what it is

        def __class_getitem__(cls, kind: Any) -> Any:
            return Typed(cls, kind)

    # -- setting and deleting

    def set(
        self,
        key: str,
        value: V,
        ttl: float | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Set a key; the ticket is settled when the pair has taken it.

        ttl          seconds after which the servers delete it: above 0, at most ten years; None for no end
        if_revision  only if the key's revision is this one, a number or text such as 1.42 (0: if it is absent); shown
                     once it is acknowledged
        timeout      seconds to wait for room in the window (`TimeoutError`); None waits as long as it takes

        Raises `BadKey` (also for a key outside what is held), `BadValue`, `BadTtl`, `BadInput`, `Full` (with
        on_full="raise"), `Closed`, `Forked`. What the servers say of it, `Refused` or `Conflict`, the ticket raises.
        """
        return self._writer.set(key, value, ttl, if_revision, timeout)

    def set_many(self, items: Items, ttl: float | None = None, timeout: float | None = None) -> Ticket:
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
            raise KeyError(key)
        self.delete(key)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As of a dict, in one batch."""
        # a mapping's items, not the mapping: another Clone's keys may go before their values are asked for
        items = dict(other.items() if isinstance(other, Mapping) else other, **more)
        if items:
            self.set_many(items)

    def clear(self) -> None:
        """Delete every key that is held here, for everybody: some thousands a batch, as fast as the window has room.

        What was deleted stays so if there is no room in the middle of it: `Full` (with on_full="raise"), `Closed`.
        """
        keys = list(self._shown)
        for start in range(0, len(keys), CLEARED_ITEMS):
            self.delete_many(keys[start : start + CLEARED_ITEMS])

    def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; `default`, or KeyError, if there is none.

        Of all programs that take a key one gets it: the servers delete it if it is as this one saw it, and this waits
        until they have. Raises what `set` and its ticket do; after a `TimeoutError` it may be done, now or later.
        """
        return at_once(self._taking(timeout).pop(key, default))

    def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key held here that begins with `prefix`, for everybody; how many were told.

        It goes portion by portion, each of at most 8,192 keys, and waits until the servers have each: others see some
        of them go before the rest. What others set meanwhile may stay. After a `TimeoutError` some are gone.
        """
        return at_once(self._taking(timeout).delete_prefix(prefix))

    def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key and return it with its value, as `pop` does; KeyError if there is none."""
        return at_once(self._taking(timeout).popitem())

    def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """The value of a key; if there is none it is set to `default`, unless another program is faster; as `pop`."""
        return at_once(self._taking(timeout).setdefault(key, default))

    def _taking(self, timeout: float | None) -> Taking:
        return Taking(self, self._writer, Blocking(self._mailbox, timeout))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged; else `TimeoutError`, or the first error of them.

        That includes sets which were refused (or lost, as the Clone was closed) before, if nobody was told: neither
        by their ticket's `wait` or `error`, nor by an earlier flush.
        """
        at_once(flush(self._mailbox, Blocking(self._mailbox, timeout), checks.wait_s(timeout)))

    def sync(self, timeout: float | None = None) -> Ack:
        """Return once a read here sees every set that anybody was acknowledged before this call, by any Clone.

        That is a round trip through the active, and up to a heartbeat more where little is set. The promise is kept if
        the `Ack` says *replicated*, or if the pair has an arbiter; an active alone without one may have been replaced
        behind a cut link. `TimeoutError` after `timeout` seconds; `BadInput` if nothing is held, or of CHP/1; `Closed`.
        """
        return at_once(Blocking(self._mailbox, timeout).done(self._writer.sync))

    def pin(self) -> Pin:
        """As `snapshot`, with the number of that moment, and how often a snapshot had replaced the map before it."""
        with self._mailbox.lock:  # the agent applies a record, and moves the number, with this lock held
            values, revision, resyncs = self._shown.copy(), self.revision, self._core.stats["resyncs_snapshot"]
        return Pin(self.decoded(values), revision, resyncs)

    @property
    def writer(self) -> Writer:
        """Where what is set goes (for the parts of this package)."""
        return self._writer

    # -- leases and watches

    def lease(self, ttl: float, timeout: float | None = None) -> Lease:
        """Keys that live together: `with clone.lease(10) as lease: lease.set(key, value)`.

        One small message a third of the ttl keeps all of them; they go together when the lease or the Clone is closed,
        or when this process is gone for `ttl` seconds. If it was only stopped, or cut off, for so long, they are gone
        as well, and the lease is `lost`: `on_lost` tells, and another can be made. Raises `BadTtl`, and what `set`
        raises; `timeout` is for the room in the window, as there.
        """
        ms = checks.ttl_in_ms(ttl)
        if ms is None:
            raise BadTtl("a lease needs a ttl: the seconds its keys outlive a process that is gone")
        return Lease(self._writer, secrets.token_bytes(16), ms, timeout)

    def watch(
        self,
        prefix: str = "",
        start: int | str = "now",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Watch:
        """Changes of keys that begin with `prefix`: each once, in the servers' order, own ones when they are confirmed.

        start      "now"; "snapshot": first everything held, as sets; a revision: first every change after it, deletes
                   too, from the log of the active. If that does not reach back so far, reading raises `NotRetained`
        conflate   only the latest change of each key, however slow the reader; else it may be `queue_max` (100,000)
                   changes behind: one more, and reading it raises `Lagging`
        on_bad     for a value that the codec can't take: "raise" (`BadValue`, and the next one can be read), "skip" its
                   change, or a callable that is told the key, the bytes and the error and returns what to show

        The `Watch` is an iterator of `Change(key, value, operation, revision, expired)`; its `batches()` gives
        `Changes`, which are columns of what came together. Raises `BadInput`, `Closed`, `Forked`.
        """
        checks.prefix_and_queue(prefix, queue_max, self.subtrees)
        start = checks.start_of(start)
        decoding = self.decoding(on_bad)
        limit = self._core.limits.watch_queue_max if queue_max is None else queue_max
        whole = all(subtree.startswith(prefix) for subtree in self.subtrees)
        queue = WatchQueue(prefix, conflate, limit, start, whole=whole)
        mailbox, core = self._mailbox, self._core
        with mailbox.lock:
            mailbox.check_open()
            if start == "snapshot":
                queue.preload(core.holding.held(prefix, mailbox.batch.shown_keys()))
            mailbox.add_watch(queue)
            if isinstance(start, int):
                core.catch_up(queue, prefix, start)
                mailbox.command_locked(core.ask_missed)
        end = partial(mailbox.end_watch, queue)
        watch = Watch(queue, decoding, end, self)
        weakref.finalize(watch, mailbox.forget_watch, queue).atexit = False
        return watch

    def on(
        self,
        prefix: str = "",
        start: int | str = "now",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Callable[[Told], Told]:
        """Have a function called with each `Change`: `@clone.on("/config/")`; the arguments are those of `watch`.

        All callbacks of a Clone run on one thread of their own, in turn, and may set, wait and close; what they raise
        is logged. One that falls more than `queue_max` changes behind is told all that is held anew, with a warning.
        It goes on until `off`, or the Clone's end. Raises what `watch` does, and `BadInput` for what can't be called.
        """
        opened = partial(self.watch, prefix, conflate=conflate, queue_max=queue_max, on_bad=on_bad)

        def begin(listener: Told) -> None:
            checks.callback("listener", listener)
            self._listeners.add(Listening(listener, prefix, opened, self._mailbox.call), start)

        return decorator(begin)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """Call a function of `on` no more, under any prefix; whether it was called."""
        return self._listeners.drop(listener)

    def together(self, timeout: float | None = None) -> Together:
        """Keys, messages and acknowledgements in one step, for `with`: all of it is done, or none (docs/topics.md).

        timeout   seconds that its end waits for the servers; None: as long as it takes. `Conflict` and `Fenced` name
                  what differed
        """
        return Together(self._writer, timeout)

    def topic(self, name: str) -> Topic:
        """A log of messages, by its name: `publish` and `read` (docs/topics.md). Nothing is asked yet; `BadInput`."""
        return Topic(self._writer, self._active_first, name)

    def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """What is known of each topic, as of `Topic.facts`, by name. `Unanswered` if no server serves so long."""
        return topics_of(self._active_first(), timeout)

    def _active_first(self) -> Sequence[str]:
        """The servers, as questions about topics try them: one that is gone would be waited for each time."""
        servers, active = self._servers, self.active
        if active not in servers or servers[0] == active:
            return servers
        ordered = sorted(servers, key=lambda server: server != active)
        return servers.only(ordered) if isinstance(servers, ClientFile) else ordered

    # -- the end

    def close(self, timeout: float = CLOSE_S) -> None:
        """Wait at most `timeout` seconds for acknowledgements, then end the agent; what is held can still be read.

        Tickets that are unsettled then get `Closed`, and a warning in the log counts those that nobody asked about. It
        returns when their callbacks were called, or `timeout` (at least half a second) is over. Open leases are ended,
        and their keys go at once.
        """
        limit = checks.wait_s(timeout)
        limit = checks.FOR_EVER_S if limit is None else limit
        until = monotonic() + limit
        self._finalizer.detach()
        _stop(self._mailbox, self._agent, None, limit)
        self._dispatcher.end(max(CALLBACKS_S, until - monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]

    def __reduce__(self) -> str:
        raise TypeError(
            "a Clone can't be copied or pickled, its agent is a thread here; use snapshot(), or make another"
        )

    def __repr__(self) -> str:
        what = ", ".join(map(repr, self.subtrees)) or "write-only"
        return f"<Clone {what}: {len(self._shown)} keys, {self.state}, at {self.position[0]}.{self.position[1]}>"


def _stop(mailbox: Mailbox, agent: Agent, pid: int | None, timeout: float) -> None:
    """End the agent; by `close`, by the collector of a forgotten Clone, or at exit (never in a forked child)."""
    if mailbox.forked or (pid is not None and pid != os.getpid()):
        return
    if agent.thread is current_thread():  # the collector came upon a forgotten Clone here, maybe with the lock held
        mailbox.stop(timeout)
        return
    with mailbox.lock:
        mailbox.stop(timeout)
        if mailbox.batch.sleeping:
            mailbox.batch.wake()
    agent.ended.wait()
    agent.thread.join()


_SET = Clone.set
__all__ = ["Clone", "Pin"]
