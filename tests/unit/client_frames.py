"""A server's side of CHP/2 as frames made by hand, and a client's core that hears them.

`Talk` holds a `ClientCore` and a clock. Each message of a server is a method. `Talk` gathers the core's effects in
lists by kind, so that a test reads like a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import count
from typing import Any, Self

import msgpack

from chp.batch import Segment
from chp.limits import DEFAULT
from chp.numbers import number
from chp.versions import VERSION
from chp_client.core.core import ClientCore, Timing
from chp_client.core.events import Ack, Changed, State

ACTIVE, PASSIVE = 3, 4
SECRET = b"s" * 16
# The public id of the session.
SESSION = sha256(b"chp session" + SECRET[:12]).digest()[:12] + SECRET[12:]
OTHER = b"o" * 16
# The store and the opener, as KTHXBAI tells them.
WHOSE = [b"T" * 16, b"S" * 16]


def n(sequence: int, epoch: int = 1) -> int:
    """Return a number, of epoch 1 by default."""
    return number(epoch, sequence)


def topic(subtree: str) -> bytes:
    return b"\x02" + subtree.encode() + b"\x03"


def own_topic(session: bytes = SESSION) -> bytes:
    return b"\x02@" + session.hex().encode() + b"\x03"


def message(where: bytes, told: int, header: list[Any], *items: Any) -> list[bytes]:
    return [where, told.to_bytes(8, "big"), b"", b"", msgpack.packb([header, *items])]


def segment(items: Mapping[str, bytes | None], **extras: Any) -> list[Any]:
    """Return a segment as a list. A value of None is a delete."""
    deletes = [i for i, value in enumerate(items.values()) if value is None]
    more = {**extras, **({"d": deletes} if deletes else {})}
    return [list(items), [value or b"" for value in items.values()], more or None]


class Talk:
    """A core, what it wants, and the servers it talks to."""

    def __init__(self, *subtrees: str, servers: int = 1, write_only: bool = False, **options: Any) -> None:
        self.now = 100.0
        limits = replace(DEFAULT, **options.pop("limits", {}))
        self.subtrees = () if write_only else (subtrees or ("",))
        addresses = [f"tcp://server{i}:5556" for i in range(servers)]
        self.core = ClientCore(
            SECRET, self.subtrees, addresses, self.now, limits=limits, **{"timing": Timing(), **options}
        )
        self.requests: list[tuple[int, str, dict[str, Any]]] = []
        self.chp1_asked: list[tuple[int, list[bytes]]] = []
        # (server, batch number, session, segment)
        self.sent: list[tuple[int, int, bytes, Segment]] = []
        # The numbers of batches that the client called its oldest.
        self.oldest: list[int] = []
        self.sent_chp1: list[tuple[int, list[bytes]]] = []
        self.settled: list[tuple[Any, Ack | Exception]] = []
        self.changes: list[Changed] = []
        self.states: list[State] = []
        self.topics: list[set[bytes]] = [set() for _ in range(servers)]
        self.lags: list[float] = []
        self.missed: list[tuple[Any, list[Changed] | Exception]] = []
        self.numbers = count(1)
        self.take()

    # -- what the core wants

    def take(self) -> None:
        effects = self.core.take()
        for i, name in effects.unsubscribe:
            self.topics[i].discard(name)
        for i, name in effects.subscribe:
            self.topics[i].add(name)
        for i, frames in effects.request:
            if len(frames) == 3:
                self.requests.append((i, frames[1].decode(), msgpack.unpackb(frames[2])))
            else:
                self.chp1_asked.append((i, frames))
        for i, frames in effects.publish:
            if frames[0] == b"\x02\x03":
                body = Segment(*msgpack.unpackb(frames[4]))
                self.oldest += [int.from_bytes(frames[1], "big")] if frames[3] == b"\x01" else []
                self.sent.append((i, int.from_bytes(frames[1], "big"), frames[2], body))
            else:
                self.sent_chp1.append((i, frames))
        self.settled += effects.settled
        self.changes += effects.changes
        self.states += effects.states
        self.lags += effects.lags
        self.missed += effects.missed
        self.core.check()

    def wait(self, seconds: float) -> None:
        """Let time pass, and call the timer whenever it falls due."""
        end = self.now + seconds
        while (due := self.core.next_deadline()) <= end:
            self.now = max(self.now, due)
            self.core.on_timer(self.now)
            self.take()
            assert self.core.next_deadline() > self.now - 1e-9 or due < end, "a deadline moves on"
            if self.core.next_deadline() <= self.now:
                self.now += 0.001
        self.now = end

    # -- what servers say

    def update(self, frames: list[bytes], server: int = 0) -> None:
        self.core.on_update(server, frames, self.now)
        self.take()

    def greet(
        self,
        state: int = ACTIVE,
        told: int = n(0),
        server: int = 0,
        uuid: bytes = b"S" * 16,
        replica: Mapping[str, int] | None = None,
        *,
        store: bytes | None = None,
    ) -> None:
        """Send a greeting on each topic to which the client subscribed."""
        more = [replica, store] if store else [] if replica is None else [replica]
        for where in sorted(self.topics[server] - {b"HUGZ"}):
            # The first greetings may make the client unsubscribe from the others.
            if where in self.topics[server]:
                header = [0, VERSION, state, told, 250, uuid, f"server{server}", *more]
                self.update(message(where, told, header), server)

    def up(self, server: int = 0) -> None:
        self.core.on_link(server, True, self.now)
        self.take()

    def down(self, server: int = 0) -> None:
        self.core.on_link(server, False, self.now)
        self.take()

    def batch(self, prev: int, first: int, *items: Mapping[str, bytes | None] | list[Any], **more: Any) -> None:
        """Send a BATCH on the first channel (or `on`), with as many numbers as updates."""
        segments = [item if isinstance(item, list) else segment(item) for item in items]
        last = more.get("last", first + max(1, sum(len(s[0]) for s in segments)) - 1)
        where = topic(more.get("on", self.subtrees[0] if self.subtrees else ""))
        header = [1, prev, first, last, more.get("wall", 0), more.get("origins", []), more.get("more", False)]
        self.update(message(where, last, header, *segments), more.get("server", 0))

    def heartbeat(self, told: int, channel_last: int | None = None, **more: Any) -> None:
        """Send a HEARTBEAT that agrees with the client's own map unless arguments say otherwise."""
        subtree = more.get("on", self.core.channels[0].subtree)
        channel = next(c for c in self.core.channels if c.subtree == subtree)
        have = channel.replica.map.fingerprint()
        header = [2, ACTIVE, told, told if channel_last is None else channel_last]
        header += [more.get("count", have[0]), more.get("revsum", have[1]), 250, more.get("wall", 0)]
        header += [0, 0, more["replica"]] if "replica" in more else []
        self.update(message(topic(subtree), told, header), more.get("server", 0))

    def reply(self, told: int, header: list[Any], *items: Any, server: int = 0) -> None:
        self.core.on_reply(server, message(b"\x02\x03", told, header, *items), self.now)
        self.take()

    def last_id(self) -> int:
        request_id: int = self.requests[-1][2]["id"]
        return request_id

    def snapshot(self, told: int, revisions: dict[str, tuple[bytes, int]], **more: Any) -> None:
        """Answer the last request with a snapshot in chunks of two keys."""
        request_id, server = more.get("id", self.last_id()), more.get("server", self.requests[-1][0])
        items = list(revisions.items())
        for index, start in enumerate(range(0, len(items), 2)):
            part = items[start : start + 2]
            runs = [[revision, 1] for _, (_, revision) in part]
            chunk = [[k for k, _ in part], [v for _, (v, _) in part], {"r": runs}]
            self.reply(told, [3, request_id, index], chunk, server=server)
        total = sum(revision for _, revision in revisions.values()) % (1 << 64)
        end = [5, request_id, told, len(items), more.get("revsum", total), more.get("session_no"), False]
        end += [0, 0, more.get("whose", WHOSE)]
        self.reply(told, end, server=server)

    def ack(self, first: int, last: int, revision: int, durability: int = 2, *more: int, server: int = 0) -> None:
        where = own_topic(self.core.outbox.public)
        self.update(message(where, revision, [6, [[first, last, revision]], durability, *more]), server)

    def refuse(self, no: int, code: str, detail: Any, server: int = 0) -> None:
        where = own_topic(self.core.outbox.public)
        self.update(message(where, n(1, self.core.epoch), [7, no, code, detail]), server)

    # -- own sets

    def set(self, items: dict[str, bytes | None], handle: Any = None, *, shown: bool = True, **extras: Any) -> int:
        """Show and submit a batch; its handle is its number unless given."""
        no = next(self.numbers)
        made = Segment(*segment(items, **extras))
        if shown:
            self.core.subscriptions.show(made)
        self.core.submit(made, no if handle is None else handle, self.now, shown=shown)
        self.take()
        return no

    @property
    def map(self) -> dict[str, bytes]:
        return self.core.shown

    @property
    def stats(self) -> dict[str, int]:
        return {name: value for name, value in self.core.stats.items() if value}

    def joined(self, told: int = n(0), **keys: int) -> Self:
        """Greet the client, sync it with these keys at these revisions, and connect its collector."""
        self.greet(told=told)
        self.up()
        for request in list(self.requests):
            held = {k: (f"{k}={r}".encode(), r) for k, r in keys.items() if k.startswith(request[1])}
            self.snapshot(told, held, id=request[2]["id"])
        return self
