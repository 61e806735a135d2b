"""The replicated state: what both servers hold, and what the journal restores.

    map        the hashmap
    sessions   the last batch of each client
    leases     keys that live and expire together
    uuids      those of the latest CHP/1 sets, so that each set is applied once
    refusals   the latest refused batches: a batch that comes again is refused again, and not acknowledged
    topics     the logs of messages beside the map (topics.py), without the messages
    history    the opener and the end of each epoch; they tell whether another server's position is part of our history
    digest     the digest of all records so far (history.py)

The state changes only by records, in the order of their numbers, on the active, on the passive and on recovery alike.
`apply` does what a segment says; `record_number` moves the number and the sessions. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, overload

from chp import columns
from chp.batch import Segment, array_head, encode, packb, unpackb
from chp.fair import FairTable
from chp.hashmap import Hashmap
from chp.headers import Access, Epoch, StateHead
from chp.keys import CLIENT_BYTES
from chp.limits import Limits
from chp.numbers import epoch_of

from .access_state import APPLICATION, GROUP, AccessState
from .deferred import DeferredCommit
from .history import EpochEntry, History, Position, common, from_list, opener_of, to_list
from .image import NOT_YET, Gathering, Image, PartedImage
from .incremental_free import IncrementalFree
from .leases import LeaseTable, user_of
from .runs import RunTable
from .sessions import Sessions
from .staging import StagedBatch, Staging
from .topics import Topics
from .undo_log import Columns, UndoLog

# A turn packs at most this many items of a list, in about 2 ms.
SLICE = 16_384
# As a number of items, this stands for all.
ALL = 1 << 62


def packing(
    head: StateHead, first: list[Any], sessions: Sequence[Any], leases: Sequence[Any], last: list[Any]
) -> Iterator[bytes]:
    """Yield `NOT_YET` for each slice that was packed, then the body of a STATE. The lists must not change."""
    pieces = [array_head(len(first) + 2 + len(last)), *map(packb, first)]
    for _ in _list(sessions, pieces):
        yield NOT_YET
    pieces.append(array_head(len(leases)))
    for name, ttl_ms, left_ms, keys, owner in leases:
        pieces += array_head(5), packb(name), packb(ttl_ms), packb(left_ms)
        for _ in _list(keys, pieces):
            yield NOT_YET
        pieces.append(packb(owner))
    pieces += map(packb, last)
    yield encode(head, [b"".join(pieces)])


def _list(items: Sequence[Any], pieces: list[bytes]) -> Iterator[None]:
    """Append a packed list to the pieces, and yield after each full slice of it."""
    pieces.append(array_head(len(items)))
    for start in range(0, len(items), SLICE):
        some = items[start : start + SLICE]
        pieces.append(packb(some)[len(array_head(len(some))) :])
        if len(some) == SLICE:
            yield


class SessionRows(Sequence[Any]):
    """The sessions as a STATE has them. Objects for their runs are made slice by slice; `runs` must not change."""

    def __init__(self, rows: list[tuple[bytes, int, int, tuple[tuple[int, int], ...], int]], runs: RunTable) -> None:
        self._rows, self._runs = rows, runs

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        """Return a session, or those of a slice, with their runs."""
        rows = self._rows[at] if isinstance(at, slice) else [self._rows[at]]
        whole = [
            (i, no, ms, (*((*run, NOT_DONE) for run in skipped), *self._runs.of(latest)))
            for i, no, ms, skipped, latest in rows
        ]
        return whole if isinstance(at, slice) else whole[0]


KEYS_MAX = 10_000


class RecentExpiries:
    """The last keys that expired, and the number after which no expiry has been forgotten."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, int] = OrderedDict()  # key -> revision of the record that ended it
        self._since = 0

    def begin(self, number: int) -> None:
        """Begin at a number: no earlier expiry is known."""
        self._at.clear()
        self._since = number

    def note(self, keys: Iterable[str], revision: int) -> None:
        """Note that a record ended these keys."""
        self._at.update(zip(keys, repeat(revision), strict=False))
        while len(self._at) > KEYS_MAX:
            self._since = max(self._since, self._at.popitem(last=False)[1])

    def may_have(self, key: str, after: int) -> bool:
        """Return whether a key that is gone may have expired after a number."""
        return self._since > after or self._at.get(key, 0) > after


