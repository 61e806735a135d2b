"""The change feed: every record after a number, once and in order, as columns.

    with Feed(["tcp://a:5556", "tcp://b:5566"], "/rates/") as feed:
        number = feed.facts().newest                        # the store's number now
        for records in feed.fetch(after=number - 1000): ... # the retained records after a number; then it ends
        for records in feed.follow(after=number): ...       # the retained records, then the new ones; it never ends

A watch of a `Clone` gives net changes and keeps a copy of the subtree. A feed gives *all* changes, keeps nothing, and
can go on where it stopped. `chp record` uses a feed.

- A `FeedRecord` is what one turn of the active committed. It has parallel lists `keys` and `values`, the indices of the
  deletes, and in `expiries` the indices of the deletes by time. It has the ttls of some keys, `first` (the revision of
  all keys), `last` (to go on with `after=record.last`), and `wall_ms` (the active's clock). A reader should show all
  rows of a record or none.
- Records come in lists, as they arrived together. Python code runs for each record, and for a single row only if the
  row has a ttl.
- Missed records come from the log of the active (ICANHAZ with `feed`, SPEC.md section 17), new ones from the channel.
  `prev` in each BATCH and the channel's last number in each HEARTBEAT show every hole. The feed then asks for the
  missing records.
- `NotRetained`: the log no longer reaches back, or `after` is no part of the store's history, because only a server
  that died had seen it. There is never a silent gap. `snapshot()` gives a number from which to begin anew.
- `OtherStore`: the servers hold another store, where the same number means something else. It is another pair, or a
  pair without a journal that was started anew. To go on later, keep `feed.store` and `feed.opener` beside the number,
  and give all three. After a split, equal numbers of the two sides have different openers (SPEC.md, section 11).
- A feed has no agent: it reads its sockets on the thread that iterates. Threads and processes can't share a feed.
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
# After this long without an answer the other server gets the question.
SILENCE_S = 5.0
RETRY_S = 0.25
CREDIT, GRANT = 16, 8  # chunks


class OtherStore(ChpError):
    """The error of servers that hold another store than the one read so far. Numbers mean something else there."""

    def __init__(self, mine: bytes, theirs: bytes) -> None:
        super().__init__(f"the servers hold the store {theirs.hex()}, not {mine.hex()}, which was read so far")
        self.mine = mine
        self.theirs = theirs


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """The two ends of the feed, and its store.

    newest, oldest           the store's number, and the lowest number after which the log still has all records
    store                    the store's id: while the id stays the same, numbers keep their meaning
    opener, oldest_opener    the servers that opened the epochs of `newest` and of `oldest`
    """

    newest: int
    oldest: int
    store: bytes
    opener: bytes
    oldest_opener: bytes


@dataclass(slots=True)
class FeedRecord:
    """One record's updates of the subtree, in order: item i sets `keys[i]`, or deletes it if i is in `deletes`.

    first, last    the revision of all its keys, and the number after which to go on
    ttls_ms        the ttl of each item that has one
    expiries       the deletes that no client made: by a ttl or a lease
    client         the client that made the whole record, as `chp leases` names it; b"" if that is not known
    """

    first: int
    last: int
    wall_ms: int
    keys: list[str]
    values: list[bytes]
    deletes: list[int] = field(default_factory=list)
    ttls_ms: dict[int, int] = field(default_factory=dict)
    expiries: list[int] = field(default_factory=list)
    client: bytes = b""


@dataclass(slots=True)
class FeedSnapshot:
    """The subtree at one number.

    chunks       records whose `first` and `last` are the number
    revisions    the revision of each key, by chunk
    opener       the server that opened the epoch of `number`
    """

    number: int
    chunks: list[FeedRecord]
    revisions: list[list[int]]
    opener: bytes = b""


class Feed:
    """A reader of the feed of a subtree. It reads from the active, also after a failover."""

    def __init__(
        self, servers: str | Sequence[str], subtree: str = "", *, store: bytes = b"", silence_s: float = SILENCE_S
    ) -> None:
        self.subtree = check_subtree(subtree)
        # The store of these numbers: the given one, or that of the first answer.
        self.store = store
        # The caller has all records up to this number. `opener` is the server that opened its epoch, if known.
        self.complete = 0
        self.opener = b""
        # The opener of each number that `facts` or `snapshot` returned last: a reader may begin there.
        self._openers: dict[int, bytes] = {}
        self.stats = {"fetches": 0, "holes": 0, "silences": 0}
        self._silence_s = silence_s
        self._port = QuestionPort(
            servers_of(servers, None, subtree),
            NEVER,
            silence_s=silence_s,
            patience_s=silence_s,
            topics=[channel_topic(subtree)],
        )
        # The server that answered last.
        self._server: Connection | None = None
        # The time since which no server gives the feed.
        self._lost_at = NEVER
        self._told = False

    # -- reading

    def facts(self, timeout_s: float | None = 30.0) -> FeedFacts:
        """Return the ends of the feed now. Raises `OtherStore`, or `TimeoutError` if no server answers in time."""
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
        """Yield the records after `after` that the store has now. Then `complete` is the number that they reach.

        `opener` is the `feed.opener` that was kept with `after`. Raises `NotRetained`, `OtherStore`, or `TimeoutError`
        when no server answers for `timeout_s` (None: never).
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
        """Note that the caller has all records up to `complete`, and that `opener` opened the epoch of `told_of`."""
        if epoch_of(complete) == epoch_of(told_of) and opener:
            self.opener = opener
        elif epoch_of(complete) != epoch_of(self.complete):
            self.opener = b""
        self.complete = complete

    def _proof(self) -> dict[str, Any]:
        """Return the proof of `complete` as an option of a question, if its opener is known."""
        return {"proof": [self.store, self.opener]} if self.opener else {}

    def follow(self, after: int, idle_s: float = 1.0, *, opener: bytes = b"") -> Iterator[list[FeedRecord]]:
        """Yield the records after `after`, then the new ones, without an end.

        Yields an empty list if no record came for `idle_s`. Waits for an active server without a limit. `opener` and
        the other errors are those of `fetch`.
        """
        self._begin(after, opener)
        while True:
            yield from self._fetch_idly(idle_s)
            yield from self._live(idle_s)

    def snapshot(self, timeout_s: float | None = 30.0) -> FeedSnapshot:
        """Return the subtree at the server's current number. `follow` can go on from that number."""
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
        """Yield what `fetch` yields. While no server answers, yield an empty list each `idle_s`, and try again."""
        while True:
            try:
                yield from self._fetch(idle_s)
                self._tell("")
                return
            except TimeoutError as error:
                self._tell(str(error))
                yield []

    def _tell(self, lost: str) -> None:
        """Warn once that no server gives the feed, and once when a server gives it again."""
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
        """Yield records as the active publishes them, until a record is missing or another server has to be asked."""
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
        """Add the records that came and follow; return False if one is missing."""
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
                # The next question shows whether the rules still forbid the subtree.
                return False
            elif isinstance(header, Greeting | Heartbeat) and (server.state != State.ACTIVE or server.anew):
                return False
        return True

    def _successor(self, server: Connection) -> bool:
        mine = epoch_of(self.complete)
        others = [each for each in self._port.connections if each is not server]
        return any(each.state == State.ACTIVE and epoch_of(each.number) > mine for each in others)

    # -- asking

    def _ask(self, options: dict[str, Any], deadline: float) -> Iterator[Told]:
        """Yield one server's answer. Raises `Interrupted` if it breaks off, `TimeoutError` if none serves in time."""
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
        """Close the sockets. A second call does nothing."""
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
    """Return a record from the log. It names the client if one client made the whole record."""
    record = _feed_record(whole)
    if whole.whose is None and len(whole.origins) == 1:
        record.client = whole.origins[0][0][:CLIENT_BYTES]
    return record


def _extend(record: FeedRecord, segment: Segment) -> None:
    """Add a segment's columns to a record."""
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
