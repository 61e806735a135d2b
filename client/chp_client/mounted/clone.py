"""`MountedClone`: a Clone of several pairs. `Clone(...)` makes one if its servers are mounts.

    clone = Clone("/=a:5556,b:5566 /rates/=c:5556,d:5566")
    clone["/rates/EUR/USD"] = b"1.0832"        # goes to c or d
    clone.mounts["/rates/"].revision           # a revision is of one mount

It has an inner Clone for each mount that its subtrees touch. A Clone that only writes has one for each mount, and a
mount that only a topic needs gets one when the topic is used. Order and atomicity hold within a mount, so a call that
spans two mounts is refused with both names, unless it promises neither.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from chp.errors import BadInput, BadTtl
from chp.headers import DURABILITY_NAMES
from chp.numbers import Revision

from .. import checks
from ..agent.changes import Change
from ..agent.dispatch import Dispatcher, Listener
from ..agent.lease import Lease
from ..agent.listeners import Listening
from ..agent.tickets import Ticket
from ..agent.watch import Watch
from ..agent.writer import Items, Writer
from ..checks import Ttl
from ..clone import clone as plain
from ..clone.atomic import DELETE_KEYS, NOTHING
from ..clone.base import CALLBACKS_S, OF_MOUNTS, Pin, internals
from ..clone.clone import Clone
from ..clone.health import NAMED_MAX, Check
from ..clone.mapping import Entry
from ..clone.prefix_view import KeyIndex, PrefixView
from ..codecs import Codec, OnBad, V
from ..core.core import ClientCore
from ..core.events import Ack, State
from ..mount_table import ROOT
from ..port.history import Version
from ..renamed import unknown_argument
from ..starts import KeyStart, key_start
from ..target import FilePath, Servers, mounts_of
from ..topics.reader import PATIENCE_S
from ..topics.topic import Topic, topics_of
from ..topics.transaction import Transaction
from ..typed import codec_of
from .copy import MountedIndex, MountedMap, MountedReader
from .transaction import MountedLease, MountedTransaction
from .watch import MountedQueue, Source

# The states of a copy, the best first.
WORSE = (State.SYNCED, State.STALE, State.CONNECTING, State.CLOSED)


def worst(states: Iterable[State]) -> State:
    """Return the worst of the states of several mounts; a view is closed once all of them are."""
    found = set(states)
    return max((found - {State.CLOSED}) or found, key=WORSE.index)


class MountedClone(Clone[V]):
    """The view over several pairs; see `Clone` for its verbs and arguments. `window_bytes` is for each mount."""

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
        self.name = name or f"{os.getpid()}-mounts-{secrets.token_hex(2)}"
        self.subtrees = tuple(held)
        self._table, self._settings = mounts, settings
        self._codec = codec_of(codec)
        self._inner: dict[str, Clone[V]] = {}
        # The Clones that topics need beside those, which only write.
        self._opened: dict[str, Clone[V]] = {}
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

    def _made(self, mount: str, subtrees: Sequence[str]) -> Clone[V]:
        codec: Any = "raw" if self._codec is None else self._codec
        named = {"subtrees": subtrees} if subtrees else {"subtree": None}
        return Clone(self._table.servers[mount], codec=codec, name=self.name, **named, **self._settings)

    # -- which mount

    @property
    def mounts(self) -> Mapping[str, Clone[V]]:  # type: ignore[override]
        """The Clone of each mount that is held here, by prefix."""
        return dict(self._inner)

    def _of(self, key: str) -> Clone[V]:
        """Return the Clone that has a key. Raises `BadKey`."""
        mount = self._table.find(key) if isinstance(key, str) else None
        inner = None if mount is None else self._inner.get(mount)
        if inner is None:
            self._table.of_key(key)
            raise checks.not_held(key, self.subtrees)
        return inner

    def _of_keys(self, what: str, keys: list[str]) -> Clone[V]:
        """Return the Clone that has all these keys. Raises `BadInput` with both mounts if the keys are of several."""
        if not keys:
            return next(iter(self._inner.values()))
        self._table.of_keys(what, keys)
        return self._of(keys[0])

    def _of_topic(self, name: str) -> Clone[V]:
        """Return a Clone of the pair that has a topic."""
        return self._opened_for(self._table.of_topic(name))

    def _opened_for(self, mount: str) -> Clone[V]:
        with self._opening:
            # An empty Clone is false, as an empty dict is.
            found = self._inner.get(mount, self._opened.get(mount))
            if found is None:
                self._opened[mount] = found = self._made(mount, ())
                if self._ended:
                    found.close(0.0)
            return found

    def _writer_of(self, mount: str, key: str | None) -> Writer:
        return internals(self._of(key) if key is not None else self._opened_for(mount)).writer

    def _within(self, path: str) -> Clone[V]:
        mount = self._table.of_key(path)
        inside = [each for each in self._table.nested(mount) if path.endswith("/") and each.startswith(path)]
        if inside:
            raise BadInput(f"in {path!r:.80} lies the mount {inside[-1]!r}; a recipe needs a path within one mount")
        return self._of(path)

    def _one(self, what: str) -> Clone[V]:
        """Return the only Clone. Raises `BadInput` if there are several."""
        if len(self._inner) == 1:
            return next(iter(self._inner.values()))
        names = ", ".join(map(repr, self._inner))
        raise BadInput(f"{what} is of one mount, and this Clone has {names}; ask clone.mounts[PREFIX]")

    def _no_part(self) -> NoReturn:
        names = ", ".join(map(repr, self._inner))
        raise BadInput(f"this needs a Clone of one pair, and this one has the mounts {names}; use clone.mounts[PREFIX]")

    if not TYPE_CHECKING:
        # What other parts use of a Clone of one pair is refused in a clear sentence.
        _writer = _mailbox = _core = property(_no_part)

    # -- reading

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

    def pin(self) -> Pin:
        """Return a snapshot with its revision. Raises `BadInput` for several mounts."""
        return self._one("a pin").pin()

    def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """Return the last versions of a key; see `Clone.history`."""
        return self._of(key).history(key, limit, timeout)

    # -- what the copy is worth

    @property
    def state(self) -> State:
        """The worst of the states of the mounts; raises `Lagging` once after a lag, with on_lag="raise"."""
        return worst(each.state for each in self._inner.values())

    @property
    def staleness_s(self) -> float:
        """The largest of the mounts: for how long some copy has not been known to be current."""
        return max(each.staleness_s for each in self._inner.values())

    @property
    def lag_s(self) -> float:
        """The largest of the mounts."""
        return max(each.lag_s for each in self._inner.values())

    @property
    def revision(self) -> Revision:
        """The number up to which everything held is complete. Raises `BadInput` for several mounts."""
        return self._one("a revision").revision

    @property
    def active(self) -> str | None:
        """The address of the server that is followed. Raises `BadInput` for several mounts."""
        return self._one("the active server").active

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
        """Unacknowledged batches and bytes of all mounts."""
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
        """Tell the listeners the states from now on. `told` is what they know, or None for the present one."""
        with self._opening:
            if self._told_states is None:
                cores = [internals(each).mailbox.core for each in self._inner.values()]
                self._told_states = states = _States(self._dispatcher, cores, told)
                for each in self._inner.values():
                    each.on_state(states.tell)
                states.tell()

    def verify(self, timeout: float | None = 30.0, *, contents: bool = True) -> Check:
        """Check the copies of all mounts; see `Clone.verify`. The numbers are 0, as each is of one mount."""
        left = _left(timeout)
        found = [each.verify(left(), contents=contents) for each in self._inner.values()]
        if len(found) == 1:
            return found[0]
        named = tuple(sorted(key for each in found for key in each.differing)[:NAMED_MAX])
        return Check(
            all(each.ok for each in found),
            sum(each.keys for each in found),
            sum(each.revision_sum for each in found),
            Revision(0),
            differing=named,
            differences=sum(each.differences for each in found),
            left_out=sum(each.left_out for each in found),
        )

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._ended

    # -- setting and deleting

    def set(
        self,
        key: str,
        value: V,
        ttl: Ttl | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
        **other: Any,
    ) -> Ticket:
        """Set a key; see `Clone.set`."""
        for name in other:
            raise unknown_argument("set", name)
        return self._of(key).set(key, value, ttl, if_revision, timeout)

    def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Ticket:
        """Set many keys of one mount; see `Clone.set_many`. Raises `BadInput` for keys of two mounts."""
        keys, values = checks.items_of(items)
        return self._of_keys("set_many", keys).set_many((keys, values), ttl, timeout)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key; see `Clone.delete`."""
        return self._of(key).delete(key, if_revision, timeout)

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys of one mount; see `Clone.delete_many`. Raises `BadInput` for keys of two mounts."""
        listed = checks.keys_of(keys)
        return self._of_keys("delete_many", listed).delete_many(listed, timeout)

    def clear(self) -> None:
        """Delete every key that is held here, for everybody, one mount after the other; see `Clone.clear`."""
        for keys in self._by_mount(list(self._shown)):
            for start in range(0, len(keys), plain.CLEARED_ITEMS):
                self.delete_many(keys[start : start + plain.CLEARED_ITEMS])

    def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key held here that begins with `prefix`, in all mounts; see `Clone.delete_prefix`."""
        if prefix == "":
            raise BadInput("an empty prefix is everything; use clear() if that is meant")
        left, view, gone, after = _left(timeout), self.prefix(prefix), 0, None
        while keys := view.page_of_keys(DELETE_KEYS, after):
            tickets = [self.delete_many(some, left()) for some in self._by_mount(keys)]
            for ticket in tickets:
                ticket.wait(left())
            gone, after = gone + len(keys), keys[-1]
        return gone

    def _by_mount(self, keys: list[str]) -> Iterable[list[str]]:
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(self._table.of_key(key), []).append(key)
        return found.values()

    def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; see `Clone.pop`."""
        return self._of(key).pop(key, default, timeout)

    def touch(self, key: str, ttl: Ttl | None, timeout: float | None = None) -> Ack:
        """Give a key another time to live; see `Clone.touch`."""
        return self._of(key).touch(key, ttl, timeout)

    def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key of any mount and return it with its value; see `Clone.popitem`."""
        left, synced = _left(timeout), False
        while True:
            while (key := self._reader.some_key()) is not None:
                value = self.pop(key, NOT_THERE, left())
                if value is not NOT_THERE:
                    return key, value
            if synced:
                raise KeyError("popitem(): this Clone holds no keys")
            self.sync(left())
            synced = True

    def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """Return the value of a key; if there is none, set it to `default` first. See `Clone.setdefault`."""
        return self._of(key).setdefault(key, default, timeout)

    def lease(self, ttl: Ttl, timeout: float | None = None) -> Lease:
        """Make a lease, whose keys are of one mount: that of the first key. See `Clone.lease`."""
        ms = checks.ttl_in_ms(ttl)
        if ms is None:
            raise BadTtl("a lease needs a ttl: the seconds its keys outlive a process that is gone")
        return MountedLease(self._table, self._writer_of, secrets.token_bytes(16), ms, timeout)

    # -- waiting

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged, in all mounts; see `Clone.flush`."""
        left, refused = _left(timeout), None
        for each in self._all():
            try:
                each.flush(left())
            except TimeoutError:
                raise
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def sync(self, timeout: float | None = None) -> Ack:
        """Return once a read sees every set that was acknowledged before this call, in any mount; see `Clone.sync`.

        The acknowledgement has the weakest durability of all mounts, and the revision 0 if there are several.
        """
        left = _left(timeout)
        tickets = [internals(each).writer.sync(left()) for each in self._inner.values()]
        acks = [ticket.wait(left()) for ticket in tickets]
        if len(acks) == 1:
            return acks[0]
        return Ack(0, 0, min((ack.durability for ack in acks), key=DURABILITY_NAMES.index))

    def wait_until_synced(self, timeout: float | None = None) -> None:
        """Return once the copies of all mounts are complete and current; see `Clone.wait_until_synced`."""
        left = _left(timeout)
        for mount, each in self._inner.items():
            try:
                each.wait_until_synced(left())
            except TimeoutError as error:
                raise TimeoutError(f"mount {mount}: {error}") from None

    # -- watches

    def _open_watch(
        self,
        prefix: str,
        start: KeyStart = "end",
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Watch[V]:
        checks.prefix_and_queue(prefix, queue_max, self.subtrees, self._shown)
        begin, decoding = key_start(start), self._reader.decoding(on_bad)
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
        """Return what to watch in a mount, and the mounts to leave out; None if nothing is held there."""
        inside = mount if mount != ROOT and mount.startswith(prefix) else prefix
        subtrees = self._inner[mount].subtrees if mount in self._inner else ()
        if not any(each.startswith(inside) or inside.startswith(each) for each in subtrees):
            return None
        return inside, self._table.nested(mount)

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(Listening(listener, prefix, opened, self._dispatcher.put), start)

    # -- topics

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction within one mount; see `Clone.transaction`. `BadInput` names two mounts."""
        return MountedTransaction(self._table, self._writer_of, timeout)

    def topic(self, name: str) -> Topic:
        """Return a log of messages of the mount that has it; see `Clone.topic`."""
        return self._of_topic(name).topic(name)

    def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic of all mounts, by name; see `Clone.topics`."""
        found: list[dict[str, Any]] = []
        for mount, servers in self._table.servers.items():
            found += (each for each in topics_of(servers, timeout) if self._table.has_topic(mount, each["name"]))
        return sorted(found, key=lambda facts: str(facts["name"]))

    # -- the end

    def _all(self) -> list[Clone[V]]:
        with self._opening:
            return [*self._inner.values(), *self._opened.values()]

    def _end(self, timeout: float) -> None:
        limit = checks.wait_s(timeout)
        self._ended = True
        # Each may wait for acknowledgements, so they wait at the same time.
        threads = [Thread(target=each.close, args=(timeout,), daemon=True) for each in self._all()]
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
        return f"<Clone {what} over {', '.join(self._inner)}: {len(self)} keys, {self.state}>"


NOT_THERE: Any = object()


class _States:
    """The states of all mounts, of which the worst is told. It knows no Clone, so that none is kept alive by it."""

    def __init__(self, dispatcher: Dispatcher, cores: list[ClientCore], told: State | None) -> None:
        self._dispatcher, self._cores, self._lock = dispatcher, cores, Lock()
        self._told = told or self._now()

    def _now(self) -> State:
        return worst(core.state for core in self._cores)

    def tell(self, state: State | None = None) -> None:
        """Tell the listeners the worst state if it is another one now. A mount has changed to a state."""
        with self._lock:
            now = self._now()
            if now is not self._told:
                self._told = now
                self._dispatcher.state(now)


def _left(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that tells how many seconds are left of the time of a call."""
    limit = checks.wait_s(timeout)
    until = None if limit is None else monotonic() + limit
    return lambda: None if until is None else max(0.0, until - monotonic())


def _nothing() -> None:
    """Do nothing: the queue of a view ends its watches itself."""


OF_MOUNTS[Clone] = MountedClone
