"""covers: the digest of what a channel carried (SPEC.md, section 16), of channel.py and channels.py."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgpack
import pytest

from chp.batch import BATCH, HEARTBEAT, KTHXBAI, Segment, packb, split
from chp.digest import link
from chp.keys import RESERVED_KEY, channel_topic
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.asks import RiseAbove
from chp_server.core.core import CoreConfig, ServerCore
from tests.unit.client_frames import ACTIVE, Talk, message, n, segment, topic

SINCE = n(1)


class Published:
    """A server's side of one channel: what it publishes, and what its digest is then."""

    def __init__(self, talk: Talk, **keys: int) -> None:
        self.talk, self.last, self.digest = talk, n(9), 77
        talk.greet(told=n(9))
        talk.up()
        self.end(keys)

    def end(self, keys: dict[str, int]) -> None:
        """Send the KTHXBAI of a snapshot at the channel's last number, with the digest so far."""
        request_id = self.talk.last_id()
        if keys:
            chunk = [list(keys), [b"0"] * len(keys), {"r": [[r, 1] for r in keys.values()]}]
            self.talk.reply(self.last, [3, request_id, 0], chunk)
        end = [5, request_id, self.last, len(keys), sum(keys.values()), None, False, SINCE, self.digest, [b"", b""]]
        self.talk.reply(self.last, end)

    def batch(
        self, items: dict[str, bytes | None], arrives: dict[str, bytes | None] | None = None, **more: Any
    ) -> None:
        """Send a BATCH, which may arrive with other contents."""
        first = self.last + 1
        last = first + len(items) - 1
        header = [1, self.last, first, last, 0, [], more.get("more", False)]
        sent = message(topic(""), last, header, segment(items))
        self.digest, self.last = link(self.digest, crc32(sent[4])), last
        self.talk.update(sent if arrives is None else message(topic(""), last, header, segment(arrives)))

    def heartbeat(self, since: int = SINCE) -> None:
        """Send a HEARTBEAT whose fingerprint is the client's own."""
        have = self.talk.core.channels[0].replica.map.fingerprint()
        header = [2, ACTIVE, self.last, self.last, *have, 250, 0, since, self.digest]
        self.talk.update(message(topic(""), self.last, header))

    @property
    def asked(self) -> int:
        """The number of requests that the client has made."""
        return len(self.talk.requests)


def test_a_corrupted_batch_is_found_by_the_next_heartbeat_and_repaired() -> None:
    server = Published(talk := Talk(), **{"/a": n(4)})
    server.batch({"/a": b"1"})
    server.heartbeat()
    assert "digest_mismatches" not in talk.stats and server.asked == 1
    # One bit is flipped, while count and revisions are right.
    server.batch({"/a": b"2"}, arrives={"/a": b"3"})
    server.heartbeat()
    assert talk.stats["digest_mismatches"] == 1 and talk.requests[-1][2]["from"] == 0
    server.end({"/a": n(11)})
    server.heartbeat()
    assert talk.stats["digest_mismatches"] == 1 and server.asked == 2 and talk.core.state == "SYNCED"


def test_the_digest_counts_parts_and_held_back_batches_in_order() -> None:
    server = Published(talk := Talk())
    server.batch({"/a": b"1"}, more=True)
    server.batch({"/b": b"1"})
    talk.batch(n(19), n(20), {"/x": b"hole"})
    assert server.asked == 2
    held = server.digest
    # This BATCH comes while the answer is on its way.
    server.batch({"/c": b"1"})
    server.batch({"/d": b"1"})
    after, server.digest, server.last = server.digest, held, n(11)
    request_id = talk.last_id()
    talk.reply(n(11), [5, request_id, n(11), 2, n(10) * 2, None, True, SINCE, held, [b"", b""]])
    server.digest, server.last = after, n(13)
    server.heartbeat()
    assert "digest_mismatches" not in talk.stats and sorted(talk.map) == ["/a", "/b", "/c", "/d"]


