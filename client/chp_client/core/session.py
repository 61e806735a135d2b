"""The session of a client: its batches are numbered, sent to every connected collector, and kept until acknowledged.

ACK                  the batch is settled
REFUSED "expected"   batches are sent again, from the number that the server wants
REFUSED "session"    batches are sent again from the first one held; if that is refused too, a new session is opened
REFUSED, any other   the batch is settled with an error; if it was shown, the confirmed values are fetched again

The session knows the servers (`ServerView` has what was sent to each), and no channel. Its caller passes in the
channels that still lack the keys of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from chp import headers
from chp.batch import Segment
from chp.errors import BadFrame
from chp.headers import DURABILITY_NAMES
from chp.keys import session_topic

from .copy.channel import CopyChannel
from .events import Ack, Sink
from .outbox import Outbox, SentBatch
from .server_view import ServerView
from .timing import NEVER, Timing

# A collector gets at most this many unacknowledged batches, which is below its socket's high-water mark.
PIPELINE_BATCHES = 1000
RESEND_S_MAX = 30.0
# After this many refusals that count, the next one opens a new session (`Session.expected`).
SKIPS_MAX = 2


class Session:
    """The batches of one client, from their submission until their tickets are settled."""

    def __init__(self, session: bytes, links: list[ServerView], timing: Timing, stats: Counter[str], out: Sink) -> None:
        self.outbox = Outbox(session)
        # The topic on which the acknowledgements of this session arrive.
        self.topic = session_topic(self.outbox.public)
        self._links = links
        self._timing = timing
        self._stats = stats
        self._out = out
        # The answers that wait until the copy holds the sets they are for.
        self.unsettled: list[tuple[list[CopyChannel], int, Any, Ack | Exception]] = []
        # The time of the last answer.
        self.progress_at = 0.0
        self._resend_wait_s = timing.resend_s
        # The most keys that the active asks for in a batch; None if it asks for nothing.
        self.batch_items: int | None = None

    @property
    def open_batches(self) -> int:
        """The number of batches that are not settled: not acknowledged, or not in the copy yet."""
        return len(self.outbox.batches) + len(self.unsettled)

    def submit(self, segment: Segment, handle: Any, shown: bool, size: int, now: float) -> SentBatch:
        """Number a batch and keep it. The next `pump` sends it."""
        if not self.outbox.batches:
            self.progress_at = now
        return self.outbox.add(segment, handle, shown, size)

    def of(self, handle: Any) -> list[SentBatch]:
        """Return the unacknowledged batches with this handle."""
        return [batch for batch in self.outbox.batches.values() if batch.handle is handle]

    def own_batches(self, after: int, upto: int) -> list[SentBatch]:
        """Return the own batches above `after` up to `upto`, or an empty list if the copy lacks one of them."""
        batches, own = self.outbox.batches, []
        for no in range(max(after + 1, self.outbox.first), min(upto, self.outbox.last) + 1):
            batch = batches.get(no)
            if batch is not None:
                if not batch.shown:
                    return []
                own.append(batch)
        return own

    def unanswered(self) -> Collection[int]:
        """Return the numbers of the unanswered batches, ascending."""
        return self.outbox.batches.keys()

    def shown_after(self, no: int) -> list[SentBatch]:
        """Return the shown batches with a number above `no`."""
        return [batch for batch in self.outbox.batches.values() if batch.no > no and batch.shown]

    # -- sending

    def pump(self) -> None:
        """Send to each collector the batches that it has not had yet, as far as its pipeline allows."""
        outbox = self.outbox
        if not outbox.batches:
            return
        first = outbox.first
        for link in self._links:
            if link.protocol != 2 or not link.used or link.unspoken or not link.ready(self.topic):
                continue
            start = max(link.sent + 1, first)
            for no in range(start, min(outbox.last, first + PIPELINE_BATCHES) + 1):
                batch = outbox.batches.get(no)
                if batch is not None:
                    oldest = no == first and no == link.skips_to
                    self._out.effects.publish.append((link.index, outbox.frames(batch, oldest=oldest)))
                link.sent = no

    def resend(self, link: ServerView, start: int) -> None:
        """Send again from number `start`, or from the first unacknowledged batch if that is higher."""
        self._stats["resends"] += max(0, link.sent - max(start, self.outbox.first) + 1)
        link.sent = max(start, self.outbox.first) - 1
        self.pump()

    def followed(self, link: ServerView, now: float) -> None:
        """Send all unacknowledged batches to a newly followed server."""
        if self.outbox.batches:
            self.resend(link, self.outbox.first)
        self.progress_at = now
        self._resend_wait_s = self._timing.resend_s

    # -- answers

    def acked(self, header: headers.Ack, now: float) -> list[tuple[SentBatch, int]]:
        """Take the batches that an ACK names, and return them with their revisions."""
        if header.durability >= len(DURABILITY_NAMES):
            raise BadFrame(f"an ACK says what it is worth with 0, 1 or 2, not {header.durability}")
        for run in header.runs:
            if type(run) is not list or len(run) < 3 or not type(run[0]) is type(run[1]) is type(run[2]) is int:
                raise BadFrame("a run of an ACK is [from, to, revision]")
        outbox, found = self.outbox, []
        oldest = outbox.first
        for first, last, revision, *_ in header.runs:
            for batch in outbox.take_run(first, last):
                found.append((batch, revision))
        self.batch_items = header.items
        self._answered(oldest, now)
        return found

    def refused(self, no: int, now: float) -> SentBatch | None:
        """Take a batch that was refused, and return it."""
        oldest, batch = self.outbox.first, self.outbox.take(no)
        if batch is not None:
            self._answered(oldest, now)
        return batch

    def _answered(self, oldest: int, now: float) -> None:
        """Note an answer of the active. `oldest` was the oldest open batch before that answer."""
        self._resend_wait_s = self._timing.resend_s
        # An answer to a later batch must not delay the resend. Otherwise a lost answer would never be asked for.
        if oldest not in self.outbox.batches:
            self.progress_at = now

    def expected(self, link: ServerView, no: int, wanted: object, now: float) -> bool:
        """Send again from the number that a REFUSED `expected` names. Return True if a new session is needed.

        `no` is the number of the batch that the server refused.

        A server may want a batch that another server answered and that this client no longer holds. The server lost
        that batch, or both servers were active at that time. The client then tells it the oldest batch it holds, and
        stays in this session. So nothing that the other server did is done twice when the two servers meet.

        Too many such refusals open a new session. The first one counts, and then each refusal of the oldest batch, at
        most one in `resend_s`. A refusal of a later batch does not count: a passive server may have kept that batch
        since before the client told the server its oldest one.
        """
        if type(wanted) is not int:
            raise BadFrame("REFUSED 'expected' names the number wanted")
        first, resend_s = self.outbox.first, self._timing.resend_s
        if 0 < wanted < first and self.outbox.batches:
            told = link.skips_to == first
            # A refusal counts even if no resend is due: refusals of later batches may have caused the last resend.
            if not told or (no == first and now - link.skipped_at >= resend_s):
                link.skips, link.skipped_at = link.skips + 1 if told else 1, now
            if link.skips > SKIPS_MAX:
                return True
            if not told or now - link.wanted_at >= resend_s:
                link.skips_to, link.wanted_at = first, now
                self.resend(link, first)
            return False
        if wanted == link.wanted and now - link.wanted_at < resend_s:
            # One resend is enough for all batches that were refused behind the same gap.
            return False
        link.wanted, link.wanted_at = wanted, now
        self.resend(link, wanted)
        return False

    def reopen(self) -> None:
        """Open a new session, as the active does not know this one. The next `pump` sends the batches that are left."""
        self._stats["sessions_reopened"] += 1
        old_topic = self.topic
        self.outbox.reopen()
        self.topic = session_topic(self.outbox.public)
        for each in self._links:
            each.sent = each.wanted = each.skips_to = 0
            each.has_not(old_topic)
            if not each.used:
                continue
            self._out.effects.unsubscribe.append((each.index, old_topic))
            self._out.effects.subscribe.append((each.index, self.topic))

    # -- tickets

    def settle(self, batch: SentBatch, result: Ack | Exception, upto: int, lacking: list[CopyChannel]) -> None:
        """Settle a ticket at once, or once the channels in `lacking` hold everything up to number `upto`."""
        if lacking:
            self.unsettled.append((lacking, upto, batch.handle, result))
        else:
            self._out.effects.settled.append((batch.handle, result))

    def settle_held(self, *, all_of_them: bool = False) -> None:
        """Settle the tickets whose sets the copy holds by now.

        So an application that wakes from a ticket reads at least that set.
        """
        held, self.unsettled = self.unsettled, []
        for entry in held:
            channels, upto, handle, result = entry
            if all_of_them or all(channel.live and channel.at >= upto for channel in channels):
                self._out.effects.settled.append((handle, result))
            else:
                self.unsettled.append(entry)

    # -- time

    def next_deadline(self) -> float:
        """Return the time when unanswered batches are sent again."""
        return self.progress_at + self._resend_wait_s if self.outbox.batches else NEVER

    def is_overdue(self, now: float) -> bool:
        """Return True if it is time to send again. Double the wait for the next time."""
        if not self.outbox.batches or now - self.progress_at < self._resend_wait_s:
            return False
        self.progress_at = now
        self._resend_wait_s = min(RESEND_S_MAX, 2 * self._resend_wait_s)
        return True

    def put_off(self, until: float) -> None:
        """Send nothing again before `until`, as there is no server to send to."""
        self.progress_at = max(self.progress_at, until - self._resend_wait_s)
