"""The comparison of a Clone's copy with a server's, by contents: keys, values, revisions, and which keys have a ttl.

    snapshot at number N  --chunk by chunk-->  Comparison.take, once the copy is complete up to N
    its end               -->                  Comparison.end: keys that only the copy has

Keys that changed after N are left out, and so are own sets under way. A key that the server has and the copy lacks may
have been deleted meanwhile. So keys that differ are compared once more with a second snapshot. Only keys that differ
both times are named. The caller's thread opens its own connection, so the agent goes on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import zmq

from chp import columns
from chp.batch import Segment, segment_of
from chp.headers import Header, Kthxbai, Sync
from chp.numbers import describe, unpack

from ..agent.mailbox import Mailbox
from ..core.copy.channel import CopyChannel
from ..core.question import Question
from ..errors import Refused
from ..port.ask import LATER
from ..port.connection import Connection, Elsewhere

SILENCE_S = 5.0
RETRY_S = 0.05
CREDIT, GRANT = 16, 8  # chunks


@dataclass(slots=True)
class Comparison:
    """A comparison of one channel's copy with one snapshot, of all keys or of `only` those that differed before."""

    channel: CopyChannel
    only: set[str] | None = None
    number: int = 0
    differing: set[str] = field(default_factory=set)
    left_out: int = 0
    _seen: set[str] = field(default_factory=set)

    def take(self, segment: Segment) -> None:
        """Compare a chunk of the snapshot; the copy is complete up to its number."""
        self._seen.update(segment.keys)
        replica, extras = self.channel.replica, segment.extras or {}
        revisions = [revision for revision, n in extras.get(columns.REVISIONS, ()) for _ in range(n)]
        ttls = {segment.keys[i] for i in extras.get(columns.TTLS, ((),))[0]}
        waiting = replica.pending.among(segment.keys) | replica.orphans
        for key, value, revision in zip(segment.keys, segment.values, revisions, strict=True):
            own = replica.map.revisions.get(key, 0)
            if own > self.number or key in waiting:
                self.left_out += 1
            elif own != revision or replica.shown.get(key) != value or (key in replica.map.deadlines) != (key in ttls):
                self._differs(key)

    def end(self) -> None:
        """Note keys that the copy has at the snapshot's number, but that were not in the complete snapshot."""
        for key, revision in self.channel.replica.map.revisions.items():
            if revision <= self.number and key not in self._seen:
                self._differs(key)

    def _differs(self, key: str) -> None:
        if self.only is None or key in self.only:
            self.differing.add(key)


def compared(mailbox: Mailbox, timeout_s: float | None) -> Comparison:
    """Compare all channels of a Clone with the server that it follows; `TimeoutError` if it does not answer in time."""
    deadline = float("inf") if timeout_s is None else monotonic() + timeout_s
    every = [_compared(mailbox, channel, deadline) for channel in mailbox.core.channels]
    differing = set().union(*(c.differing for c in every))
    return Comparison(every[0].channel, None, min(c.number for c in every), differing, sum(c.left_out for c in every))


def _compared(mailbox: Mailbox, channel: CopyChannel, deadline: float) -> Comparison:
    first = _round(mailbox, channel, None, deadline)
    return _round(mailbox, channel, first.differing, deadline) if first.differing else first


def _round(mailbox: Mailbox, channel: CopyChannel, only: set[str] | None, deadline: float) -> Comparison:
    why = "nobody is followed"
    while monotonic() < deadline:
        active = mailbox.core.active
        if active is not None:
            try:
                return _asked(mailbox, active.address, Comparison(channel, only), deadline)
            except Elsewhere as error:
                why = str(error)
        with mailbox.lock:
            mailbox.check_open()
            mailbox.changed.wait(RETRY_S)
    raise TimeoutError(f"the copy of {channel.subtree!r} was not compared in time: {why}; {mailbox.describe()}")


def _asked(mailbox: Mailbox, address: str, comparison: Comparison, deadline: float) -> Comparison:
    with zmq.Context() as context:
        connection = Connection(context, address, mailbox.credentials.get(address))
        question = Question(1, comparison.channel.subtree.encode(), {"from": 0, "credit": CREDIT}, grant=GRANT)
        try:
            while not connection.reach(RETRY_S) or not connection.ask(question):
                if connection.why or monotonic() > deadline:
                    raise Elsewhere(f"{address} {connection.why or 'takes no connection'}")
            for number, header, items in connection.answer(question, min(SILENCE_S, max(0.0, deadline - monotonic()))):
                _reach(mailbox, comparison, unpack(number), deadline)
                _told(mailbox, comparison, header, items)
        except Refused as refused:
            if refused.code in LATER:
                raise Elsewhere(str(refused)) from None
            raise
        finally:
            connection.close()
    return comparison


def _reach(mailbox: Mailbox, comparison: Comparison, number: int, deadline: float) -> None:
    channel = comparison.channel
    with mailbox.lock:
        if channel.at < number:
            left = None if deadline == float("inf") else max(0.0, deadline - monotonic())
            mailbox.wait_for(
                lambda: channel.at >= number or mailbox.closed, left, lambda: f"{describe(number)} to be reached"
            )
        comparison.number = number


def _told(mailbox: Mailbox, comparison: Comparison, header: Header, items: list[Any]) -> None:
    with mailbox.lock:
        mailbox.check_open()
        if isinstance(header, Sync):
            for item in items:
                comparison.take(segment_of(item))
        elif isinstance(header, Kthxbai):
            comparison.end()
