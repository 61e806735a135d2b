"""The change feed: every record after a number, once and in order, as columns. For whoever needs all changes.

    with Feed(["tcp://a:5556", "tcp://b:5566"], "/rates/") as feed:
        number = feed.facts().newest                        # where the store is now, and which store it is
        for records in feed.fetch(after=number - 1000): ... # what is retained after a number, then it ends
        for records in feed.follow(after=number): ...       # the same, then what comes; never ends

For the stream reader of `format("chp")`, for `chp record`, and for anybody like them: a watch of a `Clone` gives net
changes and keeps a copy of the subtree; a feed gives *all* of them, keeps nothing, and can go on where it stopped.

- A `FeedRecord` is what one turn of the active committed: parallel lists `keys` and `values`, the indices of those
  that are deletes (`expiries`: and nobody's, but by time), the ttls of some, `first` (their revision), `last` (the
  offset: go on with `after=record.last`), `wall_ms` (the active's clock). Its rows belong together: nobody should
  show some of them without the others.
- Records come in lists, as they arrived together. Nothing here runs per row, but for rows that have a ttl.
- What was missed comes from the log of the active (ICANHAZ with `feed`, SPEC.md section 17), what is new from the
  channel. `prev` in each BATCH and the channel's last number in each HEARTBEAT show every hole; a hole is asked for.
- `NotRetained`: the log no longer reaches back, or `after` is no part of the store's history (updates that only a
  server that died had seen). Never a silent gap. `snapshot()` gives where to begin anew.
- `OtherStore`: the servers hold another store than before, where the same number means something else: another pair, or
  one without a journal that was started anew. Who goes on later keeps `feed.store` and `feed.opener` beside the number,
  and gives all three: the opener tells a number of a history that a split has ended from the same number of the one
  that is (SPEC.md, section 11).
- One thread, no background agent: sockets are read while you iterate. Not to be shared by threads or processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Self

from chp import columns
from chp.batch import Segment, record_of, segment_of
from chp.errors import ChpError
from chp.headers import Batch, Greeting, Heartbeat, Kthxbai, Records, State, Sync
from chp.headers import Refused as RefusedHeader
from chp.keys import CLIENT_BYTES, channel_topic, check_subtree
from chp.numbers import epoch_of, unpack
from chp.parts import Parts, WholeRecord

from ..core.question import Told, reply_of
from ..core.rate_limited_log import LOST_S, NEVER
from ..errors import NotRetained, Refused, Unanswered
from ..target import servers_of
from .ask import LATER, Interrupted, QuestionPort
from .connection import Connection

log = logging.getLogger("chp_client")
SILENCE_S = 5.0  # a request that nothing answers for so long is put to the other server
RETRY_S = 0.25
CREDIT, GRANT = 16, 8  # chunks


class OtherStore(ChpError):
    """The servers hold another store than the one that is read: its numbers mean something else."""

    def __init__(self, mine: bytes, theirs: bytes) -> None:
        super().__init__(f"the servers hold the store {theirs.hex()}, not {mine.hex()}, which was read so far")
        self.mine = mine
        self.theirs = theirs


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """Where the feed begins and ends now, and of which store it is."""

    newest: int  # the store's number
    oldest: int  # the lowest number after which records can be had
    store: bytes  # the store's id: as long as it stays, numbers mean the same
    opener: bytes  # who opened the epoch of `newest`
    oldest_opener: bytes  # and of `oldest`


@dataclass(slots=True)
class FeedRecord:
    """One record's updates of the subtree, in order: item i sets `keys[i]`, or deletes it if i is in `deletes`."""

    first: int  # the revision of all its keys
    last: int  # the number after which to go on
    wall_ms: int
    keys: list[str]
    values: list[bytes]
    deletes: list[int] = field(default_factory=list)
    ttls_ms: dict[int, int] = field(default_factory=dict)  # item: ttl
    expiries: list[int] = field(default_factory=list)  # of the deletes, those that nobody made: by time
    client: bytes = b""  # whose all of it is, if it is one client's and came out of the log; as `chp leases` names it


