"""Which server the client follows, and how its channels get complete there.

ACTIVE of a higher epoch  --> follow it: ask on every channel for what changed since `at`
silence                   --> every `vote_s`, ask the others for a snapshot, which a passive takes as a vote
REFUSED "passive"         --> not this one               a chunk, or KTHXBAI --> it serves
a hole, a difference      --> ask the active again, from `at` or for everything
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chp import headers
from chp.batch import decode, packb
from chp.errors import BadFrame, ChpError
from chp.keys import STX
from chp.messages import ICANHAZ
from chp.numbers import describe, epoch_of, unpack
from chp.versions import VERSION

from .channel import CREDIT, Channel, Verdict
from .corestate import CoreState
from .link import Link

AGAIN = 0.75  # of the time for which the active may be silent: then we subscribe again, and may hear it in time
Answer = headers.Sync | headers.Records | headers.Kthxbai


class Following(CoreState):
    """The part of the core that decides whom to believe and what to ask."""

    def _told(self, link: Link, state: int, number: int, now: float, restarted: bool = False) -> None:
        """A server said which state it is in, and how far it is."""
        if link.unspoken:
            return
        link.state, link.heard_at = state, now
        link.epoch = epoch_of(number)
        if state != headers.State.ACTIVE:
            if link is self.active:
                self._effects.notes.append(f"{link.address} is no longer active")
                self._unfollow(now)
        elif self._is_to_be_followed(link, now, restarted):
            self._follow(link, now)

    def _is_to_be_followed(self, link: Link, now: float, restarted: bool) -> bool:
        """Whether an ACTIVE is another than the one we follow, and to be believed."""
        if link.epoch > self.epoch:
            return True
        if link is self.active:
            return restarted
        return self._silent(now) and (link.epoch == self.epoch or self._is_history_over(now))

    def _is_history_over(self, now: float) -> bool:
        """Nobody of our epoch has been heard for long: what has a lower one is all there is (a memory store)."""
        heard = max((link.heard_at for link in self.links if link.epoch >= self.epoch), default=float("-inf"))
        return now - heard > 3 * self.silence_s()

    def _follow(self, link: Link, now: float) -> None:
        if self.active is not None:
            self.stats["failovers"] += link is not self.active
        went_back = link.epoch < self.epoch or (link is self.active and link.epoch == self.epoch)
        if went_back:
            self.stats["histories_restarted"] += 1
            self.settle_held(all_of_them=True)  # its numbers may never be reached
        self.classic.stop()
        self.active, self.epoch = link, link.epoch
        self._lag_base = None
        self._effects.notes.append(f"following {link.address} in epoch {link.epoch}")
        for channel in self.channels:
            channel.stop()
            channel.heard_at = now
            channel.troubles = channel.told_keys = 0
            if went_back:
                channel.at, channel.anew = 0, True
            if self.write_only:
                channel.live = channel.synced_once = True
            elif channel.topic in link.greeted:
                self._ask(channel, link, channel.at, now)
        self._votes.clear()
        if self.outbox.batches:
            self._resend(link, self.outbox.first)
        self._progress_at = now
        self._resend_wait_s = self.timing.resend_s
        self._update_state(now)

    def _unfollow(self, now: float) -> None:
        self.active = None
        for channel in self.channels:
            channel.stop()
        self._vote_at = now + self.timing.vote_s
        self._update_state(now)

    def _ask(self, channel: Channel, link: Link, start: int, now: float) -> None:
        """ICANHAZ of CHP/2: a snapshot, or what changed since `start`."""
        if channel.sync is not None:
            self._requests.pop(channel.sync.id, None)
        if channel.replica.orphans or channel.differs:
            start = 0  # only a snapshot tells what they are
        channel.ask(self._next_id(), link.index, start, now).session = self.outbox.public
        self._requests[self._last_id] = channel
        self._send_request(link, channel, start, CREDIT)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send_request(self, link: Link, channel: Channel, start: int, credit: int) -> None:
        body = {
            "chp": VERSION, "id": self._last_id, "from": start, "proof": channel.whose,
            "session": self.outbox.public, "credit": credit,
        }  # fmt: skip
        self._effects.request.append((link.index, [ICANHAZ, channel.subtree.encode(), packb(body)]))

    def _vote(self, now: float) -> None:
        """Ask every server but the silent one for the first channel; a passive takes it as a vote."""
        self._vote_at = now + self.timing.vote_s
        channel = self.channels[0]
        for link in self.links:
            if link is not self.active and self._may_be_asked(link, now):
                self._requests.pop(self._votes.get(link.index, 0), None)
                self._votes[link.index] = self._next_id()
                self._requests[self._last_id] = channel
                self._send_request(link, channel, channel.at, 1)
                self.stats["votes"] += 1

    def _may_be_asked(self, link: Link, now: float) -> bool:
        """Whether a request of CHP/2 arrives now (and does not wait in a queue), and harms nobody.

        A server of CHP/2 greets at once; if the greeting was lost, it is taken for one when no HUGZ of CHP/1 has come.
        """
        known = link.protocol == 2 or (link.protocol == 0 and now - link.up_at >= self.timing.unheard_s)
        return link.collector_up and known and not link.unspoken

    def _reconnect_deaf(self, now: float) -> None:
        """Connect the SUB socket anew where a server lives, as its collector's link shows, after a long silence of all.

        A subscriber that was full when the server raised its mark hears nothing more on that connection (SPEC.md,
        section 15), and a SUB socket, which sends nothing, may not notice that its connection is dead.
        """
        wait_s = max(self.timing.deaf_s, 2 * self.silence_s())
        if now - max(link.update_at for link in self.links) <= wait_s:
            return
        for link in self.links:
            if link.collector_up and link.protocol == 2 and not link.refused:  # who refuses is heard
                link.update_at = now
                self.stats["reconnects"] += 1
                self._effects.reconnect.append(link.index)
                self._effects.notes.append(f"{link.address} lives, and nothing comes on its P+1: connecting anew")

    def _reply(self, link: Link, frames: Sequence[bytes], now: float) -> None:
        if len(frames) != 5:
            raise BadFrame(f"a reply of {len(frames)} frames came, not 5")
        if frames[0][:1] != STX:
            self.classic.on_reply(link, frames, now)
            return
        header, items = decode(frames[4])
        if not isinstance(header, Answer | headers.Refused):
            return
        request = header.number if isinstance(header, headers.Refused) else header.request
        channel = self._requests.get(request)
        if channel is None:
            self._missed(link, request, header, items, now)
        elif isinstance(header, headers.Refused):
            self._request_refused(link, channel, header, now)
        else:
            self._synced(link, channel, header, items, number=unpack(frames[1]), now=now)

    def _synced(
        self, link: Link, channel: Channel, header: Answer, items: list[Any], *, number: int, now: float
    ) -> None:
        sync = channel.sync
        if sync is None or sync.id != header.request:  # a vote was answered: it serves, so it is active
            self._requests.pop(header.request, None)
            self._votes.pop(link.index, None)
            self._told(link, headers.State.ACTIVE, number, now)
            return
        if sync.server != link.index:
            return
        link.heard_at = channel.heard_at = now
        session = self.outbox.public
        if isinstance(header, headers.Kthxbai):
            del self._requests[sync.id]
            link.refusal = ""
            self._obey(channel, channel.on_kthxbai(header, session, now), now)
        else:
            self._chunk(link, channel, header, items, now)
        self._after(channel, now)

    def _chunk(
        self, link: Link, channel: Channel, header: headers.Sync | headers.Records, items: list[Any], now: float
    ) -> None:
        try:
            more = channel.on_chunk(header, items, self.outbox.public, now)
        except ChpError as error:
            self._garbage(link.index, error)
            self._mend(channel, link, now)
            return
        if more:
            body = packb({"chp": VERSION, "id": header.request, "more": more})
            self._effects.request.append((link.index, [ICANHAZ, channel.subtree.encode(), body]))

    def _missed(self, link: Link, request: int, header: Answer | headers.Refused, items: list[Any], now: float) -> None:
        """What answers the question of a watch for what it missed; else of a request given up."""
        log = self.backlogs.of(request)
        if log is None or log.server != link.index:
            return
        log.due_at = now + self.timing.sync_retry_s
        more, result = self.backlogs.on_reply(log, header, items, now + self.timing.refused_retry_s)
        if more:
            body = packb({"chp": VERSION, "id": log.id, "more": more})
            self._effects.request.append((link.index, [ICANHAZ, b"", body]))
        if result is not None:
            self._effects.missed.append((log.handle, result))
        self.ask_missed(now)

    def ask_missed(self, now: float) -> None:
        """Ask the active for what watches have missed."""
        if self.classic.following:
            self._effects.missed += self.backlogs.fail()
        elif self.active is not None:
            for log in self.backlogs.due(self.active.index, now):
                log.asked(self._next_id(), self.active.index, now + self.timing.sync_retry_s)
                frames = [ICANHAZ, log.channel.subtree.encode(), packb(log.options())]
                self._effects.request.append((self.active.index, frames))

    def _request_refused(self, link: Link, channel: Channel, header: headers.Refused, now: float) -> None:
        request, code, detail = header
        del self._requests[request]
        if code == "passive":
            link.heard_at = now if link is not self.active else link.heard_at
            if type(detail) is int and link is not self.active:
                link.state = detail
            elif link is self.active:
                self._unfollow(now)
            return
        link.refusal = f"{code}: {detail}"[:200]
        self.stats["requests_refused"] += 1
        self._effects.notes.append(f"{link.address} refused {channel.subtree!r}: {link.refusal}")
        if channel.sync is not None and channel.sync.id == request:  # on_timer asks again
            channel.sync.progress_at = now - self.timing.sync_retry_s + self.timing.refused_retry_s

    def _obey(self, channel: Channel, verdict: Verdict, now: float) -> None:
        if verdict is not Verdict.FINE and self.active is not None:
            self._effects.notes.append(
                f"channel {channel.subtree!r}: {verdict.value} from {describe(channel.at)}, {channel.why}"
            )
            channel.live = False
            channel.differs = channel.differs or verdict is Verdict.REFETCH
            self._mend(channel, self.active, now)

    def _mend(self, channel: Channel, link: Link, now: float) -> None:
        """Ask for what is missing: at once, but ever later if that does not help."""
        channel.troubles += 1
        if channel.troubles == 1:
            self._ask(channel, link, channel.at, now)
            return
        wait_s = self._put_off_s(self.timing.mend_s, channel.troubles - 1)
        self.stats["mends_put_off"] += 1
        if channel.sync is not None:
            self._requests.pop(channel.sync.id, None)
        channel.ask(
            0, link.index, 0, now + wait_s - self.timing.sync_retry_s
        )  # as one that was not answered: see `_retry`

    def _hear_again(self, now: float) -> None:
        """Subscribe again to a channel on which nothing comes, though its server may live.

        What a server knows of our subscriptions may have been taken from it, by a cancel that somebody else sent.
        """
        link, silence_s = self.active, self.silence_s()
        if link is None:
            return
        for channel in self.channels:
            if now < max(channel.heard_at + AGAIN * silence_s, channel.again_at):
                continue
            channel.again_at = now + silence_s
            deaf = now - channel.heard_at > max(self.timing.deaf_s, 2 * silence_s) and not self._silent(now)
            if deaf and channel.topic not in link.refused:
                self._effects.reconnect.append(link.index)
                self.stats["reconnects"] += 1
            self._subscribe_again(link, channel.topic)

    def _put_off_s(self, first_s: float, times: int) -> float:
        """How long to wait before what failed so often is tried again: longer each time, and some by chance."""
        return min(self.timing.mend_s_max, first_s * 2.0 ** min(times - 1, 20)) * (0.5 + self.chance())

    def _subscribe_again(self, link: Link, topic: bytes) -> None:
        self.stats["subscribed_again"] += 1
        self._effects.unsubscribe.append((link.index, topic))
        self._effects.subscribe.append((link.index, topic))

    def _after(self, channel: Channel, now: float) -> None:
        if channel.changes:
            self._effects.changes += channel.changes
            channel.changes = []
        self._update_state(now)

    def refetch(self, now: float) -> None:
        """Fetch everything anew, as after a lag: what is queued is dropped unread."""
        for channel in self.channels:
            if self.active is not None and not self.write_only and channel.sync is None:
                channel.live = False
                self._ask(channel, self.active, 0, now)
        self._update_state(now)
