"""Recipes for programs that work together, made of leases, conditional sets and watches. The names are kazoo's.

    with Lock(clone, "/locks/nightly") as lock:             one holder; lock.token protects things outside the map
    with Semaphore(clone, "/locks/licences", 5): ...        up to five holders
    Election(clone, "/leader", "host-1").run(lead)          the first contender leads as long as it lives
    Counter(clone, "/visits").add()                         each addition counts once
    with Party(clone, "/workers", "host-1") as party: ...   the members that are present

Locks, semaphores and elections use a place in a queue, kept by a lease (`places.py`). A program that dies, or is
stopped for longer than its ttl, loses its place, and the next program wakes. The keys of a party belong to a lease too.
Each name has an `Async` twin for an AsyncClone.

Limits: the Clone has to hold the keys of its recipes. A lease does not stop its holder: a program that was stopped, or
whose messages were late, may believe for a moment that it holds what another program holds by now. `held` tells only
what this program knows. If two programs must never do a thing at once, the thing has to check the token, which grows
with each holder.
"""

from ..signatures import shorten
from .counter import AsyncCounter, Counter
from .lock import AsyncElection, AsyncLock, AsyncSemaphore, Election, Lock, Semaphore
from .party import AsyncParty, Party
from .places import Lost

__all__ = [
    "AsyncCounter", "AsyncElection", "AsyncLock", "AsyncParty", "AsyncSemaphore", "Counter", "Election", "Lock", "Lost",
    "Party", "Semaphore",
]  # fmt: skip
shorten([Lock, Semaphore, Election, Counter, Party, AsyncLock, AsyncSemaphore, AsyncElection, AsyncCounter, AsyncParty])


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__all__", "__doc__", "__name__", "__file__", "__path__"]
