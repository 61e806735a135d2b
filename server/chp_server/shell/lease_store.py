"""The interface of a store that keeps the arbiter's lease and set; zookeeper.py and etcd.py implement it.

A store of another kind, such as a Lease object of Kubernetes, would implement it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chp.errors import ChpError

START_TIMEOUT_S = 10.0
# While a store starts, it looks this often (in seconds) whether the server is to end.
START_LOOK_S = 0.1


class ArbiterError(ChpError):
    """The error that the arbiter can't be used; its text says why and what to do."""


class LeaseStore(Protocol):
    """A store that keeps the lease and the set. One thread calls it; any error means that nothing is certain."""

    # A lease lasts this many seconds from a check on, as the store grants it.
    lease_s: float

    @property
    def connected(self) -> bool:
        """True if a check makes sense now."""

    def start(self, doubt: Callable[[str], None], look: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Connect; raise `ArbiterError` if the store does not answer in `START_TIMEOUT_S`, or if `stopping()` is true.

        The store may call `doubt` when its connection fails, and `look` when the lease or the set has changed.
        """

    def hold(self) -> bool:
        """Take the lease, or prove that it still lives; return False if another server has it."""

    def release(self) -> bool:
        """Give the lease back; return False if there was none of ours."""

    def read(self, *, current: bool) -> tuple[int, bytes] | None:
        """Return the version and the text of the set, or None; `current` sees all writes that ended before."""

    def write(self, text: bytes, base: int) -> int | None:
        """Write the set if the store has it at version `base` (-1: no set); return the new version, or None if not."""

    def close(self) -> None:
        """Disconnect."""
