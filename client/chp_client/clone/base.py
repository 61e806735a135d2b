"""The parts that a Clone and an AsyncClone share: the agent, the copy and its state, watches, and the end.

    Clone       methods that return a `Ticket` at once, or block the thread when they wait    (clone.py)
    AsyncClone  the same methods, awaited                                                     (aio.py)

`mapping` reads the copy, and `health` tells how current it is. Sets go to a `Writer`, which knows the batches and the
agent.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

from chp.errors import BadInput
from chp.keys import CLIENT_BYTES
from chp.numbers import Revision

from .. import checks
from ..agent.agent import Agent
from ..agent.changes import Change
from ..agent.client_info import about
from ..agent.dispatch import Dispatcher, Listener
from ..agent.lease import Lease
from ..agent.listeners import decorator
from ..agent.mailbox import Mailbox
from ..agent.measured import MeasuredClone, Metrics, Tracing
from ..agent.waiting import Waiter
from ..agent.watch import Watch, WatchQueue
from ..agent.writer import Writer
from ..clientfile import ClientFile, credentials_of
from ..codecs import Codec, Decoding, OnBad, V
from ..core.copy.shown import LockedDict
from ..core.core import ClientCore, Timing
from ..locks import FREE_THREADED
from ..mount_table import ROOT
from ..renamed import OldName, PublicNames, RedisName, public_names, renamed
from ..starts import BEGIN, SNAPSHOT, KeyStart, key_start
from ..target import FilePath, Servers, mounts_of, target
from ..typed import Typed, codec_of
from .health import Check, CopyHealth
from .mapping import CloneMapping, CopyReader

CLOSE_S = 5.0
FORGOTTEN_S = 1.0
# The least time for the callbacks of tickets that `close` settles.
CALLBACKS_S = 0.5
_names = itertools.count(1)
# The kind of Clone that follows several pairs, for each kind that has one.
OF_MOUNTS: dict[type, type[Any]] = {}
Told = TypeVar("Told", bound=Callable[[Change], object])


class Pin(NamedTuple):
    """All that is held at one moment; see `Clone.pin`."""

    values: dict[str, Any]
    # The values are complete up to this revision.
    revision: Revision
    # The number of snapshots that the Clone has taken. It tells apart two states of one revision, because a server that
    # lost everything may reach an old revision again with other values.
    resyncs: int


class BaseClone(CloneMapping[V], CopyHealth, metaclass=PublicNames):
    """A replicated dictionary; the docstring of clone.py shows its use.

    servers        the addresses of a pair, of its replicas or of both, at most 16: `tcp://host:P`, `host:P` or (on this
                   host) `ipc://dir/P`; or one text with commas between; or `chp://host:P,host:P/subtree/?codec=json`;
                   or several pairs: `/=a:P,b:P /rates/=c:P,d:P`, or a mapping of these. None uses CHP_SERVERS or
                   CHP_CLIENT_FILE, else the local pair
    client_file    in place of servers: the path of a file with the servers' addresses and keys, and this client's key.
                   The Clone keeps trying a server that does not let it in. `wait_until_synced` raises `Refused` with
                   the code "key" if no server lets it in
    subtree        what to hold: "" for everything, "/name/", or None to write only; `subtrees` for several, at most 64
    codec          "raw" (bytes), "text", "json", "msgpack", an object with encode and decode, or a type of values, such
                   as a dataclass: `Clone(codec=Rate)`, or `Clone[Rate]()`, which a type checker knows too (see `typed`)
    window_bytes   the most bytes of unacknowledged sets, which are kept for resending: 64 MiB. `on_full` says what a
                   set does when the window is full: "block" (the default) or "raise"
    silence_s      how long the active may be silent before the Clone asks the other server: 1 s, and never less than
                   four heartbeats of the active
    max_lag_s      how late messages may come, in seconds; None for no bound. `on_lag` says what happens then: "resync"
                   (the default), "raise" (the next read of `state` raises `Lagging`), "exit" (one line on standard
                   error, and the process ends at once with exit code 75, EX_TEMPFAIL), or a callable that gets the
                   seconds
    on_state       a function that is called with each new `State`, on a thread of its own
    name           the name of this Clone in logs and `chp clients`, and of its agent's thread
    metrics        an object that is told of acknowledgements, refusals, states and changes; see `Metrics`

    The constructor returns at once, whether a server is there or not (`wait_until_synced` waits). Raises `BadInput`,
    `BadSubtree`.
    """

    # True if calls wait by blocking the thread.
    _keeps_threads = True

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Make the kind of Clone that follows several pairs, if mounts are named."""
        kind = OF_MOUNTS.get(cls)
        if kind is not None:
            servers = arguments[0] if arguments else named.get("servers")
            if mounts_of(servers, named.get("client_file")) is not None:
                return super().__new__(kind)  # type: ignore[no-any-return]  # mypy sees no subclass here
        return super().__new__(cls)

    @renamed(stale_s="silence_s")
    def __init__(
        self,
        servers: Servers | None = None,
        subtree: str | None = "",
        *,
        client_file: FilePath | None = None,
        subtrees: Sequence[str] | None = None,
        codec: str | Codec | type[V] = "raw",
        window_bytes: int | None = None,
        on_full: Literal["block", "raise"] = "block",
        silence_s: float | None = None,
        max_lag_s: float | None = None,
        on_lag: Literal["resync", "raise", "exit"] | Callable[[float], object] = "resync",
        on_state: Listener | None = None,
        name: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._source, endpoints, subtree, codec = target(
            servers, client_file, subtree, codec, several=subtrees is not None
        )
        held = checks.subtrees_of(subtree, subtrees)
        checks.text_or_none("name", name)
        _check_events(on_full, on_lag, on_state, metrics)
        silence = checks.seconds("silence_s", silence_s)
        self.name = name or f"{os.getpid()}-{next(_names)}"
        self.subtrees = tuple(held)
        self._codec = codec_of(codec)
        core = ClientCore(
            # The count of the client's sessions begins at 0.
            secrets.token_bytes(CLIENT_BYTES) + bytes(4),
            held,
            [endpoint[0] for endpoint in endpoints],
            monotonic(),
            # Without the global interpreter lock, a copy of a plain dict could have half of a record.
            shown=LockedDict(RLock()) if FREE_THREADED else {},
            limits=checks.limits_with(window_bytes),
            timing=Timing(silence_s=silence) if silence else None,
            max_lag_s=checks.seconds("max_lag_s", max_lag_s),
            chance=random.random,
            who=about(self.name, held),
        )
        self._dispatcher = Dispatcher()
        self._blocks = on_full == "block"
        self._mailbox = mailbox = Mailbox(core, on_full if self._keeps_threads else "raise", self._dispatcher.put)
        mailbox.credentials = credentials_of(self._source)
        mailbox.metrics = None if metrics is None else MeasuredClone(metrics)
        self._writer = Writer(mailbox, self.subtrees, self._codec)
        self._writer.tracing = metrics if isinstance(metrics, Tracing) else None
        self._shown = core.shown
        self._core = core
        self._reader = CopyReader(core, mailbox, self._codec, self.subtrees)
        if callable(on_lag):
            self._dispatcher.lag = self._dispatcher.later(on_lag)
        elif on_lag == "exit":
            self._dispatcher.lag = partial(_exit, self.name)
        else:
            self._dispatcher.lag = mailbox.lagged if on_lag == "raise" else mailbox.refetch
        if on_state is not None:
            self._dispatcher.listeners.append(on_state)
        if self._codec is None:
            self.get = self._shown.get  # type: ignore[method-assign, assignment]  # a dict's own speed
        self._begin()
        self._agent = Agent(mailbox, endpoints, self._dispatcher, self.name)
        self._agent.start()
        # The agent ends with the last reference to the writer, so a program that keeps only `clone.set` can go on.
        self._finalizer = weakref.finalize(self._writer, _stop, mailbox, self._agent, os.getpid(), FORGOTTEN_S)

    if not TYPE_CHECKING:
        from_file = OldName("Clone(client_file=path)")
        together = OldName("transaction()")
        under = OldName('prefix("/rates/")')
        decr = RedisName("recipes.Counter(clone, key).add(-1)")
        incr = RedisName("recipes.Counter(clone, key).add()")
        exists = RedisName("key in clone")
        expire = RedisName("touch(key, ttl)")
        persist = RedisName("touch(key, None)")
        mget = RedisName("prefix(...), or get(key) for each: reading is a dict's, and waits for nothing")
        mset = RedisName("set_many({...})")
        pipeline = RedisName("set_many({...}), or transaction()")
        scan = RedisName('prefix("/a/").page(100)')
        scan_iter = RedisName('prefix("/a/")')
        setex = RedisName("set(key, value, ttl=30)")
        setnx = RedisName("set(key, value, if_revision=0), or setdefault(key, value)")

        # Type checkers do not see this method, so they take Clone[Rate] for a generic class.
        def __class_getitem__(cls, kind: Any) -> Any:
            return Typed(cls, kind)

    def pin(self) -> Pin:
        """Return a snapshot with its revision, and with the number of snapshots that had replaced the map before."""
        # The agent holds this lock while it applies a record and moves the revision.
        with self._mailbox.lock:
            values, revision, resyncs = self._shown.copy(), self.revision, self._core.stats["resyncs_snapshot"]
        return Pin(self._reader.decoded(values), revision, resyncs)

    @property
    def mounts(self) -> Mapping[str, Self]:
        """The Clone of each mount that is held here, by prefix; a Clone of one pair is itself the Clone of "/"."""
        return {ROOT: self}

    def _within(self, path: str) -> BaseClone[V]:
        """Return the Clone of the one pair that has a key, or a folder and all keys in it."""
        return self

    def _begin(self) -> None:
        """Make the parts of one kind of Clone, before the agent starts."""

    # -- leases and watches

    def _waits(self, timeout: float | None) -> Waiter:
        """Return how a call that begins now waits. Each of the two kinds of Clone has its own way."""
        raise NotImplementedError  # Clone and AsyncClone override this.

    def _new_lease(self, ttl: checks.Ttl, timeout: float | None = None) -> Lease:
        """Return a lease whose sets give tickets."""
        return Lease(self._writer, secrets.token_bytes(16), checks.lease_ttl_in_ms(ttl), timeout)

    def _checked_watch(
        self, prefix: str, start: KeyStart, conflate: bool, queue_max: int | None, on_bad: OnBad
    ) -> tuple[str | Revision, Decoding | None]:
        """Check the arguments of a watch. Return where it begins, and how it decodes values."""
        checks.flag("conflate", conflate)
        checks.prefix_and_queue(prefix, queue_max, self.subtrees, self._shown)
        return key_start(start), self._reader.decoding(on_bad)

    def _open_watch(
        self,
        prefix: str,
        start: KeyStart = "end",
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Watch[V]:
        begin, decoding = self._checked_watch(prefix, start, conflate, queue_max, on_bad)
        limit = self._core.limits.watch_queue_max if queue_max is None else queue_max
        whole = all(subtree.startswith(prefix) for subtree in self.subtrees)
        queue = WatchQueue(prefix, conflate, limit, begin, whole=whole)
        mailbox, core = self._mailbox, self._core
        with mailbox.lock:
            mailbox.check_open()
            if begin == SNAPSHOT:
                queue.preload(core.subscriptions.held(prefix, mailbox.batch.shown_keys()))
            mailbox.add_watch(queue)
            if begin == BEGIN or isinstance(begin, int):
                core.catch_up(queue, prefix, begin if isinstance(begin, int) else None)
                mailbox.command_locked(core.ask_missed)
        end = partial(mailbox.end_watch, queue)
        watch = Watch(queue, decoding, end, self)
        weakref.finalize(watch, mailbox.forget_watch, queue).atexit = False
        return watch

    def on(
        self,
        prefix: str = "",
        start: KeyStart = "end",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Callable[[Told], Told]:
        """Call a function with each `Change`: `@clone.on("/config/")`. The arguments are those of `watch`.

        All callbacks of a Clone run on one thread of their own, in turn, and may set, wait and close. An AsyncClone
        calls `def` and `async def` by a task of its loop. Their errors are logged. A callback that falls more than
        `queue_max` changes behind gets all that is held again, with a warning in the log.
        It is called until `off` or the end of the Clone. Without a prefix write `@clone.on()`. Raises the errors of
        `watch`, and `BadInput` for an object that can't be called.
        """
        if callable(prefix):
            raise BadInput('on() was given a function in place of a prefix; write @clone.on("/config/") or @clone.on()')
        self._checked_watch(prefix, start, conflate, queue_max, on_bad)
        opened: Any = partial(self.watch, prefix, conflate=conflate, queue_max=queue_max, on_bad=on_bad)

        def begin(listener: Told) -> None:
            checks.callback("listener", listener)
            self._listen(listener, prefix, opened, start)

        return decorator(begin)

    watch: Callable[..., Any]
    _listen: Callable[..., None]

    def _active_first(self) -> Sequence[str]:
        """Return the servers with the active first, since each question would wait for a server that is gone."""
        servers, active = self._source, self.active
        if active not in servers or servers[0] == active:
            return servers
        ordered = sorted(servers, key=lambda server: server != active)
        return servers.only(ordered) if isinstance(servers, ClientFile) else ordered

    # -- the end

    def _end(self, timeout: float) -> None:
        limit = checks.wait_s(timeout)
        limit = checks.FOR_EVER_S if limit is None else limit
        until = monotonic() + limit
        self._finalizer.detach()
        _stop(self._mailbox, self._agent, None, limit)
        self._dispatcher.end(max(CALLBACKS_S, until - monotonic()))

    def __dir__(self) -> list[str]:
        return public_names(type(self), super().__dir__())

    def __reduce__(self) -> str:
        what = f"a {type(self).__name__} can't be copied or pickled"
        raise TypeError(f"{what}, its agent is a thread here; use snapshot(), or make another")

    def __repr__(self) -> str:
        what, (epoch, sequence) = ", ".join(map(repr, self.subtrees)) or "write-only", self.position
        return f"<{type(self).__name__} {what}: {len(self._shown)} keys, {self.state}, at {epoch}.{sequence}>"


def within(clone: BaseClone[Any], path: str) -> BaseClone[Any]:
    """Return the Clone of the one pair that has a key, or a folder and all keys in it.

    It is the Clone itself if that has one pair. Raises `BadInput` if a mount lies inside the folder.
    """
    return clone._within(path)


class Internals(NamedTuple):
    """What other parts of this package use of a Clone, beside what an application may call."""

    writer: Writer
    mailbox: Mailbox
    # Returns the waiter of a call that begins now, for at most this many seconds.
    waits: Callable[[float | None], Waiter]
    # A lease whose `set` returns a ticket. The arguments are those of `Clone.lease`.
    new_lease: Callable[..., Lease]
    # A watch that a thread reads; the arguments are those of `Clone.watch`.
    open_watch: Callable[..., Watch[Any]]
    # Blocking forms of `verify` and `close`.
    verified: Callable[[float | None, bool], Check]
    end: Callable[[float], None]


def internals(clone: BaseClone[Any]) -> Internals:
    """Return what other parts of this package use of a Clone. It is made anew each time, so the Clone has no cycle."""
    return Internals(
        clone._writer, clone._mailbox, clone._waits, clone._new_lease, clone._open_watch, clone._verified, clone._end
    )


def _check_events(on_full: object, on_lag: object, on_state: Listener | None, metrics: object) -> None:
    """Check what a full window and a lag lead to, and the objects that are told of events."""
    if on_full not in ("block", "raise"):
        raise BadInput(f"on_full={on_full!r} is not 'block' or 'raise'")
    if on_lag not in ("resync", "raise", "exit") and not callable(on_lag):
        raise BadInput(f"on_lag={on_lag!r} is not 'resync', 'raise', 'exit' or a callable")
    if on_state is not None:
        checks.callback("on_state", on_state)
    if metrics is not None and not isinstance(metrics, Metrics):
        methods = "acknowledged, refused, state and changes"
        raise BadInput(f"metrics={metrics!r:.60} lacks methods; give an object with {methods} (docs/metrics.md)")


def _exit(name: str, lag_s: float) -> None:
    """End the process at once, because its copy is behind (`on_lag="exit"`, the Guide's Suicidal Snail)."""
    # No exit handler may delay the end, because the data of this process is too old. `os._exit` runs none.
    os.write(2, f"Clone {name}: {lag_s:.3f} s behind, more than max_lag_s; on_lag='exit' ends the process\n".encode())
    os._exit(os.EX_TEMPFAIL)


def _stop(mailbox: Mailbox, agent: Agent, pid: int | None, timeout: float) -> None:
    """End the agent, but never in a forked child.

    `close` calls this, or the garbage collector when it finds a forgotten Clone, or Python at its exit.
    """
    if mailbox.forked or (pid is not None and pid != os.getpid()):
        return
    # The garbage collector may find a forgotten Clone on the agent's own thread, which may hold the lock.
    if agent.thread is current_thread():
        mailbox.stop(timeout)
        return
    with mailbox.lock:
        mailbox.stop(timeout)
        if mailbox.batch.sleeping:
            mailbox.batch.wake()
    agent.ended.wait()
    agent.thread.join()
