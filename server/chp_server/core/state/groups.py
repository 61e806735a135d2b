"""Groups of a topic: consumers that share it, and how far each slot has come (SPEC.md, section 35).

The key of a message gives it one of 256 slots. For each slot a group keeps the offset up to which messages are
acknowledged (its *place*), and the member that has the slot. A step of an acknowledgement moves some slots of a member
from one offset to another. A step is accepted only if the member has each of these slots, and each slot is at the first
offset. So among all members that were given a message, only one can acknowledge it, once, together with everything else
in the same batch.

    places     member -> offset -> set of slots; each slot is in one place; slots without a member are under b""

A group with `max_deliveries` counts how often a message failed. A message fails if its member ends while it has the
message in hand, loses the slot, or gives the message back. A message that failed is given alone the next time. If this
member fails too, the message is taken for the reason, and its count may reach the bound. Then the message is *dead*,
and the active puts it aside.

    failures   (offset, times) -> set of slots; the messages of these slots below the offset failed this many times. If
               several entries apply to a message, their times add up. Messages in hand begin at the place of their
               slot, so a slot has few entries.
    dead       offset -> the slots that wait for this message, why it failed last, and how often

A member is a lease. When the lease ends, its slots have no member, and keep their offsets. The active decides which
member has which slots (group_coordinator.py), and writes this into records like everything else here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, NoReturn, Protocol

from chp import columns
from chp.dead_letters import cut
from chp.errors import BadFrame, BadInput
from chp.fair import QUARTER
from chp.limits import DEFAULT, Limits
from chp.topics import ALL_SLOTS, check_group, check_topic, pack_slots, unpack_slots

from .leases import LeaseOwner, LeaseTable
from .verdicts import Refusal

NOBODY = b""
# The reason that is noted for a message that a member gave back without a reason.
GIVEN_BACK = "a member gave it back"
# A `start` of a group that means: behind the last message of its topic.
END = -1
# A topic has at most GROUPS_BEYOND * `groups_max` groups: users with few groups may go beyond `groups_max`.
GROUPS_BEYOND = 2
# The number of places that a refusal lists at most.
TOLD_MAX = 16
Places = dict[int, int]  # offset -> slots acknowledged up to there
Move = tuple[int, int, int]  # slots, from, to
Failures = dict[tuple[int, int], int]  # offset, times -> slots


# The settings that may be changed.
CHANGING = ("ack_timeout_s", "max_deliveries", "retry_after_ms", "expire_after_s", "lag_alarm_s")


class GroupSettings(NamedTuple):
    """The settings of a group as a client gives them."""

    start: int = END
    # True: an existing group begins again at `start`.
    again: bool = False
    # True: these settings replace those of an existing group, which goes on where it is.
    change: bool = False
    ack_timeout_s: int | None = None
    max_deliveries: int | None = None
    retry_after_ms: int | None = None
    # The group is removed after it had no member for this many seconds.
    expire_after_s: int | None = None
    lag_alarm_s: int | None = None


class DeadMessage(NamedTuple):
    """A message that failed too often: the slots that wait for it, why it failed last, and how often it failed."""

    slots: int
    why: str
    times: int


@dataclass(slots=True)
class Group:
    """A group: its members, and the place of each slot."""

    name: str
    # A member loses its slots if it acknowledges none of its messages for this long.
    ack_timeout_s: int | None = None
    places: dict[bytes, Places] = field(default_factory=dict)
    # member -> the name that the member gave itself, for people.
    members: dict[bytes, str] = field(default_factory=dict)
    # The number of times that the group was begun again at another offset.
    resets: int = 0
    # The number of times that slots changed hands on this server; it is not part of the state.
    changes: int = 0
    # The user that made the group, if there are rules.
    user: str = ""
    # A message that failed this many times is put aside; None: failures are not counted.
    max_deliveries: int | None = None
    # A message that failed is held back for this time, which doubles each time; None: it is given again at once.
    retry_after_ms: int | None = None
    # The group is late while its oldest message is older than this; None: it never is.
    lag_alarm_s: int | None = None
    failures: Failures = field(default_factory=dict)
    dead: dict[int, DeadMessage] = field(default_factory=dict)
    # Slots of which the member is to be given the messages again, from the slots' places on. `anew` and `untimed` are
    # not part of the state.
    anew: int = 0
    # Slots whose messages failed, and of which the coordinator has not yet begun to count the `retry_after_ms`.
    untimed: int = 0
    # The group is removed after it had no member for this many seconds; None: it stays.
    expire_after_s: int | None = None
    # The offset at which the group began, or was last begun anew; also 0 if an older server did not note it.
    start: int = 0

    def floor(self) -> int:
        """Return the offset below which all messages are acknowledged."""
        return min(min(places) for places in self.places.values() if places)

    def place_of(self, slot: int) -> int:
        """Return the offset of a slot, which is given as a set of one slot."""
        return next(at for places in self.places.values() for at, some in places.items() if some & slot)

    def places_told(self) -> list[list[Any]]:
        """Return each offset that slots have reached, with these slots packed as in messages."""
        merged: Places = {}
        for at, some in chain.from_iterable(places.items() for places in self.places.values()):
            merged[at] = merged.get(at, 0) | some
        return [[pack_slots(some), at] for at, some in merged.items()]

    def slots_of(self, member: bytes) -> int:
        """Return the slots that a member has, as a bit set."""
        slots = 0
        for some in self.places.get(member, {}).values():
            slots |= some
        return slots

    def begin(self, offset: int) -> None:
        """Put all slots at an offset; each stays with its member."""
        held = {member: self.slots_of(member) for member in self.places} or {NOBODY: ALL_SLOTS}
        self.places = {member: {offset: slots} if slots else {} for member, slots in held.items()}
        self.start = offset
        self.failures.clear()
        self.dead.clear()
        self.changes += 1

    def stands(self, member: bytes, move: Move) -> bool:
        """Return whether a member may do a step.

        The member must have each slot of the step, each slot must be at the step's first offset, and the step must go
        forward.
        """
        slots, after, upto = move
        return 0 < slots == slots & self.places.get(member, {}).get(after, 0) and upto > after

    def move(self, member: bytes, move: Move) -> None:
        """Do a step for those of its slots that the member has and that are at the step's first offset."""
        slots, after, upto = move
        mine = self.places.get(member, {})
        slots &= mine.get(after, 0)
        if slots:
            _take(mine, after, slots)
            mine[upto] = mine.get(upto, 0) | slots
            if self.failures:
                self._forget(slots, upto)

    def assign(self, slots: int, member: bytes) -> None:
        """Give slots to a member; each keeps its offset."""
        new = self.places.setdefault(member, {})
        for holder, places in self.places.items():
            for offset, some in list(places.items()) if holder != member else ():
                if some & slots:
                    _take(places, offset, some & slots)
                    new[offset] = new.get(offset, 0) | (some & slots)
        self.changes += 1

    def join(self, member: bytes, name: str) -> None:
        """Add a member, without slots."""
        self.members[member] = name
        self.places.setdefault(member, {})
        self.changes += 1

    def leave(self, member: bytes) -> None:
        """Remove a member; its slots have no member then."""
        self.assign(self.slots_of(member), NOBODY)
        del self.places[member], self.members[member]

    # -- messages that fail

    @property
    def suspects(self) -> int:
        """The slots whose next message may have failed before."""
        slots = 0
        for some in self.failures.values():
            slots |= some
        return slots

    def times(self, slot: int, offset: int) -> int:
        """Return how often a message failed. `slot` is its slot, as a set of one slot."""
        return sum(times for (upto, times), slots in self.failures.items() if upto > offset and slots & slot)

    @property
    def times_max(self) -> int:
        """The number of failures of the message that failed most often."""
        return max((self.times(slots & -slots, upto - 1) for (upto, _), slots in self.failures.items()), default=0)

    def fail(self, slots: int, upto: int, why: str, *, named: bool = False) -> None:
        """Count a failure of the messages that these slots have below an offset.

        The last of these messages may become dead if the member blamed it (`named`), or if the group gave it alone. The
        group gives a message alone if the message failed before.
        """
        if self.max_deliveries is None:
            return
        hit = 0
        for places in self.places.values():
            for offset, some in places.items():
                hit |= some & slots if offset < upto else 0
        judged = hit if named else hit & self.suspects
        self._count(hit, upto)
        self.untimed |= hit
        for slot in each_slot(judged):
            times = self.times(slot, upto - 1)
            if times >= self.max_deliveries:
                others = self.dead[upto - 1].slots if upto - 1 in self.dead else 0
                self.dead[upto - 1] = DeadMessage(others | slot, cut(why, DEFAULT.reason_bytes_max), times)

    def _count(self, slots: int, upto: int) -> None:
        """Count one more failure of the messages of these slots below an offset."""
        moved: Failures = {}
        for (end, times), some in list(self.failures.items()):
            if end == upto and (both := some & slots):
                self._put(end, times, some & ~both)
                moved[end, times + 1] = both
                slots &= ~both
        if slots:
            moved[upto, 1] = slots
        for (end, times), some in moved.items():
            self._put(end, times, self.failures.get((end, times), 0) | some)

    def _put(self, upto: int, times: int, slots: int) -> None:
        if slots:
            self.failures[upto, times] = slots
        else:
            self.failures.pop((upto, times), None)

    def _forget(self, slots: int, below: int) -> None:
        """Forget the failures of messages of these slots below an offset, because they are done."""
        for (upto, times), some in list(self.failures.items()):
            if upto <= below and some & slots:
                self._put(upto, times, some & ~slots)
        for offset, dead in list(self.dead.items()):
            if offset < below and dead.slots & slots:
                if dead.slots & ~slots:
                    self.dead[offset] = dead._replace(slots=dead.slots & ~slots)
                else:
                    del self.dead[offset]

    def give_back(self, member: bytes, back: list[Any]) -> None:
        """Take back messages that a member gives back. The messages are given again.

        With a reason, the member blames the last of them.
        """
        slots, after, upto, why = back
        mine = 0
        for offset, some in self.places.get(member, {}).items():
            mine |= some & unpack_slots(slots) if after <= offset < upto else 0
        self.fail(mine, upto, GIVEN_BACK if why is None else why, named=why is not None)
        self.anew |= mine
        self.changes += 1

    def put_aside(self, slots: int, offset: int) -> None:
        """Move the slots of a message that was put aside behind this message, whichever members have these slots."""
        for places in self.places.values():
            for at, some in list(places.items()):
                if at <= offset and some & slots:
                    _take(places, at, some & slots)
                    places[offset + 1] = places.get(offset + 1, 0) | (some & slots)
        self._forget(slots, offset + 1)
        self.anew |= slots
        self.changes += 1

    def configure(self, settings: GroupSettings) -> None:
        """Take over the settings that say how messages are given."""
        self.ack_timeout_s = settings.ack_timeout_s
        self.max_deliveries, self.retry_after_ms = settings.max_deliveries, settings.retry_after_ms
        self.lag_alarm_s = settings.lag_alarm_s
        self.expire_after_s = settings.expire_after_s
        if self.max_deliveries is None:
            self.failures.clear()
            self.dead.clear()
        self.changes += 1

    # -- as a state carries it

    def to_list(self) -> list[Any]:
        """Return the group as a list, as a state carries it.

        The list has five elements, and up to three more: the settings and counts of failures, `expire_after_s`, and
        `lag_alarm_s`. None stands for one of these three that the group does not have; the list has no None at its end.
        """
        places = [[m, [[at, pack_slots(some)] for at, some in held.items()]] for m, held in self.places.items()]
        told = [self.name, self.ack_timeout_s, self.resets, list(map(list, self.members.items())), places]
        more: list[Any] = [None, self.expire_after_s, self.lag_alarm_s]
        if self.max_deliveries is not None:
            failures = [[upto, times, pack_slots(slots)] for (upto, times), slots in self.failures.items()]
            dead = [[offset, pack_slots(each.slots), each.why, each.times] for offset, each in self.dead.items()]
            more[0] = [self.max_deliveries, self.retry_after_ms, failures, dead]
        while more and more[-1] is None:
            more.pop()
        return [*told, *more]

    @property
    def is_newer(self) -> bool:
        """True if the group has a setting that a server below version 5 can't have."""
        newer = (self.max_deliveries, self.expire_after_s, self.lag_alarm_s)
        return any(setting is not None for setting in newer)

    @staticmethod
    def of(told: list[Any]) -> Group:
        """Return the group whose list `to_list` has made."""
        name, ack_timeout_s, resets, members, places, *more = told
        held = {m: {at: unpack_slots(some) for at, some in of_one} for m, of_one in places}
        group = Group(name, ack_timeout_s, held, dict(members), resets)
        group.lag_alarm_s = more[2] if len(more) > 2 else None
        group.expire_after_s = more[1] if len(more) > 1 else None
        if more and more[0] is not None:
            most, retry_after_ms, failures, dead = more[0]
            group.max_deliveries, group.retry_after_ms = most, retry_after_ms
            group.failures = {(upto, times): unpack_slots(slots) for upto, times, slots in failures}
            group.dead = {at: DeadMessage(unpack_slots(slots), why, times) for at, slots, why, times in dead}
        return group

    def check(self, after: int) -> None:
        """Assert every invariant; `after` is the offset of the topic's next message."""
        found = [some for places in self.places.values() for some in places.values()]
        assert sum(map(int.bit_count, found)) == 256, "no slot has two places"
        assert all(found), "no place is empty"
        assert sum(found) == ALL_SLOTS, "each slot has a place"
        assert all(0 <= at <= after for places in self.places.values() for at in places), "places are in the topic"
        assert self.places.keys() - {NOBODY} == self.members.keys(), "only members have slots"
        assert self.max_deliveries is not None or not (self.failures or self.dead), "only some groups count failures"
        assert all(self.failures.values()) and all(each.slots for each in self.dead.values()), "no entry is empty"
        failed = [(upto, slots) for (upto, _), slots in self.failures.items()]
        failed += [(offset + 1, each.slots) for offset, each in self.dead.items()]
        done = {1 << i: self.place_of(1 << i) for i in range(256)} if failed else {}
        for upto, slots in failed:
            assert all(done[slot] < upto for slot in each_slot(slots)), "what is done has not failed"


