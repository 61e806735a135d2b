"""Own sets: numbered, sent to every collector that is up, kept until acknowledged, sent again in order.

ACK                  settled                          REFUSED "expected"   sent again from there
REFUSED "session"    sent again from the first that is held; a new session if that is refused too
REFUSED, any other   settled with an error; if it was shown, the confirmed values are fetched back

It knows the servers (`ServerView`: what was sent to each), and no channel: what a batch's keys still lack is
told to it.
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

PIPELINE_BATCHES = 1000  # handed to a collector and not acknowledged: below its socket's high-water mark
RESEND_S_MAX = 30.0
SKIPS_MAX = 2  # times that a server is told which batch is the oldest that we hold, before a new session is opened


class Session:
    """The batches of one client, from their submission until their tickets are settled."""

    def __init__(self, session: bytes, links: list[ServerView], timing: Timing, stats: Counter[str], out: Sink) -> None:
        self.outbox = Outbox(session)
        self.topic = session_topic(self.outbox.public)  # of our acknowledgements
        self._links = links
        self._timing = timing
        self._stats = stats
        self._out = out
        self._unsettled: list[tuple[list[CopyChannel], int, Any, Ack | Exception]] = []
        self.progress_at = 0.0  # when something was answered last
        self._resend_wait_s = timing.resend_s

    @property
    def open_batches(self) -> int:
        """Batches that are not settled: not acknowledged, or not in the copy yet."""
        return len(self.outbox) + len(self._unsettled)

    def submit(self, segment: Segment, handle: Any, shown: bool, size: int, now: float) -> SentBatch:
        """Number a batch and keep it; it goes out with the next `pump`."""
        if not self.outbox.batches:
            self.progress_at = now
        return self.outbox.add(segment, handle, shown, size)

    def of(self, handle: Any) -> list[SentBatch]:
        """What was submitted with this handle and is not acknowledged."""
        return [batch for batch in self.outbox.batches.values() if batch.handle is handle]

    def own_batches(self, after: int, upto: int) -> list[SentBatch]:
        """The batches a record holds that is our own up to number `upto`; none if some of them is not shown yet."""
        batches = self.outbox.batches
        first = max(after + 1, self.outbox.first)
        own = [batches[no] for no in range(first, min(upto, self.outbox.last) + 1) if no in batches]
        return own if all(batch.shown for batch in own) else []

    def unanswered(self) -> Collection[int]:
        """The numbers of the batches that are not answered, ascending."""
        return self.outbox.batches.keys()

    def shown_after(self, no: int) -> list[SentBatch]:
        """What is shown of the batches behind one."""
        return [batch for batch in self.outbox.batches.values() if batch.no > no and batch.shown]

    # -- sending

    def pump(self) -> None:
        """Send what each collector has not had yet, as far as its pipeline allows."""
        outbox = self.outbox
        if not outbox.batches:
            return
        first = outbox.first
        for link in self._links:
            if link.protocol != 2 or not link.ready(self.topic):
                continue
            start = max(link.sent + 1, first)
            for no in range(start, min(outbox.last, first + PIPELINE_BATCHES) + 1):
                batch = outbox.batches.get(no)
                if batch is not None:
                    oldest = no == first and no == link.skips_to
                    self._out.effects.publish.append((link.index, outbox.frames(batch, oldest=oldest)))
                link.sent = no

    def resend(self, link: ServerView, start: int) -> None:
        """Send again from a number on, or from the first that is not acknowledged."""
        self._stats["resends"] += max(0, link.sent - max(start, self.outbox.first) + 1)
        link.sent = max(start, self.outbox.first) - 1
        self.pump()

    def followed(self, link: ServerView, now: float) -> None:
        """Another server, or the same anew, is followed: it gets all that is not acknowledged."""
        if self.outbox.batches:
            self.resend(link, self.outbox.first)
        self.progress_at = now
        self._resend_wait_s = self._timing.resend_s

    # -- answers

    def acked(self, header: headers.Ack, now: float) -> list[tuple[SentBatch, int]]:
        """An ACK: the batches it names, with their revisions."""
        if header.durability >= len(DURABILITY_NAMES):
            raise BadFrame(f"an ACK says what it is worth with 0, 1 or 2, not {header.durability}")
        for run in header.runs:
            if type(run) is not list or len(run) < 3 or any(type(x) is not int for x in run[:3]):
                raise BadFrame("a run of an ACK is [from, to, revision]")
        oldest, take_run = self.outbox.first, self.outbox.take_run
        found = [(batch, run[2]) for run in header.runs for batch in take_run(run[0], run[1])]
        self._answered(oldest, now)
        return found

    def refused(self, no: int, now: float) -> SentBatch | None:
        """A batch was taken by nobody."""
        oldest, batch = self.outbox.first, self.outbox.take(no)
        if batch is not None:
            self._answered(oldest, now)
        return batch

    def _answered(self, oldest: int, now: float) -> None:
        """The active answers: what it has not answered was lost on the way. `oldest` was open before this answer."""
        self._resend_wait_s = self._timing.resend_s
        if self.outbox.first > oldest:  # or an answer that was lost would never be asked for again
            self.progress_at = now

    def expected(self, link: ServerView, wanted: object, now: float) -> bool:
        """REFUSED `expected`: send again from there. Return True if a new session is wanted instead.

        A server may want what another one has answered, and what is held no more: it lost that, or it was active at
        the same time. It is told so, and does what is held. The same session goes on, so that what the other
        one did of it is not done twice when the two servers meet.
        """
        if type(wanted) is not int:
            raise BadFrame("REFUSED 'expected' names the number wanted")
        first = self.outbox.first
        if 0 < wanted < first and self.outbox.batches:
            if link.skips_to == first and now - link.wanted_at < self._timing.resend_s:
                return False
            link.skips = link.skips + 1 if link.skips_to == first else 1
            link.skips_to, link.wanted_at = first, now
            if link.skips > SKIPS_MAX:
                return True
            self.resend(link, first)
            return False
        if wanted == link.wanted and now - link.wanted_at < self._timing.resend_s:
            return False  # one resend answers all that were refused behind the same gap
        link.wanted, link.wanted_at = wanted, now
        self.resend(link, wanted)
        return False

    def reopen(self) -> None:
        """The active does not know our session: what is left goes out under a new one, with the next `pump`."""
        self._stats["sessions_reopened"] += 1
        old_topic = self.topic
        self.outbox.reopen()
        self.topic = session_topic(self.outbox.public)
        for each in self._links:
            each.sent = each.wanted = each.skips_to = 0
            each.has_not(old_topic)
            self._out.effects.unsubscribe.append((each.index, old_topic))
            self._out.effects.subscribe.append((each.index, self.topic))

    # -- tickets

    def settle(self, batch: SentBatch, result: Ack | Exception, upto: int, lacking: list[CopyChannel]) -> None:
        """Tell who waits, at once or as soon as the copy, which lacks something, holds everything up to a number."""
        if lacking:
            self._unsettled.append((lacking, upto, batch.handle, result))
        else:
            self._out.effects.settled.append((batch.handle, result))

    def settle_held(self, *, all_of_them: bool = False) -> None:
        """Settle what waited until the copy holds it; the application then reads at least what it was told."""
        if not self._unsettled:
            return
        held, self._unsettled = self._unsettled, []
        for entry in held:
            channels, upto, handle, result = entry
            if all_of_them or all(channel.live and channel.at >= upto for channel in channels):
                self._out.effects.settled.append((handle, result))
            else:
                self._unsettled.append(entry)

    # -- time

    def next_deadline(self) -> float:
        """When what is not answered is sent again."""
        return self.progress_at + self._resend_wait_s if self.outbox.batches else NEVER

    def is_overdue(self, now: float) -> bool:
        """Whether it is time to send again; if so, the next time is later."""
        if not self.outbox.batches or now - self.progress_at < self._resend_wait_s:
            return False
        self.progress_at = now
        self._resend_wait_s = min(RESEND_S_MAX, 2 * self._resend_wait_s)
        return True

    def put_off(self, until: float) -> None:
        """Nobody is there to send to before."""
        self.progress_at = max(self.progress_at, until - self._resend_wait_s)
