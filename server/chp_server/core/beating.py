"""What goes out because time passes: HUGZ, STATE to the peer, and each channel's heartbeat with its fingerprint.

    end_turn      what is due; what is kept for a while only is looked through then, too
    greet_all     something changed that all who listen want to know

HUGZ is RFC 12's and comes once a second; the rest each `heartbeat_s`. A server in a long turn cannot do this: see
pair/pulse.py. Pure.
"""

from __future__ import annotations

from chp import headers
from chp.batch import encode

from . import subscribing
from .peer.peerlink import SAY_AGAIN_S, PeerLink
from .standing import Standing
from .updates.channels import alive, greeting

HUGZ_S = 1.0  # RFC 12: once a second
WAITING_SAID_S = 5.0  # after the start, at the latest


class Beating:
    """When the next ones are due, and what they say."""

    def __init__(self, here: Standing, link: PeerLink) -> None:
        self._here, self._link = here, link
        self._next_hugz = here.now
        self._say_waiting_at = here.now + min(here.config.solo_wait_s or WAITING_SAID_S, WAITING_SAID_S)

    @property
    def due(self) -> float:
        """When to beat again."""
        return min(self._here.next_beat, self._next_hugz)

    def end_turn(self) -> None:
        """Beat, if it is time."""
        here = self._here
        if here.now >= self._next_hugz:
            self._next_hugz = here.now + HUGZ_S
            if here.active:
                here.turn.publish.append(alive(here.state.number))
        if here.now < here.next_beat:
            return
        here.next_beat = here.now + here.config.heartbeat_s
        if here.config.has_peer:
            said = here.turn.opened if self._link.opens else here.turn.to_peer
            said.append(self._link.state_message())
            self._say_waiting()
        here.pending.expire(here.now)
        here.state.forget_idle_sessions(here.now)
        here.commits.channels.let_go(here.now)
        subscribing.say_again(here)
        if here.active and here.state.deferred:
            self.greet_all()  # alive, and not able to give fingerprints now
        elif here.active:
            self.tell_channels()

    def _say_waiting(self) -> None:
        here = self._here
        if here.now >= self._say_waiting_at and self._link.waits_for:
            self._say_waiting_at = here.now + SAY_AGAIN_S
            here.turn.fact("waiting", "warning", why=self._link.waits_for)

    def tell_channels(self) -> None:
        """A heartbeat on each channel whose turn it is; fingerprints that are not known are measured for the next."""
        here, channels = self._here, self._here.commits.channels
        topics = here.pace.share(channels.by_topic, channels.by_topic, channels.listeners.total)
        at, beat_ms, wall_ms = here.state.number, round(here.pace.told_s * 1000), round(here.wall * 1000)
        for channel, fingerprint in channels.measured(here.state.map, topics):
            if fingerprint is None:
                here.turn.publish.append(greeting(channel.topic, at, here.greeting()))
                continue
            digest = channel.since, channel.digest
            beat = headers.Heartbeat(here.bstate, at, channel.last, *fingerprint, beat_ms, wall_ms, *digest)
            here.turn.publish.append(greeting(channel.topic, at, encode(beat)))
        if channels.unmeasured and not here.state.gathering:
            channels.measure_by(here.state.images(channels.unmeasured))

    def greet_all(self) -> None:
        """A GREETING on each channel."""
        body = self._here.greeting()
        for topic in self._here.commits.channels.by_topic:
            self._here.turn.publish.append(greeting(topic, self._here.state.number, body))
