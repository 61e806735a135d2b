"""Leases: the owner of each, and what a client may do with one (SPEC.md, section 19).

A lease belongs to the client that opened it. The id of a client is the first part of the public ids of its sessions, so
later sessions of the client own the lease too. Readers see the names of leases beside keys, so to know a name gives no
right. The server refuses any other client that refreshes the lease, sets with it or ends it. The server writes the
owner into the record that opens or refreshes a lease, because every server that follows the records needs it. A client
can't write the owner.

A client may open a lease as "anybody's". Then each client of its user may use the lease. Where users have no names,
each client that knows the lease's name may use it. Such a lease has no keys. It is for members of groups that reach the
server by another client each time, as the members behind a gateway do.

The keys of a lease that has ended are deleted a slice a turn (expiry.py). While the lease still has keys it is
`ending`: its ttl is 0, and no client can refresh it or set with it. It is forgotten with its last key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from chp import columns
from chp.batch import Segment
from chp.errors import BadFrame
from chp.fair import FairTable
from chp.limits import DEFAULT, Limits

from .verdicts import Refusal

COLUMNS = frozenset({columns.LEASED, columns.LEASE, columns.REFRESH, columns.UNLEASE})
# The number of leases that one answer lists.
LISTED_MAX = 1000
NOT_HERE = "the lease has expired or never was; open a new one"
NOT_YOURS = "the lease is another client's; only its owner may refresh it, set with it or end it; open one of your own"
NO_KEYS = "a lease that is opened as anybody's has no keys; open one of your own for them"


class LeaseOwner(NamedTuple):
    """The identity that owns a session's leases: its client, or any client of its user."""

    client: bytes
    user: str = ""
    # The user to whose share of each table the leases count; "" where there are no rules.
    share: str = ""

    @property
    def shared(self) -> bytes:
        """The owner of a lease that any client of the user may use."""
        return columns.ANYBODY + self.user.encode()

    def may_use(self, lease: HeldLease) -> bool:
        """Return whether this session may use a lease."""
        return lease.owner in (self.client, self.shared)


def user_of(owner: bytes, owners: Mapping[bytes, str]) -> str:
    """Return the user of a lease's owner; "" if there is none. `owners` maps clients to users."""
    if owner.startswith(columns.ANYBODY):
        return owner.removeprefix(columns.ANYBODY).decode()
    return owners.get(owner, "")


@dataclass(slots=True)
class HeldLease:
    """A lease: its keys are deleted together if its owner does not refresh it for `ttl_ms`."""

    ttl_ms: int
    deadline: float
    # The client, or the user of a shared lease; empty if a record does not say.
    owner: bytes = b""
    keys: dict[str, None] = field(default_factory=dict)

    def facts(self, now: float) -> dict[str, Any]:
        """Return what an operator is shown of the lease."""
        left_ms = max(0, round((self.deadline - now) * 1000))
        owner = "anybody" if self.owner.startswith(columns.ANYBODY) else self.owner.hex()
        return {"owner": owner, "ttl_ms": self.ttl_ms, "remaining_ms": left_ms, "keys": len(self.keys)}


