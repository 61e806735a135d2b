"""A consumer: a member of a group, which shares a topic with the others of it (docs/topics.md).

    with orders.consumer("billing") as consumer:
        for batch in consumer:
            batch.commit(sets={...}, publish={...})      # or batch.done(), or ask for the next batch

A consumer has a lease and a reading of port P. The Clone's agent refreshes the lease, however long a handler takes. The
thread that iterates does the reading. After a failover the consumer goes on behind the messages that it has. A consumer
that was stopped for longer than its ttl counts as dead, and its commits are refused as `Fenced`. It then joins the
group anew by itself, and goes on.

If an acknowledgement is refused, the consumer gets all unacknowledged messages again. That holds however the
acknowledgement was sent, and whether or not the application waits for it. The consumer looks at the batches in hand
before it hands out the next one, and about once a second while no batch comes.

A consumer makes its group only when it first joins, and only if the group is not there. It does not make a removed
group again: the new group would have default settings, and would give acknowledged messages again.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_bytes
from threading import Event
from time import monotonic
from typing import Any
from zlib import crc32

from chp import columns
from chp.batch import Segment
from chp.errors import BadFrame, BadInput
from chp.headers import Messages
from chp.limits import DEFAULT
from chp.topics import dead_topic

from .. import checks
from ..agent.lease import Lease
from ..agent.tickets import Ticket
from ..agent.writer import Writer
from ..errors import AlreadyThere, Closed, NoSuchGroup, NoSuchTopic, Refused
from ..port.ask import LATER, Interrupted, QuestionPort
from .batch import Batch
from .chunk import joined, parts_of
from .dead_letter import PAUSE_MAX_S, PAUSE_S, put_aside
from .dead_letter_format import reason, slots_for_one
from .groups import begin, naming
from .reader import AGAIN_S, PATIENCE_S, SILENCE_S, Message

# By default at most this many chunks, of about 256 KiB each, are on their way or in hand.
CREDIT = 8
TTL_S = 10.0
TRIES = 5
# The longest pause before messages are given again, as their acknowledgement may be refused again.
REFUSED_PAUSE_S = 2.0
# While a consumer waits for an acknowledgement, it looks this often, in seconds, whether it was closed.
POLL_S = 1.0
# After a refusal with one of these codes, messages are given again without a pause.
AT_ONCE = ("fenced", "revision", "parted")
# A refusal with one of these codes says that the server can't take a member back now. The consumer tries again later.
NO_ROOM = ("full", "busy", "lease", "parted")
# The pause before the second try of a message. Each later pause is twice as long.
BACKOFF_S = 0.1
_log = logging.getLogger("chp_client.topics")


class Consumer:
    """A member of a group, made by `Topic.consumer`: an iterator of `Batch`es, for one thread at a time."""

    # `__del__` needs it, even if the arguments were refused.
    _lease: Lease | None = None

    def __init__(
        self, writer: Writer, servers: Sequence[str], topic: str, group: str, *, start: int, ttl: checks.Ttl, ack: str,
        prefetch: int, name: str | None, create: bool = True,
    ) -> None:  # fmt: skip
        if ack not in ("after", "before"):
            raise BadInput(f'ack={ack!r} is not "after" or "before" (the handler sees the messages)')
        if type(prefetch) is not int or not 1 <= prefetch <= 64:
            raise BadInput(f"prefetch is how many chunks are given ahead, from 1 to 64, not {prefetch!r:.40}")
        checks.flag("create", create)
        checks.text_or_none("name", name)
        ms = checks.ttl_in_ms(ttl, "")
        if ms is None:
            raise BadInput("a consumer needs a ttl: the seconds after which one that is gone is taken for dead")
        self.topic, self.group = topic, group
        # Messages that can't be handled go to this topic.
        self.dead_topic = dead_topic(topic, group)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        # How many messages of the topic, in all slots, come after the last message that this consumer got.
        self.lag = 0
        # The number of refused acknowledgements. After a refusal the messages are given again.
        self.fenced = 0
        self._writer, self._servers = writer, servers
        self._ttl_ms, self._before, self._prefetch = ms, ack == "before", prefetch
        # `_create` is False once the consumer has joined.
        self._start, self._create = start, create
        # True if the group was not there, and this consumer made it.
        self.made_group = False
        # The batches that were given, and are not known to be acknowledged.
        self._hand: list[Batch] = []
        self._proof: list[Any] | None = None
        # The batch that was handed out last.
        self._batch: Batch | None = None
        # With ack="before", the batch that is handed out once it is acknowledged.
        self._early: Batch | None = None
        # True if the next reading begins at the positions that the servers have.
        self._anew = False
        # The length of the last pause after a refused acknowledgement, before such a reading, and the end of the pause.
        self._pause_s = 0.0
        self._not_before = 0.0
        self._stopped = Event()
        self._found: Generator[Batch | None, None, None] | None = None
        # For `get`: the messages of the batch in hand that were not returned yet.
        self._left: Iterator[Message] = iter(())
        self._got: tuple[Batch, int] | None = None
        try:
            self._join()
        except BaseException:
            if self._lease is not None:
                self._lease.abandon()
                self._lease = None
            raise
        self._create = False

    # -- being a member

    def _join(self) -> None:
        """Become a member, and make the group if it is not there and `create` allows that."""
        until = monotonic() + PATIENCE_S
        while True:
            if self._lease is None or self._lease.lost:
                self._lease = Lease(self._writer, token_bytes(16), self._ttl_ms)
            try:
                self._be_member(self._lease)
                return
            except (NoSuchGroup, NoSuchTopic):
                if not self._create:
                    self._lease.abandon()
                    self._lease = None
                    raise
                with suppress(AlreadyThere), naming(self.topic, self.group):
                    self._send(begin(self.topic, self.group, self._start)).wait(PATIENCE_S)
                    self.made_group = True
            except Refused as refused:
                if refused.code != "lease" or monotonic() >= until:
                    raise
                self._lease.abandon()
                self._lease = None
                # The server may have no room for a lease now, so try again.
                if self._stopped.wait(AGAIN_S):
                    raise

    def _be_member(self, lease: Lease) -> None:
        """Join the group with this lease. If the lease is a member already, nothing changes."""
        with naming(self.topic, self.group):
            self._send({columns.JOIN: [self.topic, self.group, lease.id, self.name[:256]]}).wait(PATIENCE_S)

    def _send(self, extras: dict[str, Any]) -> Ticket:
        return self._writer.put_encoded(Segment([], [], extras).encode(), PATIENCE_S)

    # -- batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.take(None)
        assert batch is not None, "without a timeout it waits"
        return batch

    def take(self, timeout: float | None = None) -> Batch | None:
        """Send the acknowledgement of the batch before. Return the next batch, or None if no batch comes in time.

        Raises `StopIteration` after `close`, and `Unanswered` if no server has served for 30 s. Raises `NoSuchGroup` or
        `NoSuchTopic` if the group or topic was removed; a live consumer does not make it again. A refused
        acknowledgement does not raise here: the consumer gets the unacknowledged messages again. If the pair may have
        no room, the consumer pauses first.
        """
        limit = checks.wait_s(timeout)
        until = None if limit is None else monotonic() + limit
        self._finish()
        while not self.closed:
            batch = self._early or self._next_read()
            if batch is not None and self._may_hand_out(batch, until):
                self._batch = batch
                return batch
            if until is not None and monotonic() >= until:
                return None
        raise StopIteration

    def _next_read(self) -> Batch | None:
        """Read the next batch; None if none comes for about a second."""
        if self._found is None:
            self._found = self._reading()
        try:
            return next(self._found, None)
        except Exception:
            self._found = None  # the next call reads anew
            raise

    def _may_hand_out(self, batch: Batch, until: float | None) -> bool:
        """Return True if the application may see a batch. With `ack="before"`, wait first until it is acknowledged."""
        if not self._before:
            return True
        batch.before, self._early = True, batch
        left = POLL_S if until is None else min(POLL_S, max(0.0, until - monotonic()))
        if not batch.failed:
            with suppress(Refused, TimeoutError):
                batch.done().wait(left)
        if not batch.failed and not batch.acknowledged:
            return False
        self._early = None
        self._look_at_hand()
        return not batch.failed

    def _finish(self) -> None:
        """Acknowledge the batch that was handed out last, unless its acknowledgement was refused already."""
        batch, self._batch = self._batch, None
        if batch is not None and not batch.failed and not batch.is_done:
            batch.done()
        self._look_at_hand()

    def _look_at_hand(self) -> None:
        """If an acknowledgement of a batch in hand was refused, ask for all unacknowledged messages again."""
        if self._anew:
            return
        if any(batch.acknowledged for batch in self._hand):
            self._pause_s = 0.0
        refused = next((batch for batch in self._hand if batch.failed), None)
        if refused is None:
            return
        error, told = refused.refusal()
        self._pause(error)
        if not told:
            _log.warning("group %s of topic %s: %s; its messages are given again", self.group, self.topic, error)
        self._lost()

    def _lost(self) -> None:
        self.fenced += 1
        self._anew = True

    def _pausing(self) -> Iterator[None]:
        while (left := self._not_before - monotonic()) > 0 and not self._stopped.wait(min(1.0, left)):
            yield None

    def _reading(self) -> Generator[Batch | None, None, None]:
        """Yield batches as they come, and None about once a second while no batch comes. Go on after a failover."""
        with QuestionPort(self._servers, PATIENCE_S, silence_s=SILENCE_S) as port:
            while not self.closed:
                if self._anew:
                    yield from self._pausing()
                    self._anew, self._hand, self._proof = False, [], None
                if self._lease is None:
                    # The last read ended with an error, or there was no room for a lease.
                    self._anew = True
                    self._join_again()
                    continue
                try:
                    yield from self._ask(port)
                except Interrupted:
                    continue
                except Refused as refused:
                    self._refused(refused, port)

    def _ask(self, port: QuestionPort) -> Generator[Batch | None, None, None]:
        assert self._lease is not None, "it has joined"
        whose = self.topic, self.group, self._lease.id
        options: dict[str, Any] = {"topic": self.topic, "group": self.group, "member": self._lease.id}
        if self._proof is not None:
            have = joined(step for batch in self._hand for step in batch.in_hand())
            options |= {"have": have[: DEFAULT.have_max], "proof": self._proof}
        for header, items in port.stream("", credit=self._prefetch, **options):
            if not isinstance(header, Messages):
                raise BadFrame("a server answers a consumer with something else; is it of an older version?")
            if not header.spans:
                yield None
            elif not self._is_lost():
                self.lag = header.topic_next - header.upto
                self._proof = header.proof
                for part in parts_of(header, items):
                    batch = Batch(self._writer, whose, part, header.proof)
                    self._hand = [*(each for each in self._hand if each.in_hand() or each.failed), batch]
                    yield batch
                    if self._is_lost() or self.closed:
                        return
            if self._is_lost() or self.closed:
                return

    def _is_lost(self) -> bool:
        """Return True if the next reading has to begin at the positions that the servers have."""
        self._look_at_hand()
        return self._anew

    def _refused(self, refused: Refused, port: QuestionPort) -> None:
        if refused.code == "member":
            self._anew = True
            # Acknowledgements of the batches in hand must not count again.
            if self._lease is not None:
                self._lease.abandon()
                self._lease = None
            self._join_again()
        elif refused.code in ("topic", "group"):
            self._look_again(port)
        elif refused.code not in LATER:
            raise refused
        else:
            Event().wait(AGAIN_S)

    def _join_again(self) -> None:
        """Become a member anew. If a server has no room for a member now, the next reading tries again."""
        try:
            self._join()
        except Refused as refused:
            if not self.closed and refused.code not in NO_ROOM:
                raise
            self._pause(refused)

    def _pause(self, refused: Exception | None) -> None:
        """Lengthen the pause before the messages come again, as their acknowledgement may be refused again."""
        if not isinstance(refused, Refused) or refused.code not in AT_ONCE:
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S), REFUSED_PAUSE_S)
            self._not_before = monotonic() + self._pause_s

    def _look_again(self, port: QuestionPort) -> None:
        """Look for the group at another server: the asked server may have stopped before the group was made.

        The `join` goes to the server that the Clone follows. It raises `NoSuchGroup` if the group is not there either.
        """
        if self._lease is not None:
            try:
                self._be_member(self._lease)
            except Refused as refused:
                # The next answer tells of a lost lease too.
                if refused.code != "lease":
                    raise
        port.ask_another()
        Event().wait(AGAIN_S)

    # -- one by one

    def get(self, timeout: float | None = None) -> Message | None:
        """Send the acknowledgement of the message before. Return the next message, or None if no message comes in time.

        Don't mix `get` with batches. Raises what `take` raises.
        """
        if self._got is not None:
            last, offset = self._got
            self._got = None
            if not last.failed:
                last.upto(offset + 1).done()
        message = None if self._is_lost() else next(self._left, None)
        if message is None:
            # Do not acknowledge the rest of the batch, which the application has not seen.
            if self._anew:
                self._batch = None
            found = self.take(timeout)
            # A batch is empty if all its messages are put aside.
            while found is not None and not len(found):
                found = self.take(timeout)
            if found is None:
                return None
            self._left = iter(found)
            message = next(self._left)
        batch = self._batch
        assert batch is not None, "the one that the message is of"
        self._got = batch, message.offset
        return message

    # -- being called

    def run(
        self, handler: Callable[[Message], object], workers: int = 1, tries: int = TRIES, backoff_s: float = BACKOFF_S
    ) -> None:
        """Call `handler` with each message, until `close`. Messages of one key are handled in order, one at a time.

        workers    how many threads call the handler; the messages of one key go to one thread
        tries      if the handler raises this many times for a message, the message goes to the topic `dead_topic`
        backoff_s  the pause before the second try, in seconds; each later pause is twice as long

        In a group with `max_deliveries` the group counts the tries, over all consumers: if the handler raises, the
        message is given back at once, and `tries` and `backoff_s` have no meaning.

        A batch is acknowledged when all its messages are handled. If a message can't be put aside, for example because
        the dead topic is full, a warning names it. The consumer tries again until it can, and handles nothing twice.

        `stop` and `close` end the pause between two tries. That message, and the messages behind it in the batch, stay
        unacknowledged. With `ack="before"` the message has its other tries at once.
        """
        if not callable(handler):
            raise BadInput(f"a handler is something to call with a message, not {handler!r:.60}")
        if type(workers) is not int or not 0 < workers <= 256 or type(tries) is not int or tries < 1:
            raise BadInput(f"workers are 1 to 256, and tries at least 1, not {workers!r:.40} and {tries!r:.40}")
        with ThreadPoolExecutor(workers, thread_name_prefix="chp-consumer") as pool:
            for batch in self:
                shares: list[list[Message]] = [[] for _ in range(workers)]
                counts = batch.deliveries_max is not None
                for i, message in enumerate(batch):
                    # A group that counts gives a failed message again together with the messages behind it in its slot.
                    # So one thread handles the messages of a slot.
                    if counts:
                        place = slots_for_one(message.offset, message.key or "").bit_length()
                    else:
                        place = i if message.key is None else crc32(message.key.encode()) >> 8
                    shares[place % workers].append(message)
                how = (1, 0.0, batch) if counts else (tries, backoff_s, None)
                tried = [pool.submit(self._handle, handler, share, *how) for share in shares if share]
                failed = [each for share in tried for each in share.result()]
                for message, why, n in failed:
                    batch.reject(message, why, n)
                ends = [message.offset for message, _, n in failed if n < how[0]]
                if ends:
                    self._leave_rest(batch, min(ends))
                elif self.put_aside(batch, _log.warning) and not batch.is_done:
                    batch.done()

    def _handle(
        self,
        handler: Callable[[Message], object],
        messages: Iterable[Message],
        tries: int,
        backoff_s: float,
        counts: Batch | None,
    ) -> list[tuple[Message, str, int]]:
        """Handle messages, and return those that failed, with the last error and the number of tries of each.

        If `stop` ended the tries of a message, it is the last one that is handled.
        `counts` is the batch if its group counts deliveries. Then skip messages behind a failed one in its slot.
        """
        failed: list[tuple[Message, str, int]] = []
        slots = 0
        for message in messages:
            if slots and counts is not None and counts.shares_slot(message.offset, slots):
                continue
            why, tried = self._try(handler, message, tries, backoff_s)
            if why:
                failed.append((message, why, tried))
                if tried < tries:
                    break
                slots |= slots_for_one(message.offset, message.key or "")
        return failed

    def _leave_rest(self, batch: Batch, offset: int) -> None:
        """Acknowledge a batch only below an offset, because `stop` ended the tries of the message there."""
        batch.put_letters({at: each for at, each in batch.take_letters().items() if at < offset})
        if self.put_aside(batch, _log.warning) and batch.upto(offset).moves():
            batch.done()
        # The batch is not done.
        self._batch = None

    def put_aside(self, batch: Batch, warn: Callable[[str], object], *, patient: bool = True) -> bool:
        """Put rejected messages aside, and wait. Return False if that failed, and the messages will be given again."""
        done = put_aside(batch, self._stopped, warn, patient=patient)
        if not done:
            # The batch is not done.
            self._batch = None
            if not self.closed:
                self._lost()
        return done

    def attempt(
        self, handler: Callable[[Message], object], message: Message, tries: int, backoff_s: float = BACKOFF_S
    ) -> str:
        """Call the handler until it succeeds, at most `tries` times. Return "" or the last error as text.

        `stop` ends the tries, unless the message is acknowledged already (`ack="before"`).
        """
        return self._try(handler, message, tries, backoff_s)[0]

    def _try(
        self, handler: Callable[[Message], object], message: Message, tries: int, backoff_s: float
    ) -> tuple[str, int]:
        """Call the handler as `attempt` does. Return also the number of tries."""
        why, tracing = "", self._writer.tracing
        for n in range(tries):
            try:
                if tracing is None:
                    handler(message)
                else:
                    with tracing.handling(self.topic, self.group, message):
                        handler(message)
            except Exception as error:
                why = reason(error)
                _log.warning("message %d of topic %s, try %d of %d: %s", message.offset, self.topic, n + 1, tries, why)
                pause_s = min(backoff_s * 2 ** min(n, 30), PAUSE_MAX_S)
                if n + 1 < tries and self._stopped.wait(pause_s) and not self._before:
                    return why, n + 1
            else:
                return "", n + 1
        return why, tries

    # -- the end

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the consumer within a second or two: its iteration ends. Any thread or handler may call this."""
        self._stopped.set()

    def close(self, timeout: float | None = PATIENCE_S) -> None:
        """Leave the group at once. Unacknowledged messages, the batch in hand too, go to other members."""
        self._stopped.set()
        if self._found is not None:
            # ValueError says that another thread is in the reading now.
            with suppress(ValueError):
                self._found.close()
            self._found = None
        lease, self._lease = self._lease, None
        if lease is not None and not lease.closed and not self._writer.closed:
            with suppress(Closed, Refused, TimeoutError):
                ticket = lease.close()
                if ticket is not None:
                    ticket.wait(timeout)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Warn of a consumer that was never closed, and let it leave the group. A finalizer must take no lock."""
        lease = self._lease
        if lease is None or lease.closed or self._writer.closed:
            return
        self._writer.forget_lease(lease.id)
        remedy = "close it, or use it in a `with` or `async with` block"
        warnings.warn(f"unclosed {self!r}; {remedy}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of group {self.group!r} of topic {self.topic!r}>"
