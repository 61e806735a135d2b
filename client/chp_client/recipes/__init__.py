"""Recipes: what programs do together, built of leases, conditional sets and watches; the names are kazoo's.

    with Lock(clone, "/locks/nightly") as lock:             one holder; lock.token fences what is outside
    with Semaphore(clone, "/locks/licences", 5): ...        five
    Election(clone, "/leader", "host-1").run(lead)          who is first leads, for as long as it lives
    Counter(clone, "/visits").add()                         each addition counts once
    with Party(clone, "/workers", "host-1") as party: ...   who is there

All but the counter stand on a place in a queue, kept by a lease (`places.py`): a program that dies, or stands still
for longer than its ttl, has lost it, and the next one is woken. Each name has an `Async` twin for an AsyncClone.

Limits: the Clone has to hold the keys of what it takes part in. A lease does not stop its holder: a program that stood
still, or whose messages were late, may for a moment believe that it holds what somebody else has by now. `held` is what
is known here; what must never be done by two has to look at the token, which grows with each holder.
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
