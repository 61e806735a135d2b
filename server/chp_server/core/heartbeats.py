"""The heartbeats of a server: messages that it sends because time passes.

    HUGZ         to all subscribers, once a second (RFC 12)
    STATE        to the peer, each `heartbeat_s`
    heartbeat    to a channel's subscribers, with the fingerprint of its subtree

`end_turn` sends what is due. With each heartbeat it also removes table entries that are too old.
`greet_all` tells all subscribers at once that something has changed. A server in a long turn can't send any of these:
see pair/beat.py. Pure.
"""

from __future__ import annotations

from chp import headers
from chp.batch import encode
from chp.versions import VERSION

from . import subscriptions
from .deadlines import BEAT, Deadlines
from .pair.pair_state import PairState
from .peer.peerlink import SAY_AGAIN_S, PeerLink
from .updates.channels import alive, greeting
from .updates.committed import Committed
from .updates.listeners import HeartbeatInterval
from .updates.turn import CurrentTurn

# RFC 12 asks for one a second.
HUGZ_S = 1.0
# A server that waits for its peer logs this at the latest this long after its start.
WAITING_SAID_S = 5.0


class HeartbeatTimer:
    """The times of the next heartbeats, and their contents."""

    def __init__(
        self, turn: CurrentTurn, pair: PairState, committed: Committed, deadlines: Deadlines, link: PeerLink
    ) -> None:
        self._turn, self._pair, self._committed, self._deadlines, self._link = turn, pair, committed, deadlines, link
        self._pace = HeartbeatInterval(pair.config.heartbeat_s)
        self._next_hugz = turn.now
        self._say_waiting_at = turn.now + min(pair.config.solo_wait_s or WAITING_SAID_S, WAITING_SAID_S)
        deadlines.beat_now(turn.now)

    def beat_now(self) -> None:
        """Send heartbeats with this turn, because something has changed that the peer and clients want to know."""
        self._deadlines.beat_now(self._turn.now)

    def end_turn(self) -> None:
        """Send the heartbeats that are due, and set the time of the next."""
        turn, pair, deadlines = self._turn, self._pair, self._deadlines
        if turn.now >= self._next_hugz:
            self._next_hugz = turn.now + HUGZ_S
            if pair.active:
                turn.effects.publish.append(alive(self._committed.state.number))
        if turn.now >= deadlines.next_beat:
            deadlines.next_beat = turn.now + pair.config.heartbeat_s
            self._beat()
        deadlines.set(BEAT, min(deadlines.next_beat, self._next_hugz))

    def _beat(self) -> None:
        turn, pair, committed = self._turn, self._pair, self._committed
        if pair.config.has_peer:
            said = turn.effects.opened if self._link.opens else turn.effects.to_peer
            said.append(self._link.state_message())
            self._say_waiting()
        self._link.pending.expire(turn.now)
        committed.state.forget_idle_sessions(turn.now)
        forgotten = committed.state.staging.forget_applications(turn.now)
        if forgotten:
            committed.counts["forgotten_applications"] += forgotten
        committed.channels.let_go(turn.now)
        turn.effects.publish += subscriptions.say_again(committed)
        if pair.active and committed.busy:
            # While a large commit is applied and published, no fingerprint can be given.
            self.greet_all()
        elif pair.active:
            self.tell_channels()

    def _say_waiting(self) -> None:
        turn = self._turn
        if turn.now >= self._say_waiting_at and self._link.waits_for:
            self._say_waiting_at = turn.now + SAY_AGAIN_S
            turn.effects.fact("waiting", "warning", why=self._link.waits_for)

    def tell_channels(self) -> None:
        """Send a heartbeat on each channel that is due; measure unknown fingerprints for the next time."""
        turn, committed, pace = self._turn, self._committed, self._pace
        channels = committed.channels
        topics = pace.share(channels.by_topic, channels.by_topic, channels.listeners.total, turn.now)
        at, beat_ms = committed.state.number, round(pace.told_s * 1000)
        wall_ms = self._pair.wall_ms or round(turn.wall_s * 1000)
        load = self._pair.load()
        for channel, fingerprint in channels.measured(committed.state.map, topics):
            if fingerprint is None:
                turn.effects.publish.append(greeting(channel.topic, at, self.greeting()))
                continue
            digest = channel.since, channel.digest
            said = *fingerprint, beat_ms, wall_ms, *digest, load
            beat = headers.Heartbeat(self._pair.bstate, at, channel.last, *said)
            turn.effects.publish.append(greeting(channel.topic, at, encode(beat)))
        if channels.unmeasured and not committed.state.gathering:
            channels.measure_by(committed.state.images(channels.unmeasured))

    def greeting(self) -> bytes:
        """Return a GREETING for this moment."""
        pair, beat_ms = self._pair, round(self._pace.told_s * 1000)
        state = self._committed.state
        said = state.number, beat_ms, pair.server, pair.config.name, self._pair.load(), state.store or None
        return encode(headers.Greeting(VERSION, pair.bstate, *said))

    def greet_all(self) -> None:
        """Send a GREETING on each channel."""
        body = self.greeting()
        for topic in self._committed.channels.by_topic:
            self._turn.effects.publish.append(greeting(topic, self._committed.state.number, body))
