"""Who is there: a key for each member, by a lease; it goes with its program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Self

from chp_client.clone.aio import AsyncClone
from chp_client.clone.clone import Clone

from .lock import TTL_S, own_name
from .places import contender_key, is_contender, name_of, nothing
from .steps import GIVE_BACK_S, Do, Open, Steps, of_kind, take, take_async


class _Party:
    _kind: type[Any] = Clone

    def __init__(
        self, clone: Any, path: str, name: str | None = None, *, ttl: float = TTL_S, value: Any = None
    ) -> None:
        self._clone, self._ttl = of_kind(clone, self._kind), ttl
        self._value = nothing(clone) if value is None else value
        self.key = contender_key(path, name or own_name())
        self._path = self.key.rpartition("/")[0] + "/"
        self._lease: Any = None

    def members(self) -> dict[str, Any]:
        """The name of each member, and what it shows; of two of one name the later one's."""
        found = self._clone.under(self._path).items()
        return {name_of(key): value for key, value in found if is_contender(key, self._path)}

    def __iter__(self) -> Iterator[str]:
        return iter(self.members())

    def __contains__(self, name: object) -> bool:
        return name in self.members()

    def __len__(self) -> int:
        return sum(is_contender(key, self._path) for key in self._clone.under(self._path))

    def _join(self) -> Steps:
        if self._lease is None or self._lease.lost:
            self._lease = yield Open(self._clone, self._ttl)
        yield Do(partial(self._lease.set, self.key, self._value))

    def _leave(self) -> Steps:
        lease, self._lease = self._lease, None
        if lease is not None:
            yield Do(lease.close, GIVE_BACK_S)


class Party(_Party):
    """`with Party(clone, "/workers", "host-1", value=b"10.0.0.2:80") as party: print(party.members())`."""

    def join(self, timeout: float | None = None) -> None:
        """Be there, until `leave`; again if the lease was lost."""
        take(self._join(), timeout)

    def leave(self) -> None:
        """Be gone."""
        take(self._leave(), GIVE_BACK_S)

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()


class AsyncParty(_Party):
    """`Party` for an AsyncClone."""

    _kind = AsyncClone

    async def join(self, timeout: float | None = None) -> None:
        """As of `Party`."""
        await take_async(self._join(), timeout)

    async def leave(self) -> None:
        """As of `Party`."""
        await take_async(self._leave(), GIVE_BACK_S)

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leave()
