"""What goes out because time passes: HUGZ, STATE to the peer, and each channel's heartbeat with its fingerprint.

    end_turn      what is due; what is kept for a while only is looked through then, too
    greet_all     something changed that all who listen want to know

HUGZ is RFC 12's and comes once a second; the rest each `heartbeat_s`. A server in a long turn cannot do this: see
pair/pulse.py. Pure.
"""

from __future__ import annotations

from chp import headers
from chp.batch import encode

from . import subscriptions
from .context import ServerContext
from .deadlines import BEAT
from .peer.peerlink import SAY_AGAIN_S, PeerLink
from .updates.channels import alive, greeting

HUGZ_S = 1.0  # RFC 12: once a second
WAITING_SAID_S = 5.0  # after the start, at the latest


class HeartbeatTimer:
    """When the next ones are due, and what they say."""

    def __init__(self, ctx: ServerContext, link: PeerLink) -> None:
        self._ctx, self._link = ctx, link
        self._next_hugz = ctx.now
        self._say_waiting_at = ctx.now + min(ctx.config.solo_wait_s or WAITING_SAID_S, WAITING_SAID_S)
        ctx.deadlines.set(BEAT, ctx.now)

    def end_turn(self) -> None:
        """Send what is due, and set the time of the next."""
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
            self.greet_all()  # alive, and not able to give fingerprints now
        elif ctx.active:
            self.tell_channels()

    def _say_waiting(self) -> None:
        ctx = self._ctx
        if ctx.now >= self._say_waiting_at and self._link.waits_for:
            self._say_waiting_at = ctx.now + SAY_AGAIN_S
            ctx.turn.fact("waiting", "warning", why=self._link.waits_for)

    def tell_channels(self) -> None:
        """A heartbeat on each channel whose turn it is; fingerprints that are not known are measured for the next."""
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
        """A GREETING on each channel."""
        body = self._ctx.greeting()
        for topic in self._ctx.commits.channels.by_topic:
            self._ctx.turn.publish.append(greeting(topic, self._ctx.state.number, body))
