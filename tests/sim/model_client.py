"""A second client, written as plainly as possible from the specification of CHP/2 alone, so that checkers can trust it.

It shares no code with `chp_client`. It packs and unpacks bodies by itself, keeps one subtree, and takes keys one by
one. It has the method names of `chp_client.core.core.ClientCore`, so that the same host drives either. It follows these
rules:

    BATCH      Ignore one with `last <= at` or an older epoch. Ask for a resume after `at` if the epoch is newer, or
               if `prev > at`.
    HEARTBEAT  Ask for a resume if the channel's last number is above `at`. Ask for everything if the fingerprint
               differs.
    silence    After 1 s without the active, ask each server in turn. The question is the vote.
    own sets   Number them 1, 2, 3 and so on, and send them to both servers until they are acknowledged or refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgpack

GREETING, BATCH, HEARTBEAT, SYNC, RECORDS, KTHXBAI, ACK, REFUSED = range(8)
ACTIVE = 3
# The client tells a server at most this many times which batch is its oldest, and may then begin a new session.
SKIPS_MAX = 3
SILENCE_S, VOTE_S, RETRY_S, RESEND_S = 1.0, 0.25, 1.5, 1.5
CREDIT = 4
MASK64 = (1 << 64) - 1


def public(session: bytes) -> bytes:
    """Return the public id of a session, which other clients and servers see."""
    return hashlib.sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]


def own_topic(session: bytes) -> bytes:
    """Return the topic that carries a session's acknowledgements."""
    return b"\x02@" + public(session).hex().encode() + b"\x03"


@dataclass
class Out:
    """The effects that the client wants from its host."""

    subscribe: list[tuple[int, bytes]] = field(default_factory=list)
    unsubscribe: list[tuple[int, bytes]] = field(default_factory=list)
    request: list[tuple[int, list[bytes]]] = field(default_factory=list)
    publish: list[tuple[int, list[bytes]]] = field(default_factory=list)
    settled: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass
class Server:
    """The client's knowledge of one server."""

    active: bool = False
    epoch: int = 0
    heard: float = float("-inf")
    # True while the server's collector takes sets of this client.
    up: bool = False
    # True once the server answers on this client's own channel.
    greeted: bool = False
    on_channel: bool = False
    resubscribe_at: float = 0.0
    identity: bytes = b""
    # The batch that the server was told is the oldest.
    skips_to: int = 0
    skipped_at: float = 0.0
    tries: int = 0


