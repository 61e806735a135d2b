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

The class is put together from three parts, `reading`, `writing` and `worth`; here are its making, leases and
watches, and its end.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from threading import current_thread
from time import monotonic
from typing import Literal

from chp.errors import BadInput, BadTtl
from chp.keys import CLIENT_BYTES

from . import checks
from .agent import Agent
from .codecs import Codec, codec_of
from .core import ClientCore, Timing
from .dispatch import Dispatcher, Listener
from .hub import Hub
from .lease import Lease
from .watch import Watch, WatchQueue
from .worth import Worth
from .writing import Writing

CLOSE_S = 5.0
FORGOTTEN_S = 1.0
CALLBACKS_S = 0.5  # at least, for those of the tickets that the closing settles
_names = itertools.count(1)


class Clone(Writing, Worth):
    """A replicated dictionary; see the module for how it is used.

    servers        one or two addresses `tcp://host:P`, or one text with a comma between
    subtree        what to hold: "" for everything, "/name/", or None to write only; `subtrees` for several, at most 64
    codec          "raw" (bytes), "text", "json", "msgpack", or an object with encode and decode
    window_bytes   unacknowledged sets kept for resending, 64 MiB; `on_full` "block" (the default) or "raise" when it is
                   full
    silence_s      how long the active may be silent before the other is asked: 1 s, and never less than four of its
                   heartbeats; `stale_s` is another name for it
    max_lag_s      how late messages may come, None for no bound; `on_lag` "resync" (the default), "raise" (the next
                   read of `state` raises `Lagging`), or a callable that is told the seconds
    on_state       called with each new `State`, on a thread of its own
    name           what its agent's thread is called

    It returns at once, whether a server is there or not (`wait_until_synced` waits). Raises `BadInput`, `BadSubtree`.
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        subtree: str | None = "",
        *,
        subtrees: Sequence[str] | None = None,
        codec: str | Codec = "raw",
        window_bytes: int | None = None,
        on_full: Literal["block", "raise"] = "block",
        silence_s: float | None = None,
        stale_s: float | None = None,
        max_lag_s: float | None = None,
        on_lag: Literal["resync", "raise"] | Callable[[float], object] = "resync",
        on_state: Listener | None = None,
        name: str | None = None,
    ) -> None:
        endpoints = checks.endpoints_of(servers)
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
        )
        self._dispatcher = Dispatcher()
        self._hub = hub = Hub(core, on_full, self._dispatcher.put)
        self._shown = core.shown
        self._core = core
        self._holds = bool(held)
        self._some = []
        # keys that need no more checks: those that are held; none with a codec, whose values do need it
        self._known: dict[str, bytes] = self._shown if self._holds and self._codec is None else {}
        self._dispatcher.set_lag(on_lag, hub)
        if on_state is not None:
            self._dispatcher.listeners.append(on_state)
        if self._codec is None:
            self.get = self._shown.get  # type: ignore[method-assign, assignment]  # a dict's own speed
        self._agent = Agent(hub, endpoints, self._dispatcher, self.name)
        self._agent.start()
        self._finalizer = weakref.finalize(self, _stop, hub, self._agent, os.getpid(), FORGOTTEN_S)

    # -- leases and watches

    def lease(self, ttl: float) -> Lease:
        """Keys that live together: `with clone.lease(10) as lease: lease.set(key, value)`.

        One small message a third of the ttl keeps all of them; they go together when the lease is closed, or when this
        process is gone for `ttl` seconds. If it was only stopped, or cut off, for so long, they are gone as well, and
        the lease is `lost`: `on_lost` tells, and another can be made. Raises `BadTtl`, and what `set` raises.
        """
        ms = checks.ttl_in_ms(ttl)
        if ms is None:
            raise BadTtl("a lease needs a ttl: the seconds its keys outlive a process that is gone")
        return Lease(self, secrets.token_bytes(16), ms)

    def watch(
        self,
        prefix: str = "",
        start: int | str = "now",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
    ) -> Watch:
        """Changes of keys that begin with `prefix`: each once, in the servers' order, own ones when they are confirmed.

        start      "now"; "snapshot": first everything held, as sets; a revision: first every change after it, deletes
                   too, from the log of the active. If that does not reach back so far, reading raises `NotRetained`
        conflate   only the latest change of each key, however slow the reader; else it may be `queue_max` (100,000)
                   changes behind: one more, and reading it raises `Lagging`

        The `Watch` is an iterator of `Change(key, value, operation, revision)`; its `batches()` gives `Changes`, which
        are columns of what came together. Raises `BadInput`, `Closed`, `Forked`.
        """
        checks.prefix_and_queue(prefix, queue_max, self.subtrees)
        start = checks.start_of(start)
        limit = self._core.limits.watch_queue_max if queue_max is None else queue_max
        whole = all(subtree.startswith(prefix) for subtree in self.subtrees)
        queue = WatchQueue(prefix, conflate, limit, start, whole=whole)
        hub = self._hub
        with hub.lock:
            if hub.room < 0:
                raise hub.why_not()
            if start == "snapshot":
                queue.preload(self._core.held(prefix, hub.unsent_keys()))
            hub.watches = [*hub.watches, queue]
            self._core.watch(True)
            if isinstance(start, int):
                self._core.catch_up(queue, prefix, start)
                hub.commands.append(self._core.ask_missed)
                if hub.sleeping:
                    hub.wake()
        watch = Watch(queue, None if self._codec is None else self._codec.decode, _ender(hub, queue), self)
        weakref.finalize(watch, _forget, hub, queue).atexit = False
        return watch

    # -- the end

    def close(self, timeout: float = CLOSE_S) -> None:
        """Wait at most `timeout` seconds for acknowledgements, then end the agent; what is held can still be read.

        Tickets that are unsettled then get `Closed`, and a warning in the log counts those that nobody asked about. It
        returns when their callbacks were called, or `timeout` (at least half a second) is over.
        """
        limit = checks.wait_s(timeout)
        limit = checks.FOR_EVER_S if limit is None else limit
        until = monotonic() + limit
        self._finalizer.detach()
        _stop(self._hub, self._agent, None, limit)
        self._dispatcher.end(max(CALLBACKS_S, until - monotonic()))

    def __enter__(self) -> Clone:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError(
            "a Clone can't be copied or pickled, its agent is a thread here; use snapshot(), or make another"
        )

    def __repr__(self) -> str:
        what = ", ".join(map(repr, self.subtrees)) or "write-only"
        return f"<Clone {what}: {len(self._shown)} keys, {self.state}, at {self.position[0]}.{self.position[1]}>"


def _ender(hub: Hub, queue: WatchQueue) -> Callable[[], None]:
    def end() -> None:
        with hub.lock:
            _drop(hub, queue)

    return end


def _drop(hub: Hub, queue: WatchQueue) -> None:
    hub.watches = [other for other in hub.watches if other is not queue]
    hub.core.watch(bool(hub.watches))


def _forget(hub: Hub, queue: WatchQueue) -> None:
    """A Watch that nobody closed is gone. The collector may have come upon it anywhere: the agent drops its queue."""
    if not queue.closed:
        queue.closed = True
        hub.commands.append(lambda now: _drop(hub, queue))


def _stop(hub: Hub, agent: Agent, pid: int | None, timeout: float) -> None:
    """End the agent; by `close`, by the collector of a forgotten Clone, or at exit (never in a forked child)."""
    if hub.forked or (pid is not None and pid != os.getpid()):
        return
    if agent.thread is current_thread():  # the collector came upon a forgotten Clone here, maybe with the lock held
        hub.room, hub.stop_at = -1, monotonic() + timeout
        return
    with hub.lock:
        hub.room = -1
        hub.stop_at = monotonic() + timeout
        if hub.sleeping:
            hub.wake()
    agent.ended.wait()
    agent.thread.join()


__all__ = ["Clone"]
