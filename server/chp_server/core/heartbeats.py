"""The heartbeats of a server: messages that it sends because time passes.

    HUGZ         to all subscribers, once a second (RFC 12)
    STATE        to the peer, each `heartbeat_s`
    heartbeat    to a channel's subscribers, with the fingerprint of its subtree

`end_turn` sends what is due. With each heartbeat it also drops old entries of tables that keep entries for a time.
`greet_all` tells all subscribers at once that something has changed. A server in a long turn can't send any of these:
see pair/beat.py. Pure.
"""

from __future__ import annotations

from chp import headers
from chp.batch import encode

from . import subscriptions
from .context import ServerContext
from .deadlines import BEAT
from .peer.peerlink import SAY_AGAIN_S, PeerLink
from .updates.channels import alive, greeting

# RFC 12 asks for one a second.
HUGZ_S = 1.0
# A server that waits says so in its log after this long a time since its start, at the latest.
WAITING_SAID_S = 5.0


class HeartbeatTimer:
    """The times of the next heartbeats, and their contents."""

    def __init__(self, ctx: ServerContext, link: PeerLink) -> None:
        self._ctx, self._link = ctx, link
        self._next_hugz = ctx.now
        self._say_waiting_at = ctx.now + min(ctx.config.solo_wait_s or WAITING_SAID_S, WAITING_SAID_S)
        ctx.deadlines.set(BEAT, ctx.now)

    def end_turn(self) -> None:
        """Send the heartbeats that are due, and set the time of the next."""
        ctx = self._ctx
        if ctx.now >= self._next_hugz:
            self._next_hugz = ctx.now + HUGZ_S
            if ctx.active:
                ctx.turn.publish.append(alive(ctx.state.number))
        if ctx.now >= ctx.next_beat:
            ctx.next_beat = ctx.now + ctx.config.heartbeat_s
            self._beat()
        ctx.deadlines.set(BEAT, min(ctx.next_beat, self._next_hugz))

    def _beat(self) -> None:
        ctx = self._ctx
        if ctx.config.has_peer:
            said = ctx.turn.opened if self._link.opens else ctx.turn.to_peer
            said.append(self._link.state_message())
            self._say_waiting()
        ctx.pending.expire(ctx.now)
        ctx.state.forget_idle_sessions(ctx.now)
        ctx.commits.channels.let_go(ctx.now)
        ctx.turn.publish += subscriptions.say_again(ctx.commits)
        if ctx.active and ctx.state.deferred:
            # While a large commit is applied, no fingerprint can be given.
            self.greet_all()
        elif ctx.active:
            self.tell_channels()

    def _say_waiting(self) -> None:
        ctx = self._ctx
        if ctx.now >= self._say_waiting_at and self._link.waits_for:
            self._say_waiting_at = ctx.now + SAY_AGAIN_S
            ctx.turn.fact("waiting", "warning", why=self._link.waits_for)

    def tell_channels(self) -> None:
        """Send a heartbeat on each channel that is due; measure unknown fingerprints for the next time."""
        ctx, channels = self._ctx, self._ctx.commits.channels
        topics = ctx.pace.share(channels.by_topic, channels.by_topic, channels.listeners.total)
        at, beat_ms, wall_ms = ctx.state.number, round(ctx.pace.told_s * 1000), round(ctx.wall * 1000)
        for channel, fingerprint in channels.measured(ctx.state.map, topics):
            if fingerprint is None:
                ctx.turn.publish.append(greeting(channel.topic, at, ctx.greeting()))
                continue
            digest = channel.since, channel.digest
            beat = headers.Heartbeat(ctx.bstate, at, channel.last, *fingerprint, beat_ms, wall_ms, *digest)
            ctx.turn.publish.append(greeting(channel.topic, at, encode(beat)))
        if channels.unmeasured and not ctx.state.gathering:
            channels.measure_by(ctx.state.images(channels.unmeasured))

    def greet_all(self) -> None:
        """Send a GREETING on each channel."""
        body = self._ctx.greeting()
        for topic in self._ctx.commits.channels.by_topic:
            self._ctx.turn.publish.append(greeting(topic, self._ctx.state.number, body))
