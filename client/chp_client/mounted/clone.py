"""`MountedClone`: a Clone of several pairs. `Clone(...)` makes one if its servers are mounts.

    clone = Clone("/=a:5556,b:5566 /rates/=c:5556,d:5566")
    clone["/rates/EUR/USD"] = b"1.0832"        # goes to c or d
    clone.mounts["/rates/"].revision           # a revision is of one mount

A view has an inner Clone for each mount that its subtrees touch. A view that only writes has an inner Clone for each
mount. A mount that only a topic needs gets its inner Clone when the topic is used. Order and atomicity hold within a
mount. A call that promises either is refused if it spans two mounts; the error names both mounts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chp.errors import BadInput

from .. import checks
from ..agent.changes import Change
from ..agent.lease import Lease
from ..agent.listeners import Listening
from ..checks import Ttl
from ..clone import clone as plain
from ..clone.atomic import DELETE_KEYS
from ..clone.base import OF_MOUNTS, internals
from ..clone.clone import Clone
from ..codecs import V
from ..core.events import Ack, weakest
from ..starts import KeyStart
from ..topics.reader import PATIENCE_S
from ..topics.transaction import Transaction
from .base import NOT_THERE, MountedBase, left_of
from .transaction import MountedTransaction


class MountedClone(MountedBase[V], Clone[V]):
    """The view over several pairs for programs with threads; see `Clone` for its methods and arguments."""

    _kind = Clone

    def clear(self) -> None:
        """Delete every key that is held here, for all clients, one mount after the other; see `Clone.clear`."""
        checks.prefix_held("", self.subtrees, "clear")
        for keys in self._by_mount(list(self._shown)):
            for start in range(0, len(keys), plain.CLEARED_ITEMS):
                self.delete_many(keys[start : start + plain.CLEARED_ITEMS])

    def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key held here that begins with `prefix`, in all mounts; see `Clone.delete_prefix`."""
        if prefix == "":
            raise BadInput("an empty prefix is everything; use clear() if that is meant")
        left, view, gone, after = left_of(timeout), self.prefix(prefix), 0, None
        while keys := view.page_of_keys(DELETE_KEYS, after):
            tickets = [self.delete_many(some, left()) for some in self._by_mount(keys)]
            for ticket in tickets:
                ticket.wait(left())
            gone, after = gone + len(keys), keys[-1]
        return gone

    def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key of any mount and return it with its value; see `Clone.popitem`."""
        left, synced = left_of(timeout), False
        while True:
            while (key := self._reader.some_key()) is not None:
                value = self.pop(key, NOT_THERE, left())
                if value is not NOT_THERE:
                    return key, value
            if synced:
                raise KeyError("popitem(): this Clone holds no keys")
            self.sync(left())
            synced = True

    def lease(self, ttl: Ttl, timeout: float | None = None) -> Lease:
        """Make a lease. All its keys must be of one mount, which its first key chooses. See `Clone.lease`."""
        return self._mounted_lease(ttl, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged, in all mounts; see `Clone.flush`."""
        left, refused = left_of(timeout), None
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
        left = left_of(timeout)
        tickets = [internals(each).writer.sync(left()) for each in self._inner.values()]
        acks = [ticket.wait(left()) for ticket in tickets]
        return acks[0] if len(acks) == 1 else weakest(acks)

    def wait_until_synced(self, timeout: float | None = None) -> None:
        """Return once the copies of all mounts are complete and current; see `Clone.wait_until_synced`."""
        left = left_of(timeout)
        for mount, each in self._inner.items():
            try:
                each.wait_until_synced(left())
            except TimeoutError as error:
                raise TimeoutError(f"mount {mount}: {error}") from None

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(Listening(listener, prefix, opened, self._dispatcher.put), start)

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction within one mount; see `Clone.transaction`. A second mount raises `BadInput`."""
        return MountedTransaction(self._table, self._writer_of, timeout)

    def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic of all mounts, by name; see `Clone.topics`."""
        return self._topics(timeout)


OF_MOUNTS[Clone] = MountedClone