@dataclass(slots=True)
class FeedSnapshot:
    """The subtree at one number."""

    number: int
    chunks: list[FeedRecord]  # `first` and `last` are the number; `revisions` has each key's own
    revisions: list[list[int]]
    opener: bytes = b""  # who opened the epoch of `number`


class Feed:
    """Reads the feed of a subtree from whichever server is active."""

    def __init__(
        self, servers: str | Sequence[str], subtree: str = "", *, store: bytes = b"", silence_s: float = SILENCE_S
    ) -> None:
        self.subtree = check_subtree(subtree)
        self.store = store  # whose numbers these are; that of the first answer, unless it is given
        self.complete = 0  # the number up to which everything was given
        self.opener = b""  # who opened the epoch of `complete`, if that is known
        self._openers: dict[int, bytes] = {}  # of numbers that were told last, from which a reader may begin
        self.stats = {"fetches": 0, "holes": 0, "silences": 0}
        self._silence_s = silence_s
        self._port = QuestionPort(
            servers_of(servers, None), NEVER, silence_s=silence_s, patience_s=silence_s, topics=[channel_topic(subtree)]
        )
        self._server: Connection | None = None  # the one that answered last
        self._lost_at = NEVER  # since when nobody gives the feed
        self._told = False

    # -- reading

    def facts(self, timeout_s: float | None = 30.0) -> FeedFacts:
        """How the store is now. Raises `OtherStore`, or `TimeoutError` when no server answers for `timeout_s`."""
        deadline = deadline_in(timeout_s)
        while True:
            try:
                [answer] = self._ask({"feed": True, "probe": 0}, deadline)
            except Interrupted:
                self.stats["silences"] += 1
                continue
            assert self._server is not None, "it has answered"
            told = reply_of(self._server.address, answer).facts
            self.store = self.store or told["store"]
            facts = FeedFacts(*map(told.__getitem__, FeedFacts.__dataclass_fields__))
            self._openers = {facts.oldest: facts.oldest_opener, facts.newest: facts.opener}
            return facts

    def fetch(self, after: int, timeout_s: float | None = 30.0, *, opener: bytes = b"") -> Iterator[list[FeedRecord]]:
        """The records after `after` that the store has now; `complete` is how far that reached.

        `opener` is what `feed.opener` was at `after`, if that number was kept. Raises `NotRetained`, `OtherStore`, or
        `TimeoutError` when no server answers for `timeout_s` (None: never).
        """
        self._begin(after, opener)
        yield from self._fetch(timeout_s)

    def _begin(self, after: int, opener: bytes) -> None:
        if opener or after != self.complete:
            self.opener = opener or self._openers.get(after, b"")
        self.complete = after

    def _fetch(self, timeout_s: float | None) -> Iterator[list[FeedRecord]]:
        deadline = deadline_in(timeout_s)
        if not self.store:
            self.facts(timeout_s)
        while True:
            parts = Parts()
            try:
                for _, header, items in self._ask({"feed": True, "from": self.complete, **self._proof()}, deadline):
                    deadline = deadline_in(timeout_s)
                    if isinstance(header, Kthxbai):
                        opener = header.proof[1] if header.proof else b""
                        self._reach(max(self.complete, header.number), header.number, opener)
                        return
                    found = [parts.add(*record_of(item)) for item in items]
                    records = [_logged(record) for record in found if record is not None]
                    if records:
                        told = header.opener if isinstance(header, Records) else b""
                        self._reach(records[-1].last, parts.last or records[-1].last, told)
                        yield records
            except Refused as refused:
                if refused.code != "retained":
                    raise
                oldest = refused.detail if isinstance(refused.detail, int) else None
                raise NotRetained(self.complete, oldest) from None
            except Interrupted:
                self.stats["silences"] += 1

    def _reach(self, complete: int, told_of: int, opener: bytes | None) -> None:
        """Everything up to a number was given; who opened the epoch of `told_of` was told."""
        if epoch_of(complete) == epoch_of(told_of) and opener:
            self.opener = opener
        elif epoch_of(complete) != epoch_of(self.complete):
            self.opener = b""
        self.complete = complete

    def _proof(self) -> dict[str, Any]:
        """What proves `complete`, if we were told."""
        return {"proof": [self.store, self.opener]} if self.opener else {}

    def follow(self, after: int, idle_s: float = 1.0, *, opener: bytes = b"") -> Iterator[list[FeedRecord]]:
        """The records after `after`, then what comes; an empty list when nothing came for `idle_s`. Never ends.

        It waits for ever for a server to be active; `opener`, and what it raises otherwise, are as of `fetch`.
        """
        self._begin(after, opener)
        while True:
            yield from self._fetch_idly(idle_s)
            yield from self._live(idle_s)

    def snapshot(self, timeout_s: float | None = 30.0) -> FeedSnapshot:
        """The subtree as it is now, at one number, from which `follow` can go on."""
        deadline = deadline_in(timeout_s)
        while True:
            found = FeedSnapshot(0, [], [])
            try:
                for number, header, items in self._ask({}, deadline):
                    found.number = unpack(number)
                    if isinstance(header, Sync):
                        for item in items:
                            _add_chunk(found, segment_of(item))
                    elif isinstance(header, Kthxbai) and header.proof:
                        found.opener = header.proof[1]
                self._openers = {found.number: found.opener}
                return found
            except Interrupted:
                self.stats["silences"] += 1

    def _fetch_idly(self, idle_s: float) -> Iterator[list[FeedRecord]]:
        """As `fetch`, without an end to trying; says so with an empty list now and then."""
        while True:
            try:
                yield from self._fetch(idle_s)
                self._tell("")
                return
            except TimeoutError as error:
                self._tell(str(error))
                yield []

    def _tell(self, lost: str) -> None:
        """Warn once that nobody gives the feed, and once that somebody does again."""
        now = monotonic()
        if not lost:
            if self._told:
                log.warning("the feed of %r comes again, after %.1f s", self.subtree, now - self._lost_at)
            self._lost_at, self._told = NEVER, False
        elif self._lost_at == NEVER:
            self._lost_at = now
        elif not self._told and now - self._lost_at >= LOST_S:
            self._told = True
            log.warning("no feed of %r for %.1f s: %s; trying on", self.subtree, now - self._lost_at, lost)

    # -- what comes on the channel

    def _live(self, idle_s: float) -> Iterator[list[FeedRecord]]:
        """Records as they are published, until one is missing or another server is to be asked."""
        server, parts = self._server, Parts()
        assert server is not None, "it was asked for what was missed"
        heard_at = spoke_at = monotonic()
        while True:
            ready = self._port.heard(min(idle_s, RETRY_S))
            now = monotonic()
            for connection in ready:
                if connection is not server:
                    for _ in connection.published():
                        pass
            records: list[FeedRecord] = []
            follows = True
            if server in ready:
                heard_at = now
                follows = self._take(server, parts, records)
            if records:
                yield records
            if records or now - spoke_at >= idle_s:
                if not records:
                    yield []
                spoke_at = monotonic()
            if not follows or self._successor(server):
                return
            if now - heard_at > max(self._silence_s / 2, 4 * server.heartbeat_s):
                server.state = 0
                self.stats["silences"] += 1
                return

    def _take(self, server: Connection, parts: Parts, records: list[FeedRecord]) -> bool:
        """Add what came and follows; False if something is missing."""
        for header, items in server.published():
            if isinstance(header, Batch):
                if header.last <= self.complete or epoch_of(header.last) < epoch_of(self.complete):
                    continue
                if epoch_of(header.last) > epoch_of(self.complete) or header.prev > max(self.complete, parts.last):
                    self.stats["holes"] += 1
                    return False
                record = parts.add(header, [segment_of(item) for item in items])
                if record is not None:
                    records.append(_feed_record(record))
                    self.complete = record.last
            elif isinstance(header, Heartbeat) and not parts and header.state == State.ACTIVE:
                if epoch_of(header.number) > epoch_of(self.complete) or header.channel_last > self.complete:
                    self.stats["holes"] += 1
                    return False
                self.complete = max(self.complete, header.number)
            elif isinstance(header, RefusedHeader) and header.code == "access":
                return False  # an answer on P says so to who asked, or that it is not so any more
            elif isinstance(header, Greeting | Heartbeat) and (server.state != State.ACTIVE or server.anew):
                return False
        return True

    def _successor(self, server: Connection) -> bool:
        mine = epoch_of(self.complete)
        others = [each for each in self._port.connections if each is not server]
        return any(each.state == State.ACTIVE and epoch_of(each.number) > mine for each in others)

    # -- asking

    def _ask(self, options: dict[str, Any], deadline: float) -> Iterator[Told]:
        """Yield one server's answer; `Interrupted` if it breaks off, `TimeoutError` if no server serves in time."""
        self.stats["fetches"] += 1
        meant = {"credit": CREDIT, **options} | ({"store": self.store} if self.store else {})
        try:
            for told in self._port.answers(self.subtree, meant, deadline - monotonic(), grant=GRANT):
                self._server = self._port.asked
                yield told
            assert self._server is not None, "it has answered"
            self._server.state = State.ACTIVE
        except Interrupted:
            raise
        except Unanswered as error:
            raise TimeoutError(str(error)) from None
        except Refused as refused:
            if refused.code == "store":
                raise OtherStore(self.store, refused.detail) from None
            if refused.code in LATER:
                raise Interrupted(str(refused)) from None
            raise

    def close(self) -> None:
        """Close the sockets; twice is fine."""
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _feed_record(whole: WholeRecord) -> FeedRecord:
    record = FeedRecord(whole.first, whole.last, whole.wall_ms, [], [])
    for segment in whole.segments:
        _extend(record, segment)
    return record


