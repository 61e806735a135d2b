"""A transaction: keys, messages and acknowledgements in one record, all or none (docs/topics.md).

    with clone.transaction() as t:
        t.set("/stock/7", b"41", if_revision=at)  only if the key still has that revision
        t.expect("/orders/open", 0)               only if this key is absent; the transaction does not write it
        t.publish("orders", b"...", key="alice")
        t.schedule("reminders", b"7", delay_s=1800, unless_changed="/orders/7")
        t.ack(batch)                              acknowledge a batch of a consumer
    t.done.revision                               the transaction is acknowledged; else `Conflict` or `Fenced`

A transaction is one batch: the client sends it again after a failover, the pair does it once, and other clients see all
of it at once. This Clone does not show the sets before the acknowledgement. The batch is sent at the end of the block,
unless the block ends with an error. A transaction serves once: to try again, begin another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from chp import columns
from chp.batch import POSITIONS_MAX, Segment
from chp.dead_letters import Outgoing
from chp.errors import BadInput
from chp.keys import check_key
from chp.limits import DEFAULT
from chp.topics import Headers, check_topic, column_of_headers, pack_messages

from .. import checks
from ..agent.tickets import Ticket
from ..agent.writer import Items, Writer
from ..core.events import Ack
from .schedule import cancellation, entry


class ConsumedBatch(Protocol):
    """A batch that a consumer got: a `Batch`, or an `AsyncBatch`."""

    @property
    def whose(self) -> tuple[str, str, bytes]:
        """The topic, the group, and the lease of the member."""

    @property
    def dead(self) -> dict[str, list[Outgoing]]:
        """The messages that are put aside with this batch, by topic."""

    @property
    def position(self) -> list[Any] | None:
        """Its place in the servers' history: number, store and opener; None if it is not known."""

    def moves(self) -> list[list[Any]]:
        """Return the steps that acknowledge the batch."""

    def given_back(self) -> list[list[Any]]:
        """Return the messages that the batch gives back to a group that counts deliveries."""

    def sent(self, ticket: Ticket) -> None:
        """Note that the acknowledgement is on its way, with this ticket."""