def test_a_client_takes_over_a_digest_that_starts_at_another_number() -> None:
    server = Published(talk := Talk())
    # The channel had no subscriber for a moment, and was made anew.
    server.digest = 5
    server.heartbeat(since=n(9))
    server.batch({"/a": b"1"})
    server.heartbeat(since=n(9))
    assert "digest_mismatches" not in talk.stats
    server.digest ^= 1
    server.heartbeat(since=n(9))
    assert talk.stats["digest_mismatches"] == 1


def test_a_digest_that_is_no_number_is_malformed() -> None:
    talk = Talk().joined(n(9))
    talk.update(message(topic(""), n(9), [2, ACTIVE, n(9), n(9), 0, 0, 250, 0, "x", None]))
    assert talk.stats["garbage"] == 1


class Lone:
    """A lone server's core, and what it published by topic."""

    def __init__(self) -> None:
        self.now = 100.0
        self.core = ServerCore(CoreConfig(heartbeat_s=0.25), b"S" * 16, self.now, DEFAULT)
        self.bodies: dict[bytes, list[bytes]] = {}
        self.replies: list[bytes] = []
        self.turn()

    def turn(self, *messages: tuple[str, list[bytes]]) -> None:
        self.now += 0.3
        self.core.begin_turn(self.now, 0.0)
        for kind, frames in messages:
            {"set": self.core.collect, "ask": self.core.request}.get(kind, self._subscribe)(frames)
        turn = self.core.end_turn()
        for frames in turn.publish:
            if frames[0][:1] == b"\x02":
                self.bodies.setdefault(frames[0], []).append(frames[4])
        self.replies += [frames[4] for _, part in turn.replies for frames in part]

    def _subscribe(self, frames: list[bytes]) -> None:
        self.core.subscription([b"1", frames[0]])

    def told(self, subtree: str, kind: int) -> list[list[Any]]:
        """Return the headers of a kind on a subtree's channel."""
        return [h for body in self.bodies[channel_topic(subtree)] if (h := split(body)[0])[0] == kind]

    def digest(self, subtree: str, since: int) -> int:
        """Return the digest of the BATCHes after a number, as a reader computes it."""
        digest = 0
        for body in self.bodies[channel_topic(subtree)]:
            header = split(body)[0]
            if header[0] == BATCH and header[3] > since:
                digest = link(digest, crc32(body))
        return digest


def kvset(no: int, items: dict[str, bytes]) -> tuple[str, list[bytes]]:
    body = Segment(list(items), list(items.values())).encode()
    return "set", [RESERVED_KEY, pack(no), b"c" * 16, b"", body]


def asks(subtree: str, start: int) -> tuple[str, list[bytes]]:
    options = {"chp": 3, "id": 1, "from": start, "proof": [b"S" * 16, b"S" * 16], "credit": 8}
    return "ask", [b"reader", b"ICANHAZ?", subtree.encode(), packb(options)]


@pytest.mark.parametrize("subtree", ["", "/a/"])
def test_heartbeats_and_kthxbai_carry_the_digest_of_published_batches(subtree: str) -> None:
    server = Lone()
    for other in ("", "/a/", "/b/"):
        server.turn(("sub", [b"\x01" + channel_topic(other)]))
    start = server.core.state.number
    for no in range(1, 4):
        server.turn(kvset(no, {"/a/x": b"%d" % no, "/b/x": b"-"}))
    assert server.told(subtree, HEARTBEAT)[-1][8:] == [start, server.digest(subtree, start)]
    # The two questions are for a snapshot and for a resume.
    for after in (0, start):
        server.turn(asks(subtree, after))
        server.turn()
        end = msgpack.unpackb(server.replies[-1])[0]
        assert end[0] == KTHXBAI and end[6] is bool(after) and end[7:9] == [start, server.digest(subtree, start)]
    server.core.begin_turn(server.now, 0.0)
    server.core.do(RiseAbove(5))
    first = server.core.state.number
    server.turn(kvset(4, {"/a/x": b"4"}))
    assert server.told(subtree, HEARTBEAT)[-1][8:] == [first, server.digest(subtree, first)]
    assert server.digest(subtree, first)


def test_kthxbai_has_no_digest_if_the_subtree_has_no_channel() -> None:
    server = Lone()
    server.turn(asks("/nobody/", 0))
    assert msgpack.unpackb(server.replies[-1])[0][7:9] == [0, 0]
