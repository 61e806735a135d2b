"""The active's side of groups: it gives slots to members, and messages of these slots (SPEC.md, section 35).

    settle    gives slots to members that joined, and takes slots from members that have too many
    pump      sends each member messages of its slots, as far as it has credit
    step      acknowledges for a member where its slots had no messages; takes slots from members that are too slow

A slot whose member has messages in hand is not moved at once. The member gets no more messages of the slot, and the
slot moves when all are acknowledged. So no message comes twice, and other slots move meanwhile.

Only this server knows which messages it sent to a member. A member that comes from another server or connection says
which messages it has in hand, and in which history; it continues after these. A member that joined before this server
became active may be working. It keeps its slots until it asks here, or until its lease ends. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from chp import columns, headers
from chp.batch import Segment, encode
from chp.errors import ChpError
from chp.fair import making_room
from chp.numbers import pack
from chp.topics import SLOTS, pack_slots, unpack_slots
from chp.versions import HEADERS_SINCE

from ..state.groups import NOBODY, Group
from ..state.member import Key, Member, Which
from ..state.state import ReplicatedState
from ..state.topics import TopicLog
from ..updates.commit import Committer
from .delivery import PAGES_A_TURN
from .message_pages import MessagePages, MessageRow, load_of_page, takes_row
from .syncs import reply

# A member that gets no messages is sent a sign of life so often, in seconds.
BEAT_S = 1.0
MAKES_ROOM = "your user has most of the members that read here, and another user needed room; ask again later"
# The pages of rows that are searched to fill one page of a member.
PAGES_MAX = 16
Frames = list[bytes]


class GroupCoordinator:
    """The members that read at this server, and the slots that they are due."""

    def __init__(self, committer: Committer, pages: MessagePages) -> None:
        self._committer, self.pages = committer, pages
        self._limits = committer.limits
        # Members that were ended to make room for other users' members.
        self._lost: list[Key] = []
        self._streams: dict[Key, Member] = {}
        # The last reading of each member, with the messages that it was sent.
        self._of: dict[tuple[Which, bytes], Member] = {}
        # Members that joined before this server served, and have not asked here yet.
        self._strange: set[bytes] = set()
        # Members that lost slots for being too slow, and have granted no credit since.
        self._slow: set[tuple[Which, bytes]] = set()
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def _state(self) -> ReplicatedState:
        return self._committer.committed.state

    # -- what members ask

    def begin(self) -> None:
        """Begin to serve: forget what an earlier time as active left, and note the members of all groups."""
        self._of.clear()
        self._slow.clear()
        self.pages.clear()
        topics = self._state.topics
        self._strange = {m for t in topics.by_name.values() for group in t.groups.values() for m in group.members}

    def open(
        self, key: Key, topic: TopicLog, group: Group, options: dict[str, Any], *, user: str, now: float
    ) -> tuple[str, Any] | None:
        """Add a member of a user; return a code and a detail if it can't be served."""
        limits, member = self._limits, options.get("member")
        if type(member) is not bytes or member not in group.members:
            return "member", f"this member is not in group {group.name} of topic {topic.name}; join it"
        have = options.get("have", [])
        if type(have) is list and len(have) > limits.have_max:
            return (
                "bad",
                f"'have' has {len(have):,} ranges, and at most {limits.have_max:,} are taken; join adjacent ones",
            )
        if len(self._streams) >= limits.readings_max and not self._make_room(user):
            return "busy", f"{len(self._streams)} members of groups read here; ask again when one is done"
        which, credit = (topic.name, group.name), min(options["credit"], limits.sync_credit_max)
        before = self._of.get((which, member))
        if before is not None:
            self._streams.pop(before.key, None)
        stream = Member(key, which, topic.id, member, credit, now, group.resets, room=credit)
        stream.user, stream.plain = user, options.get("chp", HEADERS_SINCE) < HEADERS_SINCE
        stream.follow(group)
        stream.resume(self._have(options))
        self._streams[key] = self._of[which, member] = stream
        self._slow.discard((which, member))
        self._strange.discard(member)
        self._state.topics.groups.unsettled[which] = None
        return None

    def _make_room(self, user: str) -> bool:
        """End a reading of the user that has most of them; return False if none may be ended for `user`."""
        users = {key: stream.user for key, stream in self._streams.items()}
        lost = making_room(users, self._limits.readings_max, user, lambda key: self._streams[key].touched)
        if lost is not None:
            del self._streams[lost]
            self._lost.append(lost)
        return lost is not None

    def take_lost(self) -> Iterator[tuple[bytes, list[Frames]]]:
        """Return refusals for members that were ended since the last call, to make room for other users' members."""
        lost, self._lost = self._lost, []
        return (_refused(key, "busy", MAKES_ROOM) for key in lost)

    def _have(self, options: dict[str, Any]) -> list[tuple[int, int, int]]:
        """Return the slots and offsets that a member says it has in hand; none if they are of another history."""
        have, proof = options.get("have"), options.get("proof")
        if type(have) is not list or type(proof) is not list or list(map(type, proof)) != [int, bytes, bytes]:
            return []
        if not self._state.is_ours(proof[0], proof[1:]):
            return []
        good = [each for each in have if type(each) is list and list(map(type, each)) == [bytes, int, int]]
        return [(unpack_slots(slots[:32]), after, upto) for slots, after, upto in good]

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """Give a member more credit."""
        stream = self._streams.get((identity, request_id))
        if stream is not None:
            stream.grant(min(stream.credit + more, self._limits.sync_credit_max), now)
            # A member that was too slow has done something, so it may get slots again.
            if (stream.which, stream.member) in self._slow:
                self._slow.discard((stream.which, stream.member))
                self._state.topics.groups.unsettled[stream.which] = None

    def serves(self, identity: bytes) -> bool:
        """Return True if this connection has a member, even if there is nothing for it."""
        return any(key[0] == identity for key in self._streams)

    def close(self, identity: bytes) -> None:
        """Remove the members of an ended connection; they keep what they have in hand, and may come by another one."""
        for key in [key for key in self._streams if key[0] == identity]:
            del self._streams[key]

    def clear(self, state: int) -> Iterator[tuple[bytes, list[Frames]]]:
        """Remove all members, because this server no longer serves them; yield a refusal for each."""
        for key in self._streams:
            yield _refused(key, "passive", state)
        self._streams.clear()
        self._of.clear()
        self.pages.clear()

    # -- what the active writes about groups, in the open record

    def step(self, now: float) -> None:
        """Check every member, once a heartbeat."""
        for stream in self._streams.values():
            # Missing messages may have come, so the member is looked at again.
            stream.seen = -1
            group = self._group(stream)
            if group is not None:
                self._pass(stream, group, now)
                if group.ack_timeout_s is not None:
                    self._watch(stream, group, group.ack_timeout_s, now)

    def _group(self, stream: Member) -> Group | None:
        group = self._state.topics.groups.get(*stream.which)
        if group is not None:
            stream.follow(group)
        return group

    def _pass(self, stream: Member, group: Group, now: float) -> None:
        """Acknowledge, for the member, slots of which it has nothing in hand, up to where no message was found."""
        if moves := stream.passes(group.places.get(stream.member, {})):
            self._add(columns.ACK, [[*stream.which, stream.member, moves]], now)

    def _watch(self, stream: Member, group: Group, timeout_s: int, now: float) -> None:
        """Take slots from a member that has acknowledged nothing for `timeout_s`, if the group has another member."""
        places = group.places.get(stream.member, {})
        hand = stream.in_hand(places)
        lowest = min((offset for offset, slots in places.items() if slots & hand), default=-1)
        if lowest != stream.worked[0]:
            stream.worked = lowest, now
        elif hand and now - stream.worked[1] > timeout_s and len(group.members) > 1:
            self._slow.add((stream.which, stream.member))
            self._assign(stream.which, [(hand, NOBODY)], now)
            self._state.topics.groups.unsettled[stream.which] = None
            self._committer.counts["members_too_slow"] += 1

    def settle(self, now: float) -> None:
        """Divide the slots of each group in `unsettled` among its members."""
        unsettled = self._state.topics.groups.unsettled
        for which in list(unsettled):
            group = self._state.topics.groups.get(*which)
            if group is None or self._settled(which, group, now):
                unsettled.pop(which, None)

    def _settled(self, which: Which, group: Group, now: float) -> bool:
        for key in [key for key in self._of if key[0] == which and key[1] not in group.members]:
            # The next `pump` tells the member that it is none any more.
            stream = self._of.pop(key)
            stream.given.clear()
        self._slow -= {key for key in self._slow if key[0] == which and key[1] not in group.members}
        members = [member for member in group.members if (which, member) not in self._slow]
        if not members:
            return True
        held = {member: group.slots_of(member) for member in members}
        shares = _shares(held)
        free = group.slots_of(NOBODY)
        waits = False
        for member in members:
            more, stays = self._spare(which, member, group, held[member].bit_count() - shares[member])
            free |= more
            waits |= stays
        moves = []
        for member in members:
            take = _lowest(free, shares[member] - held[member].bit_count())
            free &= ~take
            if take:
                moves.append((take, member))
        if moves:
            self._assign(which, moves, now)
        return not waits

    def _spare(self, which: Which, member: bytes, group: Group, n: int) -> tuple[int, bool]:
        """Return the slots that a member can give away now, of `n` too many; and True if it gives more later."""
        stream = self._of.get((which, member))
        if stream is not None:
            stream.leaving = 0
        if n <= 0:
            return 0, False
        held = group.slots_of(member)
        if member in self._strange:
            return 0, True
        if stream is None:
            return _lowest(held, n), False
        stream.follow(group)
        idle = held & ~stream.in_hand(group.places.get(member, {}))
        now = _lowest(idle, n)
        stream.leaving = _lowest(held & ~now, n - now.bit_count())
        return now, bool(stream.leaving)

    def _assign(self, which: Which, moves: list[tuple[int, bytes]], now: float) -> None:
        self._add(columns.ASSIGN, [[*which, [[pack_slots(slots), member] for slots, member in moves]]], now)
        self._committer.counts["slots_moved"] += sum(slots.bit_count() for slots, _ in moves)

    def _add(self, column: str, told: list[Any], now: float) -> None:
        self._committer.add_segment(Segment([], [], {column: told}), now)

    # -- what each member gets

    def pump(
        self, blocked: Container[bytes], upto: int, now: float, *, filling: bool, whole: bool
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """Yield what each member gets in this turn, of records up to `upto`.

        Missing messages are skipped if the journal is `whole`, and waited for while backfill is under way (`filling`).
        """
        left, streams = self._limits.sync_turn_bytes, list(self._streams.values())
        for _ in range(PAGES_A_TURN):
            more: list[Member] = []
            for stream in streams:
                credit = stream.credit
                may = left > 0 and stream.key[0] not in blocked
                body = self._given(stream, upto, now, filling=filling, whole=whole) if may else b""
                if body:
                    left -= len(body)
                    yield stream.key[0], [reply(pack(upto), body)]
                if stream.credit < credit and stream.has_all:
                    more.append(stream)
            streams = more

    def _given(self, stream: Member, upto: int, now: float, *, filling: bool, whole: bool) -> bytes:
        """Return what one member gets now: a page, a sign of life, a refusal, or b""."""
        topic = self._state.topics.by_name.get(stream.which[0])
        group = None if topic is None or topic.id != stream.topic else self._group(stream)
        if topic is None or group is None or stream.member not in group.members or group.resets != stream.resets:
            self._end(stream)
            why = f"not a member of group {stream.which[1]} any more; join it again"
            return encode(headers.Refused(stream.key[1], "member", why))
        try:
            return self._page(stream, topic, upto, now, filling=filling, whole=whole)
        except ChpError as error:
            # The journal is damaged at this place.
            self._end(stream)
            return encode(headers.Refused(stream.key[1], "damaged", str(error)))

    def _end(self, stream: Member) -> None:
        self._streams.pop(stream.key, None)
        if self._of.get((stream.which, stream.member)) is stream:
            del self._of[stream.which, stream.member]

    def _page(self, stream: Member, topic: TopicLog, upto: int, now: float, *, filling: bool, whole: bool) -> bytes:
        """Return the next answer; b"" if there is none now."""
        items = list[bytes]()
        told = headers.Messages(stream.key[1], 0, topic.first, topic.next)
        while stream.credit and stream.seen < upto and not items:
            at, slots, stop = stream.next()
            if stream.is_ahead and self._scarce(topic, at, slots):
                break
            rows = [] if at < 0 or at >= topic.next else self._rows(topic, at, upto, slots)
            if rows is None:
                # The journal is read at the end of this turn.
                return b""
            if filling:
                # The peer may have the missing messages, so the member waits for them.
                rows = _without_gap(rows, max(at, topic.first))
            if not rows:
                if whole and 0 <= at < topic.next:
                    # The journal has dropped all these messages.
                    stream.looked(at, slots, topic.next, sent=False)
                stream.seen = upto
                break
            end = min(rows[-1].stored.end, stop)
            rows = [row for row in rows if row.stored.first < end]
            found, load = list[tuple[bytes, int]](), load_of_page()
            for row in rows:
                item, n = self.pages.item(row, slots, at, end, plain=stream.plain)
                if n and not takes_row(load, row.stored, len(item)):
                    end = row.stored.first
                    break
                found.append((item, n))
            rows, items = rows[: len(found)], [item for item, n in found if n]
            spans = stream.looked(at, slots, end, sent=bool(items))
            if items:
                self.delivered += sum(n for _, n in found)
                last = max(row.stored.number for row in rows)
                proof = [last, *self._state.whose(last)]
                stream.credit -= 1
                stream.touched = now
                told = headers.Messages(stream.key[1], end, topic.first, topic.next, spans, proof)
        if not items and now - stream.said < BEAT_S:
            return b""
        stream.said = now
        return encode(told, items)

    def _rows(self, topic: TopicLog, at: int, upto: int, slots: int) -> list[MessageRow] | None:
        """Return rows that have about a page of messages of these slots; None if the journal has to be read first."""
        share = min(PAGES_MAX, SLOTS // max(1, slots.bit_count()))
        bytes_max = share * self._limits.messages_page_bytes
        return self.pages.find(topic.id, max(at, topic.first), topic.next, upto, bytes_max)

    def _scarce(self, topic: TopicLog, at: int, slots: int) -> bool:
        """Return True if there is less than a page for these slots; a member that is ahead waits for a full page.

        Otherwise each of many members would get a few messages a turn, and the acknowledgements would cost more work
        than the messages.
        """
        share = min(PAGES_MAX, SLOTS // max(1, slots.bit_count()))
        there = topic.bytes * (topic.next - at) // max(1, topic.next - topic.first)
        return at >= 0 and there < share * self._limits.messages_page_bytes

    def ready(self, blocked: Container[bytes], upto: int) -> bool:
        """Return True if a member could get messages in a turn that follows at once."""
        streams = self._streams.values()
        able = (each for each in streams if each.credit and each.seen < upto and each.key[0] not in blocked)
        return any(map(self._due, able))

    def _due(self, stream: Member) -> bool:
        topic = self._state.topics.by_name.get(stream.which[0])
        at, slots, _ = stream.next()
        there = topic is not None and 0 <= at < topic.next
        return topic is not None and there and not (stream.is_ahead and self._scarce(topic, at, slots))


def _without_gap(rows: list[MessageRow], at: int) -> list[MessageRow]:
    """Return the rows from an offset on, up to the first missing message."""
    found: list[MessageRow] = []
    for row in rows:
        if row.stored.first > at:
            break
        found.append(row)
        at = row.stored.end
    return found


def _shares(held: dict[bytes, int]) -> dict[bytes, int]:
    """Return how many slots each member should have: equally many, and a rest goes to those that have most now."""
    base, more = divmod(SLOTS, len(held))
    by_size = sorted(held, key=lambda member: -held[member].bit_count())
    return {member: base + (i < more) for i, member in enumerate(by_size)}


def _lowest(slots: int, n: int) -> int:
    """Return the lowest `n` slots of a set."""
    taken = 0
    while n > 0 and slots:
        lowest = slots & -slots
        taken |= lowest
        slots ^= lowest
        n -= 1
    return taken


def _refused(key: Key, code: str, detail: Any) -> tuple[bytes, list[Frames]]:
    identity, request_id = key
    return identity, [reply(pack(0), encode(headers.Refused(request_id, code, detail)))]
