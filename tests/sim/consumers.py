"""Consumers in the simulator: members of groups, by the contract of SPEC.md alone, and what must hold of what they do.

    consume c1 t g     the program of c1 becomes a member of group g of topic t, and of what it is given it publishes,
                       with each acknowledgement, `g:OFFSET:VALUE` to the topic "done"; again after each start of c1
    leave c1           its members leave; they come back with its next start

What must hold once all is healed:

    effects    each offset of t has one effect a group at most, and, if no disk was lost, each has one: nothing is lost,
               and nothing done twice, whoever was stopped, killed, cut off or taken for dead meanwhile
    order      the effects of a slot are in the order of its offsets
    drained    a group with a member that lives comes to the end, also after full disks refused what it acknowledged
"""

from __future__ import annotations

from collections import deque
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgpack

from chp.topics import pack_messages, slots_of

from .network import Frames

if TYPE_CHECKING:
    from .clients import ClientNode, Op
    from .world import World

MESSAGES, REFUSED = 11, 7
IDS = 1 << 31  # of requests: above those of reads
DONE = "done"
ASK_S, TTL_MS = 1.2, 3400  # refreshed less often than `settle` looks whether all is quiet
ALL = bytes([255]) * 32
Given = tuple[list[list[Any]], list[tuple[int, int, bytes]]]  # the steps; offset, slot, value of each message


class Member:
    """One consumer of a program that runs."""

    def __init__(self, node: ClientNode, topic: str, group: str, n: int) -> None:
        self.node, self.topic, self.group = node, topic, group
        self.lease = f"{node.name}.{node.starts}.{n}".encode().ljust(16, b".")
        self._made, self._n = 0, n
        self._waits: list[Op] = []  # what is to be answered before it goes on
        self._acks: deque[Op] = deque()
        self.joined = self._left = False
        self._server, self._request, self._heard = 0, 0, float("-inf")
        self._chunks: deque[Given] = deque()
        self._acking: deque[list[list[Any]]] = deque()  # the steps of each of `_acks`
        self._proof: list[Any] | None = None
        self._not_before = float("-inf")

    # -- what it says

    def _put(self, extras: dict[str, Any]) -> Op:
        op = self.node.op("member", [])
        self.node.ops.pop()
        self.node.put(op, extras)
        return op

    def _ask(self, now: float) -> None:
        self._request = self.node.next_request()
        self._heard = now
        options: dict[str, Any] = {"chp": 4, "id": self._request, "topic": self.topic, "group": self.group}
        options |= {"member": self.lease, "credit": 3}
        if self._proof is not None:
            options |= {"have": self._in_hand(), "proof": self._proof}
        self.node.say("req", self._server, [b"ICANHAZ?", b"", msgpack.packb(options)])

    def leave(self) -> None:
        """For good, as far as this start of its program goes."""
        if self.node.leases.pop(self.lease, None):
            self._put({"unlease": self.lease})
        self._left = True

    # -- going on

    def act(self, now: float) -> None:
        """What is due."""
        if self._left or self.node.core.unsettled > 200 or now < self._not_before:
            return
        if any(op.result is None for op in self._waits):
            return
        codes = [_code(op) for op in self._waits]
        self._waits = []
        if not self.joined and self._joining(codes, now):
            return
        while self._acks and self._acks[0].result is not None:
            self._acking.popleft()
            if code := _code(self._acks.popleft()):
                self._begin_anew(code, now)
                return
        if self._chunks and len(self._acks) < 3 and self.node.world.rng.random() < 0.7:
            self._work(*self._chunks.popleft())
        elif now - self._heard > ASK_S:
            self._server = 1 - self._server
            self._ask(now)

    def _joining(self, codes: list[str], now: float) -> bool:
        """Whether it has to wait; the group is there before anybody is to join, as far as it knows."""
        if codes and codes[-1] == "":
            self.joined = True
            self._ask(now)
            return False
        if "access" in codes or "full" in codes:
            self._not_before = now + 1.0
        if "lease" in codes:
            self._new_lease()
        self.node.hold_lease(self.lease, TTL_MS)
        self._waits = [
            self._put({"group": [self.topic, self.group, {"start": 0}]}),
            self._put({"lease": [self.lease, TTL_MS]}),
            self._put({"join": [self.topic, self.group, self.lease, self.node.name]}),
        ]
        return True

    def _new_lease(self) -> None:
        self.node.leases.pop(self.lease, None)
        self._made += 1
        self.lease = f"{self.node.name}.{self.node.starts}.{self._n}.{self._made}".encode().ljust(16, b".")

    def _begin_anew(self, code: str, now: float) -> None:
        """It was refused: what it has is not its own, as far as it knows."""
        self._chunks.clear()
        self._acks.clear()
        self._acking.clear()
        self._proof = None
        self._request = 0
        if code in ("lease", "member", "group"):
            self.joined = False
            if code == "lease":
                self._new_lease()
            self.act(now)
        else:
            self._not_before = now + (1.0 if code in ("access", "full") else 0.0)
            self._heard = float("-inf")

    def _in_hand(self) -> list[list[Any]]:
        """What it has in hand; now and then it tells steps that follow on as one."""
        steps = [move for moves in (*self._acking, *(moves for moves, _ in self._chunks)) for move in moves]
        return _ranges(steps) if self._request % 2 else steps

    def _work(self, moves: list[list[Any]], found: list[tuple[int, int, bytes]]) -> None:
        """What it was given is done, and acknowledged with what came of it."""
        made = [b"%s:%d:%s" % (self.group.encode(), offset, value) for offset, _, value in found]
        extras: dict[str, Any] = {"ack": [[self.topic, self.group, self.lease, moves]]}
        extras["publish"] = [[DONE, len(made), pack_messages(None, made)]]
        self._acking.append(moves)
        self._acks.append(self._put(extras))
        self.node.say(
            "req", self._server, [b"ICANHAZ?", b"", msgpack.packb({"chp": 4, "id": self._request, "more": 1})]
        )

    # -- what it hears

    def hear(self, i: int, frames: Frames, now: float) -> bool:
        """Whether this answers it."""
        header, *items = msgpack.unpackb(frames[4])
        if header[0] not in (MESSAGES, REFUSED) or header[1] != self._request or i != self._server:
            return False
        self._heard = now
        if header[0] == REFUSED:
            self._request = 0
            if header[2] in ("passive", "busy", "topic", "damaged", "access"):
                self._heard = now - ASK_S / 2  # and then the other
            else:
                self._begin_anew(header[2], now)
        elif len(header) > 5:
            self._take(header, items)
        return True

    def _take(self, header: list[Any], items: list[Any]) -> None:
        _, _, upto, _, _, spans, proof = header
        found: list[tuple[int, int, bytes]] = []
        for first, n, _, _, bodies, *mask in items:
            found += _messages(first, n, bodies, mask[0] if mask else b"\x01" * n)
        self._chunks.append(([[slots, after, upto] for slots, after in spans], found))
        self._proof = proof


