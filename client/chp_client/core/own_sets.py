"""The own sets: the sets and deletes that this client made, until it knows the result of each.

    submitted     the batch is numbered, shown as unconfirmed, and sent
    acknowledged  its ticket is settled once the copy holds it
    refused       its owner is told; if it was shown, the confirmed values are fetched again
    lost          the server that acknowledged it is gone; the confirmed values are fetched again, and the later
                  batches go out in the same session

This part joins two others: the session gets a batch acknowledged, and the copy shows it meanwhile. CHP/1 servers
confirm a set by its echo, and CHP/2 servers by an acknowledgement. Here both mean the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from chp import headers
from chp.batch import Segment
from chp.numbers import UNKNOWN

from ..errors import Conflict, refusal
from .chp1 import Chp1Follower
from .copy.channels import CopyChannels
from .copy.subscriptions import Subscriptions
from .events import Sink, ack_of
from .leadership import Leadership
from .outbox import SentBatch, keys_of
from .server_view import ServerView
from .session import Session


class OwnSets:
    """The sets of the application, until it is told the result of each."""

    def __init__(
        self,
        leadership: Leadership,
        subscriptions: Subscriptions,
        channels: CopyChannels,
        session: Session,
        chp1: Chp1Follower,
        *,
        stats: Counter[str],
        out: Sink,
    ) -> None:
        self._leadership, self._subscriptions, self._channels = leadership, subscriptions, channels
        self._session, self._chp1 = session, chp1
        self._stats, self._out = stats, out

    def submit(self, segment: Segment, handle: Any, now: float, *, shown: bool, size: int) -> None:
        """Number a batch, keep it and send it.

        `shown` says that the application sees it already. A conditional batch is never shown.
        """
        batch = self._session.submit(segment, handle, shown and not self._subscriptions.write_only, size, now)
        if batch.shown:
            self._subscriptions.pend(batch)
        self.pump(now)

    def has(self, handle: Any) -> bool:
        """Return True if a batch with this handle was submitted, even if Ctrl-C ended the call before the sending."""
        found = self._session.of(handle)
        for batch in found:
            if batch.shown:
                self._subscriptions.pend(batch)
        return bool(found)

    def pump(self, now: float) -> None:
        """Send to each collector the batches that it has not had yet."""
        if self._chp1.following:
            self._chp1.pump()
            self.settle_chp1(now)
        else:
            self._session.pump()

    def settle_chp1(self, now: float) -> None:
        """Settle what CHP/1 servers echoed, and refuse the batches that CHP/1 can't carry."""
        while self._chp1.acked:
            self._settle(*self._chp1.acked.pop(0), "applied")
        while self._chp1.unsupported:
            text = "the server speaks CHP/1, which has no conditions and no leases"
            self._refuse(self._chp1.unsupported.pop(0), "unsupported", text, now)

    def acked(self, header: headers.Ack, number: int, now: float) -> None:
        """Take an ACK of the active, and the active's number at that time."""
        for batch, revision in self._session.acked(header, now):
            self._settle(batch, revision, headers.DURABILITY_NAMES[header.durability], number, header.copies)
        if self._session.outbox.batches:
            self.pump(now)

    def refused(self, link: ServerView, header: headers.Refused, now: float) -> None:
        """Take a REFUSED on the channel of our answers."""
        no, code, detail = header
        if code == "expected":
            self._expected(link, no, detail, now)
        elif code == "session":
            if link is self._leadership.active and self._session.outbox.batches:
                # Send again from number 1. If number 1 is settled already, a new session is opened.
                self._expected(link, no, 1, now)
        elif (batch := self._session.refused(no, now)) is not None:
            self._refuse(batch, code, detail, now)
            self.pump(now)

    def _settle(
        self, batch: SentBatch, revision: int, durability: str, known_at: int = 0, copies: int | None = None
    ) -> None:
        """Settle a batch. `known_at` is the server's number at that time; it stands for an unknown revision."""
        self._stats[f"acks_{durability}"] += 1
        upto = known_at if revision == UNKNOWN else revision
        ack = ack_of(revision, durability, copies)
        self._session.settle(batch, ack, upto, self._subscriptions.lacking(batch, upto))

    def _refuse(self, batch: SentBatch, code: str, detail: object, now: float) -> None:
        """Tell the owner that no server took the batch. Fetch the confirmed values again if it was shown."""
        self._stats["refusals"] += 1
        error, upto, lacking = refusal(code, detail), 0, []
        # The owner is told once the copy holds the revisions that conflict.
        if isinstance(error, Conflict):
            upto = max(error.revisions.values(), default=0)
            lacking = self._subscriptions.lacking(batch, upto)
        self._session.settle(batch, error, upto, lacking)
        if batch.shown:
            later = keys_of(self._session.shown_after(batch.no))
            self._channels.undo(batch, later, self._leadership.active, now)

    def _expected(self, link: ServerView, no: int, wanted: object, now: float) -> None:
        if not self._session.expected(link, no, wanted, now):
            return
        self._out.effects.notes.append(f"{link.address} does not know this session; opening a new one")
        self._session.reopen()
        outbox = self._session.outbox
        self._channels.renumbered(list(outbox.batches.values()), outbox.public, link, now)
        self.pump(now)