def _logged(whole: WholeRecord) -> FeedRecord:
    """Out of the log, where a record tells what of it is whose if it is not one's."""
    record = _feed_record(whole)
    if whole.whose is None and len(whole.origins) == 1:
        record.client = whole.origins[0][0][:CLIENT_BYTES]
    return record


def _extend(record: FeedRecord, segment: Segment) -> None:
    """Add a segment's columns."""
    start = len(record.keys)
    extras = segment.extras
    if not start:
        record.keys, record.values = segment.keys, segment.values
    else:
        record.keys = record.keys + segment.keys
        record.values = record.values + segment.values
    if not extras:
        return
    if columns.DELETES in extras:
        gone = [start + i for i in extras[columns.DELETES]]
        record.deletes = record.deletes + gone
        if columns.ENDED in extras:
            record.expiries = record.expiries + gone
    ttls = extras.get(columns.TTLS)
    if type(ttls) is int:
        record.ttls_ms.update(dict.fromkeys(range(start, start + len(segment.keys)), ttls))
    elif ttls:
        record.ttls_ms.update((start + i, ms) for i, ms in zip(*ttls, strict=True))


def _add_chunk(found: FeedSnapshot, segment: Segment) -> None:
    extras = segment.extras or {}
    chunk = FeedRecord(found.number, found.number, 0, [], [])
    _extend(chunk, segment)
    found.chunks.append(chunk)
    found.revisions.append([revision for revision, n in extras.get(columns.REVISIONS, []) for _ in range(n)])


def deadline_in(timeout_s: float | None) -> float:
    """Return the moment `timeout_s` from now; never, for None."""
    return NEVER if timeout_s is None else monotonic() + timeout_s