class Transaction:
    """A transaction, made by `Clone.transaction`. Methods may be called repeatedly; the last call for a key counts."""

    def __init__(self, writer: Writer, timeout: float | None = None) -> None:
        self._writer, self._timeout = writer, checks.wait_s(timeout)
        # For each key the value, or None for a delete, and the ttl in ms.
        self._sets: dict[str, tuple[bytes | None, int | None]] = {}
        self._expected: dict[str, int] = {}
        self._published: dict[str, list[Outgoing]] = {}
        # The scheduled messages and the cancellations, each by topic and name.
        self._scheduled: dict[tuple[str, str], list[Any]] = {}
        self._cancelled: dict[tuple[str, str], list[str]] = {}
        self._batches: list[ConsumedBatch] = []
        self._once: list[Any] | None = None
        self._ticket: Ticket | None = None
        # True once the block has ended, however it ended.
        self._ended = False

    def _check_open(self) -> None:
        """Raise `BadInput` if this transaction was sent, or if its block has ended."""
        if self._ticket is not None:
            raise BadInput("this was sent already; begin another transaction")
        if self._ended:
            raise BadInput("its block ended with an error, and nothing was sent; begin another transaction")

    # -- what is to be done

    def set(self, key: str, value: Any, ttl: checks.Ttl | None = None, if_revision: int | str | None = None) -> None:
        """Set a key, as `Clone.set` does. The transaction takes effect only if the key has `if_revision`."""
        self._check_open()
        checks.held_key(key, self._writer.subtrees)
        data, ms = self._writer.encoded(value), checks.ttl_in_ms(ttl)
        self._expect(key, "if_revision", if_revision)
        self._sets[key] = data, ms

    def set_many(self, items: Items, ttl: checks.Ttl | None = None) -> None:
        """Set many keys, given as a mapping or as (keys, values)."""
        self._check_open()
        keys, values, _ = self._writer.columns(items, {})
        ms = checks.ttl_in_ms(ttl)
        self._sets.update((key, (value, ms)) for key, value in zip(keys, values, strict=True))

    def delete(self, key: str, if_revision: int | str | None = None) -> None:
        """Delete a key, which may be absent. The transaction takes effect only if the key has `if_revision`."""
        self._check_open()
        checks.held_key(key, self._writer.subtrees)
        self._expect(key, "if_revision", if_revision)
        self._sets[key] = None, None

    def expect(self, key: str, revision: int | str) -> None:
        """Do the transaction only if a key has this revision (0: the key is absent). Else it raises `Conflict`.

        Use this for keys that the transaction does not write; `set` and `delete` have `if_revision`.
        """
        self._check_open()
        self._expect(check_key(key), "revision", revision)

    def _expect(self, key: str, name: str, revision: int | str | None) -> None:
        if revision is not None:
            self._expected[key] = int(checks.revision(name, revision))

    def publish(self, topic: str, value: Any, key: str | None = None, headers: Headers | None = None) -> None:
        """Publish a message; the arguments are those of `Topic.publish`."""
        self._check_open()
        name, carried = "" if key is None else check_key(key), self._writer.carried(headers)
        self._published.setdefault(check_topic(topic), []).append((name, self._writer.encoded(value), carried))

    def publish_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Sequence[str] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Publish messages; the arguments are those of `Topic.publish_many`."""
        self._check_open()
        given, named, notes = checks.message_columns(values, keys, headers)
        data = list(map(self._writer.encoded, given))
        names = [""] * len(data) if named is None else list(map(check_key, named))
        carried = list(map(self._writer.carried, notes))
        self._published.setdefault(check_topic(topic), []).extend(zip(names, data, carried, strict=True))

    def schedule(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        *,
        delay_s: float | timedelta | None = None,
        at: datetime | None = None,
        every_s: float | timedelta | None = None,
        name: str | None = None,
        unless_changed: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Have the pair publish a message later, and return its name; the arguments are those of `Topic.schedule`.

        If the transaction itself writes the key `unless_changed`, that is no change. After a `cancel` of the same name
        in this transaction, the call replaces the message that waits.
        """
        self._check_open()
        row = entry(
            self._writer, topic, value, key, name=name, delay_s=delay_s, at=at, every_s=every_s,
            unless_changed=unless_changed, headers=headers,
        )  # fmt: skip
        place = topic, str(row[1])
        if place in self._scheduled:
            raise BadInput(f"the transaction schedules {place[1]!r} of topic {topic!r} twice; give each its own name")
        self._scheduled[place] = row
        return place[1]

    def cancel(self, topic: str, name: str) -> None:
        """Drop a scheduled message. The transaction takes effect only if the message was not published before.

        A `schedule` of the same name may follow. It gives the message another time or value in the same step.
        """
        self._check_open()
        row = cancellation(topic, name)
        if (topic, name) in self._scheduled:
            what = f"the transaction schedules {name!r} of topic {topic!r} itself"
            raise BadInput(f"{what}; leave that out, or cancel before you schedule to replace a message that waits")
        if (topic, name) in self._cancelled:
            raise BadInput(f"the transaction cancels {name!r} of topic {topic!r} twice; cancel it once")
        self._cancelled[topic, name] = row

    def ack(self, batch: ConsumedBatch) -> None:
        """Acknowledge a whole batch of a consumer. Raises `Fenced` at the end if the consumer has lost the batch."""
        self._check_open()
        if batch not in self._batches:
            self._batches.append(batch)

    def once(self, application: str, version: int, *, strict: bool = False) -> None:
        """Do the transaction only if the application has not done this version or a later one before.

        The pair remembers the last version, also over restarts. It acknowledges an earlier version without doing it
        again. With `strict` the pair does only the version after the last one, beginning with 1. It refuses a later
        version: `Refused` with the code "count" and the last version as its detail.
        """
        self._check_open()
        if not isinstance(application, str) or not 0 < len(application) <= 256:
            raise BadInput(f"the name of an application is 1 to 256 characters, not {application!r:.60}")
        if type(version) is not int or not 0 <= version < 1 << 63:
            raise BadInput(f"a version is a whole number, 0 or above, not {version!r:.40}")
        self._once = [application, version, strict]

    # -- doing it

    def send(self) -> Ticket:
        """Send the transaction without waiting. The ticket raises `Conflict`, `Fenced` and `Refused`."""
        self._check_open()
        body = self._segment().encode()
        if len(self._sets) > DEFAULT.batch_items_max:
            most = f"{DEFAULT.batch_items_max:,} keys"
            raise BadInput(f"a transaction has at most {most}, not {len(self._sets):,}; do it in parts")
        self._ticket = ticket = self._writer.put_encoded(checks.batch_body(body), self._timeout)
        for batch in self._batches:
            batch.sent(ticket)
        return ticket

    def end(self, *, done: bool) -> Ticket | None:
        """End the block, and send the transaction if the block was `done` and did not send it. For this package."""
        try:
            return self.send() if done and self._ticket is None else None
        finally:
            self._ended = True

    @property
    def done(self) -> Ack:
        """The acknowledgement of the transaction. Reading this property waits for it."""
        if self._ticket is None:
            raise BadInput("nothing was sent yet; it is at the end of the `with` block")
        return self._ticket.wait(self._timeout)

    def _segment(self) -> Segment:
        keys = list(self._sets)
        values = [value if value is not None else b"" for value, _ in self._sets.values()]
        extras = {**self._of_keys(keys), **self._of_topics()}
        if self._once is not None:
            extras[columns.ONCE] = self._once
        return Segment(keys, values, extras or None)

    def _of_keys(self, keys: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if deleted := [i for i, (value, _) in enumerate(self._sets.values()) if value is None]:
            found[columns.DELETES] = deleted
        if timed := [(i, ms) for i, (_, ms) in enumerate(self._sets.values()) if ms is not None]:
            found[columns.TTLS] = list(map(list, zip(*timed, strict=True)))
        if here := [i for i, key in enumerate(keys) if key in self._expected]:
            found[columns.CONDITIONS] = [here, [self._expected[keys[i]] for i in here]]
        if beside := [[key, at] for key, at in self._expected.items() if key not in self._sets]:
            found[columns.EXPECT] = beside
        return found

    def _of_topics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        acks: dict[tuple[str, str, bytes], list[list[Any]]] = {}
        nacks: dict[tuple[str, str, bytes], list[list[Any]]] = {}
        positions: dict[tuple[str, str, bytes], list[list[Any]]] = {}
        published = {topic: list(messages) for topic, messages in self._published.items()}
        for batch in self._batches:
            if moves := batch.moves():
                acks.setdefault(batch.whose, []).extend(moves)
                if batch.position is not None:
                    positions.setdefault(batch.whose, []).append(batch.position)
            if back := batch.given_back():
                nacks.setdefault(batch.whose, []).extend(back)
            for topic, messages in batch.dead.items():
                published.setdefault(topic, []).extend(messages)
        if published:
            found[columns.PUBLISH] = [_packed(topic, messages) for topic, messages in published.items()]
        if self._scheduled:
            found[columns.SCHEDULE] = list(self._scheduled.values())
        if self._cancelled:
            found[columns.CANCEL] = list(self._cancelled.values())
        if acks:
            found[columns.ACK] = [[*whose, moves, *latest(positions.get(whose, []))] for whose, moves in acks.items()]
        if nacks:
            found[columns.NACK] = [[*whose, back] for whose, back in nacks.items()]
        return found

    def __enter__(self) -> Transaction:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ticket = self.end(done=kind is None)
        if ticket is not None:
            ticket.wait(self._timeout)


def latest(positions: list[list[Any]]) -> list[list[list[Any]]]:
    """Return the highest position of each history, in a list of its own; an empty list if none is known."""
    highest: dict[tuple[bytes, bytes], list[Any]] = {}
    for position in positions:
        number, store, opener = position
        if number >= highest.get((store, opener), [0])[0]:
            highest[store, opener] = position
    return [list(highest.values())[-POSITIONS_MAX:]] if highest else []


def _packed(topic: str, messages: list[Outgoing]) -> list[Any]:
    keys, values = [key for key, _, _ in messages], [value for _, value, _ in messages]
    if len(values) > DEFAULT.batch_items_max:
        raise BadInput(f"a batch has at most {DEFAULT.batch_items_max:,} messages for a topic, not {len(values):,}")
    headers = column_of_headers([carried for _, _, carried in messages])
    return [topic, len(values), pack_messages(keys if any(keys) else None, values, headers)]
