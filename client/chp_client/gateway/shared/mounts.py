"""The mounts of a gateway: for each pair of servers its copy, its writes, the order of its keys, and its servers.

    of_key, of_topic, of_rows --> the one mount of a key, a topic or rows; rows of two mounts raise `Problem`
    touched                   --> the mounts that have keys of a prefix, and the part of the prefix in each
    page                      --> sorted keys over the edges of mounts

A gateway of one pair has one mount, whose prefix is "". Such a gateway looks no mount up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple

from chp import addresses
from chp.access import TOPICS
from chp.errors import BadInput, BadKey
from chp.numbers import describe

from ...agent.names import only_ipv6
from ...clone.aio import AsyncClone
from ...clone.base import internals
from ...core.events import State
from ...mount_table import ROOT, Mounts, one
from ...mounted.base import worst
from ..problems import Problem
from . import positions
from .key_order import KeysInOrder
from .pair_view import PairView
from .rows import BatchRows
from .writes import MARKERS, Writes

# At most this many pages of messages and lists of versions are read from one pair at once. Each has a thread and a
# socket.
READING_MAX = 16
# Threads for questions to pairs: as many as asyncio has by default on four cores, and some more for each mount, as a
# pair that is away blocks threads.
THREADS, THREADS_A_MOUNT = 8, 4


class GatewayMount:
    """The part of a gateway that belongs to one pair."""

    def __init__(
        self,
        prefix: str,
        servers: Sequence[str],
        subtrees: Sequence[str],
        nested: tuple[str, ...],
        most: Callable[[State], int] | None = None,
    ) -> None:
        """Begin to follow a pair. `most` returns, for a state of the copy, how many writes may wait for the pair."""
        # The prefix is "" if there is one pair. `servers` may be a client file, which has the keys of the servers.
        self.prefix, self.servers, self.subtrees = prefix, servers, tuple(subtrees)
        self._named = prefix and positions.named(prefix, 0).removesuffix(describe(0))
        # The mounts inside this one. The pair may have keys there too, which are not shown.
        self.nested = nested
        self.clone = AsyncClone(servers, subtrees=[*subtrees, MARKERS], name=f"gateway{prefix and ' '}{prefix}")
        self.keys = KeysInOrder(self.clone)
        clone, room = self.clone, None if most is None else lambda: most(clone.state)
        self.writes = Writes(clone, internals(clone), self.keys.written, room)
        self.reading = asyncio.Semaphore(READING_MAX)
        self.pair = PairView(servers)
        # For each server, True if it is reached by IPv6.
        self.ipv6: list[bool] = []

    async def look_up(self) -> None:
        """Find out which servers are reached by IPv6."""
        full = [addresses.full(server) for server in self.servers]
        self.ipv6 = [addresses.is_ipv6(each) or await asyncio.to_thread(only_ipv6, each) for each in full]

    @property
    def position(self) -> str:
        """The position of the copy."""
        return f"{self._named}{describe(self.clone.revision)}"

    def what(self, text: str) -> str:
        """Return a text about this pair; it begins with the mount if there are several pairs."""
        return f"mount {self.prefix}: {text}" if self.prefix else text

    async def close(self) -> None:
        """Close all parts."""
        self.keys.close()
        self.pair.close()
        await self.clone.close()


class Touched(NamedTuple):
    """A mount that has keys of a prefix, and the part of the prefix that lies in it."""

    mount: GatewayMount
    prefix: str


class GatewayMounts:
    """The mounts of one gateway, by prefix, in the order of the table."""

    def __init__(self, servers: Sequence[str] | Mounts, subtrees: Sequence[str], requests: int) -> None:
        """Begin to follow the pairs; the event loop has to run. `requests` is the bound of all requests that wait."""
        self._table = servers if isinstance(servers, Mounts) else None
        self._made: dict[str, GatewayMount] = {}
        if isinstance(servers, Mounts):
            held = _held(servers, subtrees)

            def most(state: State) -> int:
                """Return a bound that leaves room for the other mounts while a pair is slow or away."""
                return max(1, requests // (2 if state is State.SYNCED else 2 * len(held)))

            for prefix, parts in held.items():
                nested = servers.nested(prefix)
                self._made[prefix] = GatewayMount(prefix, servers.servers[prefix], parts, nested, most)
        else:
            self._made[""] = GatewayMount("", servers, subtrees, ())
        only = next(iter(self._made.values())) if self._table is None else None
        # `find` returns the mount that has a key, or None. For one pair it always returns the only mount.
        self.find: Callable[[str], GatewayMount | None] = self._find if only is None else lambda key: only
        self._only = only

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Find out how the servers are reached; at the end, close all mounts at the same time."""
        if self._table is not None:
            # A question to a pair that is away blocks a thread. Enough threads are left for questions to other pairs.
            threads = ThreadPoolExecutor(THREADS + THREADS_A_MOUNT * len(self._made))
            asyncio.get_running_loop().set_default_executor(threads)
        try:
            for each in self:
                await each.look_up()
            yield
        finally:
            await asyncio.gather(*(each.close() for each in self))

    def __iter__(self) -> Iterator[GatewayMount]:
        return iter(self._made.values())

    @property
    def several(self) -> bool:
        """True if the gateway has mounts."""
        return self._table is not None

    # -- which mount

    def _find(self, key: str) -> GatewayMount | None:
        assert self._table is not None, "one pair has every key"
        mount = self._table.find(key)
        return None if mount is None else self._made.get(mount)

    def of_key(self, key: str) -> GatewayMount:
        """Return the mount that has a key. Raise `BadKey` if no mount here has it."""
        if (found := self.find(key)) is not None:
            return found
        assert self._table is not None, "one pair has every key"
        self._table.of_key(key)
        raise BadKey(f"{key!r:.80} is not served here")

    def of_topic(self, name: str) -> GatewayMount:
        """Return the mount that has a topic. Raise `BadInput` if no mount here has it."""
        if self._only is not None:
            return self._only
        assert self._table is not None, "one pair has every topic"
        mount = self._table.of_topic(name)
        if mount not in self._made:
            raise BadInput(f"the topic {name!r:.80} is of the mount {mount!r}, which is not served here")
        return self._made[mount]

    def of_prefix(self, prefix: str | None) -> GatewayMount:
        """Return the mount with this prefix, or the only mount; else raise a `Problem` that names all mounts."""
        if self._only is not None:
            return self._only
        if (found := self._made.get(prefix or "")) is not None:
            return found
        known, named = ", ".join(map(repr, self._made)), "no mount is named" if prefix is None else repr(prefix)[:60]
        raise Problem(400, "bad-query", f"mount: {named}; a WebSocket is of one mount: ?mount= with one of {known}")

    def of_rows(self, rows: BatchRows) -> GatewayMount:
        """Return the one mount of all keys and topics of a write; raise `Problem` if they belong to several mounts.

        Raise `BadKey` for a key that no mount has.
        """
        if self._only is not None:
            return self._only
        assert self._table is not None, "one pair has all of it"
        table, keys = self._table, [*rows.keys, *rows.related]
        try:
            found: list[tuple[str, object]] = [(table.of_keys("the request", keys), keys[0])] if keys else []
            prefix = one("the request", [*found, *((table.of_topic(topic), topic) for topic in rows.topics)])
        except BadKey:
            raise
        except BadInput as error:
            raise Problem(400, "two-mounts", str(error)) from None
        if prefix not in self._made:
            raise BadInput(f"the mount {prefix!r} is not served here")
        return self._made[prefix]

    def has_topic(self, mount: GatewayMount, name: str) -> bool:
        """Return True if a mount has a topic."""
        return self._table is None or self._table.has_topic(mount.prefix, name)

    def touched(self, prefix: str) -> list[Touched]:
        """Return the mounts here that may have keys of a prefix, at least one. Raise `BadInput` if none has."""
        if self._only is not None:
            return [Touched(self._only, prefix)]
        assert self._table is not None, "one pair has every prefix"
        found = []
        for name in self._table.touched(prefix):
            inside = name if name != ROOT and name.startswith(prefix) else prefix
            mount = self._made.get(name)
            if mount is not None and any(each.startswith(inside) or inside.startswith(each) for each in mount.subtrees):
                found.append(Touched(mount, inside))
        if not found:
            raise BadInput(f"no mount here has keys that begin with {prefix!r:.80} ({self._table})")
        return found

    # -- over all mounts

    async def page(self, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Return at most `limit` keys behind `after` that begin with `prefix`, in order, and True if there are more."""
        if self._only is not None:
            return await self._only.keys.page(prefix, after, limit)
        assert self._table is not None, "one pair has its own page"
        found: list[str] = []
        # A mount's keys lie in several ranges if another mount lies inside it.
        for name, low, high in self._table.ranges(max(prefix, after), None):
            if len(found) > limit or (prefix and low > prefix and not low.startswith(prefix)):
                break
            if (mount := self._made.get(name)) is not None:
                most = limit + 1 - len(found)
                found += await mount.keys.between(prefix, low, high, most, behind=low == after)
        return found[:limit], len(found) > limit

    @property
    def count(self) -> int:
        """The number of keys that are shown."""
        if self._only is not None:
            return len(self._only.keys)
        assert self._table is not None, "one pair counts its own keys"
        return sum(self._made[name].keys.count(low, high) for name, low, high in self._table.ranges("", None)
                   if name in self._made)  # fmt: skip

    @property
    def state(self) -> State:
        """The worst of the states of the mounts."""
        return worst(each.clone.state for each in self)

    @property
    def staleness_s(self) -> float:
        """The largest staleness of the mounts: for how many seconds a copy has not been known to be current."""
        return max(each.clone.staleness_s for each in self)

    @property
    def lag_s(self) -> float:
        """The largest lag of the mounts: how many seconds old the last message was when it came."""
        return max(each.clone.lag_s for each in self)

    def describe(self) -> str:
        """Return the state and the servers of each pair that is not in sync, or of all pairs if all are in sync."""
        late = [each for each in self if each.clone.state is not State.SYNCED]
        return "; ".join(each.what(each.clone.describe()) for each in late or self)


def position_of(mounts: Iterable[GatewayMount]) -> str:
    """Return the position of the copies of some mounts."""
    return positions.text_of((each.prefix, each.clone.revision) for each in mounts)


def _held(table: Mounts, subtrees: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each mount that is served, the subtrees that its copy holds: none if only topics need the mount.

    A subtree of topics has no keys; the table says which mount has a topic.
    """
    of_topics = [each for each in subtrees if each.startswith(TOPICS)]
    of_keys = [each for each in subtrees if each not in of_topics]
    found = table.split(of_keys) if of_keys else {}
    for name in _topic_mounts(table, subtrees):
        found.setdefault(name, [])
    return {name: found[name] for name in table.servers if name in found}


def _topic_mounts(table: Mounts, subtrees: Sequence[str]) -> Iterator[str]:
    for subtree in subtrees:
        if TOPICS.startswith(subtree):
            yield from (each for each in (ROOT, *table.topics.values()) if each in table.servers)
        elif subtree.startswith(TOPICS):
            yield table.of_topic(subtree.removeprefix(TOPICS).partition("/")[0])
