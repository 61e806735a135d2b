"""A client of CHP/2 written from SPEC.md alone, as a model for clients in other languages.

    python -m examples.other_language tcp://127.0.0.1:5556 tcp://127.0.0.1:5566

It uses ZeroMQ, msgpack, a CRC-32 and a SHA-256, and nothing of this project. It has a copy of one subtree, and a
session that sends batches. It has no leases, ttls, staging or CHP/1. Everything happens in `step`, in one thread.
Numbers in comments are sections of SPEC.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import zmq

GREETING, BATCH, HEARTBEAT, SYNC, RECORDS, KTHXBAI, ACK, REFUSED = range(8)
ACTIVE, VERSION, VERSION_MIN, CREDIT = 3, 4, 3, 8
Frames = list[bytes]


class Server:
    """The three sockets to one server, and what the client knows of this server."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, topics: Frames) -> None:
        self.name, (base, _, port) = address, address.rpartition(":")
        self.dealer, self.sub, self.xpub = (context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB))
        for offset, socket in enumerate((self.dealer, self.sub, self.xpub)):
            socket.connect(f"{base}:{int(port) + offset}")
        for topic in topics:
            self.sub.subscribe(topic)
        # The link is up when the server's collector has subscribed to us (15).
        self.up, self.greeted = False, set[bytes]()
        # `sent` is the number of our last batch that went to this server.
        self.beats = self.sent = 0
        self.epoch, self.id, self.heard_at, self.silence_s = 0, b"", float("-inf"), 1.0