def each_slot(slots: int) -> Iterator[int]:
    """Yield each slot of a set, as a set of one."""
    while slots:
        yield slots & -slots
        slots &= slots - 1


def _take(places: Places, offset: int, slots: int) -> None:
    left = places[offset] & ~slots
    if left:
        places[offset] = left
    else:
        del places[offset]


class OfTopic(dict[str, Group]):
    """The groups of one topic, by name."""

    def floor(self, default: int) -> int:
        """Return the offset below which all groups have acknowledged all messages; `default` if there is no group."""
        return min((group.floor() for group in self.values()), default=default)


class OfThese(Protocol):
    """The part of a topic that groups need."""

    groups: OfTopic
    next: int


class Groups:
    """All groups of all topics. The table checks what a batch may do to groups, and does what a record says."""

    def __init__(self, limits: Limits, topics: Mapping[str, OfThese]) -> None:
        self._limits, self._topics = limits, topics
        # member -> (topic, name) of each group that it is in
        self._of: dict[bytes, set[tuple[str, str]]] = {}
        # Groups with `lag_alarm_s`.
        self.alarmed: dict[tuple[str, str], None] = {}
        # Groups whose members have changed, or whose members are to give slots away.
        self.unsettled: dict[tuple[str, str], None] = {}
        # The groups that end when they are not used.
        self.expiring: dict[tuple[str, str], Group] = {}

    # -- checks of a batch

    def check(self, extras: dict[str, Any], leases: LeaseTable, whose: LeaseOwner) -> None:
        """Raise `Refusal` or `BadInput` if a batch with these columns may not be done."""
        if {columns.STAGE, columns.COMMIT} & extras.keys():
            raise BadFrame(
                "changes of groups can't be staged, or sent with a commit; send them in a batch of their own"
            )
        if columns.GROUP in extras:
            if not columns.OF_TOPICS.isdisjoint(extras.keys() - {columns.GROUP}):
                raise BadFrame("a batch that makes a group can't change topics too; send two batches")
            self._check_made(*extras[columns.GROUP], user=whose.share)
        if columns.JOIN in extras:
            topic, name, member, _ = extras[columns.JOIN]
            group = self._group(topic, name)
            # A lease that the batch itself opens was checked before.
            if extras.get(columns.LEASE, [None])[0] != member:
                _check_lease(member, leases, whose)
            if member not in group.members and len(group.members) >= self._limits.members_max:
                raise Refusal("full", f"group {name} of topic {topic} has {self._limits.members_max} members")
        acks = extras.get(columns.ACK, ())
        if len(acks) > 1 and len({(topic, name) for topic, name, *_ in acks}) < len(acks):
            raise BadFrame("an acknowledgement names a group twice; put its steps together")
        for topic, name, member, moves, *_ in acks:
            self._check_ack(self._group(topic, name), topic, member, moves)
            self._check_own(leases, member, whose)
        for told in extras.get(columns.NACK, ()):
            self._check_nack(told, acks)
            self._check_own(leases, told[2], whose)

    @staticmethod
    def _check_own(leases: LeaseTable, member: bytes, whose: LeaseOwner) -> None:
        lease = leases.get(member)
        if lease is None or not whose.may_use(lease):
            raise Refusal("lease", "the member is a lease of another client")

    def _check_nack(self, told: list[Any], acks: Sequence[list[Any]]) -> None:
        """Raise if a member does not have the messages that it gives back.

        Steps that the same batch acknowledges count as done already.
        """
        topic, name, member, given_back = told
        group = self._group(topic, name)
        if member not in group.members:
            _fenced(group, topic, member, (ALL_SLOTS, 0, 1))
        moved = [move_of(move) for t, g, m, moves, *_ in acks if [t, g, m] == told[:3] for move in moves]
        seen, end = 0, self._topics[topic].next
        for packed, after, upto, _ in given_back:
            slots = unpack_slots(packed)
            if seen & slots or not slots:
                raise BadFrame("a batch gives a slot back twice, or none; put the two steps together")
            if not after < upto <= end:
                raise Refusal("bad", f"topic {topic} has no messages from {after} to {upto - 1} to be given back")
            seen |= slots
            left = slots
            for some, _, at in moved:
                left &= ~some if after <= at < upto else ALL_SLOTS
                if some & slots and not after <= at < upto:
                    _fenced(group, topic, member, (slots, after, upto))
            for at, some in group.places.get(member, {}).items():
                left &= ~some if after <= at < upto else ALL_SLOTS
            if left:
                _fenced(group, topic, member, (slots, after, upto))

    def _check_made(self, topic: str, name: str, settings: dict[str, Any] | None, *, user: str) -> None:
        check_topic(topic)
        if settings is None:
            self._group(topic, name)
            return
        told = settings_of(settings)
        there = self._topics.get(topic)
        groups, end = (OfTopic(), 0) if there is None else (there.groups, there.next)
        if told.change:
            told = changed(self._group(topic, name), settings)
        if told.retry_after_ms is not None and told.max_deliveries is None:
            gone = settings.get("max_deliveries", told) is None
            remedy = "take retry_after_s off too" if gone else "give max_deliveries too"
            raise BadInput(f"retry_after_s is for a group that counts deliveries; {remedy}")
        start = told.start
        if told.change:
            return
        if told.again:
            self._group(topic, name)
        elif check_group(name) in groups:
            raise Refusal("there", f"group {name} of topic {topic} is there already")
        elif len(groups) >= self._limits.groups_max and not self._has_share_left(groups, user):
            raise Refusal("full", f"topic {topic} has {len(groups):,} groups, as many as it may have; remove one")
        if start > end:
            raise Refusal("bad", f"topic {topic} has no offset {start}; the next message gets {end}")

    def _has_share_left(self, groups: OfTopic, user: str) -> bool:
        """Return whether a full topic takes one more group of this user.

        It does if the user has less than a quarter of `groups_max` groups there. No other user's group is removed to
        make room, because the group's consumers would lose their place. So a topic may have up to `GROUPS_BEYOND` times
        `groups_max` groups.
        """
        most, mine = self._limits.groups_max, sum(group.user == user for group in groups.values())
        return bool(user) and QUARTER * mine < most and len(groups) < GROUPS_BEYOND * most

    def _check_ack(self, group: Group, topic: str, member: bytes, told: list[list[Any]]) -> None:
        seen, end = 0, self._topics[topic].next
        for move in map(move_of, told):
            if seen & move[0]:
                raise BadFrame("an acknowledgement names a slot twice; put the two steps together")
            if move[2] > end:
                raise Refusal("bad", f"topic {topic} has no message {move[2] - 1} that could be acknowledged")
            seen |= move[0]
            if not group.stands(member, move):
                _fenced(group, topic, member, move)

    # -- effects of records

    def apply(self, extras: dict[str, Any]) -> None:
        """Do what a record says of groups. Groups that were removed meanwhile are skipped."""
        if columns.GROUP in extras:
            self._make(*extras[columns.GROUP])
        if columns.JOIN in extras:
            topic, name, member, called = extras[columns.JOIN]
            for group in self._there(topic, name):
                group.join(member, called)
                self._of.setdefault(member, set()).add((topic, name))
                self.unsettled[topic, name] = None
        for topic, name, member, moves in extras.get(columns.ACK, ()):
            for group in self._there(topic, name):
                for move in map(move_of, moves):
                    group.move(member, move)
        self._apply_failures(extras)
        for topic, name, holders in extras.get(columns.ASSIGN, ()):
            for group in self._there(topic, name):
                for slots, member in holders:
                    if member == NOBODY or member in group.members:
                        group.assign(unpack_slots(slots), member)

    def _apply_failures(self, extras: dict[str, Any]) -> None:
        """Do what a record says of messages that failed."""
        for topic, name, member, given_back in extras.get(columns.NACK, ()):
            for group in self._there(topic, name):
                for back in given_back:
                    group.give_back(member, back)
                self.unsettled[topic, name] = None
        for topic, name, told in extras.get(columns.FAILED, ()):
            for group in self._there(topic, name):
                for slots, upto, why in told:
                    group.fail(unpack_slots(slots), upto, why)
                self.unsettled[topic, name] = None
        for topic, name, told in extras.get(columns.ASIDE, ()):
            for group in self._there(topic, name):
                for slots, offset in told:
                    group.put_aside(unpack_slots(slots), offset)

    def own(self, named: str, user: str) -> None:
        """Note the user that made a group, unless a user is known; `named` is the topic, a slash and the group."""
        topic, _, name = named.partition("/")
        for group in self._there(topic, name):
            group.user = group.user or user

    def owned(self) -> Iterator[tuple[str, str]]:
        """Yield each group that has a known user, named as `own` takes it, and that user."""
        for topic, of_topic in self._topics.items():
            for group in of_topic.groups.values():
                if group.user:
                    yield f"{topic}/{group.name}", group.user

    def _make(self, topic: str, name: str, settings: dict[str, Any] | None) -> None:
        if topic not in self._topics:
            return
        groups, end = self._topics[topic].groups, self._topics[topic].next
        if settings is None:
            self.removed(topic, {name: groups.pop(name)} if name in groups else {})
            return
        told = settings_of(settings)
        offset = end if told.start == END else min(told.start, end)
        if name not in groups:
            if not told.change:
                groups[name] = Group(name)
                groups[name].begin(offset)
                groups[name].configure(told)
                self._note_expiring(topic, groups[name])
        elif told.change:
            groups[name].configure(changed(groups[name], settings))
            self._note_expiring(topic, groups[name])
            self.unsettled[topic, name] = None
        elif told.again:
            self._begin_anew(topic, groups[name], offset)
        if name in groups:
            self._note_alarm(topic, groups[name])

    def _note_alarm(self, topic: str, group: Group) -> None:
        if group.lag_alarm_s is None:
            self.alarmed.pop((topic, group.name), None)
        else:
            self.alarmed[topic, group.name] = None

    def _note_expiring(self, topic: str, group: Group) -> None:
        """Note whether a group ends when it is not used."""
        if group.expire_after_s is not None:
            self.expiring[topic, group.name] = group
        else:
            self.expiring.pop((topic, group.name), None)

    def _begin_anew(self, topic: str, group: Group, offset: int) -> None:
        """Remove all members and begin a group at an offset.

        Messages that members had in hand are lost to them, even if the group begins where it was.
        """
        for member in list(group.members):
            group.leave(member)
            self._forget(member, (topic, group.name))
        group.resets += 1
        group.begin(offset)
        self.unsettled[topic, group.name] = None

    def removed(self, topic: str, gone: dict[str, Group]) -> None:
        """Forget groups that were removed from a topic."""
        for name, group in gone.items():
            for member in group.members:
                self._forget(member, (topic, name))
            self.unsettled.pop((topic, name), None)
            self.alarmed.pop((topic, name), None)
            self.expiring.pop((topic, name), None)

    def _forget(self, member: bytes, which: tuple[str, str]) -> None:
        of = self._of.get(member, set())
        of.discard(which)
        if not of:
            self._of.pop(member, None)

    def left(self, member: bytes) -> None:
        """Take a lease that has ended out of all groups that it was a member of."""
        for topic, name in self._of.pop(member, ()):
            self._topics[topic].groups[name].leave(member)
            self.unsettled[topic, name] = None

    def loaded(self) -> None:
        """Rebuild the indexes after the groups of a state were loaded."""
        for topic, of_topic in self._topics.items():
            for name, group in of_topic.groups.items():
                self.unsettled[topic, name] = None
                self._note_alarm(topic, group)
                self._note_expiring(topic, group)
                for member in group.members:
                    self._of.setdefault(member, set()).add((topic, name))

    def of_member(self, member: bytes) -> Iterator[tuple[tuple[str, str], Group]]:
        """Yield each group that a lease is a member of, with the names of its topic and itself."""
        for topic, name in sorted(self._of.get(member, ())):
            for group in self._there(topic, name):
                yield (topic, name), group

    @property
    def any_newer(self) -> bool:
        """True if a group has a setting that an older peer can't have."""
        return any(group.is_newer for topic in self._topics.values() for group in topic.groups.values())

    @property
    def any_member(self) -> bool:
        """True if a lease is a member of a group."""
        return bool(self._of)

    def get(self, topic: str, name: str) -> Group | None:
        """Return a group; None if there is no such group."""
        there = self._topics.get(topic)
        return None if there is None else there.groups.get(name)

    def _there(self, topic: str, name: str) -> Iterator[Group]:
        group = self.get(topic, name)
        if group is not None:
            yield group

    def _group(self, topic: str, name: str) -> Group:
        if topic not in self._topics:
            raise Refusal("topic", f"there is no topic {topic}")
        group = self.get(topic, name)
        if group is None:
            raise Refusal("group", f"topic {topic} has no group {name}")
        return group


