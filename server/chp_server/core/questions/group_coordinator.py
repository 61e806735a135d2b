"""The active's side of groups: it gives slots to members, and messages of these slots (SPEC.md, section 35).

    settle    gives slots to members that joined, and takes slots from members that have too many
    pump      sends each member messages of its slots, as far as it has credit
    step      acknowledges for a member where its slots had no messages; takes slots from members that are too slow;
              once a second it moves slots from a member that has too much work (workload.py)

A slot whose member has messages in hand is not moved at once. The member gets no more messages of the slot, and the
slot moves when all are acknowledged. So no message comes twice, and other slots move meanwhile.

Only this server knows which messages it sent to a member. A member that comes from another server or connection says
which messages it has in hand, and in which history; it continues after these. A member that joined before this server
became active may be working. It keeps its slots until it asks here, or until its lease ends.

A slot moves by work only after its member has held it for at least the ttl of the member's lease. After a takeover
nothing moves by work for that time, and each member keeps about as many slots as it has. A move that was under way is
forgotten.

In a group that counts deliveries, a message that failed before is given alone. Its slot gives nothing else meanwhile.
Its member first acknowledges all that it has in hand. Then it gets this message, and nothing else of the group until it
has acknowledged it.

    in_hand    returns what a member has in hand, for the record that ends the member
    settle     also puts messages that failed too often into the dead topic, in the record that acknowledges them

Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from chp import columns, headers
from chp.batch import Segment, encode
from chp.dead_letters import Outgoing, letter
from chp.errors import ChpError
from chp.fair import making_room
from chp.numbers import pack
from chp.topics import ALL_SLOTS, SLOTS, dead_topic, pack_messages, pack_slots, unpack_slots
from chp.versions import HEADERS_SINCE

from ..state.groups import NOBODY, Group, each_slot
from ..state.member import Key, Member, Which
from ..state.pace import Pace
from ..state.state import ReplicatedState
from ..state.topics import TopicLog
from ..state.verdicts import Refusal
from ..updates.commit import Committer
from .delivery import PAGES_A_TURN
from .message_pages import MessagePages, MessageRow, load_of_page, takes_row
from .syncs import reply
from .workload import WORK_S_MIN, Workload, moves, shares, weights_of

# The coordinator looks this often, in seconds, for slots to move by work.
WORK_EVERY_S = 1.0
# A member gives slots away if it had too much work at this many looks in a row.
BEHIND = 2
# A member gets no slots by work if less than this part of its lease's ttl is left: it may be gone.
TTL_LEFT_MIN = 1 / 3
# A member that gets no messages gets a sign of life this often, in seconds.
BEAT_S = 1.0
MAKES_ROOM = "your user has most of the members that read here, and another user needed room; ask again later"
# The pauses before a dead letter that was refused is tried again; each is twice as long as the one before.
ASIDE_PAUSE_S, ASIDE_PAUSE_MAX_S = 0.5, 30.0
# The reason that is recorded for messages in hand when their member loses its slots.
TOO_SLOW = "the member that had it acknowledged nothing for too long"
# At most this many pages of rows are searched to fill one page of a member.
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
        # For each group the slots that are held back, by the time until which they are.
        self._holds: dict[Which, dict[float, int]] = {}
        # For each group the slots that must not move by work, by the time until which they must not.
        self._rests: dict[Which, dict[float, int]] = {}
        # For each group whose members are not due equal shares: the weight of each member (workload.py).
        self._weights: dict[Which, dict[bytes, float]] = {}
        # For each group the slots that were chosen to move by work, and have not moved yet.
        self._chosen: dict[Which, int] = {}
        self._work_at = float("-inf")
        # Members in whose slots a failed message was searched for, and not found. The next `settle` acknowledges the
        # searched ranges.
        self._passing: dict[Key, None] = {}
        # For each group whose dead letter was refused: when it is tried again, and the pause before that.
        self._refused_aside: dict[Which, tuple[float, float]] = {}
        # `_reads`: dead messages must be read from the journal first. `_filling`: backfill may bring missing messages.
        self._reads = self._filling = False
        # Refused dead letters that the server has not logged yet.
        self.refused: list[dict[str, Any]] = []
        self.delivered = 0
        committer.in_hand = self.in_hand

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def _state(self) -> ReplicatedState:
        return self._committer.committed.state

    # -- what members ask

    def begin(self, now: float) -> None:
        """Begin to serve: forget what an earlier time as active left, and note the members of all groups."""
        self._of.clear()
        self._slow.clear()
        self.pages.clear()
        topics = self._state.topics
        self._strange = {m for t in topics.by_name.values() for group in t.groups.values() for m in group.members}
        self._holds.clear()
        self._passing.clear()
        self._refused_aside.clear()
        self._rests.clear()
        self._weights.clear()
        self._chosen.clear()
        for topic in topics.by_name.values():
            for group in topic.groups.values():
                if len(group.members) > 1:
                    self._go_on_with((topic.name, group.name), group, now)
                # This server holds back each message that failed before for its whole pause again.
                group.untimed = group.suspects
                if group.failures:
                    topics.groups.unsettled[topic.name, group.name] = None

    def _go_on_with(self, which: Which, group: Group, now: float) -> None:
        """Keep the shares of slots that another server gave to the members of a group."""
        held = {member: group.slots_of(member).bit_count() for member in group.members}
        self._weights[which] = weights_of({member: n for member, n in held.items() if n} or held)
        self._rest(which, [(ALL_SLOTS, member) for member in held], now)

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
        pace = Pace(now, size=limits.first_page_messages) if before is None else before.pace
        stream = Member(key, which, topic.id, member, credit, now, group.resets, pace, room=credit)
        stream.user, stream.plain = user, options.get("chp", HEADERS_SINCE) < HEADERS_SINCE
        stream.follow(group)
        stream.resume(self._have(options))
        places = group.places[member]
        pace.look(places, now)
        pace.begin(stream.in_hand(places))
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
            stream.pace.take(more, now)
            # A member that was too slow has done something, so it may get slots again.
            if (stream.which, stream.member) in self._slow:
                self._slow.discard((stream.which, stream.member))
                self._state.topics.groups.unsettled[stream.which] = None

    def serves(self, identity: bytes) -> bool:
        """Return True if this connection has a member, even if there is nothing for it."""
        return any(key[0] == identity for key in self._streams)

    def close(self, identity: bytes) -> None:
        """Remove the members of an ended connection. They keep what they have in hand, and may connect again."""
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
        if now - self._work_at >= WORK_EVERY_S:
            self._work_at = now
            self._move_by_work(now)

    def _group(self, stream: Member) -> Group | None:
        group = self._state.topics.groups.get(*stream.which)
        if group is not None:
            stream.follow(group)
        return group

    def _pass(self, stream: Member, group: Group, now: float) -> None:
        """Acknowledge for a member the ranges in which a search found no message of its slots."""
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
            failed: dict[str, Any] = {}
            if group.max_deliveries is not None:
                failed = {columns.FAILED: self._failed(stream, group, TOO_SLOW)}
            self._assign(stream.which, [(hand, NOBODY)], now, failed)
            self._state.topics.groups.unsettled[stream.which] = None
            self._committer.counts["members_too_slow"] += 1

    # -- slots that move by work

    def _move_by_work(self, now: float) -> None:
        """Move slots of members that have more work than others, in all groups."""
        by_group: dict[Which, list[Member]] = {}
        for (which, _), stream in self._of.items():
            by_group.setdefault(which, []).append(stream)
        groups, topics = self._state.topics.groups, self._state.topics.by_name
        for kept in (self._rests, self._weights):
            for which in [which for which in kept if not getattr(groups.get(*which), "members", None)]:
                del kept[which]
        for which, streams in by_group.items():
            topic, group = topics.get(which[0]), groups.get(*which)
            if topic is None or group is None:
                continue
            here = [each for each in streams if each.topic == topic.id and each.member in group.members]
            for stream in here:
                stream.follow(group)
                stream.pace.look(group.places[stream.member], now)
                stream.behind = stream.behind + 1 if self._is_behind(stream, topic) else 0
            if len(here) > 1 and any(each.behind >= BEHIND for each in here):
                self._even_out(which, topic, group, here, now)

    @staticmethod
    def _is_behind(stream: Member, topic: TopicLog) -> bool:
        """Return True if a member may have too much work, when all waiting messages of the topic count as its own."""
        waits = topic.next - min(stream.waiting(topic.next), default=topic.next)
        return stream.pace.rate is not None and waits > 0 and stream.pace.hand + waits > WORK_S_MIN * stream.pace.rate

    def _even_out(self, which: Which, topic: TopicLog, group: Group, streams: list[Member], now: float) -> None:
        """Choose slots of a group that are to move; the next `settle` moves them."""
        if group.untimed:
            self._hold(which, group, now)
        # These slots wait because a message failed, and not because their member is slow.
        held_back = group.suspects | self._held_back(which, now)
        due = self._shares(which, group)
        stays = held_back | self._resting(which, now)
        parts = self.pages.shares_of_slots(topic.id)
        loads = []
        for stream in streams:
            if stream.member not in due:
                continue
            held = group.slots_of(stream.member)
            load = Workload(stream.member, stream.pace.rate, stream.pace.hand, due[stream.member])
            for looked, slots in stream.waiting(topic.next).items():
                for slot in each_slot(slots & ~held_back & ~stream.leaving):
                    waits = parts.get(slot, 0.0) * (topic.next - max(looked, topic.first))
                    load.messages += waits
                    if waits and not slot & stays:
                        load.movable[slot] = waits
            if stream.behind < BEHIND:
                load.movable = {}
            if stream.leaving or held.bit_count() != due[stream.member]:
                # The last move of slots from or to this member is not complete.
                load.movable, load.takes = {}, False
            load.takes = load.takes and self._may_take(stream, now)
            loads.append(load)
        found = moves(loads)
        if found:
            for slot, giver, taker in found:
                self._chosen[which] = self._chosen.get(which, 0) | slot
                due[giver] -= 1
                due[taker] += 1
            self._weights[which] = weights_of(due)
            self._committer.counts["slots_moved_by_work"] += len(found)
            self._state.topics.groups.unsettled[which] = None

    def _may_take(self, stream: Member, now: float) -> bool:
        """Return True if a member is connected, and its lease was refreshed in time."""
        lease = self._state.leases.get(stream.member)
        left_s = TTL_LEFT_MIN * lease.ttl_ms / 1000 if lease is not None else 0.0
        return stream.key in self._streams and not stream.waits and lease is not None and lease.deadline - now >= left_s

    def _shares(self, which: Which, group: Group) -> dict[bytes, int]:
        """Return how many slots each member is due; a member that was too slow is left out."""
        members = [member for member in group.members if (which, member) not in self._slow]
        held = {member: group.slots_of(member).bit_count() for member in members}
        return shares(held, self._weights.get(which, {})) if held else {}

    def _rest(self, which: Which, moved: list[tuple[int, bytes]], now: float) -> None:
        """Note slots that must not move by work until the ttl of their new member's lease is over."""
        rests = self._rests.setdefault(which, {})
        for until in [until for until in rests if until <= now]:
            del rests[until]
        for slots, member in moved:
            lease = self._state.leases.get(member)
            if lease is not None and slots:
                until = now + lease.ttl_ms / 1000
                rests[until] = rests.get(until, 0) | slots

    def _resting(self, which: Which, now: float) -> int:
        """Return the slots of a group that moved by work lately."""
        slots = 0
        for until, some in self._rests.get(which, {}).items():
            slots |= some if until > now else 0
        return slots

    def in_hand(self, lease: bytes, why: str) -> list[list[Any]]:
        """Return what a member has in hand of groups that count deliveries, and why it failed, as a record's column."""
        found: list[list[Any]] = []
        for which, group in self._state.topics.groups.of_member(lease):
            stream = self._of.get((which, lease)) if group.max_deliveries is not None else None
            if stream is not None:
                stream.follow(group)
                found += self._failed(stream, group, why)
        return found

    def _failed(self, stream: Member, group: Group, why: str) -> list[list[Any]]:
        """Return what a member has in hand of a group, as entries of a column; nothing if it has nothing."""
        found = []
        for upto, slots in stream.ranges_in_hand(group.places.get(stream.member, {})).items():
            # Slots without messages are left out, as far as the rows in memory tell.
            for offset, some in group.places[stream.member].items():
                there = self.pages.slots_in(stream.topic, offset, upto) if some & slots else 0
                if both := some & slots & (ALL_SLOTS if there is None else there):
                    found.append([pack_slots(both), upto, why])
        return [[*stream.which, found]] if found else []

    def settle(self, now: float, wall_s: float = 0.0) -> None:
        """Divide the slots of each group in `unsettled` among its members, and put its dead messages aside."""
        unsettled = self._state.topics.groups.unsettled
        for key in list(self._passing):
            stream = self._streams.get(key)
            passed = None if stream is None else self._group(stream)
            if stream is not None and passed is not None:
                self._pass(stream, passed, now)
        self._passing.clear()
        self._reads = False
        for which in list(unsettled):
            group = self._state.topics.groups.get(*which)
            if group is not None and group.untimed:
                self._hold(which, group, now)
            aside = group is None or not group.dead or self._put_aside(which, group, now, wall_s)
            if group is None or (self._settled(which, group, now) and aside):
                unsettled.pop(which, None)

    def due_at(self, now: float) -> float | None:
        """Return when messages that failed are to be looked at again; None if there are none."""
        groups = self._state.topics.groups
        if groups.unsettled and (self._passing or self._reads):
            return now
        for which in list(self._refused_aside):
            group = groups.get(*which)
            if group is None or not group.dead:
                # The group was removed or changed meanwhile.
                del self._refused_aside[which]
        times = [until for holds in self._holds.values() for until in holds if until > now]
        times += [at for at, _ in self._refused_aside.values()]
        return min(times, default=None)

    def _settled(self, which: Which, group: Group, now: float) -> bool:
        for key in [key for key in self._of if key[0] == which and key[1] not in group.members]:
            # The next `pump` tells the client that it is not a member any more.
            stream = self._of.pop(key)
            stream.given.clear()
        self._slow -= {key for key in self._slow if key[0] == which and key[1] not in group.members}
        due = self._shares(which, group)
        if not due:
            return True
        held = {member: group.slots_of(member).bit_count() for member in due}
        free, chosen, waits = group.slots_of(NOBODY), self._chosen.pop(which, 0), 0
        for member in due:
            more, later = self._spare(which, member, group, held[member] - due[member], chosen)
            free |= more
            waits |= later
        if chosen & waits:
            self._chosen[which] = chosen & waits
        moved = []
        for member in due:
            take = _lowest(free, due[member] - held[member])
            free &= ~take
            if take:
                moved.append((take, member))
        if moved:
            self._assign(which, moved, now)
            self._rest(which, [(slots & chosen, member) for slots, member in moved], now)
        return not waits

    def _spare(self, which: Which, member: bytes, group: Group, n: int, chosen: int) -> tuple[int, int]:
        """Return which of its `n` slots too many a member can give away now, and which it gives away later.

        The slots that were `chosen` for their work go first.
        """
        stream = self._of.get((which, member))
        if stream is not None:
            stream.leaving = 0
        if n <= 0:
            return 0, 0
        held = group.slots_of(member)
        if member in self._strange:
            # The member gives slots away only once it has asked this server for messages.
            return 0, _lowest(held, n)
        if stream is None:
            return _lowest(held, n), 0
        stream.follow(group)
        idle = held & ~stream.in_hand(group.places.get(member, {}))
        out = 0
        for some in (chosen & held, idle, held):
            out |= _lowest(some & ~out, n - out.bit_count())
        stream.leaving = out & ~idle
        return out & idle, stream.leaving

    def _assign(
        self, which: Which, moved: list[tuple[int, bytes]], now: float, more: dict[str, Any] | None = None
    ) -> None:
        told = [[*which, [[pack_slots(slots), member] for slots, member in moved]]]
        self._committer.add_segment(Segment([], [], {columns.ASSIGN: told, **(more or {})}), now)
        self._committer.counts["slots_moved"] += sum(slots.bit_count() for slots, _ in moved)

    def _add(self, column: str, told: list[Any], now: float) -> None:
        self._committer.add_segment(Segment([], [], {column: told}), now)

    # -- messages that failed

    def _hold(self, which: Which, group: Group, now: float) -> None:
        """Hold back the slots whose messages failed just now, each for a time that doubles with each failure."""
        new, group.untimed = group.untimed, 0
        holds = self._holds.setdefault(which, {})
        for until, slots in list(holds.items()):
            holds[until] = slots & ~new & group.suspects
            if until <= now or not holds[until]:
                del holds[until]
        if group.retry_after_ms is not None:
            for slot in each_slot(new & group.suspects):
                times = group.times(slot, group.place_of(slot))
                wait_s = min(group.retry_after_ms / 1000 * 2.0 ** min(times - 1, 30), self._limits.retry_s_max)
                holds[now + wait_s] = holds.get(now + wait_s, 0) | slot
        if not holds:
            del self._holds[which]

    def _held_back(self, which: Which, now: float) -> int:
        """Return the slots of a group that are held back."""
        slots = 0
        for until, some in self._holds.get(which, {}).items():
            slots |= some if until > now else 0
        return slots

    def _put_aside(self, which: Which, group: Group, now: float, wall_s: float) -> bool:
        """Put the dead messages of a group into its dead topic; return False if some are to be put there later."""
        topic = self._state.topics.by_name[which[0]]
        if now < self._refused_aside.get(which, (0.0, 0.0))[0]:
            return False
        for offset, dead in sorted(group.dead.items()):
            try:
                letters = self._letters(topic, group, offset)
                if letters is None:
                    return False
                self._write_aside(which, (offset, dead.slots), letters, now, wall_s)
            except (Refusal, ChpError) as error:
                _, pause = self._refused_aside.get(which, (0.0, ASIDE_PAUSE_S / 2))
                pause = min(2 * pause, ASIDE_PAUSE_MAX_S)
                self._refused_aside[which] = now + pause, pause
                why = error.detail if isinstance(error, Refusal) else str(error)
                self.refused.append({"topic": which[0], "group": which[1], "offset": offset, "why": why})
                return False
        self._refused_aside.pop(which, None)
        return True

    def _letters(self, topic: TopicLog, group: Group, offset: int) -> list[Outgoing] | None:
        """Return the letter of a dead message; None if the journal must be read first; [] if the message is gone."""
        if offset < topic.first:
            return []
        rows = self.pages.find(topic.id, offset, topic.next, self._state.number, self._limits.messages_page_bytes)
        if rows is None:
            self._reads = True
            return None
        if not rows or not rows[0].stored.first <= offset < rows[0].stored.end:
            if self._filling:
                raise Refusal("busy", "the message is still asked of the other server")
            return []
        row, dead = rows[0], group.dead[offset]
        key, value, carried = self.pages.message(row, offset)
        told = {"topic": topic.name, "group": group.name, "offset": offset, "revision": row.stored.number}
        return letter({**told, "key": key or None, "tries": dead.times, "why": dead.why}, key, value, carried)

    def _write_aside(
        self, which: Which, where: tuple[int, int], letters: list[Outgoing], now: float, wall_s: float
    ) -> None:
        """Write a letter, and the acknowledgement of its message, into one record."""
        offset, slots = where
        extras: dict[str, Any] = {columns.ASIDE: [[*which, [[pack_slots(slots), offset]]]]}
        if letters:
            keys, values, headers = [list(column) for column in zip(*letters, strict=True)]
            body = pack_messages(keys if any(keys) else None, values, headers if any(headers) else None)
            name, commits = dead_topic(*which), self._committer
            if why := commits.room.why_not(len(body)):
                raise Refusal("full", why)
            if commits.open.full(len(body)):
                raise Refusal("busy", "the record of this turn is full")
            self._state.topics.check_room({name: [len(values), len(body)]})
            commits.add_published({columns.PUBLISH: [[name, len(values), body]], **extras}, now, wall_s)
            commits.counts["dead_letters"] += 1
        else:
            self._committer.add_segment(Segment([], [], extras), now)

    def _alone(
        self, stream: Member, group: Group, topic: TopicLog, upto: int, now: float, *, filling: bool, whole: bool
    ) -> bytes:
        """Return a message that failed before, if one is due; and note which slots and which members have to wait."""
        if group.untimed:
            self._hold(stream.which, group, now)
        places = group.places.get(stream.member, {})
        suspects, hand = group.suspects & group.slots_of(stream.member), stream.in_hand(places)
        if stream.barred != suspects:
            stream.barred, stream.seen = suspects, -1
        due = suspects & ~stream.leaving & ~self._held_back(stream.which, now)
        for dead in group.dead.values():
            due &= ~dead.slots
        # The member waits while a message that failed is in hand, or is next after those in hand.
        stream.waits = bool(hand & suspects) or bool(hand and due)
        if stream.waits or not due or not stream.credit:
            return b""
        searched = stream.searched(due)
        at = min(searched)
        stream.waits = at < topic.next
        near = self.pages.near(topic.id, at)
        rows = [near] if near is not None else self._rows(topic, at, upto, due) if at < topic.next else []
        if rows is None:
            return b""
        if filling:
            rows = _without_gap(rows, max(at, topic.first))
        offset, row = next(self._found(rows, searched), (-1, None))
        end = offset if row is not None else rows[-1].stored.end if rows else topic.next if whole else at
        for looked, slots in searched.items():
            if looked < end:
                stream.looked(looked, slots, end, sent=False)
        if row is None or not group.times(1 << self.pages.slot_of(row, offset), offset):
            if end > at:
                # The failed message is not there. Once a record acknowledges the searched range, the slots are normal.
                self._passing[stream.key] = None
                self._state.topics.groups.unsettled[stream.which] = None
            return b""
        slot = 1 << self.pages.slot_of(row, offset)
        proof = [row.stored.number, *self._state.whose(row.stored.number)]
        spans = stream.looked(offset, slot, offset + 1, sent=True)
        stream.pace.give(slot, offset + 1, 1, now)
        stream.credit -= 1
        stream.touched = stream.said = now
        self.delivered += 1
        told = headers.Messages(stream.key[1], offset + 1, topic.first, topic.next, spans, proof)
        if not stream.plain:
            told = told._replace(counted=[group.times(slot, offset), group.max_deliveries])
        return encode(told, [self.pages.single(row, offset, plain=stream.plain)])

    def _found(self, rows: list[MessageRow], searched: dict[int, int]) -> Iterator[tuple[int, MessageRow]]:
        """Yield the offset and the row of each message that lies behind the searched part of its slot."""
        every = 0
        for slots in searched.values():
            every |= slots
        for row in rows:
            for offset in self.pages.offsets(row, every, min(searched)):
                slot = 1 << self.pages.slot_of(row, offset)
                if any(looked <= offset and slots & slot for looked, slots in searched.items()):
                    yield offset, row

    # -- what each member gets

    def pump(
        self, blocked: Container[bytes], upto: int, now: float, *, filling: bool, whole: bool
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """Yield what each member gets in this turn, of records up to `upto`.

        Missing messages are skipped if the journal is `whole`, and waited for while backfill is under way (`filling`).
        """
        self._filling = filling
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
            if group.failures or stream.barred:
                body = self._alone(stream, group, topic, upto, now, filling=filling, whole=whole)
                if body or stream.waits:
                    return body or self._sign_of_life(stream, topic, now)
            return self._page(stream, topic, group, upto, now, filling=filling, whole=whole)
        except ChpError as error:
            # The journal is damaged at this place.
            self._end(stream)
            return encode(headers.Refused(stream.key[1], "damaged", str(error)))

    def _end(self, stream: Member) -> None:
        self._streams.pop(stream.key, None)
        if self._of.get((stream.which, stream.member)) is stream:
            del self._of[stream.which, stream.member]

    def _page(
        self, stream: Member, topic: TopicLog, group: Group, upto: int, now: float, *, filling: bool, whole: bool
    ) -> bytes:
        """Return the next answer; b"" if there is none now."""
        items = list[bytes]()
        told = headers.Messages(stream.key[1], 0, topic.first, topic.next)
        # A member that asks for one page at a time, and grants no credit, gets as much as there is.
        stream.is_paced = len(group.members) > 1 and (stream.room > 1 or stream.pace.grants)
        while stream.credit and stream.seen < upto and not items:
            at, slots, stop = stream.next()
            if self._has_enough(stream, topic, at, slots):
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
            if stream.is_paced:
                # Give about as many messages as the member handles soon. No other member can handle them afterwards.
                dense = max(stream.dense, slots.bit_count() / SLOTS)
                end = min(end, max(at, rows[0].stored.first) + 1 + int(stream.pace.size / dense))
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
                n = sum(n for _, n in found)
                self.delivered += n
                stream.pace.give(slots, end, n, now)
                stream.dense = n / (end - max(at, rows[0].stored.first))
                last = max(row.stored.number for row in rows)
                proof = [last, *self._state.whose(last)]
                stream.credit -= 1
                stream.touched = now
                told = headers.Messages(stream.key[1], end, topic.first, topic.next, spans, proof)
                if group.max_deliveries is not None and not stream.plain:
                    told = told._replace(counted=[0, group.max_deliveries])
        if not items:
            return self._sign_of_life(stream, topic, now)
        stream.said = now
        return encode(told, items)

    @staticmethod
    def _sign_of_life(stream: Member, topic: TopicLog, now: float) -> bytes:
        """Return an answer without messages, once a second; else b""."""
        if now - stream.said < BEAT_S:
            return b""
        stream.said = now
        return encode(headers.Messages(stream.key[1], 0, topic.first, topic.next), [])

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

    def _has_enough(self, stream: Member, topic: TopicLog, at: int, slots: int) -> bool:
        """Return True if a member that is ahead gets nothing more for now."""
        return stream.is_ahead and ((stream.is_paced and stream.pace.is_full) or self._scarce(topic, at, slots))

    def ready(self, blocked: Container[bytes], upto: int) -> bool:
        """Return True if a member could get more messages, so the next turn should begin at once."""
        streams = self._streams.values()
        able = (
            each for each in streams
            if each.credit and each.seen < upto and not each.waits and each.key[0] not in blocked
        )  # fmt: skip
        return any(map(self._due, able))

    def _due(self, stream: Member) -> bool:
        topic = self._state.topics.by_name.get(stream.which[0])
        at, slots, _ = stream.next()
        there = topic is not None and 0 <= at < topic.next
        return topic is not None and there and not self._has_enough(stream, topic, at, slots)


def _without_gap(rows: list[MessageRow], at: int) -> list[MessageRow]:
    """Return the rows from an offset on, up to the first missing message."""
    found: list[MessageRow] = []
    for row in rows:
        if row.stored.first > at:
            break
        found.append(row)
        at = row.stored.end
    return found


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
