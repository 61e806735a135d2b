"""A lone server's core with its messages, and members of a group that read from it by hand.

talk = GroupTalk()
talk.publish("t", [b"1", b"2"], keys=["a", "b"])
one = talk.member("billing")          opens a lease, joins (the group is made if need be), asks
talk.turn(0.05)                       each member gets its messages: one.got, [(offset, key, value)], and one.chunks
one.ack()                             acknowledges the first open chunk; returns the code of the refusal, or ""
"""

from __future__ import annotations

from dataclasses import astuple
from itertools import compress, count
from typing import Any

from chp.batch import decode, encode, packb
from chp.headers import Messages, Refused
from chp.keys import public_session
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.topics import pack_messages, pack_slots, slots_of, unpack_messages, unpack_slots
from chp.versions import VERSION
from chp_server.core.updates.turn import ReadMessages, Turn
from chp_server.store.memory_store import MessageShelf

from .server_talk import Talk

PUBLISHER = b"p" * 16


def messages_of(items: list[Any], spans: list[Any]) -> list[tuple[int, str, bytes]]:
    """Return the offset, key and value of each message in a chunk."""
    found = []
    for first, n, _, _, bodies, *mask in items:
        keys: list[str] = []
        values: list[bytes] = []
        for body in bodies:
            some, more = unpack_messages(body)
            keys += some or [""] * len(more)
            values += more
        offsets = list(compress(range(first, first + n), mask[0])) if mask else range(first, first + n)
        found += list(zip(offsets, keys, values, strict=True))
    return found


class Hand:
    """A member of a group, driven by hand."""

    def __init__(self, talk: GroupTalk, topic: str, group: str, n: int) -> None:
        self.talk, self.topic, self.group = talk, topic, group
        self.session = b"member%02d" % n + bytes(4) + bytes(4)
        self.identity = b"id%d" % n
        self.lease = b"lease-%010d" % n
        self.no, self.request = 0, 0
        self.chunks: list[tuple[list[Any], list[Any]]] = []  # moves, messages
        self.got: list[tuple[int, str, bytes]] = []
        self.refused: list[str] = []
        self.proof: list[Any] | None = None
        # The detail of the last refusal.
        self.detail: Any = None
        # How often the message of each chunk failed before, and how often it may be given; None if nothing counts.
        self.counted: list[list[Any] | None] = []

    def send(self, **extras: Any) -> str:
        """Send a batch, and return the code of its refusal, or ""."""
        self.no += 1
        self.talk.set(self.session, self.no, {}, **extras)
        self.talk.turn(0.0)
        found = ((code, detail) for no, code, detail in self.talk.refusals(self.session) if no == self.no)
        code, self.detail = next(found, ("", None))
        return str(code)

    def join(self, ttl_ms: int = 1_000_000) -> str:
        """Open the lease, and become a member."""
        return self.send(lease=[self.lease, ttl_ms]) or self.send(join=[self.topic, self.group, self.lease, "hand"])

    def ask(self, credit: int = 8, **more: Any) -> None:
        """Read."""
        self.request += 1
        options = {"id": self.request, "chp": VERSION, "topic": self.topic, "group": self.group, "member": self.lease}
        told = packb({**options, "credit": credit, **more})
        self.talk.core.request([self.identity, ICANHAZ, b"", told])

    def grant(self, more: int = 1) -> None:
        """Grant credit for more chunks."""
        told = packb({"id": self.request, "chp": VERSION, "more": more})
        self.talk.core.request([self.identity, ICANHAZ, b"", told])

    def hear(self, header: Any, items: list[Any]) -> None:
        """Take a message of an answer."""
        if isinstance(header, Refused):
            self.refused.append(header.code)
        elif isinstance(header, Messages) and header.request == self.request and header.spans:
            moves = [[slots, after, header.upto] for slots, after in header.spans]
            found = messages_of(items, header.spans)
            self.chunks.append((moves, found))
            self.got += found
            self.counted.append(header.counted)
            self.proof = header.proof

    @property
    def have(self) -> list[list[Any]]:
        """The steps that the member has in hand."""
        return [move for moves, _ in self.chunks for move in moves]

    def ack(self, **more: Any) -> str:
        """Acknowledge the first chunk in hand."""
        moves, _ = self.chunks.pop(0)
        code = self.send(ack=[[self.topic, self.group, self.lease, moves]], **more)
        self.grant()
        return code

    def give_back(self, offset: int | None = None, why: str | None = None, **more: Any) -> str:
        """Give back the first chunk in hand; or a message of it by name, and acknowledge what is before it."""
        moves, messages = self.chunks.pop(0)
        whose, acks = [self.topic, self.group, self.lease], []
        back = [[slots, after, upto, None] for slots, after, upto in moves]
        if offset is not None:
            key = next(key for at, key, _ in messages if at == offset)
            slot = 1 << slots_of([key], offset, 1)[0]
            (after,) = [after for slots, after, _ in moves if unpack_slots(slots) & slot]
            rest = [[pack_slots(unpack_slots(slots) & ~slot), after, upto] for slots, after, upto in moves]
            acks = [move for move in rest if any(move[0])]
            acks += [[pack_slots(slot), after, offset]] if after < offset else []
            back = [[pack_slots(slot), after, offset + 1, why]]
        code = self.send(**({"ack": [[*whose, acks]]} if acks else {}), nack=[[*whose, back]], **more)
        self.grant()
        return code

    @property
    def slots(self) -> int:
        """The number of slots that the member has."""
        group = self.talk.core.state.topics.groups.get(self.topic, self.group)
        assert group is not None
        return group.slots_of(self.lease).bit_count() if self.lease in group.members else 0