def settings_of(told: dict[str, Any]) -> GroupSettings:
    """Return the settings of a group; raise `BadInput` that says what is wrong and what to do."""
    if not told.keys() <= set(GroupSettings._fields):
        known = ", ".join(GroupSettings._fields)
        raise BadInput(f"a group has the settings {known}, not {sorted(map(repr, told))!s:.100}")
    found = GroupSettings(**told)
    if type(found.start) is not int or not END <= found.start < 1 << 62 or type(found.again) is not bool:
        raise BadInput(f"a group's start is an offset, or -1 for the end, not {found.start!r:.40}")
    if type(found.change) is not bool or (found.change and (found.again or "start" in told)):
        raise BadInput("a change of a group's settings has neither start nor again: the group goes on where it is")
    seconds = dict.fromkeys(("ack_timeout_s", "expire_after_s", "lag_alarm_s"), 1 << 31)
    for name, most in (*seconds.items(), ("max_deliveries", DEFAULT.deliveries_max)):
        number = getattr(found, name)
        if number is not None and (type(number) is not int or not 0 < number <= most):
            raise BadInput(f"a group's {name} is a whole number from 1 to {most:,}, or left out, not {number!r:.40}")
    retry, most = found.retry_after_ms, round(DEFAULT.retry_s_max * 1000)
    if retry is not None and (type(retry) is not int or not 0 < retry <= most):
        raise BadInput(f"a group's retry_after_ms is a whole number from 1 to {most:,}, or left out, not {retry!r:.40}")
    return found