class ModelClient:
    """A client with one session and one subtree."""

    def __init__(self, session: bytes, subtree: str, servers: int, now: float) -> None:
        self.session, self.subtree = session, subtree
        self.topic = b"\x02" + subtree.encode() + b"\x03"
        self.own_topic = own_topic(session)
        self.servers = [Server(resubscribe_at=now + 1.0) for _ in range(servers)]
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.at = 0
        self.whose = [b"", b""]
        self.live = False
        self.following = -1
        self.unacked: dict[int, tuple[bytes, Any]] = {}
        self.last_no = 0
        self.holes = self.mismatches = self.reopened = 0
        # A model client compares no digests.
        self.digest_mismatches = 0
        # Answers to an earlier start have lower ids.
        self._next_id = (int.from_bytes(session[8:12], "big") - 1) << 16
        # The id of the open question, and the server that was asked.
        self._request: tuple[int, int] | None = None
        self._asked = float("-inf")
        self._fresh: dict[str, tuple[bytes, int]] | None = None
        self._chunk = -1
        self._buffer: list[tuple[list[Any], list[Any]]] = []
        # The parts of a record whose last part is still missing.
        self._held: list[tuple[list[Any], list[Any]]] = []
        self._vote_at = now + VOTE_S
        self._turn_of = 0
        self._resend_at = float("inf")
        self._told: dict[int, tuple[int, float]] = {}
        self._out = Out()
        for i in range(servers):
            self._out.subscribe += [(i, self.own_topic), (i, self.topic)]

    def take(self) -> Out:
        """Return the effects since the last call."""
        out, self._out = self._out, Out()
        return out

    # -- own sets

    def submit(self, segment: list[Any], handle: Any, now: float) -> None:
        """Number a segment [keys, values, extras] and send it."""
        self.last_no += 1
        self.unacked[self.last_no] = (msgpack.packb(segment), handle)
        self._resend_at = min(self._resend_at, now + RESEND_S)
        for i, server in enumerate(self.servers):
            if server.up and server.greeted:
                self._send(i, self.last_no)

    def _send(self, i: int, no: int) -> None:
        body = self.unacked[no][0]
        oldest = b"\x01" if no == self.servers[i].skips_to == min(self.unacked) else b""
        self._out.publish.append((i, [b"\x02\x03", no.to_bytes(8, "big"), self.session, oldest, body]))

    def _resend(self, i: int, start: int = 0) -> None:
        if self.servers[i].up and self.servers[i].greeted:
            for no in list(self.unacked):
                if no >= start:
                    self._send(i, no)

    def on_link(self, i: int, up: bool, now: float) -> None:
        """Note that the collector's subscription came, or that the connection broke."""
        self.servers[i].up = up
        if up:
            self._resend(i)

    # -- from P+1

    def on_update(self, i: int, frames: list[bytes], now: float) -> None:
        """Take a publication of server `i`."""
        if frames[0][:1] != b"\x02":
            return
        parts = msgpack.unpackb(frames[4])
        header = parts[0]
        server = self.servers[i]
        if header[0] == REFUSED and frames[0] != self.own_topic:
            # The rules deny the channel.
            server.on_channel = server.on_channel and not frames[0].startswith(self.topic)
        elif header[0] == GREETING:
            self._greeting(i, server, frames[0], header, now)
        elif header[0] in (BATCH, HEARTBEAT) and frames[0] == self.topic:
            number = header[2] if header[0] == HEARTBEAT else header[3]
            if number >> 48 < self.at >> 48:
                return
            server.on_channel = True
            self._hears(i, server, number >> 48, now)
            if header[0] == HEARTBEAT:
                self._heartbeat(i, header, now)
            else:
                self._batch(header, parts[1:], now)
        elif frames[0] == self.own_topic and header[0] == ACK:
            for first, last, revision in header[1]:
                for no in range(first, last + 1):
                    self._settle(no, ("ack", revision, header[2]), now)
        elif frames[0] == self.own_topic and header[0] == REFUSED:
            self._refused(i, header, now)

    def _greeting(self, i: int, server: Server, topic: bytes, header: list[Any], now: float) -> None:
        if server.identity != header[5]:
            server.identity, server.greeted, server.on_channel = header[5], False, False
        if topic == self.own_topic and not server.greeted:
            server.greeted = True
            self._resend(i)
        elif topic == self.topic:
            server.on_channel = True
        server.active, server.epoch = header[2] == ACTIVE, header[3] >> 48
        if server.active:
            self._hears(i, server, server.epoch, now)
        elif i == self.following:
            self._lost()

    def _hears(self, i: int, server: Server, epoch: int, now: float) -> None:
        server.active, server.epoch, server.heard = True, epoch, now
        if self.following == i and epoch >= self.at >> 48 and (self.live or self._request):
            return
        # Two servers of one epoch are replicas. The client then stays with the one that it follows.
        if self.following in (-1, i) or epoch > self.servers[self.following].epoch:
            if self.following != i:
                self.following, self.live, self._request = i, False, None
            if not self.live and self._request is None and server.on_channel:
                self._ask(i, self.at, now)

    def _lost(self) -> None:
        self.following, self.live, self._request = -1, False, None
        self._buffer.clear()

    def _batch(self, header: list[Any], segments: list[Any], now: float) -> None:
        _, prev, _, last = header[:4]
        if last <= self.at:
            return
        if not self.live or self._request is not None:
            self._buffer.append((header, segments))
            return
        if last >> 48 > self.at >> 48 or prev > (self._held[-1][0][3] if self._held else self.at):
            self.holes += 1
            self._resync(self.at, now)
            return
        self._follow(header, segments)

    def _follow(self, header: list[Any], segments: list[Any]) -> None:
        """Take a record, or a part of one. All parts have the first number of the first part as their revision."""
        if self._held and header[3] <= self._held[-1][0][3]:
            return
        self._held.append((header, segments))
        if not header[6]:
            for _, items in self._held:
                for keys, values, extras in items:
                    self._apply(keys, values, extras or {}, self._held[0][0][2])
            self.at = header[3]
            self._held.clear()

    def _apply(self, keys: list[str], values: list[bytes], extras: dict[str, Any], revision: int) -> None:
        deletes = set(extras.get("d", ()))
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            if not key.startswith(self.subtree):
                continue
            if i in deletes:
                self.values.pop(key, None)
                self.revisions.pop(key, None)
            else:
                self.values[key], self.revisions[key] = value, revision

    def _heartbeat(self, i: int, header: list[Any], now: float) -> None:
        _, _, number, channel_last, count, revsum = header[:6]
        if not self.live or self._request is not None or i != self.following or number < self.at:
            return
        if number >> 48 > self.at >> 48 or channel_last > self.at:
            self.holes += channel_last > self.at
            self._resync(self.at, now)
        elif (count, revsum) != (len(self.revisions), sum(self.revisions.values()) & MASK64):
            self.mismatches += 1
            self._resync(0, now)
        else:
            self.at = number

    # -- snapshots

    def _resync(self, start: int, now: float) -> None:
        self.live = False
        if self.following >= 0:
            self._ask(self.following, start, now)

    def _ask(self, i: int, start: int, now: float) -> None:
        self._next_id += 1
        self._held.clear()
        self._request, self._fresh, self._chunk, self._asked = (self._next_id, i), None, -1, now
        options = {
            "chp": 3, "id": self._next_id, "from": start, "proof": self.whose, "session": public(self.session),
            "credit": CREDIT,
        }  # fmt: skip
        self._out.request.append((i, [b"ICANHAZ?", self.subtree.encode(), msgpack.packb(options)]))

    def on_reply(self, i: int, frames: list[bytes], now: float) -> None:
        """Take a message on the DEALER of server `i`."""
        parts = msgpack.unpackb(frames[4])
        header = parts[0]
        if self._request is None or header[1] != self._request[0] or i != self._request[1]:
            return
        if header[0] == REFUSED:
            self.servers[i].active = False
            self._request = None
            if self.following == i:
                self._lost()
            return
        self._hears_reply(i, int.from_bytes(frames[1], "big") >> 48, now)
        self._asked = now
        if header[0] == KTHXBAI:
            self._synced(header, now)
            return
        if header[2] != self._chunk + 1:
            # A part is missing, so the client asks again soon.
            self._request = None
            return
        self._chunk = header[2]
        self._take_chunk(header, parts[1:])
        more = {"chp": 3, "id": self._request[0], "more": 1}
        self._out.request.append((i, [b"ICANHAZ?", self.subtree.encode(), msgpack.packb(more)]))

    def _hears_reply(self, i: int, epoch: int, now: float) -> None:
        server = self.servers[i]
        server.active, server.epoch, server.heard = True, epoch, now
        self.following = i

    def _take_chunk(self, header: list[Any], items: list[Any]) -> None:
        if header[0] == SYNC:
            if self._fresh is None:
                self._fresh = {}
            for keys, values, extras in items:
                column = [r for r, n in extras["r"] for _ in range(n)]
                self._fresh.update(zip(keys, zip(values, column, strict=True), strict=True))
            return
        for batch, *segments in items:
            if batch[3] > self.at:
                end = self._held[-1][0][3] if self._held else self.at
                assert batch[1] <= end, "a resume goes on from where we are"
                self._follow(batch, segments)

    def _synced(self, header: list[Any], now: float) -> None:
        _, _, number, count, revsum, _, resumed = header[:7]
        if not resumed:
            fresh = self._fresh or {}
            self.values = {key: value for key, (value, _) in fresh.items()}
            self.revisions = {key: revision for key, (_, revision) in fresh.items()}
        self._request, self.at, self.live, self.whose = None, number, True, header[9]
        if (count, revsum) != (len(self.revisions), sum(self.revisions.values()) & MASK64):
            self.mismatches += 1
            self._resync(0, now)
            return
        buffered, self._buffer = self._buffer, []
        for batch, segments in buffered:
            if batch[3] >> 48 >= self.at >> 48:
                self._batch(batch, segments, now)

    # -- answers to own sets

    def _settle(self, no: int, result: Any, now: float) -> None:
        entry = self.unacked.pop(no, None)
        if entry is not None:
            self._out.settled.append((entry[1], result))
            if not self.unacked:
                self._resend_at = float("inf")
            # Only the oldest batch puts the resend off, so a lost answer is requested again.
            elif no < min(self.unacked):
                self._resend_at = now + RESEND_S

    def _refused(self, i: int, header: list[Any], now: float) -> None:
        _, no, code, detail = header[:4]
        if code not in ("expected", "session"):
            self._settle(no, ("refused", code, detail), now)
            return
        oldest = min(self.unacked, default=0)
        if detail < oldest:
            if i == self.following or code == "expected":
                self._skip(i, no, oldest, now)
            return
        told = self._told.get(i, (0, float("-inf")))
        if detail != told[0] or now - told[1] > 0.5:
            self._told[i] = (detail, now)
            self._resend(i, detail)

    def _skip(self, i: int, no: int, oldest: int, now: float) -> None:
        """Tell a server that lacks answered batches which batch is the oldest.

        If the server refuses that batch `SKIPS_MAX` times, begin a new session. Batch `no` is the refused one.
        """
        server = self.servers[i]
        if server.skips_to == oldest and now - server.skipped_at < RESEND_S:
            return
        server.tries = server.tries + (no == oldest) if server.skips_to == oldest else 0
        server.skips_to, server.skipped_at = oldest, now
        if server.tries < SKIPS_MAX:
            self._resend(i, oldest)
        elif i == self.following:
            self._reopen()

    def _reopen(self) -> None:
        """Begin a new session for the batches without an answer, because the server has forgotten the old one."""
        self.reopened += 1
        old = self.own_topic
        self.session = self.session[:15] + bytes([(self.session[15] + 1) & 255])
        self.own_topic = own_topic(self.session)
        self.unacked = dict(enumerate(self.unacked.values(), 1))
        self.last_no = len(self.unacked)
        for i, server in enumerate(self.servers):
            server.greeted, server.skips_to = False, 0
            self._out.unsubscribe.append((i, old))
            self._out.subscribe.append((i, self.own_topic))

    # -- time

    def next_deadline(self) -> float:
        """Return the time when `on_timer` is due."""
        due = [self._vote_at, self._resend_at]
        due += [s.resubscribe_at for s in self.servers if not (s.greeted and s.on_channel)]
        return min(due)

    def on_timer(self, now: float) -> None:
        """Do what has fallen due: subscribe again, resend, vote."""
        for i, server in enumerate(self.servers):
            if not (server.greeted and server.on_channel) and now >= server.resubscribe_at:
                server.resubscribe_at = now + 1.0
                for topic in (self.own_topic, self.topic):
                    self._out.unsubscribe.append((i, topic))
                    self._out.subscribe.append((i, topic))
        if now >= self._resend_at:
            self._resend_at = now + RESEND_S
            for i in range(len(self.servers)):
                self._resend(i)
        if now >= self._vote_at:
            self._vote_at = now + VOTE_S
            self._look_after(now)

    def _look_after(self, now: float) -> None:
        heard = self.servers[self.following].heard if self.following >= 0 else float("-inf")
        if now - heard > SILENCE_S:
            self._lost()
            self._turn_of = (self._turn_of + 1) % len(self.servers)
            self._ask(self._turn_of, self.at, now)
        elif not self.live and (self._request is None or now - self._asked > RETRY_S):
            self._ask(self.following, self.at, now)

    # -- what checkers look at

    def views(self) -> list[tuple[str, int, bool, dict[str, bytes], dict[str, int], set[str]]]:
        """Return (subtree, at, complete, values, revisions, keys not to compare) of each copy."""
        return [(self.subtree, self.at, self.live and self._request is None, self.values, self.revisions, set())]
