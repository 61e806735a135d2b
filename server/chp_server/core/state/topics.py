"""The topics of the state: logs of messages beside the map, changed by the same records (SPEC.md, section 35).

    place    the active gives messages their offsets, which count from 0 without a gap
    apply    does what the columns of a record say of topics, on the active, on the passive and on recovery

A record says where messages are placed, and does not contain the messages. They go to the journal beside the record,
as a row for each topic and record. So a topic takes little memory, however many messages wait. The first message makes
a topic that is missing.

    marks    [offset, bytes, wall_ms] ...    the offsets at which a topic may be cut: `bytes` are those of the messages
             from the previous mark to this offset, and `wall_ms` is the time of the last of these messages

If there are too many marks, they are merged in pairs, so both servers have the same ones. groups.py has the groups of a
topic, and how far each has come. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any
from zlib import crc32

from chp import columns
from chp.batch import packb
from chp.errors import BadFrame
from chp.limits import Limits
from chp.topics import Counts, Settings, add_counts, check_headers, check_topic, unpack_with_headers
from chp.unpacking import Load, weight_of

from .groups import Group, Groups, OfTopic
from .leases import LeaseOwner, LeaseTable
from .schedule import Schedule
from .verdicts import Refusal

# A number above every offset.
ALL = (1 << 62) - 1
# One answer lists groups and their members of at most this many bytes.
LISTED_BYTES = 1 << 20


@dataclass(slots=True)
class TopicLog:
    """A topic, without its messages."""

    name: str
    # A number of its own: a topic that is made again under the same name gets another one.
    id: int
    settings: Settings
    first: int = 0
    next: int = 0
    bytes: int = 0
    # The time of the last message; it never goes back.
    wall_ms: int = 0
    marks: deque[list[int]] = field(default_factory=deque)
    groups: OfTopic = field(default_factory=OfTopic)

    def full(self, messages: int, size: int) -> str:
        """Return why there is no room for this many more messages and bytes.

        Return "" if there is room, or if the topic drops old messages to make room.
        """
        settings = self.settings
        if why := self.no_group:
            return why
        if settings.keep == "size":
            return ""
        count, most, bound = self.next - self.first, settings.max_messages, settings.max_bytes
        if most is not None and count + messages > most:
            return f"topic {self.name} has {count:,} messages and may have {most:,}; {messages:,} more came together"
        if bound is not None and self.bytes + size > bound:
            return f"topic {self.name} has {self.bytes:,} bytes and may have {bound:,}; {size:,} more came together"
        return ""

    @property
    def no_group(self) -> str:
        """The refusal of messages for a topic that needs a group and has none; "" if the topic takes messages."""
        if self.groups or not self.settings.require_group:
            return ""
        return f"topic {self.name} takes messages only while it has a group, and has none; subscribe one first"

    def grow(self, count: int, size: int, wall_ms: int, marks_max: int) -> None:
        """Add messages at the end."""
        self.next += count
        self.bytes += size
        self.wall_ms = max(self.wall_ms, wall_ms)
        self.marks.append([self.next, size, self.wall_ms])
        if len(self.marks) > marks_max:
            self._merge()

    def _merge(self) -> None:
        pairs, left = divmod(len(self.marks), 2)
        merged: deque[list[int]] = deque()
        for _ in range(pairs):
            (_, size, _), (end, more, wall_ms) = self.marks.popleft(), self.marks.popleft()
            merged.append([end, size + more, wall_ms])
        self.marks = merged + self.marks if left else merged

    def below(self, wall_ms: int) -> int:
        """Return the offset below which messages need not be kept. A bound on bytes always keeps the last batch."""
        settings, first, size = self.settings, self.first, self.bytes
        most = settings.max_bytes if settings.keep == "size" else None
        old = None if settings.max_age_s is None else wall_ms - settings.max_age_s * 1000
        for end, taken, written in self.marks:
            over = most is not None and size > most and end < self.next
            if not over and (old is None or written > old):
                break
            first, size = max(first, end), size - taken
        if settings.keep == "size" and settings.max_messages is not None:
            first = max(first, self.next - settings.max_messages)
        return self.groups.floor(self.first) if settings.keep == "acknowledged" else first

    def trim(self, below: int) -> None:
        """Drop the messages below an offset."""
        while self.marks and self.marks[0][0] <= below:
            self.bytes -= self.marks.popleft()[1]
        self.first = max(self.first, min(below, self.next))

    def facts(self) -> dict[str, Any]:
        """Return what a client that asks for the topic is told."""
        told = {"name": self.name, "first": self.first, "next": self.next, "bytes": self.bytes}
        more = {"wall_ms": self.wall_ms, "settings": self.settings.to_map(), "groups": len(self.groups)}
        return {**told, **more}

    def lag(self, group: Group) -> tuple[int, int]:
        """Return the number of messages that a group has not acknowledged, and the time of the first of them.

        The time is taken from the next mark, so it may be a little late. It is 0 if there is no such message.
        """
        at = max(self.first, group.floor())
        later = bisect_right(self.marks, at, key=lambda mark: mark[0])
        return self.next - at, self.marks[later][2] if later < len(self.marks) else 0

    def shown(self, group: Group, wall_ms: int) -> dict[str, Any]:
        """Return what an operator is shown of a group, with the seconds that its first message has waited."""
        lag, since_ms = self.lag(group)
        waited_s = max(0, wall_ms - since_ms) / 1000 if since_ms else 0.0
        told = {"topic": self.name, "group": group.name, "lag": lag, "oldest_s": waited_s}
        late = group.lag_alarm_s is not None and waited_s > group.lag_alarm_s
        return {**told, "members": len(group.members), "late": late}

    def groups_after(self, after: str, most: int) -> list[dict[str, Any]]:
        """Return the facts of the next groups by name: as many as fit one answer, but at least one."""
        names = sorted(name for name in self.groups if name > after)[:most]
        load = Load(LISTED_BYTES)
        facts = map(self._group_facts, map(self.groups.__getitem__, names))
        return list(takewhile(lambda each: load.takes(len(packb(each)), weight_of(each)), facts))

    def _group_facts(self, group: Group) -> dict[str, Any]:
        lag, wall_ms = self.lag(group)
        members = [[name, group.slots_of(member).bit_count()] for member, name in group.members.items()]
        told = {"name": group.name, "position": group.floor(), "lag": lag, "oldest_ms": wall_ms, "members": members}
        told |= {"ack_timeout_s": group.ack_timeout_s}
        if group.lag_alarm_s is not None:
            told["lag_alarm_s"] = group.lag_alarm_s
        if group.expire_after_s is not None:
            told |= {"expire_after_s": group.expire_after_s}
        if group.max_deliveries is not None:
            told |= {"max_deliveries": group.max_deliveries, "retry_after_ms": group.retry_after_ms}
            told |= {"failing": group.suspects.bit_count(), "deliveries": group.times_max + 1}
        return told


class Topics:
    """All topics by name, and their groups."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_name: dict[str, TopicLog] = {}
        self.made = 0
        # Topics by id to which records of another server have added messages. These messages may be missing here
        # (missing_messages.py). `grown` and `own` have what changed since the last look.
        self.grown: dict[int, TopicLog] = {}
        # Topics by id in which this server has placed messages.
        self.own: dict[int, TopicLog] = {}
        self.groups = Groups(limits, self.by_name)
        self.schedule = Schedule(limits)
        # topic id -> the offset below which the journal is to delete the messages.
        self.trimmed: dict[int, int] = {}
        # True if a topic has changed since the last look at `grown`, `own` and `trimmed`.
        self.changed = False

    # -- checks of a batch

    def check(self, extras: dict[str, Any], leases: LeaseTable, whose: LeaseOwner) -> None:
        """Raise `Refusal` or `BadInput` if a client's batch with these columns may not be done."""
        if not columns.OF_GROUPS.isdisjoint(extras):
            self.groups.check(extras, leases, whose)
        if columns.GROUP in extras:
            self._check_room(extras[columns.GROUP][0] not in self.by_name)
        if columns.TOPIC in extras:
            self._check_made(extras)
        if columns.PUBLISH in extras:
            self._check_published(extras)
        if columns.SCHEDULE in extras or columns.CANCEL in extras:
            for name, *_, body in extras.get(columns.SCHEDULE, ()):
                self._check_bodies(name, 1, body)
            self.schedule.check(extras, whose.user)
            self._check_room(len({entry[0] for entry in extras.get(columns.SCHEDULE, ())} - self.by_name.keys()))

    def _check_made(self, extras: dict[str, Any]) -> None:
        name, settings = extras[columns.TOPIC]
        if {columns.PUBLISH, columns.STAGE, columns.COMMIT} & extras.keys():
            raise BadFrame("a batch that makes a topic can't carry messages, and can't be staged; send two batches")
        there = check_topic(name) in self.by_name
        if settings is None and not there:
            raise Refusal("topic", f"there is no topic {name}")
        if settings is not None:
            Settings.of(settings)
            if there:
                raise Refusal("there", f"topic {name} is there already")
            self._check_room(1)

    def _check_room(self, more: int) -> None:
        if len(self.by_name) + more > self._limits.topics_max:
            raise Refusal("full", f"there are {len(self.by_name):,} topics, and no more may be; remove one")

    def _check_published(self, extras: dict[str, Any]) -> None:
        if columns.COMMIT in extras:
            raise BadFrame("a commit can't carry messages; stage them before it")
        taken: Counts = {}
        for name, count, body in extras[columns.PUBLISH]:
            self._check_bodies(name, count, body)
            add_counts(taken, check_topic(name), count, len(body))
        self.check_room(taken)

    def check_room(self, taken: Counts) -> None:
        """Raise `Refusal` if one of these topics has no room for its count of messages, or for their bytes."""
        self._check_room(len(taken.keys() - self.by_name.keys()))
        for name, (messages, size) in taken.items():
            topic = self.by_name.get(name)
            if topic is not None and (why := topic.full(messages, size)):
                raise Refusal("group" if topic.no_group else "full", why)

    def _check_bodies(self, name: str, count: int, body: bytes) -> None:
        _, values, carried = unpack_with_headers(body)
        if len(values) != count:
            raise BadFrame(f"the messages for topic {name!r:.60} are not as many as their count says")
        for each in carried or ():
            check_headers(each)
        most = self._limits.value_bytes_max
        if len(body) > most and max(map(len, values)) > most:
            raise Refusal("size", f"a message has at most {most} bytes")

    # -- effects of records

    def place(self, name: str, count: int, body: bytes, wall_ms: int) -> tuple[TopicLog, list[Any]]:
        """Give messages the next offsets of their topic; return the topic, and the entry for the record."""
        self.changed = True
        topic = self._get(name)
        first = topic.next
        self.own[topic.id] = topic
        topic.grow(count, len(body), wall_ms, self._limits.topic_marks_max)
        return topic, [name, first, count, len(body), crc32(body)]

    def apply(self, extras: dict[str, Any]) -> None:
        """Do what a record says. Messages that `place` has placed on this server are counted already."""
        self.changed = True
        if columns.TOPIC in extras:
            self._make(*extras[columns.TOPIC])
        if columns.PLACED in extras:
            wall_ms, placed = extras[columns.PLACED]
            for name, first, count, size, _ in placed:
                self._grow(self._get(name), first, count, size, wall_ms)
        if not columns.OF_GROUPS.isdisjoint(extras):
            if columns.GROUP in extras and extras[columns.GROUP][2] is not None:
                self._get(extras[columns.GROUP][0])
            self.groups.apply(extras)
        if not columns.OF_SCHEDULE.isdisjoint(extras):
            for name, *_ in extras.get(columns.SCHEDULED, [0, ()])[1]:
                self._get(name)
            self.schedule.apply(extras)
        for name, below in extras.get(columns.TRIM, ()):
            if name in self.by_name:
                topic = self.by_name[name]
                topic.trim(below)
                self.trimmed[topic.id] = topic.first

    def _get(self, name: str) -> TopicLog:
        if name not in self.by_name:
            self._make(name, {})
        return self.by_name[name]

    def _make(self, name: str, settings: dict[str, Any] | None) -> None:
        if settings is None:
            gone = self.by_name.pop(name, None)
            if gone is not None:
                self.trimmed[gone.id] = ALL
                self.groups.removed(name, gone.groups)
                self.schedule.removed(name)
        # The topic may exist already, if the record is from the suffix of another server that was active too.
        elif name not in self.by_name:
            self.made += 1
            self.by_name[name] = TopicLog(name, self.made, Settings.of(settings))

    def _grow(self, topic: TopicLog, first: int, count: int, size: int, wall_ms: int) -> None:
        if first == topic.next:
            topic.grow(count, size, wall_ms, self._limits.topic_marks_max)
            self.grown[topic.id] = topic
        elif first + count > topic.next:
            raise BadFrame(f"messages of topic {topic.name} at {first} came where {topic.next} was due")

    def groups_shown(self, most: int, wall_ms: int) -> list[dict[str, Any]]:
        """Return what an operator is shown of at most `most` groups, those of the oldest topics first."""
        found = ((topic, group) for topic in self.by_name.values() for group in topic.groups.values())
        return [topic.shown(group, wall_ms) for topic, group in islice(found, most)]

    def due(self, wall_ms: int) -> list[list[Any]]:
        """Return, as a column of a record, the topics that keep more than they need, each with its new first offset."""
        found = ((topic, topic.below(wall_ms)) for topic in self.by_name.values() if topic.settings.keep != "all")
        return [[topic.name, below] for topic, below in found if below > topic.first]

    # -- parts of the state

    def take_trimmed(self) -> dict[int, int]:
        """Return what the journal is to delete since the last call."""
        trimmed, self.trimmed = self.trimmed, {}
        return trimmed

    @staticmethod
    def gone(ids: Iterable[int]) -> dict[int, int]:
        """Return the entries of `trimmed` that delete all messages of topics that were removed."""
        return dict.fromkeys(ids, ALL)

    def floors(self) -> dict[int, int]:
        """Return the oldest offset of each topic, by its id."""
        return {topic.id: topic.first for topic in self.by_name.values()}

    def to_list(self) -> list[Any]:
        """Return the topics as a list, as a state carries it."""
        topics = self.by_name.values()
        return [
            self.made,
            [
                [t.name, t.id, t.settings.to_map(), t.first, t.next, t.bytes, t.wall_ms, list(t.marks),
                 [group.to_list() for group in t.groups.values()], *_starts_of(t)]
                for t in topics
            ],
        ]  # fmt: skip

    def load(self, told: Sequence[Any]) -> None:
        """Take over the list that `to_list` made."""
        self.made, topics = told
        for name, topic_id, settings, first, after, size, wall_ms, marks, *groups in topics:
            made = TopicLog(name, topic_id, Settings.of(settings), first, after, size, wall_ms, deque(marks))
            made.groups |= {group.name: group for group in map(Group.of, groups[0] if groups else ())}
            # A server of an older version tells no starts.
            for group, start in groups[1].items() if len(groups) > 1 else ():
                made.groups[group].start = start
            self.by_name[name] = made
        self.groups.loaded()

    def check_all(self) -> None:
        """Assert every invariant."""
        self.schedule.check_all()
        assert self.schedule.by_topic.keys() <= self.by_name.keys(), "a scheduled message has a topic"
        for topic in self.by_name.values():
            assert 0 <= topic.first <= topic.next, "a topic's offsets are in order"
            assert topic.bytes == sum(size for _, size, _ in topic.marks), "a topic's marks add up to its bytes"
            ends = [end for end, _, _ in topic.marks]
            assert ends == sorted(ends) and (not ends or ends[-1] == topic.next), (
                "a topic's marks end with its last message"
            )
            for group in topic.groups.values():
                group.check(topic.next)


def _starts_of(topic: TopicLog) -> list[dict[str, int]]:
    """Return a list with one map, group -> start, of the groups that began above offset 0; an empty list if none did.

    The map stands behind the groups, where a server of an older version ignores it.
    """
    starts = {group.name: group.start for group in topic.groups.values() if group.start}
    return [starts] if starts else []