NOBODYS = EpochEntry()
# In the runs of a STATE, this in place of a revision says that the batches were skipped.
NOT_DONE = 0


# The bound for unpacking a refusal. Its text always has fewer bytes.
REFUSAL_TEXT_MAX = 1 << 20


class RecentRefusals:
    """The code and the detail of the latest refused batches.

    If a refusal is forgotten and the batch comes again, the batch is acknowledged. So a user's refusals push out no
    refusals of other users: if the table is full, the user that has most refusals loses its oldest one. The id of the
    batch, the code and the detail are kept as bytes: as objects they would take twice the memory.
    """

    def __init__(self, most: int, owners: dict[bytes, str]) -> None:
        self._packed = FairTable[bytes, bytes](most)
        self._owners = owners
        # The number of refusals of each client that has no user yet.
        self._unowned: Counter[bytes] = Counter()

    def add(self, session_id: bytes, no: int, code: str, detail: Any) -> None:
        """Remember that a batch was refused. If there are too many, forget one of the user that has most refusals."""
        client, batch = session_id[:CLIENT_BYTES], session_id + no.to_bytes(8)
        if batch in self._packed:
            self._forget(batch)
        user = self._owners.get(client, "")
        if not user:
            self._unowned[client] += 1
        self._packed.put(batch, packb((code, detail)), user)
        if len(self._packed) > self._packed.most:
            self._forget(self._packed.loser())

    def _forget(self, batch: bytes) -> None:
        client = batch[:CLIENT_BYTES]
        if not self._packed.user_of(batch):
            self._unowned[client] -= 1
            if not self._unowned[client]:
                del self._unowned[client]
        del self._packed[batch]

    def own(self, client: bytes, user: str) -> None:
        """Give the refusals of a client to a user, if the client had no user before."""
        if self._unowned.pop(client, 0):
            for batch in self._packed.of_user(""):
                if batch.startswith(client):
                    self._packed.give(batch, user)

    def get(self, session_id: bytes, no: int) -> tuple[str, Any] | None:
        """Return the code and the detail of a batch's refusal; None if no refusal of it is remembered."""
        packed = self._packed.get(session_id + no.to_bytes(8))
        return None if packed is None else self._unpacked(packed)

    @staticmethod
    def _unpacked(packed: bytes) -> tuple[str, Any]:
        code, detail = unpackb(packed, "a refusal", None, REFUSAL_TEXT_MAX)
        return code, detail

    def __len__(self) -> int:
        """Return the number of refusals."""
        return len(self._packed)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield the ids of the refused batches, the oldest first."""
        return ((batch[:-8], int.from_bytes(batch[-8:])) for batch in self._packed)

    def to_list(self) -> list[list[Any]]:
        """Return all refusals as a STATE has them: session, batch, code and detail."""
        return [[*batch, *self._unpacked(packed)] for batch, packed in zip(self, self._packed.values(), strict=True)]


class ReplicatedState:
    """All that a record can change."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # The number of the last update.
        self.number = 0
        # The digest of all records up to `number`.
        self.digest = 0
        # The server that opened the first epoch; it names this history as long as it lives.
        self.store = b""
        self._map = Hashmap()
        # Commits that the map does not have as a whole yet; see `map`.
        self.deferred: deque[DeferredCommit] = deque()
        # Gatherings under way. They must be told of each change before the map gets it.
        self._gathering: deque[Gathering] = deque()
        self.leaving = IncrementalFree()
        # The earlier values of keys that have changed since the kept numbers.
        self.undo = UndoLog(self._map, self._free, limits)
        self.access = AccessState()
        self.sessions = Sessions(limits.sessions_max, self.access.owners, limits.runs_max)
        self.leases = LeaseTable(limits.leases_max)
        self.lease_of: dict[str, bytes] = {}
        self.ended = RecentExpiries()
        self.uuids: OrderedDict[bytes, None] = OrderedDict()
        self.history: History = {}
        # The position that `proof` returned last.
        self._proof = Position(b"", 0, b"", 0)
        self.staging = Staging(limits)
        self.topics = Topics(limits)
        self.refusals = RecentRefusals(limits.refusals_max, self.access.owners)

    @property
    def epoch(self) -> int:
        """The epoch of the last update; 0 if the server has none."""
        return epoch_of(self.number)

    @property
    def map(self) -> Hashmap:
        """The hashmap with all that was applied. To read this property first puts the `deferred` commits into it."""
        if self.deferred:
            self.catch_up()
        return self._map

    @property
    def map_so_far(self) -> Hashmap:
        """The hashmap as it is now, which may lack items of `deferred` commits. To read this property is cheap."""
        return self._map

    @property
    def keys_at_most(self) -> int:
        """An upper bound of the number of keys, with the `deferred` commits."""
        return len(self._map) + sum(commit.items for commit in self.deferred)

    def revisions(self) -> Callable[[str, int], int]:
        """Return the function that returns a key's revision, or the given number if there is no such key."""
        return self._revision if self.deferred else self._map.revisions.get

    def _revision(self, key: str, missing: int) -> int:
        for commit in reversed(self.deferred):
            revision = commit.revision(key)
            if revision is not None:
                return revision or missing
        return self._map.revisions.get(key, missing)

    def catch_up(self, items: int = ALL) -> None:
        """Put the deferred commits into the map, or the next `items` items of them."""
        left = items
        while self.deferred and left > 0:
            commit = self.deferred[0]
            segment, taken = commit.take(left)
            if not commit:
                self.deferred.popleft()
            if segment is not None:
                if self._gathering or self.undo.layers:
                    self._note_before(segment)
                self._map.apply(segment, commit.number, commit.now)
            # A segment without items counts as one.
            left -= max(1, taken)

    def _free(self, slices: list[Any]) -> None:
        self.leaving.add(slices)

    def _note_before(self, segment: Segment) -> None:
        """Let images and the undo log note what the keys of a segment are, before the map gets it."""
        for gathering in self._gathering:
            gathering.before(segment)
        if self.undo.layers and segment.keys:
            self.undo.before(segment)

    # -- images

    def image(self, prefix: str) -> Image:
        """Begin an image of a prefix as it is now. In a large map, `gather` completes it in later turns."""
        return self.images([prefix])[prefix]

    def images(self, prefixes: Iterable[str]) -> dict[str, Image]:
        """Begin images of several prefixes, in one pass."""
        deadlines, most = self._map.deadlines, self.limits.gather_items_max
        images = {prefix: Image(self.number, prefix, deadlines, self.leaving, most) for prefix in prefixes}
        self._begin(images)
        return images

    def image_at(self, number: int, prefix: str, parts: int) -> PartedImage | None:
        """Begin an image of a prefix, in parts, as it was at a kept number; None if the number is not kept."""
        if number not in self.undo:
            return None
        # The rest of a deferred commit is applied first, so that the undo log notes its changes too.
        self.catch_up()
        deadlines, most = self._map.deadlines, self.limits.gather_items_max
        image = PartedImage(number, prefix, parts, deadlines=deadlines, leaving=self.leaving, most=most)
        self._begin({prefix: image}, self.undo.since(number))
        return image

    def names(self) -> Gathering:
        """Begin a list of all keys as they are now; it is completed in the turns to come."""
        return self._begin({})

    def _begin(self, images: Mapping[str, Image | PartedImage], undone: Sequence[Columns] = ()) -> Gathering:
        gathering = Gathering(self.map, images, self.leaving, self.limits, undone)
        if not gathering.done:
            self._gathering.append(gathering)
        return gathering

    @property
    def gathering(self) -> bool:
        """True while an image is not complete."""
        return bool(self._gathering)

    @property
    def busy(self) -> bool:
        """True while there is work for the turns to come: an image to gather, or memory to free."""
        return bool(self._gathering or self.leaving.lists or self.leaving.dicts)

    def go_on(self, shares: int = 1) -> None:
        """Do `shares` shares of the work that `busy` tells of. A turn with sets of clients does one share."""
        for _ in range(shares):
            self.gather()
        self.leaving.step()

    @property
    def listing(self) -> bool:
        """True while the names of all keys are listed; no key should come or go in these few turns."""
        return bool(self._gathering) and any(gathering.listing for gathering in self._gathering)

    def gather(self) -> None:
        """Do a turn's share of an image that lists names, if there is one, else of the oldest incomplete image."""
        if self._gathering:
            next((each for each in self._gathering if each.listing), self._gathering[0]).gather()
            if self._gathering[0].done:
                self._gathering.popleft()

    def gather_all(self) -> None:
        """Gather all images at once."""
        while self._gathering:
            self.gather()

    # -- records

    def apply(self, segment: Segment, revision: int, now: float, *, deferred: bool = False) -> None:
        """Do what a segment says. With `deferred` the map gets it later: a slice a turn, or when `map` is read."""
        if segment.extras and columns.STAGE in segment.extras:
            self.staging.add(segment, now, revision)
            return
        if deferred:
            self._defer(segment, revision, now)
        else:
            for commit in self.deferred:
                commit.note(segment.keys)
            if self._gathering or self.undo.layers:
                self._note_before(segment)
            self._map.apply(segment, revision, now)
        if self.lease_of:
            self._detach(segment.keys)
        if self.topics.schedule.unless:
            self.topics.schedule.changed(segment.keys)
        if segment.extras:
            self._apply_extras(segment, revision, now)
            if columns.ENDED in segment.extras:
                self.ended.note(segment.keys, revision)

    def apply_staged(self, batch: StagedBatch, revision: int, now: float) -> None:
        """Do what a plain batch of a commit says. The map gets its items later, as with `deferred` in `apply`."""
        self._defer(batch, revision, now)
        if self.lease_of:
            self._detach(batch.written(self.lease_of))
        if self.topics.schedule.unless:
            self.topics.schedule.changed(batch.written(self.topics.schedule.unless))

    def _defer(self, segment: Segment | StagedBatch, revision: int, now: float) -> None:
        if not self.deferred or self.deferred[-1].number != revision:
            self.deferred.append(DeferredCommit(self._map, revision, now))
        self.deferred[-1].add(segment)

    def _apply_extras(self, segment: Segment, revision: int, now: float) -> None:
        extras = segment.extras or {}
        if columns.LEASE in extras:
            lease_id, ttl_ms, *owner = extras[columns.LEASE]
            whose = owner[0] if owner else b""
            self.leases.keep(lease_id, ttl_ms, whose, now, user_of(whose, self.access.owners))
        if columns.REFRESH in extras:
            self.leases.refresh(extras[columns.REFRESH], now)
        if columns.LEASED in extras and extras[columns.LEASED] in self.leases:
            self._attach(extras[columns.LEASED], segment)
        if columns.UNLEASE in extras:
            self.leases.end(extras[columns.UNLEASE])
            if self.topics.groups.any_member:
                self.topics.groups.left(extras[columns.UNLEASE])
        if columns.DONE in extras:
            application, version, transaction_id = extras[columns.DONE]
            self.staging.record_done(application, version, revision, now)
            for each in self.staging.end(transaction_id):
                self.leaving.add(each)
        if columns.ONCE in extras:
            application, version, _ = extras[columns.ONCE]
            self.staging.record_done(application, version, revision, now)
        if columns.IMAGES in extras:
            keeps, forgets = extras[columns.IMAGES]
            self._keep_number(revision if keeps else None, forgets, now)
        if columns.ABORT in extras:
            for each in self.staging.drop(extras[columns.ABORT]):
                self.leaving.add(each)
        self._record_outcomes(extras, now)
        self._record_uuids(extras.get(columns.UUIDS, ()))

    def _keep_number(self, number: int | None, forgets: list[int], now: float) -> None:
        """Forget some kept numbers. If `number`, that of the record under way, is given, keep it for images."""
        self.undo.drop(forgets)
        if number is not None:
            # The deferred commits have lower numbers, so the map must have them before the number is kept.
            self.catch_up()
            self.undo.keep(number, now)

    def _record_uuids(self, uuids: Sequence[bytes]) -> None:
        self.uuids.update(dict.fromkeys(filter(None, uuids)))
        while len(self.uuids) > self.limits.pending_batches_max:
            self.uuids.popitem(last=False)

    def _record_outcomes(self, extras: dict[str, Any], now: float) -> None:
        """Remember that batches were refused or skipped."""
        if columns.SKIPPED in extras:
            self._record_skip(*extras[columns.SKIPPED], now=now)
        if columns.REFUSED in extras:
            self.refusals.add(*extras[columns.REFUSED])

    def _record_skip(self, session_id: bytes, first: int, last: int | None = None, *, now: float) -> None:
        session = self.sessions.heard(session_id, now)
        if last is None:
            session.fill(first, self.limits.skips_of_session_max)
        else:
            session.skip(first, last, self.limits.skips_of_session_max)

    def _attach(self, lease_id: bytes, segment: Segment) -> None:
        gone = set(self._map.deleted_by(segment))
        keys = [key for key in segment.keys if key not in gone]
        self.leases[lease_id].keys |= dict.fromkeys(keys)
        self.lease_of.update(dict.fromkeys(keys, lease_id))

    def _detach(self, keys: Iterable[str]) -> None:
        for key in self.lease_of.keys() & set(keys):
            self.leases.without(self.lease_of.pop(key), key)

    def record_epoch(self, told: Epoch, digest: int) -> None:
        """Take over an EPOCH record, which names the store and the server that opened the epoch."""
        self.number, self.digest, self.store = told.last, digest, told.store
        began = EpochEntry(told.last, digest, told.server, told.name, told.because, told.wall_ms)
        self.history[epoch_of(told.last)] = began
        while len(self.history) > self.limits.history_epochs_max:
            del self.history[min(self.history)]

    def record_access(self, told: Access) -> None:
        """Take over an ACCESS record: new rules, or the users of clients, applications and groups."""
        self.access.note(told)
        for name, user in told.owners:
            if self.sessions.has_client(name):
                if name not in self.access.owners:
                    self.leases.own(name, user)
                    self.refusals.own(name, user)
                self.sessions.own(name, user)
            elif name[:1] == APPLICATION:
                self.staging.own(name[1:].decode(errors="replace"), user)
            elif name[:1] == GROUP:
                self.topics.groups.own(name[1:].decode(errors="replace"), user)

    def record_number(self, last: int, digest: int, origins: list[list[Any]], revision: int, now: float) -> None:
        """Note that a record is complete: its last number, its digest, and the batches that it holds."""
        self.number, self.digest = last, digest
        epoch = epoch_of(last)
        self.history[epoch] = EpochEntry(last, digest, *self.history.get(epoch, NOBODYS)[2:])
        for session_id, no in origins:
            self.record_batch(session_id, no, revision, now)

    def record_batch(self, session_id: bytes, no: int, revision: int, now: float) -> None:
        """Remember that a batch of a session is done: its new last one, or one that was skipped before."""
        session = self.sessions.heard(session_id, now)
        if no <= session.no:
            session.fill(no, self.limits.skips_of_session_max)
            return
        session.record(no, revision, now)

    def did(self, session_id: bytes, no: int) -> bool:
        """Return whether a record says that a session's batch was done or refused."""
        session = self.sessions.get(session_id)
        return session is not None and no <= session.no

    def skipped(self, session_id: bytes, no: int) -> bool:
        """Return True if a session's later batch was done here, and this one was not."""
        session = self.sessions.get(session_id)
        return session is not None and bool(session.skipped) and session.skips(no)

    def replaced(self, session_id: bytes) -> bool:
        """Return whether the client has opened a newer session: a late batch of this one must not be done."""
        return session_id < self.sessions.newest_of(session_id[:CLIENT_BYTES])

    def forget_idle_sessions(self, now: float) -> int:
        """Drop sessions that were not heard for `session_idle_s_max`; return how many."""
        dropped = 0
        while self.sessions:
            session_id, session = next(iter(self.sessions.items()))
            if now - session.seen < self.limits.session_idle_s_max:
                break
            del self.sessions[session_id]
            dropped += 1
        return dropped

    # -- history

    def proof(self) -> Position:
        """Return the position of this state."""
        known, number = self._proof, self.number
        if known.number != number or known.digest != self.digest or known.store != self.store:
            self._proof = known = Position(self.store, number, opener_of(self.history, number), self.digest)
        return known

    def opener_of(self, number: int) -> bytes:
        """Return the run that opened the epoch of a number."""
        return opener_of(self.history, number)

    def whose(self, number: int) -> list[bytes]:
        """Return the store, and the opener of a number's epoch. A reader sends both back to resume at the number."""
        return [self.store, self.opener_of(number)]

    def is_ours(self, number: int, whose: list[bytes]) -> bool:
        """Return whether a reader at this number holds part of our history, as far as `whose` can tell."""
        epoch = self.history.get(epoch_of(number))
        return epoch is not None and number <= epoch.last and whose == self.whose(number)

    def unseen(self, number: int) -> bool:
        """Return whether a number is of another server's history, from after the two histories parted.

        Return False for numbers of epochs that are older than the history that is kept.
        """
        epoch = self.history.get(epoch_of(number))
        ours = epoch is not None and number <= epoch.last
        return number != 0 and epoch_of(number) >= min(self.history, default=0) and not ours

    def is_of_others(self, number: int, whose: list[bytes]) -> bool:
        """Return whether a position is known to be of another history than ours.

        Return False if the number's epoch is older than the history that is kept.
        """
        if epoch_of(number) not in self.history:
            return self.unseen(number)
        return not self.is_ours(number, whose)

    def common_number(self, theirs: History) -> int:
        """Return the last number that both histories share."""
        return common(self.history, theirs)

    # -- deadlines

    def renew_leases(self, now: float) -> None:
        """Give every lease its full time again, as when this server becomes active: its owner could not refresh it."""
        for lease in self.leases.values():
            lease.deadline = now + lease.ttl_ms / 1000

    # -- a message

    def measure(self) -> tuple[int, ...]:
        """Return the numbers by which a receiver checks that it has all chunks of this state.

        These are the map's fingerprint, the count and bytes of staged segments, and those of scheduled messages.
        """
        return *self.map.fingerprint(), *self.staging.measure(), *self.topics.schedule.measure()

    def rest(self, now: float) -> Iterator[bytes]:
        """Yield `NOT_YET` for each turn of work, then the STATE body: everything but the map, as it is now."""
        sessions = SessionRows(
            [(i, s.no, round((now - s.seen) * 1000), s.skipped, s.latest) for i, s in self.sessions.items()],
            self.sessions.runs.copy(),
        )
        leases = [
            (i, v.ttl_ms, round((v.deadline - now) * 1000), tuple(v.keys), v.owner) for i, v in self.leases.items()
        ]
        versions = [[name, last.version, last.revision] for name, last in self.staging.versions.items()]
        ages = [round(max(0.0, now - last.touched)) for last in self.staging.versions.values()] or None
        last = [
            list(self.uuids),
            versions,
            self.refusals.to_list(),
            self.store,
            list(self.staging.committed),
            self.digest,
            self.topics.to_list(),
            *self._owned(),
        ]
        head, first = StateHead._make([self.number, *self.measure(), ages]), [self.number, to_list(self.history)]
        return packing(head, first, sessions, leases, last)

    def _owned(self) -> list[Any]:
        """Return the rules and owners as a STATE carries them; an empty list if there have never been rules."""
        if self.access.rules is None:
            return []
        others = [[APPLICATION + name.encode(), user] for name, user in self.staging.owned()]
        others += ([GROUP + name.encode(), user] for name, user in self.topics.groups.owned())
        return [self.access.to_list(others), list(map(list, self.staging.openers().items()))]

    def load_rest(self, rest: list[Any], now: float, ages: Sequence[int] | None = None) -> None:
        """Take over the lists of a STATE body, which `rest` made, and the ages of applications in its header.

        A server of an older version does not tell the ages. Then the time of each application begins anew.
        """
        number, history, sessions, leases, uuids, versions, refusals, self.store, ended, self.digest, *more = rest
        self.number = number
        self.ended.begin(number)
        self.history = from_list(history)
        self.access.load(more[1:2])
        self.staging.load_openers(*more[2:3])
        self.sessions = Sessions(self.limits.sessions_max, self.access.owners, self.limits.runs_max)
        for session_id, no, ms, _ in sessions:
            self.sessions.keep(session_id, no, now - ms / 1000)
        others = self.sessions.forget_owners()
        runs = ((revision, i, first, last) for i, *_, runs in sessions for first, last, revision in runs)
        for revision, i, first, last in sorted(runs):
            if revision == NOT_DONE:
                self.sessions[i].skip(first, last, self.limits.skips_of_session_max)
                continue
            self.sessions[i].keep_run((first, last, revision))
        self.leases = LeaseTable(self.limits.leases_max)
        for i, ttl_ms, left_ms, keys, owner in leases:
            self.leases.keep(i, ttl_ms, owner, now, user_of(owner, self.access.owners))
            self.leases[i].deadline, self.leases[i].keys = now + left_ms / 1000, dict.fromkeys(keys)
            if not ttl_ms:
                self.leases.end(i)
        self.lease_of = {key: i for i, lease in self.leases.items() for key in lease.keys}
        self.uuids = OrderedDict.fromkeys(uuids)
        for (name, version, revision), age_s in zip(versions, ages or repeat(0), strict=False):
            user = others.get(APPLICATION + name.encode(), "")
            self.staging.record_done(name, version, revision, now - age_s, user)
        self.refusals = RecentRefusals(self.limits.refusals_max, self.access.owners)
        for refusal in refusals:
            self.refusals.add(*refusal)
        for transaction_id in ended:
            self.staging.record_ended(transaction_id)
        # The scheduled messages came with earlier chunks, so the schedule is kept.
        schedule, self.topics = self.topics.schedule, Topics(self.limits)
        self.topics.schedule = schedule
        # A state of an older version says nothing of topics.
        if more:
            self.topics.load(more[0])
        for named, user in others.items():
            if named[:1] == GROUP:
                self.topics.groups.own(named[1:].decode(errors="replace"), user)

    def check(self) -> None:
        """Assert every invariant; the AssertionError names the one that does not hold."""
        self.map.check()
        self.topics.check_all()
        self.undo.check()
        assert set(self.lease_of) <= set(self.map.values), "a leased key is in the map"
        for key, lease_id in self.lease_of.items():
            assert key in self.leases[lease_id].keys, "lease_of and the leases agree"
        assert sum(len(v.keys) for v in self.leases.values()) == len(self.lease_of), "a key has one lease"
        assert all(self.leases[i].keys for i in self.leases.ending), "an ended lease is forgotten with its last key"
        ends = max(self.history.values(), default=EpochEntry())
        assert (self.number, self.digest) == ends[:2], "history ends with the last number, and its digest"

    def under(self, prefix: str) -> Iterator[str]:
        """Yield the keys of a subtree."""
        return (key for key in self.map.values if key.startswith(prefix))


def deletes(keys: list[str], limits: Limits, *, ended: bool = False) -> list[Segment]:
    """Return segments that delete keys, each small enough for a frame; `ended` marks keys that expired."""
    why = {columns.ENDED: True} if ended else {}
    step = limits.sync_chunk_items
    parts = [keys[start : start + step] for start in range(0, len(keys), step)]
    return [Segment(part, [b""] * len(part), {columns.DELETES: list(range(len(part))), **why}) for part in parts]
