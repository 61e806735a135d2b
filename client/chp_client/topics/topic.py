"""A topic for an application: publish messages, read them, and manage the topic and its groups (docs/topics.md).

    orders = clone.topic("orders")                 asks no server yet; a Clone that only writes has topics too
    orders.publish(b"...", key="alice").wait()     batches form by themselves, a ticket tells the result (as of a set)
    for batch in orders.read(): ...                from the oldest message on, then the new ones

Messages and sets have one order: a message that a Clone publishes after a set has a revision that is not lower. Values
go through the Clone's codec. The first message makes a topic that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from math import inf
from typing import Any, Protocol

from chp import columns
from chp.batch import Segment
from chp.errors import BadInput
from chp.keys import check_key
from chp.limits import DEFAULT
from chp.topics import Headers, Settings, check_group, check_topic, column_of_headers, pack_messages

from .. import checks
from ..agent.tickets import PublishedMessages, Ticket
from ..agent.writer import Writer
from ..core.events import Ack
from ..port.ask import QuestionPort
from ..renamed import PublicNames, public_names, renamed
from ..starts import TopicStart, topic_start
from .consumed import Consumption
from .consumer import CREDIT, TTL_S, Consumer
from .groups import KEEP, Keep, begin, change, counting, end, groups_of, naming
from .reader import PATIENCE_S, MessageBatch, ReadPosition, batches
from .schedule import Scheduled, ScheduledMessage, cancellation, entry, scheduled_of
from .stateless_member import ReceivedBatch, receive


class TopicRequests:
    """The requests of a topic to the servers, for other parts of this package. A change returns a ticket at once."""

    def __init__(self, writer: Writer, servers: Callable[[], Sequence[str]], name: str) -> None:
        self.writer, self.servers, self.name = writer, servers, name

    def put(self, extras: dict[str, Any], timeout: float | None = None) -> Ticket:
        """Send the columns of a batch without keys."""
        return self.writer.put_encoded(checks.batch_body(Segment([], [], extras).encode()), timeout)

    def creation(self, keep: str, **settings: Any) -> Ticket:
        """Make the topic."""
        checked = Settings.of({"keep": keep, **settings})
        return self.put({columns.TOPIC: [self.name, checked.to_map()]})

    def removal(self) -> Ticket:
        """Remove the topic."""
        return self.put({columns.TOPIC: [self.name, None]})

    def subscription(self, group: str, start: TopicStart, **settings: Any) -> Ticket:
        """Make a group, or move an existing group to another start."""
        if settings.get("retry_after_s") is not None and settings.get("max_deliveries") is None:
            raise BadInput("retry_after_s is for a group that counts deliveries; give max_deliveries too")
        given = counting(**{name: value for name, value in settings.items() if value is not None})
        return self.put(begin(self.name, group, topic_start(start), **given))

    def configuration(self, group: str, **settings: Any) -> Ticket:
        """Change settings of a group that exists."""
        given = counting(**{name: value for name, value in settings.items() if value is not KEEP})
        if not given:
            names = "max_deliveries, retry_after_s, ack_timeout_s, lag_alarm_s and expire_after_s"
            raise BadInput(f"no setting; give one of {names}")
        return self.put(change(self.name, group, **given))

    def unsubscription(self, group: str) -> Ticket:
        """Remove a group."""
        return self.put(end(self.name, group))

    def schedule(self, value: Any, key: str | None, timeout: float | None = None, **when: Any) -> Scheduled:
        """Schedule a message; the arguments are those of `Topic.schedule`."""
        row = entry(self.writer, self.name, value, key, **when)
        return Scheduled(self.name, row[1], self.put({columns.SCHEDULE: [row]}, timeout))

    def cancellation(self, name: str) -> Ticket:
        """Cancel a scheduled message."""
        return self.put({columns.CANCEL: [cancellation(self.name, name)]})

    def reading(
        self, start: TopicStart, *, until: int | None, wait: bool
    ) -> Generator[MessageBatch | None, None, None]:
        """Yield what `Topic.read` yields, and None about once a second while no message comes."""
        if until is not None and (type(until) is not int or not 0 <= until < 1 << 61):
            raise BadInput(f"until={until!r:.40} is not the offset of a message, a number from 0")
        place = ReadPosition(topic_start(start), inf if until is None else until + 1)
        return batches(self.servers(), self.name, place, self.writer.decode, wait=wait)

    def consuming(self, ticket: Ticket, group: str) -> Consumption:
        """Return the promise that a group has consumed the messages of a ticket."""
        return Consumption(ticket, group, self.writer, self.servers)

    def consuming_in_tasks(self, ticket: Ticket, group: str) -> Consumption:
        """Return what `consuming` does, for a ticket of an `AsyncClone`: a wait must not block the event loop."""
        return Consumption(ticket, group, self.writer, self.servers, of_tasks=True)

    def receive(
        self, group: str, member: bytes, *, most: int, wait_s: float, stopped: Callable[[], bool]
    ) -> ReceivedBatch | None:
        """Return the next messages of a member that belongs to no process; see `stateless_member`."""
        whose = self.name, group, member
        with naming(self.name, group):
            return receive(self.writer, self.servers(), whose, most=most, wait_s=wait_s, stopped=stopped)


class _HasRequests(Protocol):
    _requests: TopicRequests


def requests_of(topic: _HasRequests) -> TopicRequests:
    """Return the requests of a `Topic` or an `AsyncTopic`."""
    return topic._requests


class Topic(metaclass=PublicNames):
    """A topic of one pair, made by `Clone.topic`."""

    def __init__(self, writer: Writer, servers: Callable[[], Sequence[str]], name: str) -> None:
        self.name = check_topic(name)
        self._requests = TopicRequests(writer, servers, name)
        self._consuming = self._requests.consuming

    # -- publishing

    def publish(
        self,
        value: Any,
        key: str | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> Ticket:
        """Publish a message. The ticket is settled when the pair has the message, or raises `Refused` ("full").

        `key` says what the message is about; it is no key of the map. `timeout` is how many seconds to wait for room
        in the window of unacknowledged batches. `headers` are at most 32 names with texts, which travel with the
        message. `ticket.consumed(group).wait(timeout)` waits until a group has consumed the message.

        Raises `BadValue`, `BadKey`, `BadInput`, `Full`, `Closed`.
        """
        writer, name = self._requests.writer, check_key(key) if key is not None else ""
        carried = writer.carried(headers) if headers or writer.tracing is not None else None
        ticket = writer.publish(self.name, name, writer.encoded(value), timeout, carried)
        ticket.consuming = self._consuming
        return ticket

    def publish_many(
        self,
        values: Sequence[Any],
        keys: Sequence[str] | None = None,
        timeout: float | None = None,
        *,
        headers: Sequence[Headers | None] | None = None,
    ) -> Ticket:
        """Publish up to 65,536 messages of 16 MiB together as one batch: all or none. The rest is as for `publish`."""
        writer = self._requests.writer
        given, names, notes = checks.message_columns(values, keys, headers)
        data = list(map(writer.encoded, given))
        if not data:
            raise BadInput("no messages; publish at least one")
        names = None if names is None else list(map(check_key, names))
        most, size = DEFAULT.batch_items_max, sum(map(len, data))
        if len(data) > most or size > DEFAULT.batch_bytes_max:
            told = f"not {len(data):,} of {size:,} bytes; publish them in parts"
            raise BadInput(f"a batch has at most {most:,} messages, of 16 MiB together, {told}")
        carried: list[Headers] | None = None
        if headers is not None or writer.tracing is not None:
            carried = column_of_headers(list(map(writer.carried, notes)))
        body = pack_messages(names, data, carried)
        ticket = self._requests.put({columns.PUBLISH: [[self.name, len(data), checks.batch_body(body)]]}, timeout)
        ticket.published, ticket.consuming = PublishedMessages(self.name, names, len(data)), self._consuming
        return ticket

    def schedule(
        self,
        value: Any,
        key: str | None = None,
        *,
        delay_s: float | timedelta | None = None,
        at: datetime | None = None,
        every_s: float | timedelta | None = None,
        name: str | None = None,
        unless_changed: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> Scheduled:
        """Have the pair publish a message later. The result has the `name` of the message, and a `wait` for the pair.

        delay_s         after so many seconds (or a timedelta), counted from the moment when the pair takes the message
        at              or at this time: a datetime with a time zone, by the clock of the active server
        every_s         and again each time after so many seconds, at least 1, until `cancel`. If several times pass
                        while no server serves, the message is published once for them
        name            the name for `cancel`; else 16 random characters
        unless_changed  a key of the map: the message is dropped if anything sets or deletes the key, or if it expires

        The other arguments are those of `publish`. The message survives failovers, restarts and backups. Raises
        `BadInput`. `wait` raises `AlreadyThere`, and `Refused` with the code "full" if the pair has too many of them.
        """
        return self._requests.schedule(
            value, key, timeout, delay_s=delay_s, at=at, every_s=every_s, name=name, unless_changed=unless_changed,
            headers=headers,
        )  # fmt: skip

    def cancel(self, name: str, timeout: float | None = None) -> Ack:
        """Drop a scheduled message, and wait until it is gone. Raises `NoSuchMessage` if none has that name."""
        return self._requests.cancellation(name).wait(timeout)

    def scheduled(
        self, limit: int = 100, after: str | None = None, *, timeout: float = PATIENCE_S
    ) -> list[ScheduledMessage]:
        """Return up to `limit` scheduled messages, by name, above the name `after`. Raises `NoSuchTopic`."""
        with naming(self.name):
            return scheduled_of(self._requests.servers(), self.name, limit, after, timeout)

    # -- the topic itself

    def create(
        self,
        keep: str = "all",
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        max_age_s: int | None = None,
        require_group: bool = False,
        expire_after_s: int | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Make the topic with other settings than the defaults, and wait. Raises `AlreadyThere` if it exists.

        keep   "all": the pair refuses messages beyond `max_messages` or `max_bytes`; "size": the pair drops the oldest
               messages instead; "time": the pair drops messages that are older than `max_age_s`
        require_group   a publish is `Refused` with the code "group" while the topic has no group
        expire_after_s  the pair removes the topic when it was not used for so many seconds: no message came, and it
                        has neither groups nor readers nor scheduled messages
        """
        ticket = self._requests.creation(
            keep, max_messages=max_messages, max_bytes=max_bytes, max_age_s=max_age_s,
            require_group=require_group, expire_after_s=expire_after_s,
        )  # fmt: skip
        with naming(self.name):
            return ticket.wait(timeout)

    def remove(self, timeout: float | None = None) -> Ack:
        """Remove the topic with all its messages, and wait until it is gone. Raises `NoSuchTopic` if there is none."""
        with naming(self.name):
            return self._requests.removal().wait(timeout)

    def facts(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """Return the facts of the topic. Raises `NoSuchTopic` if there is no such topic.

        The facts are first (the oldest offset), next (the offset of the next message), bytes, wall_ms, settings, groups
        (their number) and scheduled (how many messages wait for their time; older servers do not tell this fact).
        """
        checks.wait_s(timeout)
        with naming(self.name), QuestionPort(self._requests.servers(), timeout) as port:
            return port.ask("", topic=self.name, facts=True)

    # -- reading

    @renamed(after="start, the first offset wanted")
    def read(
        self, start: TopicStart = "begin", *, until: int | None = None, wait: bool = True
    ) -> Iterator[MessageBatch]:
        """Yield messages in their order, as batches of columns. A failover does not end the reading.

        start   "begin": from the oldest on; "end": only new ones; or the offset of the first message that is wanted
        until   the offset of the last message that is wanted; None: all
        wait    True: wait for new messages; False: end when all present messages were read

        Raises `NoSuchTopic`, and `Unanswered` if no server serves for 30 s.
        """
        with closing(self._requests.reading(start, until=until, wait=wait)) as found:
            for batch in found:
                if batch is not None:
                    yield batch

    # -- groups

    def consumer(
        self,
        group: str,
        *,
        start: TopicStart = "begin",
        ttl: checks.Ttl = TTL_S,
        ack: str = "after",
        prefetch: int = CREDIT,
        name: str | None = None,
        create: bool = True,
    ) -> Consumer:
        """Become a member of a group; each message goes to one of its members. Make the group if it is not there.

        This call alone makes the group. If the group is removed later, the consumer raises `NoSuchGroup`.

        start     where the group begins if this call makes it: "begin", "end", or the first offset wanted
        ttl       after this time (seconds or a timedelta) a stopped or dead consumer loses its messages to others
        ack       "after": batches are acknowledged after you got them: at least once, or exactly once by
                  `Batch.commit`; "before": at most once. A refused acknowledgement ends the loop in neither mode
        prefetch  how many chunks, of about 256 KiB, the server sends ahead
        name      the name of this consumer that `groups` shows
        create    False: raise `NoSuchGroup` or `NoSuchTopic` if the group is not there, instead of making it

        Use it as a context manager, or call `close`. Raises `Refused` with the code "full" for the 257th member.
        """
        check_group(group)
        return Consumer(
            self._requests.writer, self._requests.servers(), self.name, group,
            start=topic_start(start), ttl=ttl, ack=ack, prefetch=prefetch, name=name,
            create=create,
        )  # fmt: skip

    def subscribe(
        self,
        group: str,
        start: TopicStart = "end",
        *,
        ack_timeout_s: int | None = None,
        max_deliveries: int | None = None,
        retry_after_s: float | None = None,
        lag_alarm_s: int | None = None,
        expire_after_s: int | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Make a group, and wait until it is there. The group gets the messages from `start` on that the topic retains.

        ack_timeout_s   after this time without an acknowledgement a member loses its messages to other members; None:
                        it keeps them as long as it lives
        max_deliveries  how often the group gives a message that fails. Then the pair puts the message aside, in the
                        topic TOPIC.GROUP.dead; None: without limit
        retry_after_s   how long the group holds back a message that failed, and twice as long each time, up to an hour;
                        None: the group gives it again at once
        lag_alarm_s     the log of the active says when the oldest message of the group becomes older than this, and
                        when it no longer is; the metrics show it; None: no alarm
        expire_after_s  the pair removes the group, and says so in its log, when it had no consumer for so many seconds;
                        None: it stays until `unsubscribe`

        Raises `AlreadyThere` if the group is there already. Makes the topic if it is not there.
        """
        settings = {
            "max_deliveries": max_deliveries, "retry_after_s": retry_after_s, "ack_timeout_s": ack_timeout_s,
            "lag_alarm_s": lag_alarm_s,
            "expire_after_s": expire_after_s,
        }  # fmt: skip
        with naming(self.name, group):
            return self._requests.subscription(group, start, **settings).wait(timeout)

    def configure(
        self,
        group: str,
        *,
        max_deliveries: int | Keep | None = KEEP,
        retry_after_s: float | Keep | None = KEEP,
        ack_timeout_s: int | Keep | None = KEEP,
        lag_alarm_s: int | Keep | None = KEEP,
        expire_after_s: int | Keep | None = KEEP,
        timeout: float | None = None,
    ) -> Ack:
        """Change settings of a group, and wait. The group keeps its positions; see `subscribe` for the settings.

        A setting that is not given stays as it is; None removes the setting. When `max_deliveries` is removed, the
        group forgets its counts of failures. Raises `NoSuchGroup`.
        """
        settings = {
            "max_deliveries": max_deliveries, "retry_after_s": retry_after_s, "ack_timeout_s": ack_timeout_s,
            "lag_alarm_s": lag_alarm_s,
            "expire_after_s": expire_after_s,
        }  # fmt: skip
        with naming(self.name, group):
            return self._requests.configuration(group, **settings).wait(timeout)

    def unsubscribe(self, group: str, timeout: float | None = None) -> Ack:
        """Remove a group with its positions, and wait until it is gone. Raises `NoSuchGroup` if there is none."""
        with naming(self.name, group):
            return self._requests.unsubscription(group).wait(timeout)

    def reset(self, group: str, start: TopicStart, timeout: float | None = None) -> Ack:
        """Move a group to another start, and wait. Acknowledgements of messages in hand then raise `Fenced`.

        Raises `NoSuchGroup`.
        """
        with naming(self.name, group):
            return self._requests.subscription(group, start, again=True).wait(timeout)

    def groups(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each group. Raises `NoSuchTopic` if there is no such topic.

        The facts are name, position (the lowest), lag (how many messages come from there on), oldest_ms (when the first
        of these messages came), members (name and number of slots), ack_timeout_s, lag_alarm_s, max_deliveries,
        retry_after_s, expire_after_s, failing (slots whose next message failed before) and deliveries (how often the
        group gave the message that failed most).
        """
        return groups_of(self._requests.servers(), self.name, timeout)

    def __dir__(self) -> list[str]:
        return public_names(type(self), super().__dir__())

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"


def topics_of(servers: Sequence[str], timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
    """Return the facts of all topics, by name."""
    checks.wait_s(timeout)
    found: list[dict[str, Any]] = []
    with QuestionPort(servers, timeout) as port:
        while page := port.ask("", topics=found[-1]["name"] if found else "")["topics"]:
            found += page
    return found
