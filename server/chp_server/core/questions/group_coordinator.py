"""The active's side of groups: who gets which slots, and what each member is given (SPEC.md, section 35).

    settle    who joined gets slots, who left leaves his; one that has messages in hand is asked for no more of a slot,
              which moves when it has acknowledged them: nobody else waits for that, and nothing comes twice
    pump      what each member gets, as far as it has room
    step      slots in which nothing was found move on with the others; who acknowledges nothing for too long loses his

What was given is known here alone. A member that comes from another server, or another connection, says what it was
given and in which history: it goes on behind that. Until a member that was there before this server became active
has asked, or its lease has ended, its slots stay with it: it may be working. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from chp import columns, headers
from chp.batch import Segment, encode
from chp.errors import ChpError
from chp.fair import making_room
from chp.numbers import pack
from chp.topics import SLOTS, pack_slots, unpack_slots

from ..state.groups import NOBODY, Group
from ..state.member import Key, Member, Which
from ..state.state import ReplicatedState
from ..state.topics import TopicLog
from ..updates.commit import Committer
from .delivery import PAGES_A_TURN
from .message_pages import MessagePages, MessageRow, load_of_page, takes_row
from .syncs import reply

BEAT_S = 1.0
MAKES_ROOM = "your user has most of the members that read here, and another one came; ask again later"
PAGES_MAX = 16  # that are looked through for one page of a member's
Frames = list[bytes]


class GroupCoordinator:
    """All members that read here."""

    def __init__(self, committer: Committer, counts: Counter[str], pages: MessagePages) -> None:
        self._committer, self._counts, self.pages = committer, counts, pages
        self._limits = committer.limits
        self._lost: list[Key] = []  # whose readings were ended for those of other users
        self._streams: dict[Key, Member] = {}
        self._of: dict[tuple[Which, bytes], Member] = {}  # the last of each member, with what it was given
        self._strange: set[bytes] = set()  # members since before this server served, that have not asked here
        self._slow: set[tuple[Which, bytes]] = set()  # who lost slots, and has granted no room since
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def _state(self) -> ReplicatedState:
        return self._committer.committed.state

    # -- who asks

    def begin(self) -> None:
        """This server serves from now on."""
        self._of.clear()
        self._slow.clear()
        self.pages.clear()
        topics = self._state.topics
        self._strange = {m for t in topics.by_name.values() for group in t.groups.values() for m in group.members}

    def open(
        self, key: Key, topic: TopicLog, group: Group, options: dict[str, Any], *, user: str, now: float
    ) -> tuple[str, Any] | None:
        """Serve a member of a user that asks; return code and detail if it can't be served."""
        limits, member = self._limits, options.get("member")
        if type(member) is not bytes or member not in group.members:
            return "member", f"you are no member of group {group.name} of topic {topic.name}; join it"
        have = options.get("have", [])
        if type(have) is list and len(have) > limits.have_max:
            return "bad", f"'have' has {len(have):,} ranges, and at most {limits.have_max:,}; join what follows on"
        if len(self._streams) >= limits.readings_max and not self._make_room(user):
            return "busy", f"{len(self._streams)} members of groups read here; ask again when one is done"
        which, credit = (topic.name, group.name), min(options["credit"], limits.sync_credit_max)
        before = self._of.get((which, member))
        if before is not None:
            self._streams.pop(before.key, None)
        stream = Member(key, which, topic.id, member, credit, now, group.resets, room=credit)
        stream.user = user
        stream.follow(group)
        stream.resume(self._have(options))
        self._streams[key] = self._of[which, member] = stream
        self._slow.discard((which, member))
        self._strange.discard(member)
        self._state.topics.groups.unsettled[which] = None
        return None

    def _make_room(self, user: str) -> bool:
        """Whether the reading of a member of the user who has most of them was ended for one of another user."""
        users = {key: stream.user for key, stream in self._streams.items()}
        lost = making_room(users, self._limits.readings_max, user, lambda key: self._streams[key].touched)
        if lost is not None:
            del self._streams[lost]
            self._lost.append(lost)
        return lost is not None

    def take_lost(self) -> Iterator[tuple[bytes, list[Frames]]]:
        """Return what those are told whose readings were ended for those of others since the last call."""
        lost, self._lost = self._lost, []
        return (_refused(key, "busy", MAKES_ROOM) for key in lost)

    def _have(self, options: dict[str, Any]) -> list[tuple[int, int, int]]:
        """What a member says that it has in hand, if that is of this history."""
        have, proof = options.get("have"), options.get("proof")
        if type(have) is not list or type(proof) is not list or list(map(type, proof)) != [int, bytes, bytes]:
            return []
        if not self._state.is_ours(proof[0], proof[1:]):
            return []
        good = [each for each in have if type(each) is list and list(map(type, each)) == [bytes, int, int]]
        return [(unpack_slots(slots[:32]), after, upto) for slots, after, upto in good]

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """Note that a member has room for more."""
        stream = self._streams.get((identity, request_id))
        if stream is not None:
            stream.grant(min(stream.credit + more, self._limits.sync_credit_max), now)
            if (stream.which, stream.member) in self._slow:  # it has done something
                self._slow.discard((stream.which, stream.member))
                self._state.topics.groups.unsettled[stream.which] = None

    def serves(self, identity: bytes) -> bool:
        """Whether somebody reads here, were it that nothing comes."""
        return any(key[0] == identity for key in self._streams)

    def close(self, identity: bytes) -> None:
        """A connection has ended: its members may come by another, and what they have in hand is theirs still."""
        for key in [key for key in self._streams if key[0] == identity]:
            del self._streams[key]

    def clear(self, state: int) -> Iterator[tuple[bytes, list[Frames]]]:
        """The server serves no more."""
        for key in self._streams:
            yield _refused(key, "passive", state)
        self._streams.clear()
        self._of.clear()
        self.pages.clear()

    # -- what the active says of groups, in the open record

    def step(self, now: float) -> None:
        """Look at every member, once a heartbeat."""
        for stream in self._streams.values():
            stream.seen = -1  # what was missing may have come
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
        """Slots of which nothing is in hand, and nothing was found, are as good as acknowledged."""
        if moves := stream.passes(group.places.get(stream.member, {})):
            self._add(columns.ACK, [[*stream.which, stream.member, moves]], now)

    def _watch(self, stream: Member, group: Group, timeout_s: int, now: float) -> None:
        """Who has acknowledged nothing of what it has for so long loses it, if there is somebody else."""
        places = group.places.get(stream.member, {})
        hand = stream.in_hand(places)
        lowest = min((offset for offset, slots in places.items() if slots & hand), default=-1)
        if lowest != stream.worked[0]:
            stream.worked = lowest, now
        elif hand and now - stream.worked[1] > timeout_s and len(group.members) > 1:
            self._slow.add((stream.which, stream.member))
            self._assign(stream.which, [(hand, NOBODY)], now)
            self._state.topics.groups.unsettled[stream.which] = None
            self._counts["members_too_slow"] += 1

    def settle(self, now: float) -> None:
        """Give slots to the members to whom they are due."""
        unsettled = self._state.topics.groups.unsettled
        for which in list(unsettled):
            group = self._state.topics.groups.get(*which)
            if group is None or self._settled(which, group, now):
                unsettled.pop(which, None)

    def _settled(self, which: Which, group: Group, now: float) -> bool:
        for key in [key for key in self._of if key[0] == which and key[1] not in group.members]:
            stream = self._of.pop(key)  # it is told when its turn comes
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
        """Slots, of `n` too many, that a member can give away now; and whether it has more to give later."""
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
        self._counts["slots_moved"] += sum(slots.bit_count() for slots, _ in moves)

    def _add(self, column: str, told: list[Any], now: float) -> None:
        self._committer.add_segment(Segment([], [], {column: told}), now)

    # -- what each member gets

    def pump(
        self, blocked: Container[bytes], upto: int, now: float, *, filling: bool, whole: bool
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """What each gets in this turn, of records up to a number; messages that are missing are passed over if the
        journal has all that it will have, and waited for while it is `filling`."""
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
        """What one gets now: a page, or a word, or nothing."""
        topic = self._state.topics.by_name.get(stream.which[0])
        group = None if topic is None or topic.id != stream.topic else self._group(stream)
        if topic is None or group is None or stream.member not in group.members or group.resets != stream.resets:
            self._end(stream)
            why = f"not a member of group {stream.which[1]} any more; join it again"
            return encode(headers.Refused(stream.key[1], "member", why))
        try:
            return self._page(stream, topic, upto, now, filling=filling, whole=whole)
        except ChpError as error:  # of the journal: it is damaged there
            self._end(stream)
            return encode(headers.Refused(stream.key[1], "damaged", str(error)))

    def _end(self, stream: Member) -> None:
        self._streams.pop(stream.key, None)
        if self._of.get((stream.which, stream.member)) is stream:
            del self._of[stream.which, stream.member]

    def _page(self, stream: Member, topic: TopicLog, upto: int, now: float, *, filling: bool, whole: bool) -> bytes:
        """The next answer; nothing if there is none now."""
        items = list[bytes]()
        told = headers.Messages(stream.key[1], 0, topic.first, topic.next)
        while stream.credit and stream.seen < upto and not items:
            at, slots, stop = stream.next()
            if stream.is_ahead and self._scarce(topic, at, slots):
                break
            rows = [] if at < 0 or at >= topic.next else self._rows(topic, at, upto, slots)
            if rows is None:
                return b""  # they are read at the end of this turn
            if filling:  # what is missing may come: the other server has it, or had it
                rows = _without_gap(rows, max(at, topic.first))
            if not rows:
                if whole and 0 <= at < topic.next:
                    stream.looked(at, slots, topic.next, sent=False)  # none of it is there any more
                stream.seen = upto
                break
            end = min(rows[-1].stored.end, stop)
            rows = [row for row in rows if row.stored.first < end]
            found, load = list[tuple[bytes, int]](), load_of_page()
            for row in rows:
                item, n = self.pages.item(row, slots, at, end)
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
        """Return the rows in which about a page is for these slots; None if they have to be read."""
        share = min(PAGES_MAX, SLOTS // max(1, slots.bit_count()))
        bytes_max = share * self._limits.messages_page_bytes
        return self.pages.find(topic.id, max(at, topic.first), topic.next, upto, bytes_max)

    def _scarce(self, topic: TopicLog, at: int, slots: int) -> bool:
        """Whether there is less than a page for these slots: who has enough to do waits until it is one.

        Else each member of many would be given a scrap of each turn, and acknowledge it: more work than the messages.
        """
        share = min(PAGES_MAX, SLOTS // max(1, slots.bit_count()))
        there = topic.bytes * (topic.next - at) // max(1, topic.next - topic.first)
        return at >= 0 and there < share * self._limits.messages_page_bytes

    def ready(self, blocked: Container[bytes], upto: int) -> bool:
        """Whether somebody could be given more at once."""
        streams = self._streams.values()
        able = (each for each in streams if each.credit and each.seen < upto and each.key[0] not in blocked)
        return any(map(self._due, able))

    def _due(self, stream: Member) -> bool:
        topic = self._state.topics.by_name.get(stream.which[0])
        at, slots, _ = stream.next()
        there = topic is not None and 0 <= at < topic.next
        return topic is not None and there and not (stream.is_ahead and self._scarce(topic, at, slots))


def _without_gap(rows: list[MessageRow], at: int) -> list[MessageRow]:
    """The rows from an offset on, up to where something is missing."""
    found: list[MessageRow] = []
    for row in rows:
        if row.stored.first > at:
            break
        found.append(row)
        at = row.stored.end
    return found


def _shares(held: dict[bytes, int]) -> dict[bytes, int]:
    """How many slots each member is to have: equal; if it doesn't come out even, who has more now keeps one more."""
    base, more = divmod(SLOTS, len(held))
    by_size = sorted(held, key=lambda member: -held[member].bit_count())
    return {member: base + (i < more) for i, member in enumerate(by_size)}


def _lowest(slots: int, n: int) -> int:
    """The lowest `n` of a set of slots."""
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