def _ranges(steps: list[list[Any]]) -> list[list[Any]]:
    of_slots: dict[int, list[list[int]]] = {}
    for slots, after, upto in steps:
        for slot in (i for i in range(256) if slots[i // 8] >> i % 8 & 1):
            ranges = of_slots.setdefault(slot, [])
            if ranges and ranges[-1][1] == after:
                ranges[-1][1] = upto
            else:
                ranges.append([after, upto])
    told: dict[tuple[int, int], int] = {}
    for slot, ranges in of_slots.items():
        for after, upto in ranges:
            told[after, upto] = told.get((after, upto), 0) | 1 << slot
    return [[some.to_bytes(32, "little"), after, upto] for (after, upto), some in sorted(told.items())]


def _messages(first: int, n: int, bodies: list[bytes], mask: bytes) -> list[tuple[int, int, bytes]]:
    keys: list[str] = []
    values: list[bytes] = []
    bare = False
    for body in bodies:
        some, more = msgpack.unpackb(body)
        bare |= some is None
        keys += some or [""] * len(more)
        values += more
    offsets = list(compress(range(first, first + n), mask))
    slots = [
        slots_of(None, at, 1)[0] if bare else slots_of([key], at, 1)[0] for at, key in zip(offsets, keys, strict=True)
    ]
    return list(zip(offsets, slots, values, strict=True))


def _code(op: Op) -> str:
    """Of what it was refused with; empty if it was done, or is there already."""
    result = op.result or ()
    if result[0] == "ack":
        return ""
    said = " ".join(map(str, result[1:]))
    words = ("fenced", "lease", "member", "group", "access", "there", "full")
    found = next((word for word in words if f"({word})" in said or word == result[1]), "fenced")
    if result[1] == "Fenced":
        found = "fenced"
    return "" if found == "there" else found


class Consuming:
    """The members of one program, over its starts."""

    def __init__(self, node: ClientNode) -> None:
        self.node = node
        self.wanted: list[tuple[str, str]] = []
        self.members: list[Member] = []

    def begin(self) -> None:
        """The program starts."""
        self.members = [Member(self.node, *wanted, n) for n, wanted in enumerate(self.wanted)]

    def want(self, topic: str, group: str) -> None:
        """One more member."""
        if (topic, group) not in self.wanted:
            self.wanted.append((topic, group))
            if self.node.running:
                self.members.append(Member(self.node, topic, group, len(self.wanted) - 1))

    def leave(self) -> None:
        """All leave."""
        if self.node.running:
            for member in self.members:
                member.leave()

    def act(self, now: float) -> None:
        """What is due of each."""
        for member in self.members:
            member.act(now)

    def hear(self, i: int, frames: Frames, now: float) -> bool:
        """Whether a message of P is for one of them."""
        return any(member.hear(i, frames, now) for member in self.members)


class GroupChecks:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _groups(self) -> set[tuple[str, str]]:
        """Those that somebody who lives consumes."""
        return {
            (m.topic, m.group)
            for node in self._world.clients for m in node.consuming.members if not m._left and m.joined
        }  # fmt: skip

    def undrained(self, core: Any) -> str:
        """Which group has not come to the end; empty if each has."""
        for name, group in sorted(self._groups()):
            topic = core.state.topics.by_name.get(name)
            found = None if topic is None else topic.groups.get(group)
            if topic is not None and found is not None and found.floor() < topic.next:
                return f"group {group} of {name} is at {found.floor()} of {topic.next}: {found.places}"
        return ""

    def check(self, core: Any, done: dict[int, bytes], *, whole: bool) -> None:
        """`done`: the messages of the topic of effects."""
        fail = self._world.checks.fail
        effects: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        for at in sorted(done):
            named, number, _ = done[at].split(b":", 2)
            which = named.decode(), int(number)
            if which in effects:
                fail(
                    f"message {which[1]} of group {which[0]} was done twice: at {effects[which]} and at {at} of {DONE}"
                )
            effects[which] = at
            slot = which[0], slots_of(None, which[1], 1)[0]
            if last.get(slot, -1) > which[1]:
                fail(f"group {slot[0]} did {which[1]} of slot {slot[1]} after {last[slot]}")
            last[slot] = which[1]
        if whole:
            for name, group in self._groups():
                topic = core.state.topics.by_name.get(name)
                missing = set(range(topic.next if topic else 0)) - {at for g, at in effects if g == group}
                if missing:
                    fail(f"group {group} never did {sorted(missing)} of {name}")
