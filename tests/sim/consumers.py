"""Consumers in the simulator: members of groups, written from the specification alone, and the checkers of their work.

    consume c1 t g     The program of c1 becomes a member of group g of topic t, again after each start of c1. For each
                       message that it gets, it publishes `g:OFFSET:VALUE` to the topic "done" with the acknowledgement.
    leave c1           The members of c1 leave. They come back with its next start.
    slow c1            The members of c1 work slowly from now on, so that their slots move to others.
    quick c1           The members of c1 work as others do.

Group `p` counts deliveries (`max_deliveries` is 3). A seventh of the messages is bad: a member of `p` that gets such a
message dies of it, or gives exactly this message back.

What must hold once all is healed:

    effects    Each offset of t has at most one effect for each group, and exactly one if no disk was lost. So no
               message is lost or done twice, whatever process was stopped, killed or cut off meanwhile.
    order      The effects of a slot are in the order of its offsets.
    apart      No member is given a message that another living member has in hand, while the same server is active.
    answered   A server without faults answers each question of a member.
    drained    A group with a living member reaches the end, even if full disks refused its acknowledgements before.
    dead       Each bad message of group p is in the dead topic once and has no effect. A good message is there only if
               members of the group ended by accident often enough.
"""

from __future__ import annotations

from collections import deque
from itertools import compress
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgpack

from chp.numbers import epoch_of
from chp.topics import pack_messages, slots_of
from chp.versions import VERSION

from .network import Frames

if TYPE_CHECKING:
    from .clients import ClientNode, Op
    from .servers import ServerNode
    from .world import World

MESSAGES, REFUSED = 11, 7
# The ids of requests, above those of reads.
IDS = 1 << 31
DONE = "done"
# A member without an answer asks again after `ASK_S`. Its lease is refreshed less often than `settle` looks whether all
# is quiet.
ASK_S, TTL_MS = 1.2, 3400
# The group that counts deliveries, its dead topic, and how often a message is delivered at most.
COUNTING, DEAD, MOST = "p", "t.p.dead", 3
DYING_TTL_MS = 1500
ALL = bytes([255]) * 32
# The chances that a member works when it may.
QUICK, SLOW = 0.7, 0.02
# (the steps; offset, slot and value of each message; the position)
Given = tuple[list[list[Any]], list[tuple[int, int, bytes]], list[Any]]


