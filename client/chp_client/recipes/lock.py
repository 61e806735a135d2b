"""Lock, Semaphore and Election. Each is a place in a queue (places.py)."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Self

from chp.numbers import Revision
from chp_client import checks
from chp_client.agent.waiting import at_once
from chp_client.checks import Ttl
from chp_client.clone.aio import AsyncClone
from chp_client.clone.base import internals
from chp_client.clone.clone import Clone

from .places import GIVE_BACK_S, QueuePlace, folder, name_of, of_kind

TTL_S = 10.0


def own_name() -> str:
    """Return the default name of this process: its host and its process id."""
    return f"{socket.gethostname().replace(':', '-')}-{os.getpid()}"


class _Queue:
    """The common part of the recipes for a Clone and for an AsyncClone. Its methods never wait."""

    _kind: type[Any] = Clone

    def __init__(
        self, clone: Any, path: str, name: str | None = None, *, ttl: Ttl = TTL_S, value: Any = None, limit: int = 1
    ) -> None:
        self._clone = of_kind(clone, self._kind, folder(path))
        self._place = QueuePlace(self._clone, path, name or own_name(), limit=limit, ttl=ttl, value=value)

    @property
    def held(self) -> bool:
        """True if the lock is held, as far as this program knows. A stopped program learns of a loss late."""
        return self._place.held

    @property
    def token(self) -> Revision | None:
        """The fencing token: a number that grows with each holder. Give it to the resource that the lock protects."""
        return self._place.token

    def contenders(self) -> list[str]:
        """Return the names of the contenders that hold the lock or wait for it, in their order."""
        return [name_of(key) for key in self._place.contenders()]

    @property
    def leader(self) -> str | None:
        """The name of the first contender; None if there is none."""
        return next(iter(self.contenders()), None)

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Call `listener()` if the lease of this place is lost. The call is on the thread of the Clone's listeners."""
        self._place.on_lost(listener)

    def __repr__(self) -> str:
        how = f"held, token {self.token}" if self.held else "not held"
        return f"<{type(self).__name__} {self._place.path[:-1]} as {self._place.name}: {how}>"


class Semaphore(_Queue):
    """A lock with at most `limit` holders. All its users must give the same limit. `value` is the value of the own key.

    One object is for one thread, and is not re-entrant: a second `acquire` before `release` raises `BadInput`.
    """

    def __init__(self, clone: Any, path: str, limit: int, name: str | None = None, **options: Any) -> None:
        super().__init__(clone, path, name, limit=limit, **options)

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock, at most `timeout` seconds. Return True if this object holds the lock now.

        Raises `Lost` if the lease of this object ended meanwhile, and what `Clone.set` raises.
        """
        return at_once(self._place.acquire(internals(self._clone).waits(timeout)))

    def release(self) -> None:
        """Give the lock back. Do nothing if this object does not hold it."""
        at_once(self._place.release(internals(self._clone).waits(GIVE_BACK_S)))

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Lock(Semaphore):
    """A lock with one holder: `with Lock(clone, "/locks/nightly") as lock: ... lock.token`."""

    def __init__(self, clone: Any, path: str, name: str | None = None, **options: Any) -> None:
        super().__init__(clone, path, 1, name, **options)


class Election(Lock):
    """An election: `Election(clone, "/leader", "host-1").run(lead)`. The first contender leads; others see `value`."""

    def run(self, lead: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait for the leadership, call `lead()`, and give the leadership up. Raises TimeoutError if not elected."""
        checks.callback("lead", lead)
        if not self.acquire(timeout):
            raise TimeoutError(f"not elected within {timeout} s; {self.leader} leads")
        try:
            return lead()
        finally:
            self.release()


class AsyncSemaphore(_Queue):
    """`Semaphore` for an AsyncClone: `async with AsyncSemaphore(clone, "/locks/licences", 5): ...`."""

    _kind = AsyncClone

    def __init__(self, clone: Any, path: str, limit: int, name: str | None = None, **options: Any) -> None:
        super().__init__(clone, path, name, limit=limit, **options)

    async def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock. Return True if this object holds it now; see `Semaphore.acquire`."""
        return await self._place.acquire(internals(self._clone).waits(timeout))

    async def release(self) -> None:
        """Give the lock back; see `Semaphore.release`."""
        await self._place.release(internals(self._clone).waits(GIVE_BACK_S))

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.release()


class AsyncLock(AsyncSemaphore):
    """`Lock` for an AsyncClone."""

    def __init__(self, clone: Any, path: str, name: str | None = None, **options: Any) -> None:
        super().__init__(clone, path, 1, name, **options)


class AsyncElection(AsyncLock):
    """`Election` for an AsyncClone."""

    async def run(self, lead: Callable[[], Awaitable[Any]], timeout: float | None = None) -> Any:
        """Wait for the leadership, and await `lead()`, which is an `async def`; see `Election.run`."""
        checks.callback("lead", lead)
        if not await self.acquire(timeout):
            raise TimeoutError(f"not elected within {timeout} s; {self.leader} leads")
        try:
            return await lead()
        finally:
            await self.release()