class Client:
    """A client: `values` is the copy, `outcome` the answer to each batch, `seen` a log of events."""

    def __init__(self, addresses: list[str], subtree: str = "") -> None:
        self.subtree, self.topic = subtree.encode(), b"\x02" + subtree.encode() + b"\x03"
        self.values, self.revisions = dict[str, bytes](), dict[str, int]()
        self.at, self.proof, self.since, self.digest = 0, [b"", b""], 0, 0
        # These are the parts of a record whose last part has not come yet (16).
        self.parts: list[list[Any]] = []
        self.epoch, self.heard_at, self.vote_at, self.asked_at, self.answered_at = 0, 0.0, 0.0, 0.0, 0.0
        self.active: Server | None = None
        # `asked` is the number of the pending request, or 0.
        self.ids = self.asked = self.last = 0
        # `chunks` has the parts of the pending answer; `held` has what the server publishes until it is complete.
        self.chunks, self.held = list[list[Any]](), list[bytes]()
        self.votes = dict[int, Server]()
        # `kept` has the batches that are not answered yet, by number.
        self.kept = dict[int, bytes]()
        self.outcome, self.seen = dict[int, list[Any]](), list[str]()
        self._open_session(os.urandom(12) + bytes(4))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.servers = [Server(self._context, address, [self.topic, self.own]) for address in addresses]

    def _open_session(self, session: bytes) -> None:
        self.session = session
        self.public = hashlib.sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]
        self.own = b"\x02@" + self.public.hex().encode() + b"\x03"

    def synced(self) -> bool:
        """Return whether the copy is complete and the active is heard."""
        return bool(self.at) and not self.asked and not self._silent()

    def set(self, items: dict[str, bytes | None], **extras: Any) -> int:
        """Send a batch, in which None deletes a key. Return its number, under which `outcome` will have the answer."""
        if deletes := [i for i, value in enumerate(items.values()) if value is None]:
            extras["d"] = deletes
        self.last, self.answered_at = self.last + 1, time.monotonic()
        self.kept[self.last] = msgpack.packb([list(items), [v or b"" for v in items.values()], extras or None])
        self._send()
        return self.last

    def wait(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Take steps until `condition()` is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_s} s: {self.seen[-5:]}")
            self.step()

    def step(self) -> None:
        """Handle the messages that have come, and do what is due."""
        hearing = [(s, s.xpub, self._link) for s in self.servers]
        hearing += [(s, s.sub, self._update) for s in self.servers] + [
            (s, s.dealer, self._answer) for s in self.servers
        ]
        zmq.select([socket for _, socket, _ in hearing], [], [], 0.05)
        for server, socket, hear in hearing:
            while socket.poll(0):
                hear(server, socket.recv_multipart())
        now = time.monotonic()
        if self._silent() and now >= self.vote_at:
            self.vote_at = now + 0.2
            for server in self.servers:
                if server is not self.active and server.up and self.topic in server.greeted:
                    self.votes[self._request(server, 0, 1)] = server
        elif self.active and self.asked and now - self.asked_at > 2:
            self._ask(self.at)
        if self.active and self.kept and now - self.answered_at > 2:
            self.active.sent, self.answered_at = 0, now
            self._send()

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _silent(self) -> bool:
        return self.active is None or time.monotonic() - self.active.heard_at > self.active.silence_s

    def _told(self, server: Server, state: int, number: int, again: bool = False) -> None:  # the table of 39
        now, silent, server.epoch = time.monotonic(), self._silent(), number >> 48
        late = now - self.heard_at > 3 * server.silence_s
        server.heard_at = now
        if server.epoch >= self.epoch:
            self.heard_at = now
        if state != ACTIVE:
            self.active = None if server is self.active else self.active
        elif server.epoch > self.epoch or (server.epoch == self.epoch and server is not self.active and silent):
            self._follow(server, self.at)
        elif (again and server is self.active) or (server.epoch < self.epoch and silent and late):
            self._follow(server, 0)

    def _follow(self, server: Server, start: int) -> None:
        self.seen.append(f"follow {server.name} in epoch {server.epoch}")
        self.active, self.epoch, server.sent = server, server.epoch, 0
        self._ask(start)
        self._send()

    def _request(self, server: Server, start: int, credit: int) -> int:  # 17.1
        self.ids += 1
        options = {"chp": VERSION, "id": self.ids, "from": start, "proof": self.proof, "session": self.public}
        server.dealer.send_multipart([b"ICANHAZ?", self.subtree, msgpack.packb({**options, "credit": credit})])
        return self.ids

    def _ask(self, start: int) -> None:
        if self.active and self.topic in self.active.greeted:
            self.chunks, self.parts, self.asked_at = [], [], time.monotonic()
            self.asked = self._request(self.active, start, CREDIT)

    def _answer(self, server: Server, frames: Frames) -> None:  # 17.2
        header, *items = msgpack.unpackb(frames[4])
        if header[0] != REFUSED and self.votes.pop(header[1], None) is server:
            self._told(server, ACTIVE, struct.unpack(">Q", frames[1])[0])
        elif header[0] in (SYNC, RECORDS) and header[1] == self.asked and header[2] == len(self.chunks):
            self.chunks.append([header, *items])
            self.asked_at = time.monotonic()
            server.dealer.send_multipart([b"ICANHAZ?", b"", msgpack.packb({"chp": 5, "id": self.asked, "more": 1})])
        elif header[0] == KTHXBAI and header[1] == self.asked:
            self._complete(header)
        elif header[0] == REFUSED and header[1] == self.asked and header[2] == "passive":
            self.active = None

    def _complete(self, header: list[Any]) -> None:
        _, _, number, count, revsum, _, resumed, since, digest, proof = header[:10]
        if not resumed:
            self.values, self.revisions = {}, {}
        for (kind, *_), *items in self.chunks:
            for item in items:
                if kind == SYNC:
                    self._apply(item, [revision for revision, n in item[2]["r"] for _ in range(n)])
                else:
                    self._record(item)
        self.at, self.proof, self.since, self.digest, self.asked, self.parts = number, proof, since, digest, 0, []
        self.seen.append("resumed" if resumed else "snapshot")
        held, self.held = self.held, []
        if (count, revsum) != self.fingerprint():
            self._ask(0)
        for body in held:
            self._heard(body)

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of keys, and the sum of their revisions (16)."""
        return len(self.revisions), sum(self.revisions.values()) % 2**64

    def _update(self, server: Server, frames: Frames) -> None:  # what is published: 15, 16, 18
        header, *_ = msgpack.unpackb(frames[4])
        if header[0] == GREETING and header[1] >= VERSION_MIN:
            again, server.id, server.silence_s = server.id not in (b"", header[5]), header[5], max(1.0, header[4] / 250)
            server.greeted.add(frames[0])
            self._told(server, header[2], header[3], again)
            if server is self.active and not self.at and not self.asked:
                self._ask(0)
            self._send()
        elif frames[0] == self.topic and header[0] in (BATCH, HEARTBEAT):
            number = header[3] if header[0] == BATCH else header[2]
            if header[0] == HEARTBEAT:
                server.beats, server.silence_s = server.beats + 1, max(1.0, header[6] / 250)
                server.greeted |= {self.topic, self.own} if server.beats > 1 else {self.topic}
            if header[0] == HEARTBEAT or number >> 48 > self.epoch:
                self._told(server, ACTIVE, number)
            if server is self.active:
                server.heard_at = time.monotonic()
                self._heard(frames[4])
        elif frames[0] == self.own and struct.unpack(">Q", frames[1])[0] >> 48 >= self.epoch:
            self._settle(server, header)

    def _heard(self, body: bytes) -> None:  # the table of 16
        header, *items = msgpack.unpackb(body)
        number = header[3] if header[0] == BATCH else header[2]
        follows_on = self.parts[-1][0][3] if self.parts else self.at
        if self.asked:
            self.held.append(body)
        elif number >> 48 < self.at >> 48 or (header[0] == BATCH and number <= follows_on):
            return
        elif number >> 48 > self.at >> 48 or (header[1] if header[0] == BATCH else header[3]) > follows_on:
            self.seen.append("gap")
            self._ask(self.at)
        elif header[0] == BATCH:
            self.digest = zlib.crc32(struct.pack(">I", zlib.crc32(body)), self.digest)
            self._record([header, *items])
        elif number >= self.at:
            if (header[4], header[5]) != self.fingerprint() or (header[8] == self.since and header[9] != self.digest):
                self._ask(0)
            self.since, self.digest, self.at = header[8], header[9], number

    def _record(self, body: list[Any]) -> None:
        self.parts.append(body)
        if not body[0][6]:  # more
            whole, self.parts, self.at = self.parts, [], body[0][3]
            for segment in [segment for _, *segments in whole for segment in segments]:
                self._apply(segment, [whole[0][0][2]] * len(segment[0]))

    def _apply(self, segment: list[Any], revisions: list[int]) -> None:  # 13
        for i, (key, value, revision) in enumerate(zip(*segment[:2], revisions, strict=True)):
            if i in (segment[2] or {}).get("d", ()):
                self.values.pop(key, None)
                self.revisions.pop(key, None)
            else:
                self.values[key], self.revisions[key] = value, revision

    def _link(self, server: Server, frames: Frames) -> None:
        server.up, server.sent, server.beats = frames[0][:1] == b"\x01", 0, 0
        server.greeted &= server.greeted if server.up else set()
        self._send()

    def _send(self) -> None:  # own sets: 14
        for server in [s for s in self.servers if s.up and self.own in s.greeted]:
            for no in [no for no in sorted(self.kept) if no > server.sent]:
                server.xpub.send_multipart([b"\x02\x03", struct.pack(">Q", no), self.session, b"", self.kept[no]])
                server.sent = no

    def _settle(self, server: Server, header: list[Any]) -> None:
        self.answered_at = time.monotonic()
        if header[0] == ACK:
            for first, last, revision in header[1]:
                for no in [no for no in self.kept if first <= no <= last]:
                    del self.kept[no]
                    self.outcome[no] = [revision, header[2]]
        elif header[0] == REFUSED and header[2] in ("expected", "session"):
            if self.kept and header[3] < min(self.kept):
                self._begin_again()
            else:
                server.sent = header[3] - 1
            self._send()
        elif header[0] == REFUSED and self.kept.pop(header[1], None):
            self.outcome[header[1]] = header[2:4]

    def _begin_again(self) -> None:
        count = struct.unpack(">I", self.session[12:])[0] + 1
        fresh = os.urandom(12) + bytes(4)
        self._open_session(fresh if count >> 32 else self.session[:12] + struct.pack(">I", count))
        self.kept, self.last = dict(enumerate(self.kept.values(), 1)), len(self.kept)
        for server in self.servers:
            server.sent = server.beats = 0
            server.sub.subscribe(self.own)


def main() -> None:
    """Wait for the copy, set a key, and print the answer."""
    client = Client(sys.argv[1:] or ["tcp://127.0.0.1:5556", "tcp://127.0.0.1:5566"])
    client.wait(client.synced)
    no = client.set({"/hello": b"from another language"})
    client.wait(lambda: no in client.outcome and "/hello" in client.values)
    print(f"{len(client.values)} keys; batch {no} has revision and worth {client.outcome[no]}")
    client.close()


if __name__ == "__main__":
    main()