class Member:
    """A consumer of a program that runs."""

    def __init__(self, node: ClientNode, topic: str, group: str, n: int) -> None:
        self.node, self.topic, self.group = node, topic, group
        self.lease = f"{node.name}.{node.starts}.{n}".encode().ljust(16, b".")
        self._made, self._n = 0, n
        # Operations that must be answered before the member goes on.
        self._waits: list[Op] = []
        self._acks: deque[Op] = deque()
        self.joined = self.left = False
        self._server, self._request, self._heard = 0, 0, float("-inf")
        # The time of the last question, by the program's clock and by the world's.
        self._asked = self._asked_at = float("-inf")
        self._chunks: deque[Given] = deque()
        # The steps of each operation of `_acks`.
        self._acking: deque[list[list[Any]]] = deque()
        self._proof: list[Any] | None = None
        self._not_before = float("-inf")
        self._counts = group == COUNTING

    # -- what it says

    def _put(self, extras: dict[str, Any]) -> Op:
        op = self.node.op("member", [])
        self.node.ops.pop()
        self.node.put(op, extras)
        return op

    def _ask(self, now: float) -> None:
        self._request = self.node.next_request()
        self._heard = self._asked = now
        self._asked_at = self.node.world.time.now
        options: dict[str, Any] = {"chp": VERSION, "id": self._request, "topic": self.topic, "group": self.group}
        options |= {"member": self.lease, "credit": 3}
        if self._proof is not None:
            options |= {"have": self._in_hand(), "proof": self._proof}
        self.node.say("req", self._server, [b"ICANHAZ?", b"", msgpack.packb(options)])

    def leave(self) -> None:
        """Leave the group until the next start of the program."""
        if self.node.leases.pop(self.lease, None):
            self._put({"unlease": self.lease})
        self.left = True

    # -- going on

    def act(self, now: float) -> None:
        """Do what is due: join, acknowledge, work or ask again."""
        if self.left or self.node.core.unsettled > 200 or now < self._not_before:
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
        if self._chunks and len(self._acks) < 3 and self.node.world.rng.random() < self.node.consuming.eager:
            self._work(*self._chunks.popleft())
        elif now - self._heard > ASK_S:
            self._was_answered()
            self._server = 1 - self._server
            self._ask(now)

    def _was_answered(self) -> None:
        """Check that the last question was answered, unless a fault has kept the server from it."""
        node, world = self.node, self.node.world
        server, found = world.nodes[node.servers[self._server]], len(self._in_hand())
        runs = server.running and not server.paused and not server.recovering and server.listens_at < self._asked_at
        admitted = node.key not in world.key_files.removed
        # A replica passes the question on, and the answer is lost if another server is active by then.
        if server.is_replica:
            return
        if self._heard == self._asked and runs and admitted and world.is_calm(self._asked_at):
            world.checks.fail(f"{server.name} has not answered {node.name}'s member, which has {found} ranges in hand")

    def _joining(self, codes: list[str], now: float) -> bool:
        """Join the group, and return True if the member has to wait. The member makes the group before it joins."""
        if codes and codes[-1] == "":
            self.joined = True
            self._ask(now)
            return False
        if "access" in codes or "full" in codes:
            self._not_before = now + 1.0
        if "lease" in codes:
            self._ended_by_accident()
            self._new_lease()
        ttl_ms = DYING_TTL_MS if self._counts else TTL_MS
        self.node.hold_lease(self.lease, ttl_ms)
        counts = {"max_deliveries": MOST, "retry_after_ms": 100} if self._counts else {}
        self._waits = [
            self._put({"group": [self.topic, self.group, {"start": 0, **counts}]}),
            self._put({"lease": [self.lease, ttl_ms]}),
            self._put({"join": [self.topic, self.group, self.lease, self.node.name]}),
        ]
        return True

    def _new_lease(self) -> None:
        self.node.leases.pop(self.lease, None)
        self._made += 1
        self.lease = f"{self.node.name}.{self.node.starts}.{self._n}.{self._made}".encode().ljust(16, b".")

    def _begin_anew(self, code: str, now: float) -> None:
        """Drop all messages after a refusal, because they may belong to another member now."""
        self._chunks.clear()
        self._acks.clear()
        self._acking.clear()
        self._proof = None
        self._request = 0
        self._ended_by_accident()
        if code in ("lease", "member", "group"):
            self.joined = False
            if code == "lease":
                self._new_lease()
            self.act(now)
        else:
            self._not_before = now + (1.0 if code in ("access", "full") else 0.0)
            self._heard = float("-inf")

    def _ended_by_accident(self) -> None:
        """Count an accident: messages in hand may have failed once more, though the member did not give them back."""
        if self._counts:
            self.node.world.accidents += 1

    def _die(self, now: float) -> None:
        """End as a process that is killed: the lease is not refreshed any more. A new member comes soon."""
        self._chunks.clear()
        self._acks.clear()
        self._acking.clear()
        self._proof, self._request, self.joined = None, 0, False
        self._new_lease()
        self._not_before = now + 0.3

    def _in_hand(self) -> list[list[Any]]:
        """Return the steps that the member has in hand. Every other time it joins consecutive steps into one."""
        steps = [move for moves in (*self._acking, *(moves for moves, *_ in self._chunks)) for move in moves]
        return _ranges(steps) if self._request % 2 else steps

    def _work(self, moves: list[list[Any]], found: list[tuple[int, int, bytes]], position: list[Any]) -> None:
        """Do the work of some messages, and publish its effects with their acknowledgement."""
        if self._counts and (bad := next((each for each in found if is_bad(each[2])), None)):
            if self.node.world.rng.random() < 0.5 and not self._acks:
                self._give_back(moves, found, bad)
            else:
                self._die(self.node.clock.mono())
            return
        made = [b"%s:%d:%s" % (self.group.encode(), offset, value) for offset, _, value in found]
        extras: dict[str, Any] = {"ack": [[self.topic, self.group, self.lease, moves, [position]]]}
        extras["publish"] = [[DONE, len(made), pack_messages(None, made)]]
        self._acking.append(moves)
        self._acks.append(self._put(extras))
        self.node.say(
            "req", self._server, [b"ICANHAZ?", b"", msgpack.packb({"chp": VERSION, "id": self._request, "more": 1})]
        )

    def _give_back(
        self, moves: list[list[Any]], found: list[tuple[int, int, bytes]], bad: tuple[int, int, bytes]
    ) -> None:
        """Give a bad message back, and acknowledge its chunk except this message and the later ones of its slot."""
        offset, slot, _ = bad
        one = (1 << slot).to_bytes(32, "little")
        rest = [[bytes(a & ~b for a, b in zip(slots, one, strict=True)), after, upto] for slots, after, upto in moves]
        (after,) = [after for slots, after, _ in moves if slots[slot // 8] >> slot % 8 & 1]
        moves = [move for move in rest if any(move[0])] + ([[one, after, offset]] if after < offset else [])
        done = [each for each in found if each[1] != slot or each[0] < offset]
        if any(is_bad(value) for _, _, value in done):
            self._die(self.node.clock.mono())
            return
        made = [b"%s:%d:%s" % (self.group.encode(), at, value) for at, _, value in done]
        whose = [self.topic, self.group, self.lease]
        extras: dict[str, Any] = {"nack": [[*whose, [[one, after, offset + 1, "bad"]]]]}
        extras |= {"ack": [[*whose, moves]]} if moves else {}
        extras |= {"publish": [[DONE, len(made), pack_messages(None, made)]]} if made else {}
        self._acking.append(moves)
        self._acks.append(self._put(extras))
        more = {"chp": VERSION, "id": self._request, "more": 1}
        self.node.say("req", self._server, [b"ICANHAZ?", b"", msgpack.packb(more)])

    # -- what it hears

    def hear(self, i: int, frames: Frames, now: float) -> bool:
        """Take a message of a server, and return True if it answers this member."""
        header, *items = msgpack.unpackb(frames[4])
        if header[0] not in (MESSAGES, REFUSED) or header[1] != self._request or i != self._server:
            return False
        self._heard = now
        if header[0] == REFUSED:
            self._request = 0
            if header[2] in ("passive", "busy", "topic", "damaged", "access"):
                # The member asks the other server next.
                self._heard = now - ASK_S / 2
            else:
                self._begin_anew(header[2], now)
        elif len(header) > 5:
            self._take(header, items)
        return True

    def _take(self, header: list[Any], items: list[Any]) -> None:
        _, _, upto, _, _, spans, proof, *_ = header
        found: list[tuple[int, int, bytes]] = []
        for first, n, _, _, bodies, *mask in items:
            found += _messages(first, n, bodies, mask[0] if mask else b"\x01" * n)
        # Messages may be under way to a member that has left, or whose lease has ended meanwhile.
        giver = self._giver()
        lives = not self.left and giver.core.state.leases.lives(self.lease)
        for other in self.node.world.members_of(self.topic, self.group) if lives else ():
            if other is not self and (both := other.holds({offset for offset, *_ in found}, proof, giver)):
                self.node.world.checks.fail(f"message {min(both)} of group {self.group} is in two members' hands")
        self._chunks.append(([[slots, after, upto] for slots, after in spans], found, proof))
        self._proof = proof

    def _giver(self) -> ServerNode:
        """Return the server that gives this member messages: the one that it asks, or the active behind a replica."""
        world = self.node.world
        asked: ServerNode = world.nodes[self.node.servers[self._server]]
        if asked.is_replica:
            return next((each for each in world.servers if each.running and each.core.active), asked)
        return asked

    def holds(self, offsets: set[int], proof: list[Any], giver: ServerNode) -> set[int]:
        """Return those of the offsets whose messages the member got from the active of the same epoch and has in hand.

        A message whose acknowledgement is on its way does not count. A message does not count either if the active
        that gave it lost its last records, because the next active does not know of it.
        """
        if self.left or not self.joined or self._proof is None or epoch_of(self._proof[0]) != epoch_of(proof[0]):
            return set()
        tenure = giver.core.state.history.get(epoch_of(self._proof[0]))
        if tenure is None or self._proof[0] > tenure.last or not giver.core.state.leases.lives(self.lease):
            return set()
        return {offset for _, found, _ in self._chunks for offset, *_ in found} & offsets


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


def is_bad(value: bytes) -> bool:
    """Return True if members of the group that counts die of a message."""
    return crc32(value) % 7 == 0


def _code(op: Op) -> str:
    """Return the code of a refusal, or "" if the operation was done or its object exists already."""
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
    """The members of one program, over all its starts."""

    def __init__(self, node: ClientNode) -> None:
        self.node = node
        self.wanted: list[tuple[str, str]] = []
        self.eager = QUICK
        self.members: list[Member] = []

    def begin(self) -> None:
        """Make the members again when the program starts."""
        for member in self.members:
            if member.joined and not member.left:
                member._ended_by_accident()
        self.members = [Member(self.node, *wanted, n) for n, wanted in enumerate(self.wanted)]

    def want(self, topic: str, group: str) -> None:
        """Add a member, now and at each later start."""
        if (topic, group) not in self.wanted:
            self.wanted.append((topic, group))
            if self.node.running:
                self.members.append(Member(self.node, topic, group, len(self.wanted) - 1))

    def leave(self) -> None:
        """Let all members leave."""
        if self.node.running:
            for member in self.members:
                member.leave()

    def act(self, now: float) -> None:
        """Let each member do what is due."""
        for member in self.members:
            member.act(now)

    def hear(self, i: int, frames: Frames, now: float) -> bool:
        """Take a message from P, and return True if it is for one of the members."""
        return any(member.hear(i, frames, now) for member in self.members)


class GroupChecks:
    """The checkers of this module's rules."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _groups(self) -> set[tuple[str, str]]:
        """Return the groups that have a living member."""
        return {
            (m.topic, m.group)
            for node in self._world.clients for m in node.consuming.members if not m.left and m.joined
        }  # fmt: skip

    def undrained(self, core: Any) -> str:
        """Return a text about a group that has not reached the end, or "" if each has."""
        for name, group in sorted(self._groups()):
            topic = core.state.topics.by_name.get(name)
            found = None if topic is None else topic.groups.get(group)
            if topic is not None and found is not None and found.floor() < topic.next:
                return f"group {group} of {name} is at {found.floor()} of {topic.next}: {found.places}"
        return ""

    def _letters(self, letters: dict[int, bytes]) -> set[int]:
        """Check the dead topic of the group that counts, and return the offsets of its messages."""
        fail, dead = self._world.checks.fail, set[int]()
        for data in letters.values():
            letter = msgpack.unpackb(data)
            at, tries = letter["offset"], letter["tries"]
            if at in dead:
                fail(f"message {at} of group {COUNTING} was put aside twice")
            if tries < MOST:
                fail(f"message {at} of group {COUNTING} was put aside after {tries} tries")
            if not is_bad(letter["value"]) and tries > 1 + self._world.accidents:
                fail(f"message {at} of group {COUNTING} is good, and was put aside: {letter}")
            dead.add(at)
        return dead

    def check(
        self, core: Any, done: dict[int, bytes], letters: dict[int, bytes], messages: dict[int, bytes], *, whole: bool
    ) -> None:
        """Check the effects. `done`, `letters` and `messages` have the messages of their topics by offset."""
        fail = self._world.checks.fail
        dead = self._letters(letters)
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
            if which[0] == COUNTING and which[1] in dead:
                fail(f"message {which[1]} of group {COUNTING} was done, and put aside")
            slot = which[0], slots_of(None, which[1], 1)[0]
            if last.get(slot, -1) > which[1]:
                fail(f"group {slot[0]} did {which[1]} of slot {slot[1]} after {last[slot]}")
            last[slot] = which[1]
        if whole:
            for name, group in self._groups():
                topic = core.state.topics.by_name.get(name)
                missing = set(range(topic.next if topic else 0)) - {at for g, at in effects if g == group}
                if group == COUNTING:
                    missing -= dead
                    if left := {at for at, value in messages.items() if is_bad(value)} - dead:
                        fail(f"group {group} never put {sorted(left)} aside")
                if missing:
                    fail(f"group {group} never did {sorted(missing)} of {name}")