class LeaseTable(FairTable[bytes, HeldLease]):
    """All leases by name, in the order of their last refresh, and the number that each client has."""

    def __init__(self, most: int = DEFAULT.leases_max) -> None:
        super().__init__(most)
        self.of_client: Counter[bytes] = Counter()
        # Leases that have ended and still have keys, in the order of their ends.
        self.ending: dict[bytes, None] = {}

    def keep(self, lease_id: bytes, ttl_ms: int, owner: bytes, now: float, user: str = "") -> None:
        """Open a lease for a user, or refresh it. A lease of another owner stays as it is."""
        lease = self.get(lease_id)
        if lease is None:
            self.put(lease_id, HeldLease(ttl_ms, now + ttl_ms / 1000, owner), user)
            self.of_client[owner] += 1
        elif lease.owner == owner and lease_id not in self.ending:
            lease.ttl_ms, lease.deadline = ttl_ms, now + ttl_ms / 1000
            self.use(lease_id)

    def own(self, client: bytes, user: str) -> None:
        """Give the leases of a client to a user, if the client had no user before."""
        if client in self.of_client:
            for lease_id in self.of_user(""):
                if self[lease_id].owner == client:
                    self.give(lease_id, user)

    def refresh(self, lease_id: bytes, now: float) -> None:
        """Give a lease its full time again, if it is open."""
        lease = self.get(lease_id)
        if lease is not None and lease_id not in self.ending:
            lease.deadline = now + lease.ttl_ms / 1000
            self.use(lease_id)

    def lives(self, lease_id: bytes) -> bool:
        """Return whether a lease is open and has not ended."""
        return lease_id in self and lease_id not in self.ending

    def some_keys(self, lease_id: bytes, most: int) -> list[str]:
        """Return at most `most` keys of a lease, the oldest first."""
        lease = self.get(lease_id)
        return [] if lease is None else list(islice(lease.keys, most))

    def end(self, lease_id: bytes) -> None:
        """End a lease; it is forgotten once it has no key."""
        lease = self.get(lease_id)
        if lease is None:
            return
        if lease.keys:
            lease.ttl_ms, lease.deadline = 0, 0.0
            self.ending[lease_id] = None
            return
        del self[lease_id]
        self.ending.pop(lease_id, None)
        self.of_client[lease.owner] -= 1
        if not self.of_client[lease.owner]:
            del self.of_client[lease.owner]

    def without(self, lease_id: bytes, key: str) -> None:
        """Take a key from a lease, because the key was deleted or set anew."""
        lease = self.get(lease_id)
        if lease is not None:
            lease.keys.pop(key, None)
            if not lease.keys and lease_id in self.ending:
                self.end(lease_id)

    def expired(self, now: float, most: int) -> list[bytes]:
        """Return at most `most` leases that were not refreshed in time."""
        due = (name for name, lease in self.items() if lease.deadline <= now and name not in self.ending)
        return list(islice(due, most))

    def check(self, extras: dict[str, Any], whose: LeaseOwner, limits: Limits) -> list[bytes]:
        """Raise `Refusal` if a lease of the batch is not open, is another client's, or is one too many.

        Return the leases of another user that must end to make room.
        """
        opened = extras.get(columns.LEASE, [None])
        if opened[2:] not in ([], [columns.ANYBODY]):
            raise BadFrame("a KVSET's 'lease' is a name, a ttl, and 'anybody:' for a shared lease; only the "
                           "server writes its owner")  # fmt: skip
        owner = whose.shared if opened[2:] else whose.client
        named = [extras.get(name) for name in (columns.LEASED, columns.REFRESH, columns.UNLEASE)]
        if any(lease in self and not whose.may_use(self[lease]) for lease in named if lease is not None):
            raise Refusal("lease", NOT_YOURS)
        if opened[0] in self and self[opened[0]].owner != owner:
            raise Refusal("lease", NOT_YOURS)
        if columns.LEASED in extras and self._is_shared(extras[columns.LEASED], opened):
            raise Refusal("lease", NO_KEYS)
        if opened[0] in self.ending:
            raise Refusal("lease", NOT_HERE)
        if columns.LEASED in extras and not self.lives(extras[columns.LEASED]) and extras[columns.LEASED] != opened[0]:
            raise Refusal("lease", NOT_HERE)
        if columns.REFRESH in extras and not self.lives(extras[columns.REFRESH]):
            raise Refusal("lease", NOT_HERE)
        return [] if opened[0] is None or opened[0] in self else self._room(owner, limits, whose.share)

    def _is_shared(self, lease_id: bytes, opened: list[Any]) -> bool:
        there = self.get(lease_id)
        if there is not None:
            return there.owner.startswith(columns.ANYBODY)
        return opened[::2] == [lease_id, columns.ANYBODY]

    def _room(self, owner: bytes, limits: Limits, user: str) -> list[bytes]:
        if self.refuses(user):
            raise Refusal("busy", f"{self.most} leases are open, and no user has more; close some")
        if self.of_client[owner] >= limits.leases_of_one_max:
            raise Refusal(
                "busy", f"this client has {limits.leases_of_one_max} leases open, its share of them; close some"
            )
        return [self.loser(user)] if self.full else []


def with_owner(segment: Segment, whose: LeaseOwner) -> Segment:
    """Return a segment that opens or refreshes a lease, with the owner that a record carries."""
    extras = dict(segment.extras or {})
    lease_id, ttl_ms, *anybody = extras[columns.LEASE]
    extras[columns.LEASE] = [lease_id, ttl_ms, whose.shared if anybody else whose.client]
    return Segment(segment.keys, segment.values, extras)


def listed(leases: LeaseTable, after: bytes, now: float) -> dict[str, Any]:
    """Return what an operator is shown of the next leases after a name, in the order of their names."""
    names = nsmallest(LISTED_MAX, (name for name in leases if name > after))
    return {"total": len(leases), "leases": [{columns.LEASE: name.hex(), **leases[name].facts(now)} for name in names]}
