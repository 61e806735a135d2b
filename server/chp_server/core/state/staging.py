"""Updates that wait for their commit: the writes of a job become visible all at once (SPEC.md, section 20).

    KVSET with "stage": [transaction, part]      updates and messages are kept and journaled, not visible
    KVSET with "commit": [transaction, application, version, [[part, batches], ...], replace]
                                                 the named parts, in this order, become one record; the rest is dropped
    KVSET with "abort": transaction              the transaction is forgotten

A part is one attempt of one task. A commit simply does not name attempts that failed or that are duplicates. The server
remembers the last committed version of each application. It answers a commit of this or an older version as done, so a
micro-batch that runs again does no harm. A version is forgotten after `application_idle_s_max` without a commit. While
the table of applications is full, a new application is refused.

The slower of two attempts may stage something after the commit. The server does not keep it, because no client would
ever commit it. The bytes, the number and the age of transactions are bounded.

Applications are in a table that users share fairly (chp/fair.py). Each belongs to the user that
counted its versions first under rules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from chp import columns
from chp.batch import Segment, decode_segment, narrow
from chp.errors import BadFrame
from chp.fair import FairTable, crowding
from chp.limits import Limits
from chp.topics import Counts, add_counts

# The columns of a plain batch. A batch with other columns must be decoded when it is committed, because the commit
# changes the batch, or because the batch changes more than the map.
PLAIN = frozenset({columns.DELETES, columns.TTLS})
# At most this many keys are searched for in the bytes of a batch; for more keys the batch is decoded at once.
SOUGHT_MAX = 16


@dataclass(slots=True)
class StagedCommit:
    """A commit of staged updates. `done` is its revision if the commit was made before, else None."""

    transaction_id: bytes
    application: str
    version: int
    parts: list[list[Any]]
    replace: str | None
    done: int | None


@dataclass(slots=True)
class StagedBatch:
    """A staged segment as bytes, with facts that are needed before it is decoded.

    Decoded, the segment would take several times the memory. So it is decoded only when the map gets it.
    """

    body: bytes
    items: int
    # The weight of the segment for a reader.
    weight: int
    # The lowest and the highest key; both are empty if there are no items.
    low: str
    high: str
    # True if the segment has items, and has no other columns than those of `PLAIN`.
    plain: bool
    # The first number of the record that staged the batch, if this server and its peer have this record; else 0.
    number: int = 0

    @staticmethod
    def of(segment: Segment, number: int = 0) -> StagedBatch:
        """Return a segment as a staged batch of the record with this number; 0 if there is no such record."""
        low, high = segment.bounds if segment.keys else ("", "")
        plain = bool(segment.keys) and not (segment.extras and segment.extras.keys() - PLAIN)
        return StagedBatch(segment.encode(), len(segment.keys), segment.weight, low, high, plain, number)

    @property
    def prefix(self) -> str:
        """The text with which all its keys begin."""
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(self.low, self.high, strict=False))
        return "".join(a for a, _ in shared)

    def segment(self) -> Segment:
        """Return the segment, decoded."""
        segment = decode_segment(self.body)
        if segment.keys:
            segment.know_bounds(self.low, self.high)
        return segment

    def keys(self) -> list[str]:
        """Return the keys alone, which takes a fifth of the time of `segment`."""
        unpacker = msgpack.Unpacker(max_buffer_size=len(self.body))
        unpacker.feed(self.body)
        unpacker.read_array_header()
        keys: list[str] = unpacker.unpack()
        return keys

    def narrowed(self, prefix: str) -> StagedBatch | Segment | None:
        """Return the items whose keys begin with a prefix: this batch if all keys do, None if no key does."""
        if self.low.startswith(prefix) and self.high.startswith(prefix):
            return self
        if self.high < prefix or (self.low > prefix and not self.low.startswith(prefix)):
            return None
        return narrow(self.segment(), prefix)

    def encode(self) -> bytes:
        """Return the encoded segment, as records carry it."""
        return self.body

    def written(self, keys: Iterable[str]) -> Iterable[str]:
        """Return the keys among `keys` that the batch sets or deletes, with as little decoding as possible."""
        sought = [key for key in keys if self.low <= key <= self.high]
        if len(sought) <= SOUGHT_MAX:
            sought = [key for key in sought if key.encode() in self.body]
        return set(sought).intersection(self.keys()) if sought else ()


@dataclass(slots=True)
class StagedTransaction:
    """The staged segments of a transaction by part, in the order in which they came."""

    touched: float
    parts: dict[str, list[StagedBatch]] = field(default_factory=dict)
    bytes: int = 0
    # The CRC-32 of each part.
    crcs: dict[str, int] = field(default_factory=dict)
    # The time when the transaction began, and the value of `Staging.passed` at that time.
    began: float = 0.0
    began_at: int = 0
    # The counts of each part's messages for topics.
    messages: dict[str, Counts] = field(default_factory=dict)


class CommittedVersion(NamedTuple):
    """The last version that an application has committed."""

    version: int
    revision: int
    # The time of the last commit.
    touched: float


NO_VERSION = CommittedVersion(0, 0, 0.0)


class Room(NamedTuple):
    """The answer whether there is room for another batch."""

    # The reason why there is no room; "" if there is.
    why: str = ""
    # Transactions that have to be dropped to make room.
    makes_room: Sequence[bytes] = ()


class Staging:
    """All open transactions, and the last version of each application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.transactions: dict[bytes, StagedTransaction] = {}
        self.versions = FairTable[str, CommittedVersion](limits.applications_max)
        # The transactions that were committed last; never more than `versions` may hold.
        self.committed: OrderedDict[bytes, None] = OrderedDict()
        self.bytes = 0
        # The bytes of all records that this server has kept.
        self.passed = 0
        # transaction -> the client that opened it, if a record tells this.
        self._openers: dict[bytes, bytes] = {}

    def room(self, transaction_id: bytes, size: int, client: bytes, user: str, owners: Mapping[bytes, str]) -> Room:
        """Return whether another batch of a transaction fits, and which transactions of other users must make room.

        `client` and `user` send the batch; `owners` maps clients to users.
        """
        limits, new = self._limits, transaction_id not in self.transactions
        crowded = new and len(self.transactions) >= limits.staged_commits_max
        if not crowded and self.bytes + size <= limits.staged_bytes_max:
            return Room(self._above_share(client)) if new else Room()
        # The transactions of each user, those that were idle longest first.
        of_user: dict[str, list[bytes]] = {}
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
        share = "its share (staged_commits_of_one_max)"
        return f"this client has {most} staged commits open, {share}; commit or abort some"

    def opened(self, transaction_id: bytes, client: bytes) -> None:
        """Note the client as the opener of a transaction, if the transaction is new."""
        if transaction_id not in self.transactions:
            self._openers = {i: who for i, who in self._openers.items() if i in self.transactions}
            self._openers[transaction_id] = client

    def openers(self) -> dict[bytes, bytes]:
        """Return the openers of all open transactions whose opener is known."""
        return {name: self._openers[name] for name in self.transactions if name in self._openers}

    def load_openers(self, told: Iterable[list[bytes]] = ()) -> None:
        """Take over what `openers` returned on another server; an older version sends nothing."""
        self._openers.update((name, client) for name, client in told)

    def opener_of(self, transaction_id: bytes) -> bytes | None:
        """Return the client that began an open transaction; None if that is not known."""
        return self._openers.get(transaction_id) if transaction_id in self.transactions else None

    def add(self, segment: Segment, now: float, number: int = 0) -> None:
        """Keep a segment in the transaction and part that its column "stage" names.

        The segment is dropped if this transaction was committed already.

        `number` is the first number of its record, if there is one.
        """
        extras = dict(segment.extras or {})
        transaction_id, part = extras.pop(columns.STAGE)
        if transaction_id in self.committed:
            return
        batch = StagedBatch.of(Segment(segment.keys, segment.values, extras or None), number)
        transaction = self.transactions.get(transaction_id)
        if transaction is None:
            transaction = self.transactions[transaction_id] = StagedTransaction(now, began=now, began_at=self.passed)
        transaction.parts.setdefault(part, []).append(batch)
        transaction.crcs[part] = crc32(batch.body, transaction.crcs.get(part, 0))
        for name, count, body in extras.get(columns.PUBLISH, ()):
            add_counts(transaction.messages.setdefault(part, {}), name, count, len(body))
        transaction.touched = now
        transaction.bytes += len(batch.body)
        self.bytes += len(batch.body)

    def measure(self) -> tuple[int, int]:
        """Return the count of staged segments, and their bytes: a receiver checks with them that it has all."""
        counts = (len(batches) for transaction in self.transactions.values() for batches in transaction.parts.values())
        return sum(counts), self.bytes

    def missing(self, transaction_id: bytes, parts: list[list[Any]]) -> dict[str, int]:
        """Return the parts of a commit that are not complete, with the number of batches that are here of each."""
        transaction = self.transactions.get(transaction_id)
        have = {} if transaction is None else {name: len(batches) for name, batches in transaction.parts.items()}
        return {name: have.get(name, 0) for name, batches in parts if have.get(name, 0) != batches}

    def messages(self, transaction_id: bytes, parts: list[list[Any]]) -> Counts:
        """Return the counts of messages that the named parts have for each topic."""
        transaction, found = self.transactions.get(transaction_id), dict[str, list[int]]()
        if transaction is not None and transaction.messages:
            for part, _ in parts:
                for name, (messages, size) in transaction.messages.get(part, {}).items():
                    add_counts(found, name, messages, size)
        return found

    def batches(self, transaction_id: bytes, parts: list[list[Any]]) -> list[StagedBatch]:
        """Return the staged batches of the given parts, in the order in which the commit names the parts."""
        transaction = self.transactions.get(transaction_id)
        return [] if transaction is None else [batch for name, _ in parts for batch in transaction.parts.get(name, ())]

    def names(self, transaction_id: bytes, parts: list[list[Any]]) -> list[list[Any]] | None:
        """Return the names, checksums and record numbers by which a COMMIT names the parts of a commit.

        Return None if a COMMIT can't name the parts: a batch has to be decoded, or the journals may lack the record
        that staged a batch.
        """
        transaction, named = self.transactions.get(transaction_id), []
        if transaction is None or transaction.messages:
            return None
        for part, _ in parts:
            batches = transaction.parts.get(part, [])
            if not all(batch.plain and batch.number for batch in batches):
                return None
            named.append([part, transaction.crcs.get(part, 0), [batch.number for batch in batches]])
        return named

    def named(self, transaction_id: bytes, parts: list[list[Any]]) -> list[StagedBatch]:
        """Return the batches that a COMMIT names; raise `BadFrame` if this server has others."""
        transaction = self.transactions.get(transaction_id)
        found = list[StagedBatch]()
        for part, crc, numbers in parts:
            batches = [] if transaction is None else transaction.parts.get(part, [])
            ours = 0 if transaction is None else transaction.crcs.get(part, 0)
            if len(batches) != len(numbers) or ours != crc:
                staged = f"{len(batches)} batches are staged here, and {len(numbers)} were committed"
                raise BadFrame(f"the part {part!r:.100} of a commit differs: {staged}; this server needs a whole state")
            found += batches
        return found

    def others(self, transaction_id: bytes) -> int:
        """Return the bytes of the records since a transaction began, without the transaction's own batches."""
        transaction = self.transactions.get(transaction_id)
        return 0 if transaction is None else self.passed - transaction.began_at - transaction.bytes

    def forget_numbers(self) -> None:
        """Forget which records staged the present batches, because a journal may begin after these records."""
        for transaction in self.transactions.values():
            for batches in transaction.parts.values():
                for batch in batches:
                    batch.number = 0

    def drop(self, transaction_id: bytes) -> list[MutableSequence[Any]]:
        """Forget a transaction; return the lists of its staged batches, which the caller frees in slices."""
        transaction = self.transactions.pop(transaction_id, None)
        if transaction is None:
            return []
        self.bytes -= transaction.bytes
        return list(transaction.parts.values())

    def end(self, transaction_id: bytes) -> list[MutableSequence[Any]]:
        """Forget a transaction because it was committed. From now on, batches that are staged in it are dropped.

        Return the lists of its staged batches, which the caller frees in slices.

        The server remembers the commit of the transaction for a shorter time than the application's version. So if a
        micro-batch runs again, its batches are staged, or its commit is recognised as done.
        """
        freed = self.drop(transaction_id)
        self.record_ended(transaction_id)
        return freed

    def record_ended(self, transaction_id: bytes) -> None:
        """Remember that the transaction was committed."""
        self.committed[transaction_id] = None
        while len(self.committed) > min(self._limits.staged_commits_max, self._limits.applications_max):
            self.committed.popitem(last=False)

    def idle(self, now: float) -> list[bytes]:
        """Return the transactions that no client has added to for `staged_idle_s_max`."""
        return [i for i, t in self.transactions.items() if now - t.touched > self._limits.staged_idle_s_max]

    def done(self, application: str, version: int) -> int | None:
        """Return the revision of an application's last version, if this version is at least `version`; else None."""
        last = self.versions.get(application)
        return last.revision if last is not None and version <= last.version else None

    def why_not_remembered(self, application: str, user: str) -> str:
        """Return why the version of an application can't be remembered; "" if it can be."""
        versions = self.versions
        if not application or application in versions or not versions.full:
            return ""
        if not versions.refuses(user) and versions.crowding(user):
            return ""
        many = f"the versions of {len(versions):,} applications are remembered, and no more may be (applications_max)"
        days = f"{self._limits.application_idle_s_max / 86_400:g} days"
        return f"{many}; use one name again, not a new one each time: a name is forgotten {days} after its last commit"

    def forget_applications(self, now: float) -> int:
        """Forget the applications that have committed nothing for `application_idle_s_max`; return how many."""
        forgotten, versions = 0, self.versions
        while versions:
            application, last = next(iter(versions.items()))
            if now - last.touched < self._limits.application_idle_s_max:
                break
            del versions[application]
            forgotten += 1
        return forgotten

    def owner_of(self, application: str) -> str | None:
        """Return the user of an application; None if it has none."""
        return self.versions.user_of(application) or None

    def own(self, application: str, user: str) -> None:
        """Note the user of an application that is remembered, unless its user is known already."""
        if application in self.versions and not self.versions.user_of(application):
            self.versions.give(application, user)

    def owned(self) -> list[tuple[str, str]]:
        """Return the applications that have a user, with their users."""
        return [(name, user) for name in self.versions if (user := self.versions.user_of(name))]

    def record_done(self, application: str, version: int, revision: int, now: float, user: str = "") -> None:
        """Remember an application's last version. A commit that names no application is not remembered."""
        if not application:
            return
        versions, last = self.versions, self.versions.get(application)
        if last is None:
            versions.put(application, CommittedVersion(version, revision, now), user)
        else:
            # The version may be older than the last one, if it comes with the suffix of another server.
            if last.version <= version:
                last = CommittedVersion(version, revision, now)
            versions[application] = last._replace(touched=now)
            versions.use(application)
        if len(versions) > versions.most:
            del versions[versions.loser()]

    # -- chunks of a snapshot

    def segments(self) -> Iterator[bytes]:
        """Yield all that is staged now, as segments that name transaction and part; more may be staged meanwhile."""
        now_here = [
            (transaction_id, part, list(batches))
            for transaction_id, transaction in self.transactions.items()
            for part, batches in transaction.parts.items()
        ]
        return _with_stage(now_here)


def _with_stage(parts: list[tuple[bytes, str, list[StagedBatch]]]) -> Iterator[bytes]:
    for transaction_id, part, batches in parts:
        for batch in batches:
            segment = batch.segment()
            extras = {**(segment.extras or {}), columns.STAGE: [transaction_id, part]}
            yield Segment(segment.keys, segment.values, extras).encode()
