"""The client's side of the protocol, without sockets or clocks (SPEC.md, section 15).

The core takes messages and the time, and returns `Effects`. It passes each message to a part. The parts do not know the
core:

    leadership      chooses the server to follow, by a table     links       hold what is known of each server
    choice          chooses among replicas, by load
    copy_channels   completes the channels there                 freshness   rates the copy, by a table
    subscriptions   has the copy, with own sets on top           chp1        follows a server of CHP/1
    session         keeps own sets until they are acknowledged   own         joins session and subscriptions
    leases          tells which leases must be refreshed         report      reports this client to the server
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chp import headers
from chp.access import NONCE_BYTES
from chp.batch import Segment, decode, peek
from chp.errors import BadFrame, ChpError
from chp.keys import ETX, STX, channel_topic
from chp.limits import DEFAULT, Limits
from chp.messages import HUGZ
from chp.numbers import epoch_of, unpack
from chp.versions import spoken, unspoken

from .choice import ServerChoice
from .chp1 import Chp1Follower
from .client_report import ClientReport
from .copy.channel import CopyChannel
from .copy.channels import Answer, CopyChannels
from .copy.subscriptions import PULSE, Subscriptions
from .events import Effects, Sink, State
from .freshness import Freshness
from .leadership import Leadership, Move
from .leases import LeaseRefresher
from .own_sets import OwnSets
from .server_list import PAIR
from .server_view import AWAY, SPEAKS, ServerView
from .session import Session
from .timing import NEVER, Chance, Timing

__all__ = ["PULSE", "ClientCore", "Timing"]
# The time between two warnings about unreadable messages of one server.
GARBAGE_TOLD_S = 60.0
PULSE_TOPIC = channel_topic(PULSE)


class ClientCore:
    """The decisions about everything that a Clone does on the wire."""

    def __init__(
        self,
        session: bytes,
        subtrees: Sequence[str],
        servers: Sequence[str],
        now: float,
        *,
        shown: dict[str, bytes] | None = None,
        limits: Limits = DEFAULT,
        timing: Timing | None = None,
        max_lag_s: float | None = None,
        chance: Chance = lambda: 0.5,
        who: Mapping[str, Any] | None = None,
    ) -> None:
        self.shown: dict[str, bytes] = {} if shown is None else shown
        self.limits, self.timing = limits, timing or Timing()
        self.stats: Counter[str] = Counter()
        self.out = out = Sink()
        self.links = links = [ServerView(i, address) for i, address in enumerate(servers)]
        shared: dict[str, Any] = {"timing": self.timing, "stats": self.stats, "out": out}
        self.session = Session(session, links, **shared)
        self.outbox = self.session.outbox
        self.subscriptions = Subscriptions(
            subtrees, self.shown, self.session.own_batches, limits, self.stats, unanswered=self.session.unanswered
        )
        self.channels, self.write_only = self.subscriptions.all, self.subscriptions.write_only
        self.copy_channels = CopyChannels(
            self.subscriptions, self.session.own_batches, limits=limits, chance=chance, **shared
        )
        self.copy_channels.session = self.outbox.public
        self.leadership = Leadership(links, self.timing, now)
        self.choice = ServerChoice(links, self.leadership, chance, now)
        self.chp1 = Chp1Follower(links, self.subscriptions, self.session, limits=limits, **shared)
        self.leases = LeaseRefresher()
        self.own = OwnSets(
            self.leadership, self.subscriptions, self.copy_channels, self.session, self.chp1, stats=self.stats, out=out
        )
        self.freshness = Freshness(max_lag_s)
        self.report = ClientReport(who)
        self.closed = False
        if self.choice.on:
            self._look(now)
        else:
            out.effects.subscribe += [(link.index, topic) for link in links for topic in (HUGZ, *self._topics)]

    # -- questions

    @property
    def _topics(self) -> tuple[bytes, ...]:
        """The topics that this client hears where it reads."""
        return self.session.topic, *self.copy_channels.by_topic

    @property
    def active(self) -> ServerView | None:
        """The CHP/2 server that is followed, or None."""
        return self.leadership.active

    @property
    def epoch(self) -> int:
        """The epoch of the server that is followed, or was followed last."""
        return self.leadership.epoch

    @property
    def active_address(self) -> str | None:
        """The address of the server that is followed, or None."""
        if self.chp1.following:
            return self.chp1.address
        return None if self.active is None else self.active.address

    @property
    def state(self) -> State:
        """The state of the copy."""
        return State.CLOSED if self.closed else self.freshness.state

    @property
    def position(self) -> int:
        """The highest number up to which everything held is complete."""
        return self.subscriptions.position

    def idle(self) -> bool:
        """Return True if a batch submitted now would go to a server at once, with nothing else to do."""
        synced = self.freshness.state is State.SYNCED and not self.closed
        return synced and self.leadership.active is not None and not self.outbox.batches

    def full(self) -> bool:
        """Return True if the window is full, so no more batches should be submitted now."""
        session, limits = self.session, self.limits
        if self.outbox.size >= limits.window_bytes:
            return True
        return len(self.outbox.batches) + len(session.unsettled) >= limits.window_batches

    def describe(self, now: float) -> str:
        """Return one line with the state of the copy and of each server."""
        return f"{self.state}; " + "; ".join(link.describe(now) for link in self.links)

    # -- what the application does

    def take(self) -> Effects:
        """Return the effects since the last call."""
        effects, self.out.effects = self.out.effects, Effects()
        return effects

    def take_publish(self) -> list[tuple[int, list[bytes]]]:
        """Take the batches out of the effects, and return them. The other effects stay."""
        publish, self.out.effects.publish = self.out.effects.publish, []
        return publish

    def catch_up(self, handle: Any, prefix: str, after: int | None) -> None:
        """Fetch what a watch missed after a revision, or all that is retained.

        The result comes as the effect `missed`.
        """
        self.copy_channels.backlogs.add(handle, prefix, after, self.channels)

    def submit(self, segment: Segment, handle: Any, now: float, *, shown: bool = True, size: int = 0) -> None:
        """Number a batch, keep it and send it. `shown` says that the application sees it already."""
        self.own.submit(segment, handle, now, shown=shown, size=size)

    def refetch(self, now: float) -> None:
        """Fetch the whole copy again, for example after a lag. Queued batches are dropped unread."""
        if self.active is not None:
            self.copy_channels.refetch(self.active, now)
        self._update_state(now)

    def close(self) -> None:
        """End the core: it asks and sends nothing more."""
        self.closed = True
        self.out.effects.states.append(State.CLOSED)

    # -- what comes from a server

    def on_link(self, i: int, up: bool, now: float) -> None:
        """Note that the subscription of a collector arrived at the XPUB socket, or went away."""
        link = self.links[i]
        link.collector_up, link.up_at = up, now
        link.sent = 0
        if not up:
            # A server that was started again may hold another store.
            link.store = b""
        if link is self.active and self.choice.on:
            self._broken(not up, now)
        if up:
            self.own.pump(now)

    def on_wire(self, i: int, wire: str) -> None:
        """Note the state of the connection to P.

        It was made ("connected"), it turned out to speak ZeroMQ ("speaks"), or it went away ("away").
        """
        link = self.links[i]
        # A program that accepts connections and drops them is no CHP server. The link then stays "connected".
        if wire != AWAY or link.wire == SPEAKS:
            link.wire = wire

    @property
    def misfit(self) -> str:
        """The reason why the list of servers can't be used: it names more than one pair. "" if the list is right."""
        return self.choice.list.misfit

    def denied(self) -> list[tuple[str, str]]:
        """Return the servers that give this client nothing, and why.

        The list is empty while another server may still admit it.
        """
        if self.misfit and self.epoch == 0:
            return [("the list of servers", self.misfit)]
        found = [(link.address, link.closed) for link in self.links if link.closed]
        if self.choice.on and self.active is not None and self.active.forbidden:
            # The rules are those of the pair, whichever server is asked.
            return found
        return found if all(link.closed or (link.protocol == 0 and link.wire == AWAY) for link in self.links) else []

    def on_update(self, i: int, frames: Sequence[bytes], now: float) -> None:
        """Handle a message from the SUB socket of server `i`. Count and drop a malformed one."""
        self.links[i].update_at = now
        try:
            self._update(self.links[i], frames, now)
        except ChpError as error:
            self._garbage(i, error, now)

    def on_reply(self, i: int, frames: Sequence[bytes], now: float) -> None:
        """Handle a message from the DEALER socket of server `i`. Count and drop a malformed one."""
        try:
            self._reply(self.links[i], frames, now)
        except ChpError as error:
            self._garbage(i, error, now)
            if len(frames) == 5 and (peeked := peek(frames[4])) is not None:
                self.copy_channels.unread(self.links[i], headers.request_of(peeked[0]), error, now)

    def _garbage(self, i: int, error: ChpError, now: float) -> None:
        """Count an unreadable message of a server. Warn about it at most once in GARBAGE_TOLD_S."""
        link = self.links[i]
        self.stats["garbage"] += 1
        self.out.effects.notes.append(f"{link.address}: {error}")
        if now - link.garbage_told_at >= GARBAGE_TOLD_S:
            link.garbage_told_at = now
            self.out.effects.warnings.append(
                f"{link.address} sent what can't be read: {error}; is one of the two of an older version? Trying on"
            )

    def _update(self, link: ServerView, frames: Sequence[bytes], now: float) -> None:
        if not frames or len(frames) != 5:
            raise BadFrame(f"a message of {len(frames)} frames came, not 5")
        topic = frames[0]
        if topic[:1] != STX:
            try:
                self.chp1.on_update(link, frames, now, needed=self.active is None)
            finally:
                self._heed_chp1(now)
            return
        number = unpack(frames[1])
        channel = self.copy_channels.by_topic.get(topic)
        if channel is None and topic[-NONCE_BYTES - 1 : -NONCE_BYTES] == ETX:
            put_off = link is self.active or self.active is None
            self.copy_channels.told_alone(link, topic[:-NONCE_BYTES], frames[4], now, put_off)
            return
        echoes = channel is not None and self.outbox.batches and not channel.watching
        if channel is not None and echoes and self._own_echo(link, channel, frames[4], now):
            return
        header, items = decode(frames[4])
        if isinstance(header, headers.Batch | headers.Heartbeat):
            if channel is not None:
                self._on_channel(link, channel, header, items, body=frames[4], now=now)
            elif link.looked and isinstance(header, headers.Heartbeat):
                self._seen(link, header, now)
        elif isinstance(header, headers.Greeting):
            self._greeting(link, topic, header, now)
        elif channel is not None and isinstance(header, headers.Refused):
            self._speaks_chp2(link)
            put_off = link is self.active or self.active is None
            self.copy_channels.not_subscribed(channel, link, header, now, put_off)
        elif isinstance(header, headers.Move):
            self._asked_to_move(link, header, now)
        elif topic == self.session.topic and epoch_of(number) >= self.leadership.epoch:
            self._answered(link, header, number, now)

    def _answered(self, link: ServerView, header: headers.Header, number: int, now: float) -> None:
        if isinstance(header, headers.Ack):
            if epoch_of(number) > self.leadership.epoch:
                # Only an active acknowledges, so this server is active. A server of a lower epoch lacks the set that is
                # acknowledged here.
                self._learned(link, headers.State.ACTIVE, number, now)
            self.own.acked(header, number, now)
        elif isinstance(header, headers.Refused):
            self.own.refused(link, header, now)
            self._update_state(now)

    def _on_channel(
        self,
        link: ServerView,
        channel: CopyChannel,
        header: headers.Batch | headers.Heartbeat,
        items: list[Any],
        *,
        body: bytes,
        now: float,
    ) -> None:
        lead = self.leadership
        if isinstance(header, headers.Heartbeat):
            link.told_pace(header.heartbeat_ms)
            link.told_load(header, now)
            self._greeted_by_heartbeat(link, channel, now)
            self._learned(link, headers.State.ACTIVE, header.number, now)
        elif epoch_of(header.last) > lead.epoch:
            self._learned(link, headers.State.ACTIVE, header.last, now)
        if link is not lead.active:
            self.stats["stale_messages"] += 1
            return
        link.heard_at = channel.heard_at = now
        if link.replica is not None and isinstance(header, headers.Heartbeat):
            late = self.freshness.measure_age(link.replica.age_ms / 1000)
        else:
            late = self.freshness.measure(header.wall_ms, now)
        if late:
            self._lagging(channel)
        self.copy_channels.heard(channel, header, items, body=body, server=link, now=now)
        self._after(channel, now)

    def _own_echo(self, link: ServerView, channel: CopyChannel, body: bytes, now: float) -> bool:
        """Take a record of nothing but own batches without unpacking it. Return False for any other record."""
        header = self.copy_channels.echo(channel, body, now) if link is self.leadership.active else None
        if header is None:
            return False
        link.heard_at = channel.heard_at = now
        if self.freshness.measure(header.wall_ms, now):
            self._lagging(channel)
        self._update_state(now)
        return True

    def _lagging(self, channel: CopyChannel) -> None:
        if channel.live:
            self.stats["lags"] += 1
            self.out.effects.lags.append(self.freshness.lag_s)
            self.freshness.measure_anew()

    def _after(self, channel: CopyChannel, now: float) -> None:
        if channel.changes:
            self.out.effects.changes += channel.changes
            channel.changes = []
        self._update_state(now)

    # -- greetings

    def _greeting(self, link: ServerView, topic: bytes, header: headers.Greeting, now: float) -> None:
        if not spoken(header.version):
            self._not_spoken(link, header.version, now)
            return
        restarted = link.introduce(header)
        link.told_load(header, now)
        self._speaks_chp2(link)
        news = link.has(topic)
        self._look_if_replica(link, now)
        self._check_list(link, header.state, now)
        self._learned(link, header.state, header.number, now, restarted)
        self._join_if_greeted(link, now)
        channel = self.copy_channels.by_topic.get(topic)
        if channel is not None and link is self.active:
            self.copy_channels.greeted(channel, link, news, now)
        if topic == self.session.topic:
            self.own.pump(now)

    def _not_spoken(self, link: ServerView, version: object, now: float) -> None:
        """Leave a server whose protocol version is not supported, and send it nothing."""
        link.protocol, link.heard_at = 2, now
        if not link.unspoken:
            link.unspoken = unspoken(version)
            self.out.effects.notes.append(link.describe(now))
        if link is self.active:
            self._leave(now)

    def _speaks_chp2(self, link: ServerView) -> None:
        if link.protocol != 2:
            link.protocol = 2
            if len(self.links) <= PAIR:
                self.out.effects.unsubscribe.append((link.index, HUGZ))
            self.chp1.lost(link)

    def _greeted_by_heartbeat(self, link: ServerView, channel: CopyChannel, now: float) -> None:
        """Take a HEARTBEAT as proof that the server has this subscription, as a greeting may be lost.

        For the channel of our answers two HEARTBEATs are needed: the first may have left before our subscription
        arrived.
        """
        self._speaks_chp2(link)
        link.has(channel.topic)
        channel.refusals = 0
        if channel is self.channels[0] and self.session.topic not in link.greeted:
            link.beats += 1
            if link.beats >= 2:
                link.greeted.add(self.session.topic)
                self.own.pump(now)

    # -- whom to follow

    def _learned(self, link: ServerView, state: int, number: int, now: float, restarted: bool = False) -> None:
        self.choice.list.lift(link, now)
        move = self.leadership.learned(link, state, number, now, restarted)
        if self.choice.on:
            move = self._weighed(link, move, now)
        if move is Move.LEAVE:
            self.out.effects.notes.append(f"{link.address} is no longer active")
            self._leave(now)
        elif move is not Move.STAY:
            self._follow(link, move is Move.ANEW, now)

    def _follow(self, link: ServerView, anew: bool, now: float) -> None:
        if self.active is not None:
            self.stats["moves" if link is self.choice.joining else "failovers"] += link is not self.active
        if anew:
            self.stats["histories_restarted"] += 1
            # The numbers that these tickets wait for may never be reached.
            self.session.settle_held(all_of_them=True)
        self.chp1.stop()
        self.leadership.follow(link)
        self.freshness.measure_anew()
        self.out.effects.notes.append(f"following {link.address} in epoch {link.epoch}")
        self.copy_channels.follow(link, anew, now)
        self.session.followed(link, now)
        self.report.follow(now)
        if self.choice.on:
            self._read_only_at(link, now)
        self._update_state(now)

    def _leave(self, now: float) -> None:
        self.leadership.leave(now)
        self.copy_channels.stop()
        if self.choice.on:
            self._lose(now)
        self._update_state(now)

    # -- several servers to choose from

    def _weighed(self, link: ServerView, move: Move, now: float) -> Move:
        """Return the move for a client that chooses by looks. Another server is followed after a look only."""
        choice = self.choice
        if link is self.active:
            choice.regain(now)
            if move is Move.ANEW and link.replica is not None:
                # A replica that restarted has the history of the pair, as before.
                return Move.FOLLOW if link.epoch > self.epoch or link.number >= self._furthest else Move.LEAVE
            return move
        if choice.is_back(link):
            return Move.FOLLOW
        if move is Move.FOLLOW and not choice.looks and choice.joining is None:
            self._look(now)
        choice.heard(link, now)
        if choice.looks and now >= choice.choose_at:
            self._choose(now)
        return Move.STAY

    @property
    def _furthest(self) -> int:
        """The highest number that a channel holds."""
        return max(channel.at for channel in self.channels)

    def _look(self, now: float, move: headers.Move | None = None) -> None:
        """Subscribe to PULSE at the other servers. Their greetings tell their states and loads."""
        self._give_up_joining()
        for link in self.choice.begin(self._furthest, now, move):
            # A write-only client reads PULSE anyway.
            if not (link.used and self.write_only):
                if link.looked:
                    self.out.effects.unsubscribe.append((link.index, PULSE_TOPIC))
                self.out.effects.subscribe.append((link.index, PULSE_TOPIC))
                link.looked = True

    def _end_look(self) -> None:
        for link in self.choice.end():
            link.looked = False
            link.greeted.discard(PULSE_TOPIC)
            self.out.effects.unsubscribe.append((link.index, PULSE_TOPIC))

    def _seen(self, link: ServerView, header: headers.Heartbeat, now: float) -> None:
        """Take a heartbeat on PULSE, which tells a look as much as a greeting."""
        link.told_pace(header.heartbeat_ms)
        link.told_load(header, now)
        self._learned(link, headers.State.ACTIVE, header.number, now)

    def _choose(self, now: float) -> None:
        """End the look, and follow or join the server that it found."""
        choice = self.choice
        picked = choice.pick(now)
        if picked is None and choice.lost(now):
            self._look(now)
            return
        self._end_look()
        if picked is None:
            choice.stay(now)
            return
        anew = choice.is_anew(picked, now)
        self._use(picked)
        if choice.lost(now) or picked.epoch > self.epoch:
            self._follow(picked, anew, now)
        else:
            choice.join(picked, now)
            self._join_if_greeted(picked, now)

    def _use(self, link: ServerView) -> None:
        """Read at this server: subscribe to all channels."""
        if not link.used:
            link.used = True
            link.greeted.clear()
            link.turned_down.clear()
            link.beats = 0
            self.out.effects.subscribe += [(link.index, topic) for topic in self._topics]

    def _disuse(self, link: ServerView) -> None:
        """Read at this server no longer."""
        if link.used:
            link.used = False
            link.greeted.clear()
            link.forbidden.clear()
            link.refused.clear()
            self.out.effects.unsubscribe += [(link.index, topic) for topic in self._topics]

    def _read_only_at(self, followed: ServerView, now: float) -> None:
        """Read at the followed server alone. If that is of the pair, use both servers of the pair, as clients do."""
        choice = self.choice
        self._end_look()
        pair = choice.list.pair if followed.replica is None else []
        for link in self.links:
            if link is followed or link in pair:
                self._use(link)
            else:
                self._disuse(link)
        if self.freshness.state is State.SYNCED and self.freshness.current_at is not None:
            choice.settles_until = self.freshness.current_at + self.leadership.silence_s()
        choice.followed(followed, now)

    def _join_if_greeted(self, link: ServerView, now: float) -> None:
        """Follow the joined replica once that has all our subscriptions, so that the resume begins at once."""
        if link is self.choice.joining and link.greeted.issuperset(self.copy_channels.by_topic):
            if link.state == headers.State.ACTIVE and link.epoch >= self.epoch:
                self._follow(link, False, now)
            else:
                self._give_up_joining()
                self.choice.stay(now)

    def _give_up_joining(self) -> None:
        link = self.choice.give_up()
        if link is not None and link is not self.active:
            self._disuse(link)

    def _asked_to_move(self, link: ServerView, header: headers.Move, now: float) -> None:
        """Look for a replica with fewer readers, as the followed one asks for it."""
        choice = self.choice
        if choice.on and link is self.active and not choice.looks and choice.joining is None:
            self.stats["moves_asked"] += 1
            self._look(now, header)

    def _broken(self, broken: bool, now: float) -> None:
        """Look at once if the connection to the followed server ended, as that server is probably gone."""
        self.choice.broken = broken
        if broken:
            self._lose(now)

    def _lose(self, now: float) -> None:
        self.choice.lose(now)
        if not self.choice.looks:
            self._look(now)

    def _look_if_replica(self, link: ServerView, now: float) -> None:
        """Begin to choose by looks once one of the two listed servers turns out to be a replica."""
        choice = self.choice
        if link.replica is not None and not choice.on:
            choice.on = True
            self._look(now)

    def _check_list(self, link: ServerView, state: int, now: float) -> None:
        """Use no third server of a pair, and no server of another pair."""
        why = self.choice.list.check(link, state, now)
        if why:
            self.out.effects.warnings.append(f"{link.address} is not used: {why}")

    def _on_choice_timer(self, now: float) -> None:
        choice = self.choice
        if now >= choice.settles_until:
            choice.settles_until = 0.0
        if now >= choice.join_until:
            self._give_up_joining()
            choice.stay(now)
        if self.leadership.silent(now):
            choice.lose(now)
        if choice.looks:
            if now >= choice.choose_at:
                self._choose(now)
        elif now >= choice.look_at:
            self._look(now)

    # -- answers on P

    def _reply(self, link: ServerView, frames: Sequence[bytes], now: float) -> None:
        if len(frames) != 5:
            raise BadFrame(f"a reply of {len(frames)} frames came, not 5")
        if frames[0][:1] != STX:
            try:
                self.chp1.on_reply(link, frames, now)
            finally:
                self._heed_chp1(now)
            return
        header, items = decode(frames[4])
        if not isinstance(header, Answer | headers.Refused):
            return
        request = header.number if isinstance(header, headers.Refused) else header.request
        channel = self.copy_channels.requested(request, link, header)
        if channel is None:
            self.copy_channels.missed(link, request, header, items, now)
            self.ask_missed(now)
        elif isinstance(header, headers.Refused):
            self._request_refused(link, channel, header, now)
        elif self.copy_channels.voted(channel, request, link):
            self._learned(link, headers.State.ACTIVE, unpack(frames[1]), now)
        else:
            error = self.copy_channels.answered(channel, header, items, link, now)
            if error is not None:
                self._garbage(link.index, error, now)
            self._after(channel, now)

    def _request_refused(self, link: ServerView, channel: CopyChannel, header: headers.Refused, now: float) -> None:
        self.copy_channels.refused(channel, header, link, now)
        if header.code == "access":
            link.forbidden[channel.topic] = str(header.detail)[:400]
        if header.code != "passive":
            return
        if link is self.active:
            self._leave(now)
        else:
            link.heard_at = now
            link.state = header.detail if type(header.detail) is int else link.state

    def ask_missed(self, now: float) -> None:
        """Ask the active for the changes that watches have missed."""
        if self.chp1.following:
            self.out.effects.missed += self.copy_channels.backlogs.fail()
        elif self.active is not None:
            self.copy_channels.ask_missed(self.active, now)

    # -- time

    def _heed_chp1(self, now: float) -> None:
        self.own.settle_chp1(now)
        self._update_state(now)

    def _update_state(self, now: float) -> None:
        if self.session.unsettled:
            self.session.settle_held()
        if self.closed:
            return
        active, choice = self.leadership.active, self.choice
        heard_at = self.chp1.heard_at if active is None else active.heard_at
        if active is not None and active.replica is not None:
            heard_at = active.word_at
        if choice.settles_until:
            if now < choice.settles_until and not self.leadership.silent(now) and not self.subscriptions.live:
                # The state stays: the copy is no older than at the last server, and the resume here completes it.
                return
            choice.settles_until = 0.0
        was_synced = self.freshness.state is State.SYNCED
        state = self.freshness.told(self._is_current(now), heard_at)
        if state is not None:
            self.out.effects.states.append(state)
            if was_synced:
                self.leadership.hurry(now)

    def _is_current(self, now: float) -> bool:
        """Return True if the followed server was heard on each channel lately, and no channel misses anything."""
        if self.chp1.following:
            return self.chp1.is_alive(now) and self.subscriptions.live
        active, since = self.leadership.active, now - self.leadership.silence_s()
        if active is not None and active.replica is not None and active.word_at < since - self._hops_s(active):
            return False
        return active is not None and active.heard_at >= since and self.subscriptions.is_current(since)

    @staticmethod
    def _hops_s(link: ServerView) -> float:
        """Return how much older the active's word may be at a replica: one heartbeat for each hop."""
        return 0.0 if link.replica is None else link.replica.hops * link.heartbeat_s

    def next_deadline(self) -> float:
        """Return the time when `on_timer` should be called if nothing else happens."""
        if self.chp1.following:
            return min(self.leases.next_due(), self.chp1.next_deadline())
        lead, synced = self.leadership, self.freshness.state is State.SYNCED
        silence_s, follows = lead.silence_s(), lead.active is not None
        return min(
            lead.next_deadline(silence_s, synced),
            self.copy_channels.next_deadline(silence_s, follows=follows, synced=synced),
            self.session.next_deadline(),
            self.leases.next_due(),
            self.report.due if follows else NEVER,
            self.choice.next_deadline(),
        )

    def on_timer(self, now: float) -> None:
        """Do everything that is due."""
        lead = self.leadership
        if self.choice.on:
            self._on_choice_timer(now)
        self._refresh_leases(now)
        self.chp1.on_timer(now)
        if self.chp1.following:
            self._heed_chp1(now)
            self.ask_missed(now)
            return
        if lead.active is not None:
            self.copy_channels.hear_again(lead.active, lead.silence_s(), lead.silent(now), now)
        if lead.active is not None and (lead.active.forbidden or not lead.silent(now)):
            # A client without the right to read may still write, or must learn that it may not.
            self._retry(lead.active, now)
        self.report.on_timer(self, lead.active, now)
        if lead.silent(now):
            self._ask_others(now)
        self._update_state(now)

    def _refresh_leases(self, now: float) -> None:
        """Send the refreshes that are due. While no server is heard, at most one refresh of each lease waits."""
        for segment, handle in self.leases.due(now):
            waits = any(batch.extras == segment.extras for batch in self.outbox.batches.values())
            if not (waits and self.leadership.silent(now)):
                self.submit(segment, handle(), now)

    def _ask_others(self, now: float) -> None:
        """Vote, as no server is heard. Connect anew to servers that live but can't be heard."""
        if now >= self.leadership.vote_at:
            for link in self.leadership.electorate(now):
                if self.choice.may_vote(link, now):
                    self.copy_channels.vote(link)
                    link.voted(now)
        for link in self.leadership.deaf(now):
            self.stats["reconnects"] += 1
            self.out.effects.reconnect.append(link.index)
            self.out.effects.notes.append(f"{link.address} lives, and nothing comes on its P+1: connecting anew")
        self._put_off(self.leadership.vote_at)

    def _put_off(self, until: float) -> None:
        """Look at overdue work with the next vote, as there is no server to ask or to send to."""
        self.session.put_off(until)
        self.copy_channels.put_off(until)

    def _retry(self, active: ServerView, now: float) -> None:
        self.ask_missed(now)
        self.copy_channels.retry(active, now)
        if self.session.is_overdue(now):
            # The answers may have been lost. Subscribe again, and send again after the greeting that follows.
            self.copy_channels.subscribe_again(active, self.session.topic)
            active.has_not(self.session.topic)
            self.session.resend(active, self.outbox.first)

    def check(self) -> None:
        """Assert every invariant. Users' tests and our own call it."""
        self.subscriptions.check()
        assert list(self.outbox.batches) == sorted(self.outbox.batches), "batches leave in order"
        assert self.outbox.size == sum(batch.size for batch in self.outbox.batches.values()), "the window is counted"
