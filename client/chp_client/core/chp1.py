"""The part of the core that follows servers of CHP/1 (RFC 12), as the programs of the ZeroMQ Guide do.

    a HUGZ without `chp=2`, and no greeting   the server speaks CHP/1
    first HUGZ after the subscription         it shows that the subscription arrived: send an ICANHAZ to one server
    KVSYNC ... KTHXBAI                        gather a snapshot apart, then replace the whole map, so deleted keys go
    KVPUB                                     apply it if its number is higher; an empty value is a delete
    no answer, or silence                     ask the other server, again and again

It repairs what it can detect. A HUGZ with a lower number shows that a server began anew. One with a higher number shows
a hole, if this client holds everything. A KVPUB of the other server shows that the followed one is not active.

A set is sent to both collectors, as one KVSET with a uuid for each key. Its echo is its acknowledgement, with the
durability "applied". Sets without an echo are sent again when a server is joined. CHP/1 has no form for conditional
sets and leases, so they are refused.
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

# The other server is asked after this time without a KVSYNC or KTHXBAI.
ANSWER_S = 1.0
# A HUGZ that arrives more than this long after a subscription counts as sent after the subscription arrived.
SETTLE_S = 0.1
# Sets without an echo are sent again after this time.
ECHO_S = 5.0
SILENT_HUGZ = 4
# The memory that a waiting update takes, in addition to its key and value.
UPDATE_BYTES = 300
# The columns that CHP/1 has no form for.
UNSUPPORTED = frozenset({columns.CONDITIONS, columns.LEASED, columns.LEASE, columns.UNLEASE})


class Chp1Follower:
    """The part of the core that follows CHP/1 servers. It does nothing while there is none."""

    def __init__(
        self,
        links: list[ServerView],
        subscriptions: Subscriptions,
        session: Session,
        *,
        limits: Limits,
        timing: Timing,
        stats: Counter[str],
        out: Sink,
    ) -> None:
        self._links, self._subscriptions, self._session = links, subscriptions, session
        self._limits, self._timing = limits, timing
        self._stats, self._out = stats, out
        self.following = False
        # Echoed batches with their numbers. They left the outbox, and the core settles them.
        self.acked: list[tuple[SentBatch, int]] = []
        # Batches that CHP/1 has no form for. They left the outbox, and the core refuses them.
        self.unsupported: list[SentBatch] = []
        # The server that is asked or followed.
        self._link: ServerView | None = None
        self._subscribed: dict[int, float] = {}
        # The channels that must still be fetched. The first of them is being fetched.
        self._todo: list[CopyChannel] = []
        self._fresh: Hashmap | None = None
        self._buffered: list[Kvpub] = []
        # The size of all updates that came during a snapshot. Beyond the limit, another snapshot is asked for.
        self._held_bytes = 0
        self._asked_at = self._echo_at = 0.0
        # True as long as this server's HUGZ is believed to carry its current number.
        self._hugz_is_number = True
        self._uuids: dict[bytes, SentBatch] = {}
        # The uuids of each batch that have no echo yet.
        self._left: dict[int, set[bytes]] = {}
        self._counter = 0

    @property
    def address(self) -> str | None:
        """The address of the server that is followed, or None."""
        return self._link.address if self._link is not None else None

    # -- from P+1

    def on_update(self, link: ServerView, frames: Sequence[bytes], now: float, *, needed: bool) -> None:
        """Handle a HUGZ or a KVPUB. `needed` says that no CHP/2 server is followed."""
        if frames[0] == HUGZ:
            self._hugz(link, frames, now, needed)
            return
        if not self.following or link.protocol != 1:
            return
        update = parse_kvpub(frames)
        if link is not self._link:
            # Only the active publishes, so this server is the active.
            if now - self._asked_at >= ANSWER_S:
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
        # The greeting of a CHP/2 server tells more.
        if link.protocol == 2 or parse_properties(hugz.properties).get("chp") == "2":
            return
        link.protocol, link.heard_at, link.heartbeat_s = 1, now, 1.0
        if not needed:
            return
        if link.index not in self._subscribed:
            self._subscribed[link.index] = now
            topics = [b""] if self._subscriptions.write_only else [c.subtree.encode() for c in self._subscriptions.all]
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
        """Compare the number of a HUGZ with the map. Ask for a snapshot if they show a gap or a new history."""
        at = max(channel.at for channel in self._subscriptions.all)
        if not number or self._subscriptions.write_only or self._link is None:
            return
        if number < at:
            self._stats["histories_restarted"] += 1
            for channel in self._subscriptions.all:
                channel.anew = True
            self._join(self._link, now)
        elif number > at and self._hugz_is_number and self._subscriptions.all[0].subtree == "":
            self._stats["holes"] += 1
            # The client does not trust the number of a HUGZ again until a snapshot shows that there was a hole.
            self._hugz_is_number = False
            self._join(self._link, now)

    def _apply(self, update: Kvpub, now: float) -> None:
        key, sequence, uuid, properties, value = update
        batch = self._uuids.pop(uuid, None) if uuid else None
        for channel in self._subscriptions.all:
            if not self._subscriptions.write_only and key.startswith(channel.subtree) and sequence > channel.at:
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
        """The time when the followed server was last heard."""
        return self._link.heard_at if self._link is not None else float("-inf")

    def is_alive(self, now: float) -> bool:
        """Return True if the followed server was heard lately."""
        silence_s = max(self._timing.silence_s, SILENT_HUGZ * 1.0)
        return self._link is not None and now - self._link.heard_at <= silence_s

    def _join(self, link: ServerView, now: float) -> None:
        """Ask this server for a snapshot of every channel."""
        self._link = link
        self._buffered.clear()
        self._held_bytes = 0
        for channel in self._subscriptions.all:
            channel.live = self._subscriptions.write_only
            channel.synced_once = channel.synced_once or self._subscriptions.write_only
        self._todo = [] if self._subscriptions.write_only else list(self._subscriptions.all)
        self._out.effects.notes.append(f"asking {link.address} for a snapshot (CHP/1)")
        self._ask(now)
        if self._subscriptions.write_only:
            self._resend(now)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        if self._todo and self._link is not None:
            self._fresh = Hashmap(ordered=False)
            self._out.effects.request.append((self._link.index, icanhaz(self._todo[0].subtree)))

    def on_reply(self, link: ServerView, frames: Sequence[bytes], now: float) -> None:
        """Handle a KVSYNC or a KTHXBAI."""
        if not self._todo or link is not self._link or self._fresh is None:
            return
        self._asked_at = link.heard_at = now
        if frames[0] == KTHXBAI:
            self._kthxbai(parse_kthxbai(frames).sequence, now)
            return
        # The ttl is not used: it is a time on the clock of the server.
        key, sequence, _, _, value = parse_kvsync(frames)
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
        """Send to each collector the batches that it has not had yet."""
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
        # A batch without keys has no echo.
        if not segment.keys:
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
        """Return a uuid for each set of a batch. It stays the same each time that the batch is sent."""
        if batch.no not in self._left:
            batch.uuids_from = self._counter + 1
            self._counter += n
            uuids = self._uuids_of(batch, n)
            self._left[batch.no] = set(uuids)
            self._uuids.update(dict.fromkeys(uuids, batch))
            return uuids
        return self._uuids_of(batch, n)

    def _uuids_of(self, batch: SentBatch, n: int) -> list[bytes]:
        """Make uuids from the secret name of the session.

        Another client that could guess the uuids could send an update in the place of this client's.
        """
        client, start = self._session.outbox.session[:CLIENT_BYTES], batch.uuids_from
        return [sha256(client + i.to_bytes(8)).digest()[:16] for i in range(start, start + n)]

    def _resend(self, now: float) -> None:
        """Send the sets without an echo to the followed server again."""
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
        """Unsubscribe from this server, as it speaks CHP/2 now."""
        if self._subscribed.pop(link.index, None) is not None:
            topics = [b""] if self._subscriptions.write_only else [c.subtree.encode() for c in self._subscriptions.all]
            self._out.effects.unsubscribe += [(link.index, topic) for topic in topics]
        if link is self._link:
            self.stop()

    def stop(self) -> None:
        """Stop following CHP/1 servers."""
        if not self.following:
            return
        self.following, self._link, self._fresh = False, None, None
        self._todo, self._buffered = [], []
        self._uuids.clear()
        self._left.clear()
        for channel in self._subscriptions.all:
            channel.live, channel.at = False, 0
        for link in self._links:
            link.sent = 0

    def next_deadline(self) -> float:
        """Return the time when `on_timer` has something to do."""
        if not self.following or self._link is None:
            return NEVER
        due = [self._link.heard_at + max(self._timing.silence_s, SILENT_HUGZ * 1.0) + 0.001]
        if self._todo or due[0] <= self._asked_at:
            due = [self._asked_at + ANSWER_S]
        if self._left and not self._todo:
            due.append(self._echo_at + ECHO_S)
        return min(due)

    def on_timer(self, now: float) -> None:
        """Ask the next server after silence or a missing answer. Send sets again that have no echo."""
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
        """Return the next server that is not known to speak CHP/2."""
        links = self._links
        start = links.index(self._link) if self._link is not None else -1
        for i in range(1, len(links) + 1):
            link = links[(start + i) % len(links)]
            if link.protocol != 2:
                return link
        raise AssertionError("the server that is followed speaks CHP/1")


def segment_of(key: str, value: bytes, properties: bytes) -> Segment:
    """Return a KVPUB as a segment. An empty value is a delete, and the ttl of a delete is ignored."""
    if not value:
        return Segment([key], [b""], {columns.DELETES: [0]})
    try:
        ms = ttl_ms_of(properties) if properties else None
    except ChpError as error:
        raise BadFrame(f"the KVPUB of {key!r:.60}: {error}") from None
    return Segment([key], [value], None if ms is None else {columns.TTLS: ms})


def ttl_properties(segment: Segment) -> dict[int, bytes]:
    """Return the properties of each set that has a ttl, by its place."""
    ttl = (segment.extras or {}).get(columns.TTLS)
    if type(ttl) is int:
        return dict.fromkeys(range(len(segment.keys)), with_ttl_s(b"", ttl))
    return {i: with_ttl_s(b"", ms) for i, ms in zip(*ttl, strict=True)} if ttl else {}
