"""Following servers that speak RFC 12 only: what the Guide's programs do, without the holes that can be closed here.

    a HUGZ without `chp=2`, and no greeting: the server is a CHP/1 one
    subscribe to the raw subtrees; at the next HUGZ, which shows that the subscription is there, ICANHAZ to one server
    KVSYNC ... KTHXBAI     held apart, then put in the place of the map as a whole, so deleted keys are gone
    KVPUB                  applied when strictly greater; an empty value is a delete
    no answer, or silence  the other server, again and again, for as long as it takes

What it can find out it mends: a HUGZ with a lower number is a server that began anew; one with a higher number, to a
client of everything, is a hole; a KVPUB from the other server means that this one is not active. A set travels as plain
KVSETs with a uuid each, to both collectors; its echo is its acknowledgement, worth "applied". What has no echo when a
server is joined is sent again. Conditional sets and leases have no form in CHP/1 and are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from chp import columns
from chp.batch import Segment
from chp.errors import BadFrame, ChpError
from chp.hashmap import Hashmap
from chp.keys import CLIENT_BYTES
from chp.limits import Limits
from chp.messages import HUGZ, KTHXBAI, Kvpub, icanhaz, kvset, parse_hugz, parse_kthxbai, parse_kvpub, parse_kvsync
from chp.properties import parse_properties, ttl_ms_of, with_ttl_s

from .copy.channel import CopyChannel, changed_by
from .copy.subscriptions import Subscriptions
from .events import Sink
from .outbox import SentBatch
from .server_view import ServerView
from .session import Session
from .timing import NEVER, Timing

ANSWER_S = 1.0  # without a KVSYNC or KTHXBAI, before the other server is asked
SETTLE_S = 0.1  # a HUGZ that comes later than this after a subscription was sent after it
ECHO_S = 5.0  # without an echo, before unechoed sets are sent again
SILENT_HUGZ = 4
UPDATE_BYTES = 300  # what an update that is held back takes beside its key and value
UNSUPPORTED = frozenset({columns.CONDITIONS, columns.LEASED, columns.LEASE, columns.UNLEASE})  # in CHP/1


class Chp1Follower:
    """The part of the core that follows CHP/1 servers; idle as long as there is none."""

    def __init__(
        self,
        links: list[ServerView],
        holding: Subscriptions,
        session: Session,
        *,
        limits: Limits,
        timing: Timing,
        stats: Counter[str],
        out: Sink,
    ) -> None:
        self._links, self._holding, self._session = links, holding, session
        self._limits, self._timing = limits, timing
        self._stats, self._out = stats, out
        self.following = False
        self.acked: list[
            tuple[SentBatch, int]
        ] = []  # taken out of the outbox, with their numbers; for the core to settle
        self.unsupported: list[SentBatch] = []  # the same, and refused: CHP/1 has no form for them
        self._link: ServerView | None = None  # the server asked or followed
        self._subscribed: dict[int, float] = {}
        self._todo: list[CopyChannel] = []  # channels still to be fetched, the first of them now
        self._fresh: Hashmap | None = None
        self._buffered: list[Kvpub] = []
        self._held_bytes = 0  # of all that came while a snapshot does; beyond the limit, another one is asked for
        self._asked_at = self._echo_at = 0.0
        self._hugz_is_number = True  # whether this server's HUGZ carries its current number
        self._uuids: dict[bytes, SentBatch] = {}
        self._left: dict[int, set[bytes]] = {}  # of each batch, what has no echo
        self._counter = 0

    @property
    def address(self) -> str | None:
        """The server that is followed."""
        return self._link.address if self._link is not None else None

    # -- from P+1

    def on_update(self, link: ServerView, frames: Sequence[bytes], now: float, *, needed: bool) -> None:
        """A HUGZ or KVPUB; `needed`: no server of CHP/2 is followed."""
        if frames[0] == HUGZ:
            self._hugz(link, frames, now, needed)
            return
        if not self.following or link.protocol != 1:
            return
        update = parse_kvpub(frames)
        if link is not self._link:
            if now - self._asked_at >= ANSWER_S:  # only the active publishes
                self._stats["failovers"] += 1
                self._join(link, now)
            return
        link.heard_at = now
        if self._todo:
            self._held_bytes += UPDATE_BYTES + len(update[0]) + len(update[4])
            if self._held_bytes <= self._limits.join_buffer_bytes:
                self._buffered.append(update)
        else:
            self._apply(update, now)

    def _hugz(self, link: ServerView, frames: Sequence[bytes], now: float, needed: bool) -> None:
        hugz = parse_hugz(frames)
        if link.protocol == 2 or parse_properties(hugz.properties).get("chp") == "2":
            return  # its greeting will come, or has
        link.protocol, link.heard_at, link.heartbeat_s = 1, now, 1.0
        if not needed:
            return
        if link.index not in self._subscribed:
            self._subscribed[link.index] = now
            topics = [b""] if self._holding.write_only else [c.subtree.encode() for c in self._holding.all]
            self._out.effects.subscribe += [(link.index, topic) for topic in topics]
            self._out.effects.notes.append(f"{link.address} speaks CHP/1")
        if not self.following:
            self.following = True
            self.pump()
        if self._link is None or (not self.is_alive(now) and not self._todo):
            if now - self._subscribed[link.index] > SETTLE_S:
                self._join(link, now)
        elif link is self._link and not self._todo:
            self._compare(hugz.sequence, now)

    def _compare(self, number: int, now: float) -> None:
        """What a HUGZ's number tells of the map."""
        at = max(channel.at for channel in self._holding.all)
        if not number or self._holding.write_only or self._link is None:
            return
        if number < at:
            self._stats["histories_restarted"] += 1
            for channel in self._holding.all:
                channel.anew = True
            self._join(self._link, now)
        elif number > at and self._hugz_is_number and self._holding.all[0].subtree == "":
            self._stats["holes"] += 1
            self._hugz_is_number = False  # until a join shows that there was one
            self._join(self._link, now)

    def _apply(self, update: Kvpub, now: float) -> None:
        key, sequence, uuid, properties, value = update
        batch = self._uuids.pop(uuid, None) if uuid else None
        for channel in self._holding.all:
            if not self._holding.write_only and key.startswith(channel.subtree) and sequence > channel.at:
                segment = segment_of(key, value, properties)
                done = batch.no if batch is not None and self._left.get(batch.no) == {uuid} else 0
                channel.replica.apply([segment], sequence, done, batch is not None, now)
                channel.at = sequence
                self._stats["updates_applied"] += 1
                if channel.watching and (changed := changed_by(segment, sequence)) is not None:
                    self._out.effects.changes.append(changed)
        if batch is not None:
            self._echoed(batch, uuid, sequence, now)

    def _echoed(self, batch: SentBatch, uuid: bytes, sequence: int, now: float) -> None:
        self._echo_at = now
        left = self._left.get(batch.no)
        if left is None:
            return
        left.discard(uuid)
        if not left:
            del self._left[batch.no]
            if self._session.outbox.take(batch.no) is not None:
                self.acked.append((batch, sequence))
            self.pump()

    # -- joining

    @property
    def heard_at(self) -> float:
        """When the server that is followed was last heard."""
        return self._link.heard_at if self._link is not None else float("-inf")

    def is_alive(self, now: float) -> bool:
        """Whether it has been heard lately."""
        silence_s = max(self._timing.silence_s, SILENT_HUGZ * 1.0)
        return self._link is not None and now - self._link.heard_at <= silence_s

    def _join(self, link: ServerView, now: float) -> None:
        """Ask this server for everything."""
        self._link = link
        self._buffered.clear()
        self._held_bytes = 0
        for channel in self._holding.all:
            channel.live = self._holding.write_only
            channel.synced_once = channel.synced_once or self._holding.write_only
        self._todo = [] if self._holding.write_only else list(self._holding.all)
        self._out.effects.notes.append(f"asking {link.address} for a snapshot (CHP/1)")
        self._ask(now)
        if self._holding.write_only:
            self._resend(now)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        if self._todo and self._link is not None:
            self._fresh = Hashmap(ordered=False)
            self._out.effects.request.append((self._link.index, icanhaz(self._todo[0].subtree)))

    def on_reply(self, link: ServerView, frames: Sequence[bytes], now: float) -> None:
        """A KVSYNC or KTHXBAI."""
        if not self._todo or link is not self._link or self._fresh is None:
            return
        self._asked_at = link.heard_at = now
        if frames[0] == KTHXBAI:
            self._kthxbai(parse_kthxbai(frames).sequence, now)
            return
        key, sequence, _, _, value = parse_kvsync(frames)  # its ttl is a moment on a clock that is not ours
        if value:
            self._fresh.load(Segment([key], [value], {columns.REVISIONS: [[sequence, 1]]}), now)

    def _kthxbai(self, sequence: int, now: float) -> None:
        fresh = self._fresh
        assert fresh is not None, "on_reply looked"
        channel = self._todo.pop(0)
        differs = fresh.revisions != channel.replica.map.revisions
        changed = channel.replica.replace(fresh, 0, sequence if channel.watching else 0, anew=channel.anew)
        channel.anew = False
        if changed is not None and changed.keys:
            self._out.effects.changes.append(changed._replace(first=not channel.synced_once))
        channel.at, channel.live, channel.synced_once = sequence, True, True
        self._stats["updates_synced"] += len(fresh)
        self._hugz_is_number = self._hugz_is_number or differs
        self._fresh = None
        if self._todo:
            self._ask(now)
            return
        self._stats["resyncs_snapshot"] += 1
        held, self._buffered = self._buffered, []
        for update in held:
            self._apply(update, now)
        if self._held_bytes > self._limits.join_buffer_bytes and self._link is not None:
            self._stats["join_overflows"] += 1
            self._join(self._link, now)
            return
        self._resend(now)

    # -- own sets

    def pump(self) -> None:
        """Send to each collector what it has not had yet."""
        for link in self._links:
            if link.protocol == 1 and link.collector_up:
                for batch in [b for no, b in self._session.outbox.batches.items() if no > link.sent]:
                    link.sent = batch.no
                    self._send(link, batch)

    def _send(self, link: ServerView, batch: SentBatch) -> None:
        segment = batch.columns()
        extras = segment.extras or {}
        if not UNSUPPORTED.isdisjoint(extras):
            self._session.outbox.take(batch.no)
            self.unsupported.append(batch)
            return
        if not segment.keys:  # nothing that could come back
            self._session.outbox.take(batch.no)
            self.acked.append((batch, 0))
            return
        uuids = self._name(batch, len(segment.keys))
        properties = ttl_properties(segment)
        deletes = set(extras.get(columns.DELETES, ()))
        left = self._left[batch.no]
        for i, (key, value, uuid) in enumerate(zip(segment.keys, segment.values, uuids, strict=True)):
            if uuid in left:
                frames = kvset(key, b"" if i in deletes else value, uuid=uuid, properties=properties.get(i, b""))
                self._out.effects.publish.append((link.index, frames))

    def _name(self, batch: SentBatch, n: int) -> list[bytes]:
        """A uuid for each set of a batch, the same each time it is sent."""
        if batch.no not in self._left:
            batch.uuids_from = self._counter + 1
            self._counter += n
            uuids = self._uuids_of(batch, n)
            self._left[batch.no] = set(uuids)
            self._uuids.update(dict.fromkeys(uuids, batch))
            return uuids
        return self._uuids_of(batch, n)

    def _uuids_of(self, batch: SentBatch, n: int) -> list[bytes]:
        """Out of the session, which nobody else knows: who guessed the next would take its place."""
        client, start = self._session.outbox.session[:CLIENT_BYTES], batch.uuids_from
        return [sha256(client + i.to_bytes(8)).digest()[:16] for i in range(start, start + n)]

    def _resend(self, now: float) -> None:
        """What has no echo goes to the server that is followed again."""
        link = self._link
        self._echo_at = now
        if link is None or not link.collector_up:
            return
        for batch in list(self._session.outbox.batches.values()):
            if batch.no in self._left and batch.no <= link.sent:
                self._stats["resends"] += 1
                self._send(link, batch)
        self.pump()

    # -- time

    def lost(self, link: ServerView) -> None:
        """This server speaks CHP/2 now, or one that does is followed."""
        if self._subscribed.pop(link.index, None) is not None:
            topics = [b""] if self._holding.write_only else [c.subtree.encode() for c in self._holding.all]
            self._out.effects.unsubscribe += [(link.index, topic) for topic in topics]
        if link is self._link:
            self.stop()

    def stop(self) -> None:
        """Follow no CHP/1 server any more."""
        if not self.following:
            return
        self.following, self._link, self._fresh = False, None, None
        self._todo, self._buffered = [], []
        self._uuids.clear()
        self._left.clear()
        for channel in self._holding.all:
            channel.live, channel.at = False, 0
        for link in self._links:
            link.sent = 0

    def next_deadline(self) -> float:
        """When to look again."""
        if not self.following or self._link is None:
            return NEVER
        due = [self._link.heard_at + max(self._timing.silence_s, SILENT_HUGZ * 1.0) + 0.001]
        if self._todo or due[0] <= self._asked_at:
            due = [self._asked_at + ANSWER_S]
        if self._left and not self._todo:
            due.append(self._echo_at + ECHO_S)
        return min(due)

    def on_timer(self, now: float) -> None:
        """No answer, or silence: ask the next server. No echo: send again."""
        if not self.following or self._link is None:
            return
        if self._todo or not self.is_alive(now):
            if now - self._asked_at >= ANSWER_S:
                if not self._todo:
                    self._stats["failovers"] += 1
                self._stats["sync_retries"] += 1
                self._join(self._next_server(), now)
        elif self._left and now - self._echo_at >= ECHO_S:
            self._resend(now)

    def _next_server(self) -> ServerView:
        """The next of the servers that speak CHP/1 or have not been heard."""
        links = self._links
        start = links.index(self._link) if self._link is not None else -1
        for i in range(1, len(links) + 1):
            link = links[(start + i) % len(links)]
            if link.protocol != 2:
                return link
        raise AssertionError("the server that is followed speaks CHP/1")


def segment_of(key: str, value: bytes, properties: bytes) -> Segment:
    """A KVPUB as a segment; an empty value deletes, and the ttl of a delete is of no interest."""
    if not value:
        return Segment([key], [b""], {columns.DELETES: [0]})
    try:
        ms = ttl_ms_of(properties) if properties else None
    except ChpError as error:
        raise BadFrame(f"the KVPUB of {key!r:.60}: {error}") from None
    return Segment([key], [value], None if ms is None else {columns.TTLS: ms})


def ttl_properties(segment: Segment) -> dict[int, bytes]:
    """The properties of each set that has a ttl."""
    ttl = (segment.extras or {}).get(columns.TTLS)
    if type(ttl) is int:
        return dict.fromkeys(range(len(segment.keys)), with_ttl_s(b"", ttl))
    return {i: with_ttl_s(b"", ms) for i, ms in zip(*ttl, strict=True)} if ttl else {}