def changed(group: Group, told: dict[str, Any]) -> GroupSettings:
    """Return the settings of a group, changed as `told` says."""
    now = GroupSettings(change=True, **{name: getattr(group, name) for name in CHANGING})
    return now._replace(**{name: value for name, value in told.items() if name in CHANGING})


def move_of(told: list[Any]) -> Move:
    """Return a step of an acknowledgement, unpacked."""
    slots, after, upto = told
    return unpack_slots(slots), after, upto


def check_positions(acks: list[list[Any]], is_of_others: Callable[[int, list[bytes]], bool]) -> None:
    """Refuse an acknowledgement of messages that a member got from another history.

    The offsets stand for other messages here: in a split both servers gave the same offsets to different messages.
    """
    for topic, name, _, moves, *positions in acks:
        if any(is_of_others(number, whose) for number, *whose in chain.from_iterable(positions)):
            told = {"topic": topic, "group": name, "member": True, "from": moves[0][1], "history": False}
            raise Refusal("fenced", told)


def without_positions(acks: list[list[Any]]) -> list[list[Any]]:
    """Return acknowledgements as records have them, without the positions, which were checked."""
    return [each[:4] for each in acks]


def _check_lease(member: bytes, leases: LeaseTable, whose: LeaseOwner) -> None:
    if not leases.lives(member):
        raise Refusal("lease", "a member needs an open lease; open one first")
    if not whose.may_use(leases[member]):
        raise Refusal("lease", "the lease is another client's; open one of your own")


def _fenced(group: Group, topic: str, member: bytes, move: Move) -> NoReturn:
    """Refuse a step that is not allowed: tell where its slots are, and which of them the member has."""
    slots, after, _ = move
    at = [
        [pack_slots(some & slots), offset, holder == member]
        for holder, places in group.places.items()
        for offset, some in places.items()
        if some & slots
    ]
    told = {"topic": topic, "group": group.name, "member": member in group.members, "from": after, "at": at[:TOLD_MAX]}
    raise Refusal("fenced", told)
