"""A party: the members that are present. Each has a key that belongs to a lease, which ends with the program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Self

from chp.numbers import UNKNOWN
from chp_client import checks
from chp_client.agent.lease import Lease
from chp_client.agent.waiting import Waiter, at_once
from chp_client.checks import Ttl
from chp_client.clone.aio import AsyncClone
from chp_client.clone.base import BaseClone, internals
from chp_client.clone.clone import Clone

from .lock import TTL_S, own_name
from .places import GIVE_BACK_S, checked_value, contender_key, folder, is_contender, name_of, of_kind

# A number above every revision.
NEWEST = 1 << 63


class _Party:
    _kind: type[Any] = Clone

    def __init__(self, clone: Any, path: str, name: str | None = None, *, ttl: Ttl = TTL_S, value: Any = None) -> None:
        self._clone: BaseClone[Any] = of_kind(clone, self._kind, folder(path))
        self._ttl = checks.lease_ttl_in_ms(ttl) / 1000
        self._value = checked_value(self._clone, value)
        self.key = contender_key(path, name or own_name())
        self._path = self.key.rpartition("/")[0] + "/"
        self._lease: Lease | None = None

    def members(self) -> dict[str, Any]:
        """Return the name of each member with its value. Of two members of one name, the later one counts."""
        found = self._clone.prefix(self._path).items()
        members = [(name_of(key), self._revision(key), value) for key, value in found if is_contender(key, self._path)]
        members.sort(key=itemgetter(0, 1))
        return {name: value for name, _, value in members}

    def _revision(self, key: str) -> int:
        entry = self._clone.entry(key)
        if entry is None:
            return 0
        # A set of this program that is on its way gets its revision later.
        return NEWEST if entry.revision == UNKNOWN else entry.revision

    def __iter__(self) -> Iterator[str]:
        return iter(self.members())

    def __contains__(self, name: object) -> bool:
        return name in self.members()

    def __len__(self) -> int:
        return sum(is_contender(key, self._path) for key in self._clone.prefix(self._path))

    async def _join(self, waits: Waiter) -> None:
        if self._lease is None or self._lease.lost:
            self._lease = await waits.made(partial(internals(self._clone).new_lease, self._ttl))
        await waits.done(partial(self._lease.set, self.key, self._value))

    async def _leave(self, waits: Waiter) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and not lease.closed:
            await waits.done(lease.end)


class Party(_Party):
    """A party: `with Party(clone, "/workers", "host-1", value=b"10.0.0.2:80") as party: print(party.members())`."""

    def join(self, timeout: float | None = None) -> None:
        """Become a member, until `leave`. Call it again if the lease was lost."""
        at_once(self._join(internals(self._clone).waits(timeout)))

    def leave(self) -> None:
        """Leave the members."""
        at_once(self._leave(internals(self._clone).waits(GIVE_BACK_S)))

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()


class AsyncParty(_Party):
    """`Party` for an AsyncClone."""

    _kind = AsyncClone

    async def join(self, timeout: float | None = None) -> None:
        """Become a member; see `Party.join`."""
        await self._join(internals(self._clone).waits(timeout))

    async def leave(self) -> None:
        """Leave the members; see `Party.leave`."""
        await self._leave(internals(self._clone).waits(GIVE_BACK_S))

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leave()
