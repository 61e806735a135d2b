"""A batch that a consumer gets: messages as columns, and the steps that acknowledge them.

A batch is acknowledged once: by `done`, by `commit`, by `Clone.transaction`, or when the application asks for the next
one. If the acknowledgement is refused, the servers give the messages again, to the member that has their slots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import Any

from chp.dead_letters import Outgoing, cut, letter
from chp.errors import BadInput
from chp.limits import DEFAULT
from chp.topics import NO_HEADERS, Headers, dead_topic, pack_slots, unpack_slots

from ..agent.tickets import Ticket
from ..agent.writer import Items, Writer
from ..core.events import Ack
from .chunk import ChunkPart
from .dead_letter_format import Letters, portions, reason, shown, slots_for_one, why_max
from .reader import Message
from .transaction import Transaction

Published = Mapping[str, Iterable[Any]]


class Batch:
    """Messages of one topic in the order of their offsets; iterating gives each `Message`.

    offsets, keys, values, times, revisions      columns, of one length
    headers                                      another column; None if no message has any
    missed                                       how many messages before these the topic keeps no more
    deliveries                                   how often the batch was given; above 1: it is one message, which failed
    deliveries_max                               how often it may be given; None if the group counts no deliveries

    A message whose value the codec can't take is in none of the columns: it is put aside with the batch.
    """

    __slots__ = (
        "_back", "_given", "_held", "_letters", "_on_way", "_raw", "_spans", "_ticket", "_undo", "_upto",
        "_why_max", "_writer", "before", "dead_topic", "deliveries", "deliveries_max", "headers", "keys", "missed",
        "offsets", "position", "revisions", "times", "values", "whose",
    )  # fmt: skip

    def __init__(
        self, writer: Writer, whose: tuple[str, str, bytes], part: ChunkPart, position: list[Any] | None = None
    ) -> None:
        self._writer, self.whose = writer, whose
        # The place in the servers' history up to which these messages go, if the server told it.
        self.position = position
        self._spans, self.missed = part.spans, part.missed
        self._given, self._upto = part.upto, part.upto
        self._ticket: Ticket | None = None
        # The steps of each acknowledgement that the servers have not answered.
        self._on_way: list[list[list[Any]]] = []
        # The dead letters that were not sent yet.
        self._letters: Letters = {}
        # The spans and letters before the last acknowledgement, in case it is refused.
        self._undo: tuple[list[list[Any]], Letters] | None = None
        # Some slots, and the offset at which the next acknowledgement stops for these slots.
        self._held = 0, 0
        # True if the batch is acknowledged before the application sees it.
        self.before = False
        self.dead_topic = dead_topic(*whose[:2])
        self.offsets, self.keys, self._raw, self.times, self.revisions = part[3:8]
        self.headers: list[Headers] | None = part.headers
        self.deliveries, self.deliveries_max = part.deliveries, part.deliveries_max
        # The messages to give back with the next acknowledgement, by offset: the slots that may have the message, and
        # the reason.
        self._back: dict[int, tuple[int, str]] = {}
        self._why_max = why_max(len(self._raw))
        self.values: list[Any] = self._raw if writer.decode is None else []
        if writer.decode is not None:
            self._decode(writer.decode)

    def _decode(self, decode: Callable[[bytes], Any]) -> None:
        try:
            self.values = list(map(decode, self._raw))
        except Exception:
            # A codec may raise anything.
            self._decode_each(decode)

    def _decode_each(self, decode: Callable[[bytes], Any]) -> None:
        taken: list[bool] = []
        for at, data in enumerate(self._raw):
            try:
                self.values.append(decode(data))
            except Exception as error:
                self._letters[self.offsets[at]] = self._letter(at, reason(error), 0)
            taken.append(self.offsets[at] not in self._letters)
        self.offsets, self.keys = list(compress(self.offsets, taken)), list(compress(self.keys, taken))
        self.times, self.revisions = list(compress(self.times, taken)), list(compress(self.revisions, taken))
        self._raw = list(compress(self._raw, taken))
        self.headers = self.headers and list(compress(self.headers, taken))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Message]:
        plain = self.offsets, self.keys, self.values, self.revisions, self.times
        columns = zip(*plain, strict=True) if self.headers is None else zip(*plain, self.headers, strict=True)
        if self.deliveries > 1:
            return (Message(*fields)._replace(deliveries=self.deliveries) for fields in columns)
        return (Message(*fields) for fields in columns)

    # -- acknowledging

    def done(self) -> Ticket:
        """Acknowledge the batch without waiting: at least once. If that fails, the messages come again."""
        if self._ticket is not None and self.is_done:
            return self._ticket
        # Send the letters that do not fit one record first.
        for part in portions(self._letters)[:-1]:
            self.upto(part[-1] + 1)._transaction(None).send()
        return self._transaction(None).send()

    def commit(
        self,
        sets: Items | None = None,
        *,
        deletes: Iterable[str] = (),
        publish: Published | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Acknowledge the batch together with your results, in one record: exactly once. Wait for the servers.

        sets, deletes   keys, as for `Clone.set_many`
        publish         messages by topic

        Raises `Fenced` if another member has these messages by now, or they were acknowledged. Raises `NoSuchGroup` if
        the group was removed. Nothing is done then. `Clone.transaction` has conditions on keys, and keys of messages.
        """
        return self.committing(sets, deletes=deletes, publish=publish, timeout=timeout).wait(timeout)

    def committing(
        self, sets: Items | None, *, deletes: Iterable[str], publish: Published | None, timeout: float | None = None
    ) -> Ticket:
        """Commit as `commit` does, and return the ticket."""
        transaction = self._transaction(timeout)
        if sets is not None:
            transaction.set_many(sets)
        for key in deletes:
            transaction.delete(key)
        for topic, values in (publish or {}).items():
            transaction.publish_many(topic, values)
        return transaction.send()

    def reject(self, message: Message | int, why: str, tries: int = 1) -> list[int]:
        """Take a message that can't be handled out of the batch. The next acknowledgement of the batch tells the pair.

        The message then goes to the dead topic of the group, `dead_topic` (`TOPIC.GROUP.dead`). Its value there is a
        msgpack map: topic, group, offset, revision, key, value, tries and why (cut to 4 KiB). If the value is too large
        for the map, the next message of the dead topic has the value.

        A group with `max_deliveries` takes the message back, and gives it again up to that many times. Only then the
        message goes to the dead topic. To keep the order, the messages behind it in its slot come again too. Their
        offsets are returned: do not handle these messages now. `tries` has no meaning for such a group.
        """
        offset = message if isinstance(message, int) else message.offset
        at = self._at(offset)
        self._look()
        if not self.before and self._spans and offset < min(after for _, after in self._spans):
            raise BadInput(f"message {offset} is acknowledged already, or its acknowledgement is on its way")
        # A batch that was acknowledged beforehand (`before`) can't be given back.
        if self.deliveries_max is None or self.before:
            self._letters[offset] = self._letter(at, shown(why), tries)
            return []
        slots = slots_for_one(offset, self.keys[at] or "")
        self._back[offset] = slots, cut(shown(why), DEFAULT.reason_bytes_max)
        return [each for each in self.offsets[at + 1 :] if self.shares_slot(each, slots)]

    def shares_slot(self, offset: int, slots: int) -> bool:
        """Return True if a message may be of one of these slots."""
        return bool(slots_for_one(offset, self.keys[self._at(offset)] or "") & slots)

    def _at(self, offset: int) -> int:
        at = bisect_left(self.offsets, offset)
        if at == len(self.offsets) or self.offsets[at] != offset:
            raise BadInput(f"no message of this batch has the offset {offset}")
        return at

    def _letter(self, at: int, why: str, tries: int) -> list[Outgoing]:
        topic, group, _ = self.whose
        told = {"topic": topic, "group": group, "offset": self.offsets[at], "revision": int(self.revisions[at])}
        told |= {"key": self.keys[at], "tries": tries, "why": cut(why, self._why_max)}
        headers = NO_HEADERS if self.headers is None else self.headers[at]
        return letter(told, self.keys[at] or "", self._raw[at], headers)

    def _transaction(self, timeout: float | None) -> Transaction:
        transaction = Transaction(self._writer, timeout)
        transaction.ack(self)
        return transaction

    # -- for the parts of this package

    def upto(self, offset: int) -> Batch:
        """Make the next acknowledgement stop at an offset. Return the batch itself."""
        self._upto = min(offset, self._given)
        return self

    @property
    def dead(self) -> dict[str, list[Outgoing]]:
        """The messages that go to the dead topic with the next acknowledgement."""
        self._look()
        due = [each for offset in sorted(self._letters) if offset < self._upto for each in self._letters[offset]]
        return {self.dead_topic: due} if due else {}

    def take_letters(self) -> Letters:
        """Remove and return the dead letters that are not sent yet."""
        self._look()
        taken, self._letters = self._letters, {}
        return taken

    def put_letters(self, letters: Letters) -> None:
        """Give back dead letters that `take_letters` returned."""
        self._letters |= letters

    def hold(self, slots: int, offset: int) -> None:
        """Make the next acknowledgement stop at an offset for some slots."""
        self._held = slots, offset

    def moves(self) -> list[list[Any]]:
        """Return the steps of the next acknowledgement."""
        if self.is_done:
            raise BadInput("this batch is acknowledged already, or its acknowledgement is on its way")
        return self._steps()[0]

    def given_back(self) -> list[list[Any]]:
        """Return the messages that the next acknowledgement gives back, as entries [slots, from, upto, why]."""
        return self._steps()[2]

    def sent(self, ticket: Ticket) -> None:
        """Note that the acknowledgement is on its way."""
        steps, spans, _ = self._steps()
        self._back = {offset: each for offset, each in self._back.items() if offset >= self._upto}
        letters = {offset: self._letters.pop(offset) for offset in list(self._letters) if offset < self._upto}
        self._ticket, self._undo = ticket, (self._spans, letters)
        self._on_way.append(steps)
        self._spans, self._upto, self._held = spans, self._given, (0, 0)
        ticket.on_settled(lambda _: self._on_way.remove(steps))

    def _look(self) -> None:
        """Undo the last acknowledgement if the servers refused it."""
        if self.failed and self._undo is not None:
            self._spans, letters = self._undo
            self._letters, self._undo = letters | self._letters, None

    def _steps(self) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
        """Return the steps of the next acknowledgement, the spans that it leaves, and the messages it gives back."""
        self._look()
        held, at = self._held
        steps: list[list[Any]] = []
        left: list[list[Any]] = []
        back: list[list[Any]] = []
        spans: Iterable[list[Any]] = self._parted(held)
        if self._back:
            spans = list(self._without_given_back(steps, left, back))
        for slots, after in spans:
            upto = min(self._upto, at) if held and unpack_slots(slots) & held else self._upto
            if after < upto:
                steps.append([slots, after, upto])
            left.append([slots, max(after, upto)])
        return steps, left, back

    def _without_given_back(
        self, steps: list[list[Any]], left: list[list[Any]], back: list[list[Any]]
    ) -> Iterator[list[Any]]:
        """Yield the spans without the slots that give a message back. Add the entries of those slots to the lists."""
        for packed, after in self._spans:
            slots = unpack_slots(packed)
            for offset, (some, why) in sorted(self._back.items()):
                both = slots & some
                if not both or not after <= offset < self._upto:
                    continue
                slots &= ~both
                if after < offset:
                    steps.append([pack_slots(both), after, offset])
                back.append([pack_slots(both), offset, offset + 1, why])
                left.append([pack_slots(both), self._given])
            if slots:
                yield [pack_slots(slots), after]

    def _parted(self, held: int) -> Iterator[list[Any]]:
        for slots, after in self._spans:
            some = unpack_slots(slots) if held else 0
            parts = some & held, some & ~held
            yield from [[pack_slots(part), after] for part in parts] if all(parts) else [[slots, after]]

    def in_hand(self) -> list[list[Any]]:
        """Return the steps of this batch that are not known to be acknowledged, in their order."""
        if self.failed:
            return []
        left = [[slots, after, self._given] for slots, after in self._spans if after < self._given]
        return [step for steps in self._on_way for step in steps] + left

    @property
    def is_done(self) -> bool:
        """True if the whole batch is acknowledged, or its acknowledgement is on its way."""
        return (
            not self.failed
            and not self._letters
            and not self._back
            and all(after >= self._given for _, after in self._spans)
        )

    @property
    def failed(self) -> bool:
        """True if the last acknowledgement was refused."""
        return self._ticket is not None and self._ticket.done and self._ticket.ack is None

    @property
    def acknowledged(self) -> bool:
        """True if the servers have accepted the last acknowledgement of the batch."""
        return self._ticket is not None and self._ticket.ack is not None

    def refusal(self) -> tuple[Exception | None, bool]:
        """Return the error of the last acknowledgement, or None, and True if the application knows of it."""
        if self._ticket is None:
            return None, True
        told = self._ticket.told
        return self._ticket.error, told

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages of {self.whose[0]}{', done' if self.is_done else ''}>"
