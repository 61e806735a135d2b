"""Updates that wait for their commit: how a job's writes become visible all at once (SPEC.md, section 20).

    KVSET with "stage": [transaction, part]      kept, replicated and journaled, seen by nobody; messages for topics too
    KVSET with "commit": [transaction, application, version, [[part, batches], ...], replace]
                                                 the named parts, in this order, become one record; the rest is dropped
    KVSET with "abort": transaction              forgotten

A part is one attempt of one task, so an attempt that failed or ran twice is simply not named by the commit. An
application's last committed version is remembered: a commit of that version or an older one is answered as done, which
makes a replayed micro-batch harmless. What an attempt stages when its transaction has been committed without it, as the
slower of two does, is not kept: nobody would ever commit it. Bounded in bytes, transactions and age.

Applications are in a table that users share fairly (chp/fair.py). Each is the user's who counted its versions first
under rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chp import columns
from chp.batch import Segment, decode_segment
from chp.fair import FairTable, crowding
from chp.limits import Limits
from chp.topics import Counts, add_counts

DECODED_BYTES_MAX = 256 << 20  # staged beyond this is kept encoded only: objects take several times the bytes


@dataclass(slots=True)
class StagedCommit:
    """A commit of staged updates; `done` is the revision it got when it was made before."""

    transaction_id: bytes
    application: str
    version: int
    parts: list[list[Any]]
    replace: str | None
    done: int | None


@dataclass(slots=True)
class StagedTransaction:
    """Staged segments by part, encoded, in the order in which they came."""

    touched: float
    parts: dict[str, list[bytes]] = field(default_factory=dict)
    bytes: int = 0
    read: dict[str, list[Segment | None]] = field(default_factory=dict)  # the same, decoded, while there is room
    messages: dict[str, Counts] = field(default_factory=dict)  # by part: what it has for topics


class Room(NamedTuple):
    """Whether there is room for another batch."""

    why: str = ""  # there is none
    makes_room: Sequence[bytes] = ()  # transactions that are dropped for it


class Staging:
    """All open transactions, and the last version of each application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.transactions: dict[bytes, StagedTransaction] = {}
        self.versions = FairTable[str, tuple[int, int]](limits.applications_max)  # application -> version, revision
        self.committed: OrderedDict[bytes, None] = OrderedDict()  # the last transactions; no more than `versions` holds
        self.bytes = 0
        self._openers: dict[bytes, bytes] = {}  # the client that opened each, as far as records told of it

    def room(self, transaction_id: bytes, size: int, client: bytes, user: str, owners: Mapping[bytes, str]) -> Room:
        """Whether another batch of a client's transaction fits: which transactions of other users make room for it.

        `owners` tells the users of clients.
        """
        limits, new = self._limits, transaction_id not in self.transactions
        crowded = new and len(self.transactions) >= limits.staged_commits_max
        if not crowded and self.bytes + size <= limits.staged_bytes_max:
            return Room(self._above_share(client)) if new else Room()
        of_user: dict[str, list[bytes]] = {}  # the one that was touched longest ago first
        for name in sorted(self.transactions, key=lambda name: self.transactions[name].touched):
            of_user.setdefault(owners.get(self._openers.get(name, b""), ""), []).append(name)
        gone: list[bytes] = []
        if crowded:
            crowd = crowding({one: len(names) for one, names in of_user.items()}, limits.staged_commits_max, user)
            if crowd in (None, user):
                most = f"{limits.staged_commits_max} staged commits are open (staged_commits_max)"
                return Room(f"{most}, and no user has more; commit or abort some")
            gone.append(of_user[crowd or ""].pop(0))
        if new and (why := self._above_share(client)):
            return Room(why)
        while self.bytes + size - sum(self.transactions[name].bytes for name in gone) > limits.staged_bytes_max:
            held = {one: sum(self.transactions[name].bytes for name in names) for one, names in of_user.items()}
            crowd = crowding(held, limits.staged_bytes_max, user)
            if crowd in (None, user):
                text = f"{self.bytes} bytes are staged in {len(self.transactions)} staged commits"
                return Room(f"{text}, and {limits.staged_bytes_max} may be (staged_bytes_max); commit or abort some")
            gone.append(of_user[crowd or ""].pop(0))
        return Room(makes_room=gone)

    def _above_share(self, client: bytes) -> str:
        most = self._limits.staged_commits_of_one_max
        if len(self.transactions) < most:
            return ""
        if [self._openers.get(name) for name in self.transactions].count(client) < most:
            return ""
        share = f"its share, {most} (staged_commits_of_one_max)"
        return f"this client has {share}, of staged commits open; commit or abort some"

    def opened(self, transaction_id: bytes, client: bytes) -> None:
        """A client stages something: a transaction that is not here yet is its own."""
        if transaction_id not in self.transactions:
            self._openers = {i: who for i, who in self._openers.items() if i in self.transactions}
            self._openers[transaction_id] = client

    def openers(self) -> dict[bytes, bytes]:
        """Return the client that began each open transaction, as far as it is known."""
        return {name: self._openers[name] for name in self.transactions if name in self._openers}

    def load_openers(self, told: Iterable[list[bytes]] = ()) -> None:
        """Take over what `openers` said; an older server says nothing of them."""
        self._openers.update((name, client) for name, client in told)

    def opener_of(self, transaction_id: bytes) -> bytes | None:
        """Return the client that began an open transaction; None if that is not known."""
        return self._openers.get(transaction_id) if transaction_id in self.transactions else None

    def add(self, segment: Segment, now: float) -> None:
        """Keep a segment that names its transaction and part in "stage", unless that transaction is over."""
        extras = dict(segment.extras or {})
        transaction_id, part = extras.pop(columns.STAGE)
        if transaction_id in self.committed:
            return
        encoded = Segment(segment.keys, segment.values, extras or None).encode()
        transaction = self.transactions.setdefault(transaction_id, StagedTransaction(now))
        transaction.parts.setdefault(part, []).append(encoded)
        kept = Segment(segment.keys, segment.values, extras or None) if self.bytes < DECODED_BYTES_MAX else None
        transaction.read.setdefault(part, []).append(kept)
        for name, count, body in extras.get(columns.PUBLISH, ()):
            add_counts(transaction.messages.setdefault(part, {}), name, count, len(body))
        transaction.touched = now
        transaction.bytes += len(encoded)
        self.bytes += len(encoded)

    def measure(self) -> tuple[int, int]:
        """How many segments are staged, and their bytes: whoever receives them can tell whether it has them all."""
        ctx = (len(bodies) for transaction in self.transactions.values() for bodies in transaction.parts.values())
        return sum(ctx), self.bytes

    def missing(self, transaction_id: bytes, parts: list[list[Any]]) -> dict[str, int]:
        """The parts of a commit that are not here as they should be, with how many of their batches are."""
        transaction = self.transactions.get(transaction_id)
        have = {} if transaction is None else {name: len(bodies) for name, bodies in transaction.parts.items()}
        return {name: have.get(name, 0) for name, batches in parts if have.get(name, 0) != batches}

    def messages(self, transaction_id: bytes, parts: list[list[Any]]) -> Counts:
        """What the named parts have for topics."""
        transaction, found = self.transactions.get(transaction_id), dict[str, list[int]]()
        if transaction is not None and transaction.messages:
            for part, _ in parts:
                for name, (messages, size) in transaction.messages.get(part, {}).items():
                    add_counts(found, name, messages, size)
        return found

    def bodies(self, transaction_id: bytes, parts: list[list[Any]]) -> list[bytes]:
        """The segments of the named parts, encoded, in the order of the commit."""
        transaction = self.transactions.get(transaction_id)
        return [] if transaction is None else [body for name, _ in parts for body in transaction.parts.get(name, ())]

    def decoded(self, transaction_id: bytes, parts: list[list[Any]]) -> list[Segment]:
        """The same as `Segment`s: as they came if they were kept so, which spares the commit the decoding."""
        transaction = self.transactions.get(transaction_id)
        if transaction is None:
            return []
        pairs = (zip(transaction.read.get(n, ()), transaction.parts.get(n, ()), strict=True) for n, _ in parts)
        return [segment or decode_segment(body) for part in pairs for segment, body in part]

    def drop(self, transaction_id: bytes) -> None:
        """The transaction is over."""
        transaction = self.transactions.pop(transaction_id, None)
        if transaction is not None:
            self.bytes -= transaction.bytes

    def end(self, transaction_id: bytes) -> None:
        """The transaction was committed: what is staged under it from now on comes too late.

        It is forgotten before its application's version is, so a batch that runs again is staged or recognised.
        """
        self.drop(transaction_id)
        self.record_ended(transaction_id)

    def record_ended(self, transaction_id: bytes) -> None:
        """Remember that the transaction was committed."""
        self.committed[transaction_id] = None
        while len(self.committed) > min(self._limits.staged_commits_max, self._limits.applications_max):
            self.committed.popitem(last=False)

    def idle(self, now: float) -> list[bytes]:
        """Transactions that nobody has added to for `staged_idle_s_max`."""
        return [i for i, t in self.transactions.items() if now - t.touched > self._limits.staged_idle_s_max]

    def done(self, application: str, version: int) -> int | None:
        """The revision of an application's version, or of a later one, if it was committed before."""
        last = self.versions.get(application)
        return last[1] if last is not None and version <= last[0] else None

    def owner_of(self, application: str) -> str | None:
        """Return the user of an application; None if it is nobody's."""
        return self.versions.user_of(application) or None

    def own(self, application: str, user: str) -> None:
        """Note that an application is a user's, unless it is somebody's already or is not remembered."""
        if application in self.versions and not self.versions.user_of(application):
            self.versions.give(application, user)

    def owned(self) -> list[tuple[str, str]]:
        """Return the applications that are somebody's, with their users."""
        return [(name, user) for name in self.versions if (user := self.versions.user_of(name))]

    def record_done(self, application: str, version: int, revision: int, user: str = "") -> None:
        """Remember an application's last version; one without a name asked for nothing to be remembered."""
        if not application:
            return
        versions, last = self.versions, self.versions.get(application)
        if last is None:
            versions.put(application, (version, revision), user)
        else:
            if last[0] <= version:  # an older one comes with what another server did alone
                versions[application] = (version, revision)
            versions.use(application)
        if len(versions) > versions.most:
            del versions[versions.loser()]

    # -- as chunks of a snapshot

    def segments(self) -> Iterator[bytes]:
        """Everything staged now, as segments that name their transaction and part; safe while more is staged."""
        now_here = [
            (transaction_id, part, list(bodies))
            for transaction_id, transaction in self.transactions.items()
            for part, bodies in transaction.parts.items()
        ]
        return _with_stage(now_here)


def _with_stage(parts: list[tuple[bytes, str, list[bytes]]]) -> Iterator[bytes]:
    for transaction_id, part, bodies in parts:
        for body in bodies:
            segment = decode_segment(body)
            extras = {**(segment.extras or {}), columns.STAGE: [transaction_id, part]}
            yield Segment(segment.keys, segment.values, extras).encode()
