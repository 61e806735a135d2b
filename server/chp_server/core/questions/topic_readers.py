"""The questions about topics on port P (SPEC.md, section 35).

    ICANHAZ? subtree {id, topic, facts}            asks for the facts of a topic
    ICANHAZ? subtree {id, topic, facts, group}     asks for them with the places of a group
    ICANHAZ? subtree {id, topics: after}           asks for the facts of topics, by name, from behind `after`: a page
    ICANHAZ? subtree {id, topic, groups: after}    asks for a topic's groups, by name, from behind `after`: a page
    ICANHAZ? subtree {id, topic, scheduled: after} asks for a topic's scheduled messages in the same way
    ICANHAZ? subtree {id, topic, after, credit}    reads messages from an offset on; -1: only new ones
    ICANHAZ? subtree {id, topic, group, member, credit, have, proof}
                                                   reads messages of a member's slots (group_coordinator.py)

Only the active answers. The subtree has no meaning here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any

from chp import columns, headers
from chp.batch import Segment, encode
from chp.errors import BadFrame
from chp.numbers import pack
from chp.versions import HEADERS_SINCE

from ..pair.pair_state import PairView
from ..state.topics import TopicLog
from ..updates.authorizer import Authorizer
from ..updates.commit import Committer
from ..updates.turn import Append, CurrentTurn
from .delivery import TopicDelivery
from .group_coordinator import GroupCoordinator
from .lag_alarms import LagAlarms
from .message_pages import MessagePages
from .syncs import reply
from .unused import UnusedGroups, UnusedTopics

# Topics or groups in one answer.
LISTED_MAX = 500
MAKES_ROOM = "your user has most of the readers of topics here, and another user needed room; ask again later"


def of_member(options: dict[str, Any]) -> bool:
    """Return True if a question about topics asks for the messages of a member of a group."""
    listed = "topics" in options or options.get("facts") is True
    listed = listed or any(type(options.get(name)) is str for name in ("groups", "scheduled"))
    return not listed and "topic" in options and "group" in options


class TopicReaders:
    """The questions about topics, the single readers, and the members of groups."""

    def __init__(self, turn: CurrentTurn, pair: PairView, committer: Committer, authorizer: Authorizer) -> None:
        self._turn, self._pair, self._authorizer = turn, pair, authorizer
        self._committer, self._committed = committer, committer.committed
        self.pages = MessagePages()
        self.delivery = TopicDelivery(committer.limits, self.pages)
        self.coordinator = GroupCoordinator(committer, self.pages)
        self._alarms = LagAlarms()
        self._unused, self._unused_groups = UnusedTopics(), UnusedGroups()
        # The answers that wait: their number, the connection, the id of the question, and the facts.
        self.owed: deque[tuple[int, bytes, int, dict[str, Any]]] = deque()

    def __bool__(self) -> bool:
        return bool(self.delivery or self.coordinator)

    def ask(self, identity: bytes, options: dict[str, Any]) -> None:
        """Answer a question, or begin to send messages; the caller's rights are checked, and its vote is cast."""
        turn, pair, committed = self._turn, self._pair, self._committed
        request_id = options["id"]
        if not pair.serving:
            self._refuse(identity, request_id, "passive", int(pair.bstate))
            return
        if turn.now < pair.hold_until:
            # This server was stopped for a while, and the peer may have become active meanwhile.
            self._refuse(identity, request_id, "busy", "this server was stopped, and waits until it hears its peer")
            return
        self._committer.commit(turn)
        if "topics" in options:
            self._list(identity, request_id, options["topics"])
            return
        topic = committed.state.topics.by_name.get(options["topic"]) if type(options["topic"]) is str else None
        if topic is None:
            self._refuse(identity, request_id, "topic", f"there is no topic {options['topic']!r:.200}")
        elif options.get("facts") is True:
            self._tell_facts((identity, request_id), topic, options.get("group"))
        elif type(options.get("groups")) is str:
            told = {"next": topic.next, "groups": topic.groups_after(options["groups"], LISTED_MAX)}
            self._answer(identity, headers.Reply(request_id, told))
        elif type(options.get("scheduled")) is str:
            page = committed.state.topics.schedule.page(topic.name, options["scheduled"], LISTED_MAX)
            told = {"now": round(turn.wall_s * 1000), "scheduled": page}
            self._answer(identity, headers.Reply(request_id, told))
        else:
            self._open((identity, request_id), topic, {"after": 0, "credit": 8, **options})

    def _tell_facts(self, key: tuple[bytes, int], topic: TopicLog, name: Any) -> None:
        """Answer with the facts of a topic; with the places of a group too if one is named."""
        # A topic that is removed and made again has another id.
        state = self._committed.state
        scheduled = len(state.topics.schedule.by_topic.get(topic.name, ()))
        facts = {**topic.facts(), "made": f"{state.store.hex()}.{topic.id}", "scheduled": scheduled}
        if name is None:
            self._answer(key[0], headers.Reply(key[1], facts))
        elif type(name) is not str or name not in topic.groups:
            self._refuse(*key, "group", f"topic {topic.name} has no group {name!r:.200}")
        elif len(self.owed) >= self._committer.limits.readings_max:
            self._refuse(*key, "busy", f"{len(self.owed)} such answers wait for the passive; ask again later")
        else:
            # The places show acknowledgements, which must not be lost with this server. So the answer waits for the
            # passive, as the answer to a set does.
            number = self._committed.state.number
            self._committer.acks.owe(number)
            group = topic.groups[name]
            self.owed.append((number, *key, {**facts, "places": group.places_told(), "start": group.start}))

    def tell(self, upto: int) -> None:
        """Send the places of groups at number `upto` or before: everything up to that number has been acknowledged."""
        while self.owed and self.owed[0][0] <= upto:
            number, identity, request_id, facts = self.owed.popleft()
            told = reply(pack(number), encode(headers.Reply(request_id, facts)))
            self._turn.effects.promises.append((identity, [told]))

    def _open(self, key: tuple[bytes, int], topic: TopicLog, options: dict[str, Any]) -> None:
        turn, user = self._turn, self._authorizer.speaker
        after, credit, name = options["after"], options["credit"], options.get("group")
        if type(after) is not int or type(credit) is not int or not -1 <= after < 1 << 62 or credit < 1:
            self._refuse(*key, "bad", "'after' is an offset, or -1, and 'credit' at least 1")
        elif not of_member(options):
            plain = options["chp"] < HEADERS_SINCE
            if why := self.delivery.open(key, topic, after, credit, turn.now, user=user, plain=plain):
                self._refuse(*key, "busy", why)
            for lost in self.delivery.take_lost():
                self._refuse(*lost, "busy", MAKES_ROOM)
        elif type(name) is not str or name not in topic.groups:
            self._refuse(*key, "group", f"topic {topic.name} has no group {name!r:.200}")
        else:
            group = topic.groups[name]
            refusal = self.coordinator.open(key, topic, group, options, user=user, now=turn.now)
            turn.effects.replies += self.coordinator.take_lost()
            if refusal:
                self._refuse(*key, *refusal)

    def grant(self, identity: bytes, request_id: int, more: int) -> None:
        """Give a reader or a member more credit."""
        self.delivery.grant(identity, request_id, more, self._turn.now)
        self.coordinator.grant(identity, request_id, more, self._turn.now)

    def serves(self, identity: bytes) -> bool:
        """Return True if this connection reads messages, even if there are none for it."""
        return self.delivery.serves(identity) or self.coordinator.serves(identity)

    def gone(self, identity: bytes) -> None:
        """Forget the readers of an ended connection."""
        self.delivery.close(identity)
        self.coordinator.close(identity)

    def _list(self, identity: bytes, request_id: int, after: object) -> None:
        if type(after) is not str:
            raise BadFrame("'topics' is the name after which the list begins, or empty")
        topics = self._committed.state.topics.by_name
        names = sorted(name for name in topics if name > after)[:LISTED_MAX]
        self._answer(identity, headers.Reply(request_id, {"topics": [topics[name].facts() for name in names]}))

    def _refuse(self, identity: bytes, request_id: int, code: str, detail: Any) -> None:
        self._answer(identity, headers.Refused(request_id, code, detail))

    def _answer(self, identity: bytes, header: headers.Header) -> None:
        self._turn.effects.replies.append((identity, [reply(pack(self._committed.state.number), encode(header))]))

    # -- each turn

    def pump(self, blocked: Container[bytes], *, lacks: bool) -> None:
        """Send readers what they get in this turn. `lacks` says that our journal lacks messages the peer may have."""
        turn, pair, committed = self._turn, self._pair, self._committed
        self.delivery.written = turn.written
        at, filling, confirmed = committed.state.number, lacks and pair.in_sync(), pair.safe_up_to(turn.written)
        if self:
            self.pages.keep(row for op in turn.effects.journal if isinstance(op, Append) for row in op.messages)
        if self.coordinator:
            upto, waits = self.delivery.upto(confirmed), lacks and pair.config.has_peer
            whole = upto == at and not waits
            turn.effects.deliveries += self.coordinator.pump(blocked, upto, turn.now, filling=waits, whole=whole)
        given = self.delivery.pump(committed.state.topics, blocked, turn.now, at, confirmed, filling=filling)
        turn.effects.deliveries += given
        turn.effects.reads += self.pages.due()

    def ready(self, blocked: Container[bytes]) -> bool:
        """Return True if a reader could get more messages, so the next turn should begin at once."""
        confirmed = self._pair.safe_up_to(self.delivery.written)
        if self.coordinator and self.coordinator.ready(blocked, self.delivery.upto(confirmed)):
            return True
        return len(self.delivery) > 0 and self.delivery.ready(blocked, self._committed.state.topics, confirmed)

    def clear(self) -> None:
        """Remove all readers with a refusal: this server no longer serves, or its rules have changed."""
        turn, pair = self._turn, self._pair
        for _, identity, request_id, _ in self.owed:
            self._refuse(identity, request_id, "passive", int(pair.bstate))
        self.owed.clear()
        turn.effects.replies += self.delivery.clear(int(pair.bstate))
        turn.effects.replies += self.coordinator.clear(int(pair.bstate))
        # Begin anew: while the other server serves, this one does not watch which groups are late or unused.
        self._alarms = LagAlarms()
        self._unused, self._unused_groups = UnusedTopics(), UnusedGroups()

    def settle(self, *, beat: bool) -> None:
        """Write what has changed about groups into the open record. `beat` says that a heartbeat is due."""
        if beat and self.coordinator:
            self.coordinator.step(self._turn.now)
        if self._committed.state.topics.groups.unsettled:
            self.coordinator.settle(self._turn.now, self._turn.wall_s)
            if not self:
                # A dead letter may have to be read while nobody is connected, so that no `pump` asks for it.
                self._turn.effects.reads += self.pages.due()
        for facts in self.coordinator.refused:
            self._turn.effects.fact("dead letter refused", "warning", **facts)
        self.coordinator.refused.clear()
        if beat:
            self._remove_unused()
            self._tell_late_groups()

    def _tell_late_groups(self) -> None:
        """Log the groups that have become late, and those that are not late any more."""
        turn = self._turn
        for facts in self._alarms.changes(self._committed.state.topics, turn.now, turn.wall_s):
            if facts.pop("late"):
                self._committer.counts["groups_late"] += 1
                turn.effects.fact("group late", "warning", **facts)
            else:
                turn.effects.fact("group in time", **facts)

    def _remove_unused(self) -> None:
        """Remove the topics and the groups that were unused for as long as their settings allow."""
        turn, topics = self._turn, self._committed.state.topics
        for name, group in list(self._unused_groups.over(topics, turn.now)):
            gone = {columns.GROUP: [name, group, None], columns.ENDED: True}
            self._committer.add_segment(Segment([], [], gone), turn.now)
            turn.effects.fact("group removed", topic=name, group=group, why="it had no member for its expire_after_s")
        for name in list(self._unused.over(topics, turn.now, self.delivery.reads)):
            # `ENDED` marks an effect of time. Another server leaves such updates out when it replays a suffix.
            self._committer.add_segment(Segment([], [], {columns.TOPIC: [name, None], columns.ENDED: True}), turn.now)
            turn.effects.fact("topic removed", topic=name, why="nobody used it for its expire_after_s")

    def status(self, lacks: int) -> dict[str, int]:
        """Return the facts of topics for `status`; `lacks` is the number of messages that this journal lacks."""
        topics = self._committed.state.topics.by_name.values()
        return {
            "topics": len(topics),
            "messages": sum(topic.next - topic.first for topic in topics),
            "bytes": sum(topic.bytes for topic in topics),
            "scheduled": self._committed.state.topics.schedule.count,
            "scheduled_bytes": self._committed.state.topics.schedule.bytes,
            "groups": sum(len(topic.groups) for topic in topics),
            "readers": len(self.delivery),
            "members": len(self.coordinator),
            "delivered": self.delivery.delivered + self.coordinator.delivered,
            "missing": lacks,
        }