class GroupTalk(Talk):
    """A server's core with messages and members of groups."""

    def __init__(self, limits: Limits = DEFAULT, **config: Any) -> None:
        self.shelf = MessageShelf()
        self.members: list[Hand] = []
        self._names, self._published = count(1), 0
        super().__init__(limits, durability=1, **config)

    def publish(self, topic: str, values: list[bytes], keys: list[str] | None = None) -> None:
        """Publish messages in one batch."""
        self._published += 1
        told = [[topic, len(values), pack_messages(keys, values)]]
        self.set(PUBLISHER, self._published, {}, publish=told)

    def turn(self, seconds: float = 1.0) -> Turn:
        """Take a turn as `Talk` does, and those that follow on reads of it: messages are kept, and members hear."""
        turn = self._one_turn(seconds)
        reads = turn.reads
        while reads:
            for read in reads:
                if isinstance(read, ReadMessages):
                    self.core.page(read, self.shelf.read(*astuple(read)))
            more = self._one_turn(0.0)
            turn.deliveries += more.deliveries
            turn.replies += more.replies
            turn.journal += more.journal
            reads = more.reads
        return turn

    def _one_turn(self, seconds: float) -> Turn:
        turn = super().turn(seconds)
        for op in turn.journal:
            self.shelf.keep(getattr(op, "messages", ()))
            if hasattr(op, "floors"):
                self.shelf.trim(op.floors)
        for identity, replies in (*turn.deliveries, *turn.replies):
            for member in self.members:
                if member.identity == identity:
                    for frames in replies:
                        member.hear(*decode(frames[4]))
        return turn

    def group(self, topic: str, name: str, **settings: Any) -> str:
        """Make one; it begins at 0 if nothing else is said."""
        maker = Hand(self, topic, name, next(self._names))
        return maker.send(group=[topic, name, {"start": 0, **settings}])

    def member(self, name: str = "g", topic: str = "t", *, ttl_ms: int = 1_000_000, ask: bool = True) -> Hand:
        """Return a new member, which has a lease and has joined."""
        if self.core.state.topics.groups.get(topic, name) is None:
            assert self.group(topic, name) == ""
        hand = Hand(self, topic, name, next(self._names))
        self.members.append(hand)
        assert hand.join(ttl_ms) == ""
        if ask:
            hand.ask()
        self.turn(0.0)
        return hand

    def refresh(self, *members: Hand) -> None:
        """Refresh the leases of members."""
        for member in members:
            member.send(refresh=member.lease)

    def owner(self, member: Hand) -> bytes:
        """Return the client of a member's session, as the state knows it."""
        return public_session(member.session)[:8]


__all__ = ["GroupTalk", "Hand", "encode"]
