"""Own sets: shown at once, numbered, sent to every collector that is up, kept until acknowledged, sent again in order.

ACK                  settled                          REFUSED "expected"   sent again from there
REFUSED "session"    a new session: what is left is renumbered and sent again
REFUSED, any other   settled with an error; if it was shown, the confirmed values are fetched back
"""

from __future__ import annotations

from typing import Any

from chp import columns, headers
from chp.batch import Segment
from chp.errors import BadFrame
from chp.headers import DURABILITY_NAMES
from chp.keys import session_topic
from chp.numbers import UNKNOWN

from .channel import Channel
from .errors import Conflict, refusal
from .events import Ack, ack_of
from .following import Following
from .link import Link
from .outbox import Batch, keys_of

PIPELINE_BATCHES = 1000  # handed to a collector and not acknowledged: below its socket's high-water mark


class Sending(Following):
    """The part of the core that gets own sets acknowledged."""

    def show(self, segment: Segment) -> None:
        """Make an own set visible at once."""
        if not self.write_only:
            self.channels[0].replica.show(segment)

    def submit(self, segment: Segment, handle: Any, now: float, *, shown: bool = True, size: int = 0) -> None:
        """Number a batch, keep it and send it; `shown`: it is visible already (never a conditional one)."""
        if not self.outbox.batches:
            self._progress_at = now
        batch = self.outbox.add(segment, handle, shown and not self.write_only, size)
        if batch.shown:
            self._pend(batch)
        self._pump()

    def has(self, handle: Any) -> bool:
        """Whether what has this handle was submitted, even if that was interrupted; it is sent in its time."""
        found = [batch for batch in self.outbox.batches.values() if batch.handle is handle]
        for batch in found:
            if batch.shown:
                self._pend(batch)
        return bool(found)

    def _pend(self, batch: Batch) -> None:
        if len(self.channels) == 1:
            self.channels[0].replica.pending.add(batch.keys, batch.no)
            return
        for channel in self.channels:
            keys = [key for key in batch.keys if key.startswith(channel.subtree)]
            if keys:
                channel.replica.pending.add(keys, batch.no)

    def _own_batches(self, after: int, upto: int) -> list[Batch]:
        """The batches a record holds that is our own up to number `upto`; none if some of them is not shown yet."""
        batches = self.outbox.batches
        first = max(after + 1, self.outbox.first)
        own = [batches[no] for no in range(first, min(upto, self.outbox.last) + 1) if no in batches]
        return own if all(batch.shown for batch in own) else []

    def _pump(self) -> None:
        """Send what each collector has not had yet, as far as its pipeline allows."""
        if self.classic.following:
            self.classic.pump()
            return
        outbox = self.outbox
        if not outbox.batches:
            return
        first = outbox.first
        for link in self.links:
            if link.protocol != 2 or not link.ready(self._own_topic):
                continue
            start = max(link.sent + 1, first)
            for no in range(start, min(outbox.last, first + PIPELINE_BATCHES) + 1):
                batch = outbox.batches.get(no)
                if batch is not None:
                    self._effects.publish.append((link.index, outbox.frames(batch)))
                link.sent = no

    def _resend(self, link: Link, start: int) -> None:
        self.stats["resends"] += max(0, link.sent - max(start, self.outbox.first) + 1)
        link.sent = max(start, self.outbox.first) - 1
        self._pump()

    def _acks(self, header: headers.Ack, number: int, now: float) -> None:
        if header.durability >= len(DURABILITY_NAMES):
            raise BadFrame(f"an ACK says what it is worth with 0, 1 or 2, not {header.durability}")
        name, oldest = DURABILITY_NAMES[header.durability], self.outbox.first
        for run in header.runs:
            if type(run) is not list or len(run) < 3 or any(type(x) is not int for x in run[:3]):
                raise BadFrame("a run of an ACK is [from, to, revision]")
            first, last, revision = run[:3]
            for batch in self.outbox.take_run(first, last):
                self.settle(batch, revision, name, number)
        self._answered(oldest, now)
        self._pump()

    def _answered(self, oldest: int, now: float) -> None:
        """The active answers: what it has not answered was lost on the way. `oldest` was open before this answer."""
        self._resend_wait_s = self.timing.resend_s
        if self.outbox.first > oldest:  # or an answer that was lost would never be asked for again
            self._progress_at = now

    def settle(self, batch: Batch, revision: int, durability: str, known_at: int = 0) -> None:
        """A batch is acknowledged; `known_at` is the server's number then, if its revision is not known."""
        self.stats[f"acks_{durability}"] += 1
        self._settle(batch, ack_of(revision, durability), known_at if revision == UNKNOWN else revision)

    def _settle(self, batch: Batch, result: Ack | Exception, upto: int) -> None:
        """Tell who waits, at once or as soon as the copy holds everything up to a number."""
        if lacking := self._lacking(batch, upto):
            self._unsettled.append((lacking, upto, batch.handle, result))
        else:
            self._effects.settled.append((batch.handle, result))

    def _lacking(self, batch: Batch, upto: int) -> list[Channel]:
        """The channels of the batch's keys that are not complete up to a number."""
        extras = batch.extras or {}
        if self.write_only or columns.STAGE in extras or not (batch.keys or columns.COMMIT in extras):
            return []
        behind = [channel for channel in self.channels if not channel.live or channel.at < upto]
        if columns.COMMIT in extras:
            return behind
        return [channel for channel in behind if any(key.startswith(channel.subtree) for key in batch.keys)]

    def _refused(self, link: Link, header: headers.Refused, now: float) -> None:
        no, code, detail = header
        if code == "expected":
            self._expected(link, detail, now)
        elif code == "session":
            self._unknown_session(link, now)
        else:
            oldest, batch = self.outbox.first, self.outbox.take(no)
            if batch is not None:
                self.refuse(batch, code, detail, now)
                self._answered(oldest, now)
                self._pump()

    def refuse(self, batch: Batch, code: str, detail: object, now: float) -> None:
        """A batch was taken by nobody: tell its owner, and bring the confirmed values back if it was shown."""
        self.stats["refusals"] += 1
        error = refusal(code, detail)
        if isinstance(error, Conflict):
            self._settle(batch, error, max(error.revisions.values(), default=0))
        else:
            self._effects.settled.append((batch.handle, error))
        if not batch.shown:
            return
        for channel in self.channels:
            replica = channel.replica
            keys = {key for key in batch.keys if key.startswith(channel.subtree)}
            later = keys_of([other for other in self.outbox.batches.values() if other.no > batch.no and other.shown])
            replica.orphans |= keys
            replica.pending.drop(keys - later)
            if keys and self.active is not None:
                channel.live = False
                self._ask(channel, self.active, 0, now)
        self._update_state(now)

    def _expected(self, link: Link, wanted: object, now: float) -> None:
        if type(wanted) is not int:
            raise BadFrame("REFUSED 'expected' names the number wanted")
        if wanted < self.outbox.first and self.outbox.batches and wanted > 0:
            if self.outbox.first > 1:
                self._reopen(link, now)  # it lost what it, or its peer, had acknowledged
            return
        if wanted == link.wanted and now - link.wanted_at < self.timing.resend_s:
            return  # one resend answers all that were refused behind the same gap
        link.wanted, link.wanted_at = wanted, now
        self._resend(link, wanted)

    def _unknown_session(self, link: Link, now: float) -> None:
        if link is self.active and self.outbox.batches:
            self._expected(link, 1, now)  # begin again, or anew if number 1 is settled

    def _reopen(self, link: Link, now: float) -> None:
        """The active does not know our session: send what is left under a new one."""
        self.stats["sessions_reopened"] += 1
        self._effects.notes.append(f"{link.address} does not know this session; opening a new one")
        old_topic = self._own_topic
        self.outbox.reopen()
        self._own_topic = session_topic(self.outbox.public)
        for each in self.links:
            each.sent = each.wanted = each.beats = 0
            each.greeted.discard(old_topic)
            self._effects.unsubscribe.append((each.index, old_topic))
            self._effects.subscribe.append((each.index, self._own_topic))
        waiting = [channel.replica.pending.keys() for channel in self.channels]
        for channel in self.channels:
            channel.replica.pending.forget()
        for batch in self.outbox.batches.values():
            if batch.shown:
                self.show(batch.columns())  # a server that is gone may have confirmed it, and others' sets after it
                self._pend(batch)
        for channel, keys in zip(self.channels, waiting, strict=True):
            lost = keys - channel.replica.pending.keys()
            if lost:  # acknowledged, and gone with the server that did so
                channel.replica.orphans |= lost
                channel.live = False
                self._ask(channel, link, 0, now)
        self._pump()
