"""The parts that both kinds of view share. They find the inner Clone that has a key, and combine the answers.

    MountedClone       a `Clone` of several pairs           (clone.py)
    MountedAsyncClone  an `AsyncClone` of several pairs      (aio.py)

A method for one key calls the same method of the inner Clone. So it returns what that kind of Clone returns: a ticket,
a value or a coroutine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from chp.errors import BadInput, BadTtl
from chp.numbers import Revision

from .. import checks
from ..agent.dispatch import Dispatcher, Listener
from ..agent.watch import Watch
from ..agent.writer import Items, Writer
from ..checks import Ttl
from ..clone.atomic import NOTHING
from ..clone.base import CALLBACKS_S, BaseClone, Pin, internals
from ..clone.health import NAMED_MAX, Check
from ..clone.mapping import Entry
from ..clone.prefix_view import KeyIndex, PrefixView
from ..codecs import Codec, OnBad, V
from ..core.core import ClientCore
from ..core.events import State
from ..locks import Lock
from ..mount_table import ROOT
from ..renamed import unknown_argument
from ..starts import KeyStart
from ..target import FilePath, Servers, mounts_of
from ..topics.topic import topics_of
from ..typed import codec_of
from .copy import MountedIndex, MountedMap, MountedReader
from .transaction import MountedLease
from .watch import MountedQueue, Source

# The states of a copy, the best first.
WORSE = (State.SYNCED, State.STALE, State.CONNECTING, State.CLOSED)
NOT_THERE: Any = object()


def worst(states: Iterable[State]) -> State:
    """Return the worst of the states of several mounts. The result is CLOSED only if all mounts are closed."""
    found = set(states)
    return max((found - {State.CLOSED}) or found, key=WORSE.index)


def left_of(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that tells how many seconds are left of the time of a call."""
    limit = checks.wait_s(timeout)
    until = None if limit is None else monotonic() + limit
    return lambda: None if until is None else max(0.0, until - monotonic())


