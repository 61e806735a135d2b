"""A place in a queue, which locks, semaphores and elections use.

    <path>/<name>:<token>          one key for each contender, in the order of revisions; it has the contender's value
    <path>/<name>:<token>:held     set once the contender is among the first; its revision is the fencing token

Both keys belong to one lease, so they expire together, and no other client can end them. A contender among the first
`limit` has the place. Its copy has every set that came before its key, so no other contender can get in front of it.
The servers accept the second key only while the lease lives. Its revision is above those of all earlier holders.

A waiting contender watches only the contender in front of it. So a holder that leaves wakes one contender.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from chp.errors import BadInput, ChpError
from chp.keys import check_key
from chp.numbers import Revision
from chp_client import checks
from chp_client.agent.lease import Lease
from chp_client.agent.waiting import Waiter
from chp_client.clone.base import BaseClone, internals, within
from chp_client.clone.clone import Clone
from chp_client.core.events import State
from chp_client.errors import Closed, Refused

# A program waits at most this long, in seconds, for the servers when it gives a place back.
GIVE_BACK_S = 5.0
HELD = ":held"
# The token in a contender's key. It keeps two contenders of one name apart.
TOKEN_BYTES = 8
_CONTENDER = re.compile(rf"[^/:]+:[0-9a-f]{{{2 * TOKEN_BYTES}}}")


def folder(path: str) -> str:
    """Return the prefix of all keys of a recipe."""
    return f"{path.rstrip('/')}/" if isinstance(path, str) else path


def of_kind(clone: Any, kind: type[BaseClone[Any]], path: str) -> Any:
    """Return the Clone that a recipe uses. Raise `BadInput` if a Clone is given for an AsyncClone, or the reverse.

    For a Clone of several mounts, return the Clone of the mount with the recipe's keys. `path` is a key, or the folder
    of all keys.
    """
    if isinstance(clone, kind):
        return within(clone, path)
    if isinstance(clone, BaseClone):
        names = ("a Clone", "without") if issubclass(kind, Clone) else ("an AsyncClone", "with")
        raise BadInput(
            f"this recipe takes {names[0]}; of the other kind it is the one {names[1]} 'Async' before its name"
        )
    raise BadInput(f"a recipe takes {kind.__name__}, not {clone!r:.60}")


class Lost(ChpError):
    """The error of a place whose lease has ended: its program was stopped, or cut off, for longer than the ttl."""


def contender_key(path: str, name: str) -> str:
    """Return a new key for one contender below `path`; raise `BadInput` for a bad path or name."""
    if not isinstance(name, str) or not name or "/" in name or ":" in name:
        raise BadInput(f"a name is text without '/' and ':', not {name!r:.60}")
    if not isinstance(path, str) or not path.startswith("/"):
        raise BadInput(f"the path of a recipe begins with '/', as '/locks/nightly', not {path!r:.60}")
    key = f"{path.rstrip('/')}/{name}:{secrets.token_hex(TOKEN_BYTES)}"
    check_key(key + HELD)
    return key


def name_of(key: str) -> str:
    """Return the name of the contender that has a key."""
    return key.rpartition("/")[2].rpartition(":")[0]


def is_contender(key: str, path: str) -> bool:
    """Return True if a key is one that `contender_key` made for `path`, and not for a longer path."""
    return _CONTENDER.fullmatch(key, len(path)) is not None


def checked_value(clone: BaseClone[Any], value: Any) -> Any:
    """Return the value of a contender's key, or an empty one for None; `BadValue` if the Clone can't send it."""
    if value is None:
        return b"" if clone.codec is None else ""
    internals(clone).writer.encoded(value)
    return value


class QueuePlace:
    """One contender's place; `clone` is a Clone or an AsyncClone."""

    def __init__(self, clone: BaseClone[Any], path: str, name: str, *, limit: int, ttl: checks.Ttl, value: Any) -> None:
        if type(limit) is not int or limit < 1:
            raise BadInput(f"the limit is how many may hold it, at least 1, not {limit!r:.60}")
        self._clone, self._limit, self._ttl = clone, limit, checks.lease_ttl_in_ms(ttl) / 1000
        self._value = checked_value(clone, value)
        self.key = contender_key(path, name)
        checks.held_key(self.key, clone.subtrees, read=True)
        self.path = self.key.rpartition("/")[0] + "/"
        self.name = name
        self.token: Revision | None = None
        self._lease: Lease | None = None

    # -- what is known here

    @property
    def held(self) -> bool:
        """True if the place is held, as far as this copy shows: it has the own key, and the copy is current."""
        lease = self._lease
        there = self.token is not None and self.key in self._clone and lease is not None and not lease.lost
        # A closed Clone, such as that in the child of a fork, does not learn whether its lease is lost.
        known = there and self._clone.state is not State.CLOSED
        return known and self._clone.staleness_s < self._ttl / 2

    def contenders(self) -> list[str]:
        """Return the keys of all contenders that hold the place or wait for it, in their order."""
        found = [(self._revision(key), key) for key in self._clone.prefix(self.path) if is_contender(key, self.path)]
        return [key for _, key in sorted(found)]

    def _revision(self, key: str) -> int:
        entry = self._clone.entry(key)
        return 0 if entry is None else entry.revision

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Call `listener()` when the lease of the place is lost. Raises `BadInput` if there is no lease yet."""
        checks.callback("listener", listener)
        if self._lease is None:
            raise BadInput("nothing is held, so nothing can be lost: acquire first")
        self._lease.on_lost(lambda _: listener())

    # -- what waits

    async def acquire(self, waits: Waiter) -> bool:
        """Wait for the place. Return True, or False if the time is over. Raises `Lost`, and what a set raises."""
        if self._lease is not None:
            raise BadInput(f"{self.key!r} is held, or waited for, by this object; each thread makes one of its own")
        try:
            self._lease = lease = await waits.made(partial(internals(self._clone).new_lease, self._ttl))
            await waits.done(partial(lease.set, self.key, self._value))
            await self._until_first(waits, lease)
            ack = await waits.done(partial(lease.set, self.key + HELD, self._value))
        except TimeoutError:
            self._forget()
            return False
        except Refused as refused:
            self._forget()
            raise self._lost() if refused.code == "lease" else refused from None
        except BaseException:
            self._forget()
            raise
        self.token = Revision(ack.revision)
        return True

    async def _until_first(self, waits: Waiter, lease: Lease) -> None:
        while True:
            order = self.contenders()
            if self.key not in order or lease.lost:
                raise self._lost()
            place = order.index(self.key)
            if place < self._limit:
                return
            changes = internals(self._clone).open_watch(self._looks_at(order, place))
            try:
                # Wait only if nothing changed before the watch began.
                if self.contenders() == order:
                    await waits.changed(changes, self._ttl)
            finally:
                changes.close()

    def _looks_at(self, order: list[str], place: int) -> str:
        """Return the prefix that a contender watches: the key in front of it.

        If several may hold, the first waiting contender watches all keys, because any holder may leave.
        """
        return self.path if place == self._limit > 1 else order[place - 1]

    def _lost(self) -> Lost:
        return Lost(f"the lease of {self.key!r} ended while it was waited for or held; acquire it again")

    async def release(self, waits: Waiter) -> None:
        """Give the place back, and wait until the servers know. Do nothing if the place is not held."""
        lease, self._lease, self.token = self._lease, None, None
        if lease is not None and not lease.closed:
            try:
                await waits.done(lease.end)
            except (Refused, Closed, TimeoutError):
                # The lease is gone already, or goes with its ttl.
                return

    def _forget(self) -> None:
        """Give the place up without waiting."""
        lease, self._lease, self.token = self._lease, None, None
        if lease is not None:
            lease.abandon()
