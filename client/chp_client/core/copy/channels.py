"""How the channels of a client get complete at the server that is followed, and stay so.

    a server is followed         ask it on every channel, for what changed since `at` or for everything
    a hole, a difference         ask again, at once the first time, then ever later
    no answer                    ask again                   nobody is heard    later, with the next vote
    nothing comes on a channel   subscribe to it again; in the end, connect anew

It is told whom to ask, decides nothing about servers, and adds requests and subscriptions to the effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from chp import headers
from chp.batch import Segment, decode, packb, peek
from chp.errors import ChpError
from chp.limits import Limits
from chp.messages import ICANHAZ
from chp.numbers import describe
from chp.versions import VERSION

from ..events import Sink
from ..outbox import SentBatch, echoed
from ..server_view import ServerView
from ..timing import AGAIN, NEVER, SYNC_RETRY_S_MAX, Chance, Timing
from .backlog import Backlogs
from .channel import CREDIT, BatchVerdict, ChannelSync, CopyChannel, own_number
from .subscriptions import Subscriptions

Answer = headers.Sync | headers.Records | headers.Kthxbai

DENIED_TIMES = 3  # put off so often, and no longer: who is granted again waits 6 s at most


class CopyChannels:
    """The channels of one client, and the requests under way for them."""

    def __init__(
        self,
        holding: Subscriptions,
        own_batches: Callable[[int, int], list[SentBatch]],
        *,
        limits: Limits,
        timing: Timing,
        chance: Chance,
        stats: Counter[str],
        out: Sink,
    ) -> None:
        self.all, self.write_only = holding.all, holding.write_only
        self.by_topic = {channel.topic: channel for channel in self.all}
        self.backlogs = Backlogs(limits.join_buffer_bytes)
        self.session = b""  # our public id, which servers tell of in what they send
        self._holding = holding
        self._own_batches = own_batches
        self._timing, self._chance = timing, chance
        self._stats, self._out = stats, out
        self._requests: dict[int, CopyChannel] = {}
        self._votes: dict[int, int] = {}  # the newest vote by server
        self._last_id = 0

    # -- own sets

    def undo(self, batch: SentBatch, later: set[str], server: ServerView | None, now: float) -> None:
        """A batch that was shown came to nothing: bring the confirmed values back; `later` own sets stay shown."""
        for channel in self.all:
            keys = {key for key in batch.keys if key.startswith(channel.subtree)}
            channel.replica.orphans |= keys
            channel.replica.pending.drop(keys - later)
            if keys and server is not None:
                channel.live = False
                self.ask(channel, server.index, 0, now)

    def renumbered(self, batches: Sequence[SentBatch], session: bytes, server: ServerView, now: float) -> None:
        """Own batches have new numbers, in another session; what is shown and among none of them is lost."""
        self.session = session
        waiting = [channel.replica.pending.keys() for channel in self.all]
        for channel in self.all:
            channel.replica.pending.forget()
        for batch in batches:
            if batch.shown:
                # a server that is gone may have confirmed it, and others' sets after it
                self._holding.show(batch.columns())
                self._holding.pend(batch)
        for channel, keys in zip(self.all, waiting, strict=True):
            if channel.sync is not None and channel.replica.pending:  # its end would tell of the other session
                self.ask(channel, server.index, channel.at, now)
            lost = keys - channel.replica.pending.keys()
            if lost:  # acknowledged, and gone with the server that did so
                channel.replica.orphans |= lost
                channel.live = False
                self.ask(channel, server.index, 0, now)

    # -- whom to ask

    def follow(self, server: ServerView, anew: bool, now: float) -> None:
        """This server is followed; `anew`: its numbers may mean something else."""
        for channel in self.all:
            channel.stop()
            channel.heard_at = now
            channel.troubles = channel.told_keys = 0
            if anew:
                channel.at, channel.anew = 0, True
            if self.write_only:
                channel.live = channel.synced_once = True
            elif channel.topic in server.greeted:
                self.ask(channel, server.index, channel.at, now)
        self._votes.clear()

    def stop(self) -> None:
        """Nobody is followed."""
        for channel in self.all:
            channel.stop()

    def ask(self, channel: CopyChannel, server: int, start: int, now: float, wait_s: float | None = None) -> None:
        """ICANHAZ of CHP/2: a snapshot, or what changed since `start`; again if nothing of it comes for `wait_s`."""
        self._give_up(channel)
        if channel.replica.orphans or channel.differs:
            start = 0  # only a snapshot tells what they are
        sync = channel.ask(self._next_id(channel), server, start, now)
        sync.session, sync.wait_s = self.session, wait_s or self._timing.sync_retry_s
        self._send_request(server, channel, start, CREDIT)

    def _give_up(self, channel: CopyChannel) -> None:
        if channel.sync is not None:
            self._requests.pop(channel.sync.id, None)

    def _next_id(self, channel: CopyChannel | None = None) -> int:
        self._last_id += 1
        if channel is not None:
            self._requests[self._last_id] = channel
        return self._last_id

    def _send_request(self, server: int, channel: CopyChannel, start: int, credit: int) -> None:
        body = {
            "chp": VERSION, "id": self._last_id, "from": start, "proof": channel.whose,
            "session": self.session, "credit": credit,
        }  # fmt: skip
        self._out.effects.request.append((server, [ICANHAZ, channel.subtree.encode(), packb(body)]))

    def vote(self, server: int) -> None:
        """Ask for the first channel; a passive takes it as a vote."""
        channel = self.all[0]
        self._requests.pop(self._votes.get(server, 0), None)
        self._votes[server] = self._next_id(channel)
        self._send_request(server, channel, channel.at, 1)
        self._stats["votes"] += 1

    def refetch(self, server: ServerView, now: float) -> None:
        """Fetch everything anew, as after a lag: what is queued is dropped unread."""
        for channel in self.all:
            if not self.write_only and channel.sync is None:
                channel.live = False
                self.ask(channel, server.index, 0, now)

    # -- answers

    def requested(self, request: int, link: ServerView, header: headers.Header) -> CopyChannel | None:
        """What a request was made for, if it was not given up."""
        channel = self._requests.get(request)
        if channel is not None and channel.topic in link.forbidden and not isinstance(header, headers.Refused):
            self._allowed(channel, link)
        return channel

    def voted(self, channel: CopyChannel, request: int, server: ServerView) -> bool:
        """Whether this answers a vote: who serves is active."""
        if channel.sync is not None and channel.sync.id == request:
            return False
        self._requests.pop(request, None)
        self._votes.pop(server.index, None)
        return True

    def answered(
        self, channel: CopyChannel, header: Answer, items: list[Any], server: ServerView, now: float
    ) -> ChpError | None:
        """What comes of a request; what was wrong with it, after which it is made again."""
        sync = channel.sync
        if sync is None or sync.server != server.index:
            return None
        server.heard_at = channel.heard_at = now
        if isinstance(header, headers.Kthxbai):
            del self._requests[sync.id]
            server.refusal = ""
            self.obey(channel, channel.on_kthxbai(header, self.session, now), server, now)
            return None
        try:
            more = channel.on_chunk(header, items, self.session, now)
        except ChpError as error:
            self._resync(channel, server, now)
            return error
        if more:
            body = packb({"chp": VERSION, "id": header.request, "more": more})
            self._out.effects.request.append((server.index, [ICANHAZ, channel.subtree.encode(), body]))
        return None

    def unread(self, server: ServerView, request: int | None, error: ChpError, now: float) -> None:
        """An answer can't be read: ask for a channel again, ever later; tell a watch, as the answer stays the same."""
        channel = None if request is None else self._requests.get(request)
        if channel is not None:
            if channel.sync is not None and channel.sync.id == request and channel.sync.server == server.index:
                self._resync(channel, server, now)
            return
        log = None if request is None else self.backlogs.of(request)
        if log is not None and log.server == server.index:
            self._out.effects.missed.append((log.handle, self.backlogs.broken(log, server.address, error)))

    def refused(self, channel: CopyChannel, header: headers.Refused, server: ServerView, now: float) -> None:
        """A request was refused; why is kept for who asks how the server looks."""
        del self._requests[header.number]
        if header.code == "passive":
            return
        server.refusal = f"{header.code}: {header.detail}"[:200]
        self._stats["requests_refused"] += 1
        self._out.effects.notes.append(f"{server.address} refused {channel.subtree!r}: {server.refusal}")
        if channel.sync is not None and channel.sync.id == header.number:  # `retry` asks again
            again_s = self._denied_again_s(channel) if header.code == "access" else self._timing.refused_retry_s
            channel.sync.wait_s = self._timing.sync_retry_s
            channel.sync.progress_at = now - channel.sync.wait_s + again_s

    def obey(self, channel: CopyChannel, verdict: BatchVerdict, server: ServerView | None, now: float) -> None:
        """What a channel made of a message."""
        if verdict is not BatchVerdict.FINE and server is not None:
            self._out.effects.notes.append(
                f"channel {channel.subtree!r}: {verdict.value} from {describe(channel.at)}, {channel.why}"
            )
            channel.live = False
            channel.differs = channel.differs or verdict is BatchVerdict.REFETCH
            self._resync(channel, server, now)

    def _resync(self, channel: CopyChannel, server: ServerView, now: float) -> None:
        """Ask for what is missing: at once, but ever later if that does not help."""
        channel.troubles += 1
        if channel.troubles == 1:
            self.ask(channel, server.index, channel.at, now)
            return
        wait_s = self._timing.put_off_s(self._timing.resync_s, channel.troubles - 1, self._chance)
        self._stats["resyncs_put_off"] += 1
        self._give_up(channel)
        # as one that was not answered: see `retry`
        channel.ask(0, server.index, 0, now).wait_s = wait_s

    # -- what comes on a channel

    def greeted(self, channel: CopyChannel, server: ServerView, news: bool, now: float) -> None:
        """The server that is followed has our subscription."""
        channel.heard_at, channel.refusals = now, 0
        if news and not channel.live and channel.sync is None:
            self.ask(channel, server.index, channel.at, now)

    def not_subscribed(
        self, channel: CopyChannel, server: ServerView, header: headers.Refused, now: float, put_off: bool
    ) -> None:
        """A server has no room for our subscription: we say so, and ask again, ever later (`put_off`)."""
        why = f"the subscription of {channel.subtree!r}, {header.code}: {header.detail}"[:200]
        if channel.topic in server.turned_down and server.refused.get(channel.topic) == why:
            return  # the server says it again, because a message on P+1 may be lost
        server.turned_down.add(channel.topic)
        self._stats["subscriptions_refused"] += 1
        if channel.topic not in server.refused:
            self._out.effects.warnings.append(f"{server.address} refused {why}; trying on")
        server.refused[channel.topic] = why
        server.greeted.discard(channel.topic)
        if put_off and header.code == "access":
            channel.again_at = now + self._denied_again_s(channel)
        elif put_off:
            channel.refusals += 1
            wait_s = self._timing.put_off_s(self._timing.refused_retry_s, channel.refusals, self._chance)
            channel.again_at = now + wait_s

    def _denied_again_s(self, channel: CopyChannel) -> float:
        """When to ask again for what the rules keep from us: ever later, but soon enough for who is granted it anew."""
        channel.refusals = min(channel.refusals + 1, DENIED_TIMES)
        return self._timing.put_off_s(self._timing.refused_retry_s, channel.refusals, self._chance)

    def told_alone(self, link: ServerView, topic: bytes, body: bytes, now: float, put_off: bool) -> None:
        """Take a refusal that was sent to one subscriber: the topic has 8 more bytes behind it."""
        header, _ = decode(body)
        if isinstance(header, headers.Refused) and header.code == "access":
            link.forbidden[topic] = str(header.detail)[:400]
            if (channel := self.by_topic.get(topic)) is not None:
                self.not_subscribed(channel, link, header, now, put_off)

    def _allowed(self, channel: CopyChannel, link: ServerView) -> None:
        """What the rules kept from us they allow by now, as an answer on P shows: what is published too."""
        link.forbidden.pop(channel.topic, None)
        link.refused.pop(channel.topic, None)
        channel.refusals = 0
        self.subscribe_again(link, channel.topic)

    def echo(self, channel: CopyChannel, body: bytes, now: float) -> headers.Batch | None:
        """The header of a record of nothing but own batches, which needs no unpacking to be confirmed; it is now."""
        if channel.watching or not channel.live or len(self.all) > 1:
            return None
        header, start = peek(body) or (None, 0)
        if not isinstance(header, headers.Batch) or not header.origins:
            return None
        own = own_number(header.origins, self.session)
        known = self._own_batches(channel.replica.pending.confirmed, own) if own else []
        if not known or not echoed(known, body, start):
            return None
        segments = [Segment(batch.keys, [], batch.extras) for batch in known]
        return header if channel.on_echo(header, segments, crc32(body), now) else None

    def heard(
        self,
        channel: CopyChannel,
        header: headers.Batch | headers.Heartbeat,
        items: list[Any],
        *,
        body: bytes,
        server: ServerView,
        now: float,
    ) -> None:
        """A BATCH or HEARTBEAT of the server that is followed."""
        if self.write_only:
            channel.live = channel.synced_once = True
            number = header.number if isinstance(header, headers.Heartbeat) else header.last
            channel.at = max(channel.at, number)
        elif isinstance(header, headers.Heartbeat):
            self.obey(channel, channel.on_heartbeat(header, now), server, now)
            if not channel.live and channel.sync is None:
                self.ask(channel, server.index, channel.at, now)
        else:
            size, crc = len(body), crc32(body)
            verdict = channel.on_batch(header, items, size=size, crc=crc, session=self.session, now=now)
            self.obey(channel, verdict, server, now)

    # -- what watches have missed

    def missed(
        self, server: ServerView, request: int, header: Answer | headers.Refused, items: list[Any], now: float
    ) -> None:
        """What answers the question of a watch for what it missed; else of a request given up."""
        log = self.backlogs.of(request)
        if log is None or log.server != server.index:
            return
        log.due_at = now + self._timing.sync_retry_s
        more, result = self.backlogs.on_reply(log, header, items, now + self._timing.refused_retry_s)
        if more:
            body = packb({"chp": VERSION, "id": log.id, "more": more})
            self._out.effects.request.append((server.index, [ICANHAZ, b"", body]))
        if result is not None:
            self._out.effects.missed.append((log.handle, result))

    def ask_missed(self, server: ServerView, now: float) -> None:
        """Ask the active for what watches have missed."""
        for log in self.backlogs.due(server.index, now):
            log.asked(self._next_id(), server.index, now + self._timing.sync_retry_s)
            frames = [ICANHAZ, log.channel.subtree.encode(), packb(log.options())]
            self._out.effects.request.append((server.index, frames))

    # -- time

    def next_deadline(self) -> float:
        """When a request is made again."""
        due = NEVER
        for channel in self.all:
            if channel.sync is not None:
                due = min(due, channel.sync.progress_at + channel.sync.wait_s)
        return due

    def next_hearing(self, silence_s: float, synced: bool) -> float:
        """When a channel will have been silent for too long."""
        again = [max(channel.heard_at + AGAIN * silence_s, channel.again_at) for channel in self.all]
        if synced:
            again += [channel.heard_at + silence_s + 0.001 for channel in self.all]
        return min(again)

    def retry(self, server: ServerView, now: float) -> None:
        """Make the requests again that were not answered."""
        for channel in self.all:
            sync = channel.sync
            if sync is not None and now - sync.progress_at >= sync.wait_s:
                self._stats["sync_retries"] += 1
                self.ask(channel, server.index, channel.at, now, self._patience_s(sync))

    def _patience_s(self, before: ChannelSync) -> float:
        """How long the next answer may take: a large map's first chunk takes its time, and each asking begins anew."""
        answered = before.id == 0 or before.next_index >= 0
        return self._timing.sync_retry_s if answered else min(SYNC_RETRY_S_MAX, 2 * before.wait_s)

    def put_off(self, until: float) -> None:
        """Nobody is there to ask before."""
        self.backlogs.put_off(until)
        for channel in self.all:
            if channel.sync is not None:
                channel.sync.progress_at = max(channel.sync.progress_at, until - channel.sync.wait_s)

    def hear_again(self, server: ServerView, silence_s: float, silent: bool, now: float) -> None:
        """Subscribe again to a channel on which nothing comes, though its server may live.

        What a server knows of our subscriptions may have been taken from it, by a cancel that somebody else sent.
        """
        for channel in self.all:
            if now < max(channel.heard_at + AGAIN * silence_s, channel.again_at):
                continue
            channel.again_at = now + silence_s
            deaf = now - channel.heard_at > max(self._timing.deaf_s, 2 * silence_s) and not silent
            if deaf and channel.topic not in server.refused:
                self._out.effects.reconnect.append(server.index)
                self._stats["reconnects"] += 1
            self.subscribe_again(server, channel.topic)

    def subscribe_again(self, server: ServerView, topic: bytes) -> None:
        """Take a subscription back and give it again."""
        self._stats["subscribed_again"] += 1
        server.turned_down.discard(topic)
        self._out.effects.unsubscribe.append((server.index, topic))
        self._out.effects.subscribe.append((server.index, topic))
