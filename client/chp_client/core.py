"""The client's core: it is told what arrived and what time it is, and says what to do. No socket, clock or thread.

    inputs     on_update (from a P+1)   on_reply, on_wire (a P)   on_link (a P+2 is up or down)   submit   on_timer
    outputs    take() gives the `Effects` gathered since it was last called; next_deadline() says when to call on_timer

It follows the ACTIVE server of the highest epoch. When that one has been silent for `silence_s` it asks the others for
a snapshot again and again, which is the vote of Binary Star, until one is active and serves. Own sets are numbered,
kept until acknowledged, and sent to every server whose collector is up; to whoever becomes active again, in order.

    greeting ACTIVE, higher epoch ---> follow it: ask on every channel for what changed since `at`
    heartbeat                     ---> heard; fingerprint compared; a difference is mended by a full resync
    silence                       ---> STALE, vote
    REFUSED "expected"            ---> resend from there         "session" ---> a new session, renumber, resend
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from chp import headers
from chp.batch import Segment, decode, peek
from chp.errors import BadFrame, ChpError
from chp.keys import STX
from chp.messages import HUGZ
from chp.numbers import U64_MASK, epoch_of, unpack
from chp.versions import spoken, unspoken

from .channel import Channel, own_number
from .corestate import PULSE, Timing
from .events import Changed, State, in_order
from .following import AGAIN
from .link import AWAY, SPEAKS, Link
from .outbox import echoed
from .sending import Sending

__all__ = ["PULSE", "ClientCore", "Timing"]


class ClientCore(Sending):
    """Decides everything a Clone does on the wire."""

    def watch(self, on: bool) -> None:
        """Whether changes are to be told at all: it costs a little a record."""
        for channel in self.channels:
            channel.watching = on and not self.write_only

    def catch_up(self, handle: Any, prefix: str, after: int) -> None:
        """A watch begins at a revision: what it missed comes as the effect `missed`, with its handle."""
        self.backlogs.add(handle, prefix, after, self.channels)

    @property
    def position(self) -> int:
        """The highest number up to which everything held is complete."""
        return min(channel.at for channel in self.channels)

    def held(self, prefix: str, unsent: set[str]) -> Changed:
        """What is confirmed under a prefix, by revision; no key of an own set that is not (`unsent`, and others)."""
        return in_order([channel.replica.held(prefix, unsent) for channel in self.channels])

    def verify(self) -> tuple[bool, int, int, int]:
        """Whether each channel's sums are those of its map; keys and revision sum in all; the number last compared."""
        ok, keys, total, compared = True, 0, 0, []
        for channel in self.channels:
            revisions = channel.replica.map.revisions
            summed = sum(revisions.values())
            ok = ok and summed == channel.replica.map.revision_sum
            ok = ok and not revisions.keys() - self.shown.keys() - channel.replica.pending.keys()
            keys, total = keys + len(revisions), total + summed
            compared.append(channel.compared[0] if channel.compared else 0)
        return ok, keys, total & U64_MASK, min(compared)

    def describe(self, now: float) -> str:
        """One line: the state and how each server looks."""
        return f"{self.state}; " + "; ".join(link.describe(now) for link in self.links)

    def on_link(self, i: int, up: bool, now: float) -> None:
        """The subscription of a collector arrived at our XPUB, or went away."""
        link = self.links[i]
        link.collector_up, link.up_at = up, now
        link.sent = 0
        if up:
            self._pump()

    def on_wire(self, i: int, wire: str) -> None:
        """The connection to P was made ("connected"), turned out to be ZeroMQ's ("speaks"), or went ("away")."""
        link = self.links[i]
        if wire != AWAY or link.wire == SPEAKS:  # what takes connections and drops them is there, but is no server
            link.wire = wire

    def on_update(self, i: int, frames: Sequence[bytes], now: float) -> None:
        """A message on the SUB of server `i`; what is malformed is counted and dropped."""
        self.links[i].update_at = now
        try:
            self._update(self.links[i], frames, now)
        except ChpError as error:
            self._garbage(i, error)

    def _update(self, link: Link, frames: Sequence[bytes], now: float) -> None:
        if not frames or len(frames) != 5:
            raise BadFrame(f"a message of {len(frames)} frames came, not 5")
        topic = frames[0]
        if topic[:1] != STX:
            self.classic.on_update(link, frames, now)
            return
        number = unpack(frames[1])
        channel = self._by_topic.get(topic)
        if channel is not None and self.outbox.batches and self._own_echo(link, channel, frames[4], now):
            return
        header, items = decode(frames[4])
        if isinstance(header, headers.Batch | headers.Heartbeat):
            if channel is not None:
                self._on_channel(link, channel, header, items, body=frames[4], now=now)
        elif isinstance(header, headers.Greeting):
            self._greeting(link, topic, header, now)
        elif channel is not None and isinstance(header, headers.Refused):
            self._subscription_refused(link, channel, header, now)
        elif topic == self._own_topic and epoch_of(number) >= self.epoch:
            if isinstance(header, headers.Ack):
                self._acks(header, number, now)
            elif isinstance(header, headers.Refused):
                self._refused(link, header, now)

    def _own_echo(self, link: Link, channel: Channel, body: bytes, now: float) -> bool:
        """Whether it was a record of nothing but own batches, which need not be unpacked to be confirmed."""
        if link is not self.active or channel.watching or not channel.live or len(self.channels) > 1:
            return False
        header, start = peek(body) or (None, 0)
        if not isinstance(header, headers.Batch) or not header.origins:
            return False
        own = own_number(header.origins, self.outbox.public)
        known = self._own_batches(channel.replica.pending.confirmed, own) if own else []
        if not known or not echoed(known, body, start):
            return False
        segments = [Segment(batch.keys, [], batch.extras) for batch in known]
        if not channel.on_echo(header, segments, crc32(body), now):
            return False
        link.heard_at = channel.heard_at = now
        self._measure_lag(channel, header.wall_ms, now)
        self._update_state(now)
        return True

    def _not_spoken(self, link: Link, version: object, now: float) -> None:
        """A server of a version that we don't speak is not followed, and sent nothing."""
        link.protocol, link.heard_at = 2, now
        if not link.unspoken:
            link.unspoken = unspoken(version)
            self._effects.notes.append(link.describe(now))
        if link is self.active:
            self._unfollow(now)

    def _greeting(self, link: Link, topic: bytes, header: headers.Greeting, now: float) -> None:
        if not spoken(header.version):
            self._not_spoken(link, header.version, now)
            return
        link.unspoken = ""
        restarted = link.server not in {b"", header.server}
        link.heartbeat_s = max(0.001, header.heartbeat_ms / 1000)
        link.server, link.name = header.server, header.name[:200]
        self._speaks_chp2(link)
        if restarted:
            link.greeted.clear()
            link.beats = 0
        news = topic not in link.greeted
        link.greeted.add(topic)
        link.refused.pop(topic, None)
        self._told(link, header.state, header.number, now, restarted)
        channel = self._by_topic.get(topic)
        if channel is not None and link is self.active:
            channel.heard_at, channel.refusals = now, 0
        if channel is not None and news and link is self.active and not channel.live and channel.sync is None:
            self._ask(channel, link, channel.at, now)
        if topic == self._own_topic:
            self._pump()

    def _subscription_refused(self, link: Link, channel: Channel, header: headers.Refused, now: float) -> None:
        """A server has no room for our subscription: we ask again, ever later, and say so."""
        self._speaks_chp2(link)
        why = f"the subscription of {channel.subtree!r}, {header.code}: {header.detail}"[:200]
        self.stats["subscriptions_refused"] += 1
        if channel.topic not in link.refused:
            self._effects.warnings.append(f"{link.address} refused {why}; trying on")
        link.refused[channel.topic] = why
        link.greeted.discard(channel.topic)
        if link is self.active or self.active is None:
            channel.refusals += 1
            channel.again_at = now + self._put_off_s(self.timing.refused_retry_s, channel.refusals)

    def _speaks_chp2(self, link: Link) -> None:
        if link.protocol != 2:
            link.protocol = 2
            self._effects.unsubscribe.append((link.index, HUGZ))
            self.classic.lost(link)

    def _greeted_by_heartbeat(self, link: Link, channel: Channel) -> None:
        """A greeting may be lost, and comes once; a HEARTBEAT shows as well that the server has our subscriptions.

        For our own channel it takes two of them: the first may have been on its way when we subscribed to it.
        """
        self._speaks_chp2(link)
        link.greeted.add(channel.topic)
        link.refused.pop(channel.topic, None)
        channel.refusals = 0
        if channel is self.channels[0] and self._own_topic not in link.greeted:
            link.beats += 1
            if link.beats >= 2:
                link.greeted.add(self._own_topic)
                self._pump()

    def _on_channel(
        self,
        link: Link,
        channel: Channel,
        header: headers.Batch | headers.Heartbeat,
        items: list[Any],
        *,
        body: bytes,
        now: float,
    ) -> None:
        beat = isinstance(header, headers.Heartbeat)
        number = header.number if isinstance(header, headers.Heartbeat) else header.last
        if beat:
            self._greeted_by_heartbeat(link, channel)
        if beat or epoch_of(number) > self.epoch:
            self._told(link, headers.State.ACTIVE, number, now)
        if link is not self.active:
            self.stats["stale_messages"] += 1
            return
        link.heard_at = channel.heard_at = now
        self._measure_lag(channel, header.wall_ms, now)
        if self.write_only:
            channel.live = channel.synced_once = True
            channel.at = max(channel.at, number)
        elif isinstance(header, headers.Heartbeat):
            self._obey(channel, channel.on_heartbeat(header, now), now)
            if not channel.live and channel.sync is None:
                self._ask(channel, link, channel.at, now)
        else:
            size, crc, session = len(body), crc32(body), self.outbox.public
            verdict = channel.on_batch(header, items, size=size, crc=crc, session=session, now=now)
            self._obey(channel, verdict, now)
        self._after(channel, now)

    def _measure_lag(self, channel: Channel, wall_ms: int, now: float) -> None:
        """How much later than at its best a message arrived: clocks need not agree, only run."""
        offset = now - wall_ms / 1000
        if self._lag_base is None or offset < self._lag_base:
            self._lag_base = offset
        self.lag_s = offset - self._lag_base
        if self.max_lag_s is not None and self.lag_s > self.max_lag_s and channel.live:
            self.stats["lags"] += 1
            self._effects.lags.append(self.lag_s)
            self._lag_base = None

    def on_reply(self, i: int, frames: Sequence[bytes], now: float) -> None:
        """A message on the DEALER of server `i`; what is malformed is counted and dropped."""
        try:
            self._reply(self.links[i], frames, now)
        except ChpError as error:
            self._garbage(i, error)

    def next_deadline(self) -> float:
        """When `on_timer` should be called, if nothing else happens."""
        leases_due = self.leases.next_due()
        if self.classic.following:
            return min(leases_due, self.classic.next_deadline())
        due = self._vote_at
        if self.active is not None:
            silent_at = self.active.heard_at + self.silence_s() + 0.001
            due = silent_at if self.state is State.SYNCED else max(due, silent_at)
            due = min(due, self._next_hearing())
        for channel in self.channels:
            if channel.sync is not None:
                due = min(due, channel.sync.progress_at + self.timing.sync_retry_s)
        if self.outbox.batches:
            due = min(due, self._progress_at + self._resend_wait_s)
        if self.active is not None:
            due = min(due, self.backlogs.next_due())
        return min(due, leases_due)

    def _next_hearing(self) -> float:
        """When a channel will have been silent for too long."""
        silence_s = self.silence_s()
        again = [max(channel.heard_at + AGAIN * silence_s, channel.again_at) for channel in self.channels]
        if self.state is State.SYNCED:
            again += [channel.heard_at + silence_s + 0.001 for channel in self.channels]
        return min(again)

    def on_timer(self, now: float) -> None:
        """Do what has fallen due."""
        for segment, handle in self.leases.due(now):
            if not (self._silent(now) and self._is_under_way(segment)):
                self.submit(segment, handle(), now)
        self.classic.on_timer(now)
        if self.classic.following:
            self.ask_missed(now)
            return
        self._hear_again(now)
        if self._silent(now):
            if now >= self._vote_at:
                self._vote(now)
            self._reconnect_deaf(now)
            self._put_off(now)
        else:
            self._retry(now)
        self._update_state(now)

    def _is_under_way(self, refresh: Segment) -> bool:
        """Whether a lease's refresh waits for a server already: one is enough, however long nobody is heard."""
        return any(batch.extras == refresh.extras for batch in self.outbox.batches.values())

    def _put_off(self, now: float) -> None:
        """Nobody is there to ask or send to again: look at what is overdue with the next vote, not at once for ever."""
        self._progress_at = max(self._progress_at, self._vote_at - self._resend_wait_s)
        self.backlogs.put_off(self._vote_at)
        for channel in self.channels:
            if channel.sync is not None:
                channel.sync.progress_at = max(channel.sync.progress_at, self._vote_at - self.timing.sync_retry_s)

    def _retry(self, now: float) -> None:
        active = self.active
        assert active is not None, "not silent, so somebody is followed"
        self.ask_missed(now)
        for channel in self.channels:
            if channel.sync is not None and now - channel.sync.progress_at >= self.timing.sync_retry_s:
                self.stats["sync_retries"] += 1
                self._ask(channel, active, channel.at, now)
        if self.outbox.batches and now - self._progress_at >= self._resend_wait_s:
            self._progress_at = now
            self._resend_wait_s = min(30.0, 2 * self._resend_wait_s)
            self._subscribe_again(active, self._own_topic)  # or its answers do not reach us
            self._resend(active, self.outbox.first)

    def close(self) -> None:
        """The end: nothing more is asked or sent."""
        self.closed = True
        self.state = State.CLOSED
        self._effects.states.append(State.CLOSED)

    def check(self) -> None:
        """Assert every invariant; for users' tests and ours."""
        for channel in self.channels:
            channel.check()
        assert list(self.outbox.batches) == sorted(self.outbox.batches), "batches leave in order"
        assert self.outbox.size == sum(batch.size for batch in self.outbox.batches.values()), "the window is counted"