class MountedBase(BaseClone[V]):
    """The view over several pairs. Each mount has a window of `window_bytes`."""

    # The kind of the inner Clones.
    _kind: ClassVar[type[BaseClone[Any]]]

    def __init__(
        self,
        servers: Servers | None = None,
        subtree: str | None = "",
        *,
        client_file: FilePath | None = None,
        subtrees: Sequence[str] | None = None,
        codec: str | Codec | type[V] = "raw",
        on_state: Listener | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        mounts = mounts_of(servers, client_file)
        # `Clone` makes this kind only if there are mounts.
        assert mounts is not None
        held = checks.subtrees_of(subtree, subtrees)
        split: Mapping[str, list[str]] = mounts.split(held) if held else {each: [] for each in mounts.servers}
        if on_state is not None:
            checks.callback("on_state", on_state)
        checks.text_or_none("name", name)
        self.name = name or f"{os.getpid()}-mounts-{secrets.token_hex(2)}"
        self.subtrees = tuple(held)
        self._table, self._settings = mounts, settings
        self._codec = codec_of(codec)
        self._inner: dict[str, Any] = {}
        # Write-only Clones of further mounts, which topics and transactions need.
        self._opened: dict[str, Any] = {}
        self._opening = Lock()
        self._ended = False
        self._dispatcher = Dispatcher()
        self._told_states: _States | None = None
        shown = MountedMap(mounts)
        self._shown = shown  # type: ignore[assignment]
        self._reader = MountedReader(shown, self._codec, self.subtrees, self._entry)
        try:
            for mount, parts in split.items():
                self._inner[mount] = made = self._made(mount, parts)
                shown.add(mount, internals(made).mailbox.core.shown)
        except BaseException:
            self._end(0.0)
            raise
        mailboxes = {mount: internals(each).mailbox for mount, each in self._inner.items()}
        self._index = MountedIndex(mounts, {mount: KeyIndex(each) for mount, each in mailboxes.items()})
        if self._codec is None:
            self.get = shown.get  # type: ignore[method-assign]
        self._begin()
        if on_state is not None:
            self._dispatcher.listeners.append(on_state)
            self._tell_states(State.CONNECTING)

    def _made(self, mount: str, subtrees: Sequence[str]) -> Any:
        codec: Any = "raw" if self._codec is None else self._codec
        named = {"subtrees": subtrees} if subtrees else {"subtree": None}
        return self._kind(self._table.servers[mount], codec=codec, name=self.name, **named, **self._settings)

    @property
    def mounts(self) -> Mapping[str, Any]:
        """The Clone of each mount that is held here, by prefix."""
        return dict(self._inner)

    def _of(self, key: str) -> Any:
        """Return the Clone that has a key. Raises `BadKey`."""
        mount = self._table.find(key) if isinstance(key, str) else None
        inner = None if mount is None else self._inner.get(mount)
        if inner is None:
            self._table.of_key(key)
            raise checks.not_held(key, self.subtrees)
        return inner

    def _of_keys(self, what: str, keys: list[str]) -> Any:
        """Return the Clone that has all these keys. Raises `BadInput` with both mounts if the keys are of several."""
        if not keys:
            return next(iter(self._inner.values()))
        self._table.of_keys(what, keys)
        return self._of(keys[0])

    def _opened_for(self, mount: str) -> Any:
        with self._opening:
            # An `or` would not do here, because an empty Clone is false, as an empty dict is.
            found = self._inner.get(mount, self._opened.get(mount))
            if found is None:
                self._opened[mount] = found = self._made(mount, ())
                if self._ended:
                    found.close(0.0)
            return found

    def _writer_of(self, mount: str, key: str | None) -> Writer:
        return internals(self._of(key) if key is not None else self._opened_for(mount)).writer

    def _within(self, path: str) -> Any:
        mount = self._table.of_key(path)
        inside = [each for each in self._table.nested(mount) if path.endswith("/") and each.startswith(path)]
        if inside:
            raise BadInput(f"in {path!r:.80} lies the mount {inside[-1]!r}; a recipe needs a path within one mount")
        return self._of(path)

    def _one(self, what: str) -> Any:
        """Return the only inner Clone. Raises `BadInput` if there are several."""
        if len(self._inner) == 1:
            return next(iter(self._inner.values()))
        names = ", ".join(map(repr, self._inner))
        raise BadInput(f"{what} is of one mount, and this Clone has {names}; ask clone.mounts[PREFIX]")

    def _no_part(self) -> NoReturn:
        names = ", ".join(map(repr, self._inner))
        raise BadInput(f"this needs a Clone of one pair, and this one has the mounts {names}; use clone.mounts[PREFIX]")

    if not TYPE_CHECKING:
        # Other parts of this package use these attributes of a Clone of one pair. Here, each raises a clear `BadInput`.
        _writer = _mailbox = _core = property(_no_part)

    def __len__(self) -> int:
        # Without this line the type of the map would say that it has no `__len__` of its own.
        return len(self._shown)

    def _entry(self, key: str) -> Entry | None:
        mount = self._table.find(key) if isinstance(key, str) else None
        return self._inner[mount].entry(key) if mount in self._inner else None

    def prefix(self, prefix: str, after: str | None = None, until: str | None = None) -> PrefixView:
        """Return the keys that begin with `prefix`, with their values, in order; see `Clone.prefix`."""
        checks.prefix_held(prefix, self.subtrees, "read")
        checks.range_of(after, until)
        return PrefixView(self, self._reader, self._index, prefix, after=after, until=until)

    @property
    def state(self) -> State:
        """The worst state of all mounts. With on_lag="raise", reading it after a lag raises `Lagging` once."""
        return worst(each.state for each in self._inner.values())

    @property
    def staleness_s(self) -> float:
        """The largest staleness of all mounts: the seconds since a copy was last known to be current."""
        return float(max(each.staleness_s for each in self._inner.values()))

    @property
    def lag_s(self) -> float:
        """The largest lag of all mounts, in seconds."""
        return float(max(each.lag_s for each in self._inner.values()))

    @property
    def revision(self) -> Revision:
        """The number up to which everything held is complete. Raises `BadInput` for several mounts."""
        found: Revision = self._one("a revision").revision
        return found

    @property
    def active(self) -> str | None:
        """The address of the server that is followed. Raises `BadInput` for several mounts."""
        found: str | None = self._one("the active server").active
        return found

    @property
    def stats(self) -> dict[str, int]:
        """The counters of all mounts, added up."""
        found: dict[str, int] = {}
        for each in self._all():
            for name, count in each.stats.items():
                found[name] = found.get(name, 0) + count
        return found

    @property
    def window(self) -> tuple[int, int]:
        """The numbers of unacknowledged batches and bytes of all mounts."""
        windows = [each.window for each in self._all()]
        return sum(batches for batches, _ in windows), sum(size for _, size in windows)

    def describe(self) -> str:
        """Return the state and the servers of each mount, in a line."""
        return "; ".join(f"mount {mount}: {each.describe()}" for mount, each in self._inner.items())

    @property
    def refused(self) -> str:
        """The refusals of connected servers, with their mounts and reasons; "" if there are none."""
        return "; ".join(f"mount {mount}: {each.refused}" for mount, each in self._inner.items() if each.refused)

    def on_state(self, listener: Listener) -> None:
        """Call `listener(state)` at each change of the worst state, on a thread of its own."""
        checks.callback("on_state", listener)
        self._dispatcher.listeners.append(listener)
        self._tell_states(None)

    def _tell_states(self, told: State | None) -> None:
        """Begin to tell the listeners each new worst state; a second call does nothing.

        `told` is the state that the listeners know already. None stands for the present state.
        """
        with self._opening:
            if self._told_states is None:
                cores = [internals(each).mailbox.core for each in self._inner.values()]
                self._told_states = states = _States(self._dispatcher, cores, told)
                for each in self._inner.values():
                    each.on_state(states.tell)
                states.tell()

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._ended

    def _by_mount(self, keys: list[str]) -> Iterable[list[str]]:
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(self._table.of_key(key), []).append(key)
        return found.values()

    def _open_watch(
        self,
        prefix: str,
        start: KeyStart = "end",
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Watch[V]:
        begin, decoding = self._checked_watch(prefix, start, conflate, queue_max, on_bad)
        within = {mount: each for mount in self._table.touched(prefix) if (each := self._watched(mount, prefix))}
        if isinstance(begin, int) and len(within) > 1:
            names = ", ".join(map(repr, within))
            raise BadInput(
                f"start={start!r} is a revision of one mount, and {prefix!r:.80} has {names}; watch each alone"
            )
        sources = [
            Source(mount, internals(self._inner[mount]).open_watch(inside, start, conflate, queue_max), hidden)
            for mount, (inside, hidden) in within.items()
        ]
        queue = MountedQueue(prefix, sources)
        return Watch(queue, decoding, _nothing, self)  # type: ignore[arg-type]

    def _watched(self, mount: str, prefix: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the prefix to watch in a mount, and the mounts inside to leave out; None if nothing of it is held."""
        inside = mount if mount != ROOT and mount.startswith(prefix) else prefix
        subtrees = self._inner[mount].subtrees if mount in self._inner else ()
        if not any(each.startswith(inside) or inside.startswith(each) for each in subtrees):
            return None
        return inside, self._table.nested(mount)

    def _all(self) -> list[Any]:
        with self._opening:
            return [*self._inner.values(), *self._opened.values()]

    def _end(self, timeout: float) -> None:
        limit = checks.wait_s(timeout)
        self._ended = True
        # Each inner Clone may wait for acknowledgements. With threads, all wait at the same time.
        threads = [Thread(target=internals(each).end, args=(timeout,), daemon=True) for each in self._all()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._told_states is None:
            self._dispatcher.state(State.CLOSED)
        else:
            self._told_states.tell()
        self._dispatcher.end(max(CALLBACKS_S, 0.0 if limit is None else limit))

    def __repr__(self) -> str:
        what = ", ".join(map(repr, self.subtrees)) or "write-only"
        return f"<{self._kind.__name__} {what} over {', '.join(self._inner)}: {len(self)} keys, {self.state}>"

    # -- verbs of one mount

    def set(
        self,
        key: str,
        value: Any,
        ttl: Ttl | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
        **other: Any,
    ) -> Any:
        """Set a key; see `Clone.set`."""
        for name in other:
            raise unknown_argument("set", name)
        return self._of(key).set(key, value, ttl, if_revision, timeout)

    def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Any:
        """Set many keys of one mount; see `Clone.set_many`. Raises `BadInput` for keys of two mounts."""
        keys, values = checks.items_of(items)
        return self._of_keys("set_many", keys).set_many((keys, values), ttl, timeout)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Any:
        """Delete a key; see `Clone.delete`."""
        return self._of(key).delete(key, if_revision, timeout)

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Any:
        """Delete many keys of one mount; see `Clone.delete_many`. Raises `BadInput` for keys of two mounts."""
        listed = checks.keys_of(keys)
        return self._of_keys("delete_many", listed).delete_many(listed, timeout)

    def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; see `Clone.pop`."""
        return self._of(key).pop(key, default, timeout)

    def touch(self, key: str, ttl: Ttl | None, timeout: float | None = None) -> Any:
        """Give a key another time to live; see `Clone.touch`."""
        return self._of(key).touch(key, ttl, timeout)

    def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """Return the value of a key; if there is none, set it to `default` first. See `Clone.setdefault`."""
        return self._of(key).setdefault(key, default, timeout)

    def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> Any:
        """Return the last versions of a key; see `Clone.history`."""
        return self._of(key).history(key, limit, timeout)

    def topic(self, name: str) -> Any:
        """Return a topic, from the mount that has it; see `Clone.topic`."""
        return self._opened_for(self._table.of_topic(name)).topic(name)

    def pin(self) -> Pin:
        """Return a snapshot with its revision. Raises `BadInput` for several mounts."""
        found: Pin = self._one("a pin").pin()
        return found

    def _verified(self, timeout: float | None, contents: bool) -> Check:
        left = left_of(timeout)
        found = [internals(each).verified(left(), contents) for each in self._inner.values()]
        if len(found) == 1:
            return found[0]
        # `compared_at` and `number` are 0, because a number is of one mount.
        return Check(
            all(each.ok for each in found),
            sum(each.keys for each in found),
            sum(each.revision_sum for each in found),
            Revision(0),
            differing=tuple(sorted(key for each in found for key in each.differing)[:NAMED_MAX]),
            differences=sum(each.differences for each in found),
            left_out=sum(each.left_out for each in found),
        )

    def _topics(self, timeout: float) -> list[dict[str, Any]]:
        """Return the facts of each topic of all mounts, by name."""
        found: list[dict[str, Any]] = []
        for mount, servers in self._table.servers.items():
            found += (each for each in topics_of(servers, timeout) if self._table.has_topic(mount, each["name"]))
        return sorted(found, key=lambda facts: str(facts["name"]))

    def _mounted_lease(self, ttl: Ttl, timeout: float | None = None) -> MountedLease:
        ms = checks.ttl_in_ms(ttl, "")
        if ms is None:
            raise BadTtl("a lease needs a ttl: the seconds its keys outlive a process that is gone")
        return MountedLease(self._table, self._writer_of, secrets.token_bytes(16), ms, timeout)


class _States:
    """The states of all mounts. It tells listeners the worst state. It refers to no Clone, so it keeps none alive."""

    def __init__(self, dispatcher: Dispatcher, cores: list[ClientCore], told: State | None) -> None:
        self._dispatcher, self._cores, self._lock = dispatcher, cores, Lock()
        self._told = told or self._now()

    def _now(self) -> State:
        return worst(core.state for core in self._cores)

    def tell(self, state: State | None = None) -> None:
        """Tell the listeners the worst state if it has changed. An inner Clone calls this with its new state."""
        with self._lock:
            now = self._now()
            if now is not self._told:
                self._told = now
                self._dispatcher.state(now)


def _nothing() -> None:
    """Do nothing when a `Watch` closes: the queue of a view closes the inner watches itself."""
