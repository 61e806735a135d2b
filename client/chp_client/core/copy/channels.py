"""The channels of one client: how they become complete at the followed server, and stay complete.

    a server is followed         ask it on every channel, for what changed since `at` or for everything
    a hole, a difference         ask again: at once the first time, then after a wait that grows each time
    no answer                    ask again; while no server is heard, ask with the next vote
    silence on a channel         subscribe to it again, and in the end connect anew

The caller says which server to ask: a channel decides nothing about servers. This part adds requests and subscriptions
to the effects.
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

# The wait after a refusal grows only this many times. A client that is granted the right again waits 6 s at most.
DENIED_TIMES = 3


class CopyChannels:
    """The channels of one client, and the requests that are under way for them."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        own_batches: Callable[[int, int], list[SentBatch]],
        *,
        limits: Limits,
        timing: Timing,
        chance: Chance,
        stats: Counter[str],
        out: Sink,
    ) -> None:
        self.all, self.write_only = subscriptions.all, subscriptions.write_only
        self.by_topic = {channel.topic: channel for channel in self.all}
        self.backlogs = Backlogs(limits.join_buffer_bytes)
        # The public name of the session, which servers send with records and snapshots.
        self.session = b""
        self._subscriptions = subscriptions
        self._own_batches = own_batches
        self._timing, self._chance = timing, chance
        self._stats, self._out = stats, out
        self._requests: dict[int, CopyChannel] = {}
        # The request of the newest vote for each server.
        self._votes: dict[int, int] = {}
        self._last_id = 0

    # -- own sets

    def undo(self, batch: SentBatch, later: set[str], server: ServerView | None, now: float) -> None:
        """Fetch the confirmed values of a refused batch that was shown.

        `later` has the keys of later own sets, which stay shown.
        """
        for channel in self.all:
            keys = {key for key in batch.keys if key.startswith(channel.subtree)}
            channel.replica.orphans |= keys
            channel.replica.pending.drop(keys - later)
            if keys and server is not None:
                channel.live = False
                self.ask(channel, server.index, 0, now)

    def renumbered(self, batches: Sequence[SentBatch], session: bytes, server: ServerView, now: float) -> None:
        """Take the new numbers of own batches in a new session.

        Shown sets that are in none of these batches are lost, so the confirmed values are fetched.
        """
        self.session = session
        waiting = [channel.replica.pending.keys() for channel in self.all]
        for channel in self.all:
            channel.replica.pending.forget()
        for batch in batches:
            if batch.shown:
                # A lost server may have confirmed this batch, and then sets of its keys by other clients. So the batch
                # is shown again.
                self._subscriptions.show(batch.columns())
                self._subscriptions.pend(batch)
        for channel, keys in zip(self.all, waiting, strict=True):
            # The KTHXBAI of a request under way would tell the last batch number of the old session.
            if channel.sync is not None and channel.replica.pending:
                self.ask(channel, server.index, channel.at, now)
            # These sets were acknowledged, and lost with the server that acknowledged them.
            lost = keys - channel.replica.pending.keys()
            if lost:
                channel.replica.orphans |= lost
                channel.live = False
                self.ask(channel, server.index, 0, now)

    # -- whom to ask

    def follow(self, server: ServerView, anew: bool, now: float) -> None:
        """Follow this server. `anew` says that its numbers may have another meaning."""
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
        """Follow no server."""
        for channel in self.all:
            channel.stop()

    def ask(self, channel: CopyChannel, server: int, start: int, now: float, wait_s: float | None = None) -> None:
        """Send an ICANHAZ for a snapshot, or for what changed since `start`.

        It is sent again if nothing arrives for `wait_s`.
        """
        self._give_up(channel)
        if channel.replica.orphans or channel.differs:
            # Only a snapshot tells the right values.
            start = 0
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

    def vote(self, server: ServerView) -> None:
        """Ask this server for a channel. A passive takes the request as a vote.

        The request names the channel with the highest number among those that the server has not forbidden. A server
        takes no vote from a client that may not read the channel. Its next epoch is above the number in the vote.
        """
        channel = max(self.all, key=lambda each: (each.topic not in server.forbidden, each.at))
        self._requests.pop(self._votes.get(server.index, 0), None)
        self._votes[server.index] = self._next_id(channel)
        self._send_request(server.index, channel, channel.at, 1)
        self._stats["votes"] += 1

    def refetch(self, server: ServerView, now: float) -> None:
        """Fetch the whole copy again, for example after a lag. Queued batches are dropped unread."""
        for channel in self.all:
            if not self.write_only and channel.sync is None:
                channel.live = False
                self.ask(channel, server.index, 0, now)

    # -- answers

    def requested(self, request: int, link: ServerView, header: headers.Header) -> CopyChannel | None:
        """Return the channel of a request, or None if the request was given up."""
        channel = self._requests.get(request)
        if channel is not None and channel.topic in link.forbidden and not isinstance(header, headers.Refused):
            self._allowed(channel, link)
        return channel

    def voted(self, channel: CopyChannel, request: int, server: ServerView) -> bool:
        """Return True if this answers a vote, which shows that the server is active."""
        if channel.sync is not None and channel.sync.id == request:
            return False
        self._requests.pop(request, None)
        self._votes.pop(server.index, None)
        return True

    def answered(
        self, channel: CopyChannel, header: Answer, items: list[Any], server: ServerView, now: float
    ) -> ChpError | None:
        """Take the answer to a request of a channel.

        Returns the error of an unusable answer, after which the request is made again.
        """
        sync = channel.sync
        if sync is None or sync.server != server.index:
            return None
        server.heard_at = channel.heard_at = now
        if isinstance(header, headers.Kthxbai):
            del self._requests[sync.id]
            server.refusal = ""
            if channel.is_behind(header):
                self._stats["answers_behind"] += 1
                self._resync(channel, server, now)
                return None
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
        """Handle an answer that can't be read.

        A channel asks again, after a wait that grows each time. A watch ends with an error, as the answer would stay
        the same.
        """
        channel = None if request is None else self._requests.get(request)
        if channel is not None:
            if channel.sync is not None and channel.sync.id == request and channel.sync.server == server.index:
                self._resync(channel, server, now)
            return
        log = None if request is None else self.backlogs.of(request)
        if log is not None and log.server == server.index:
            self._out.effects.missed.append((log.handle, self.backlogs.broken(log, server.address, error)))

    def refused(self, channel: CopyChannel, header: headers.Refused, server: ServerView, now: float) -> None:
        """Handle a refused request. The reason is kept for `describe`."""
        del self._requests[header.number]
        if header.code == "passive":
            return
        server.refusal = f"{header.code}: {header.detail}"[:200]
        self._stats["requests_refused"] += 1
        self._out.effects.notes.append(f"{server.address} refused {channel.subtree!r}: {server.refusal}")
        # `retry` asks again after this wait.
        if channel.sync is not None and channel.sync.id == header.number:
            again_s = self._denied_again_s(channel) if header.code == "access" else self._timing.refused_retry_s
            channel.sync.wait_s = self._timing.sync_retry_s
            channel.sync.progress_at = now - channel.sync.wait_s + again_s

    def obey(self, channel: CopyChannel, verdict: BatchVerdict, server: ServerView | None, now: float) -> None:
        """Ask for what is missing if the verdict of a channel says so."""
        if verdict is not BatchVerdict.FINE and server is not None:
            self._out.effects.notes.append(
                f"channel {channel.subtree!r}: {verdict.value} from {describe(channel.at)}, {channel.why}"
            )
            channel.live = False
            channel.differs = channel.differs or verdict is BatchVerdict.REFETCH
            self._resync(channel, server, now)

    def _resync(self, channel: CopyChannel, server: ServerView, now: float) -> None:
        """Ask for what is missing: at once the first time, then after a wait that grows each time."""
        channel.troubles += 1
        if channel.troubles == 1:
            self.ask(channel, server.index, channel.at, now)
            return
        wait_s = self._timing.put_off_s(self._timing.resync_s, channel.troubles - 1, self._chance)
        self._stats["resyncs_put_off"] += 1
        self._give_up(channel)
        # This stands for a request without an answer, so `retry` makes the next one.
        channel.ask(0, server.index, 0, now).wait_s = wait_s

    # -- what comes on a channel

    def greeted(self, channel: CopyChannel, server: ServerView, news: bool, now: float) -> None:
        """Note that the followed server has our subscription to this channel."""
        channel.heard_at, channel.refusals = now, 0
        if news and not channel.live and channel.sync is None:
            self.ask(channel, server.index, channel.at, now)

    def not_subscribed(
        self, channel: CopyChannel, server: ServerView, header: headers.Refused, now: float, put_off: bool
    ) -> None:
        """Warn that a server refused a subscription. With `put_off`, subscribe again later."""
        why = f"the subscription of {channel.subtree!r}, {header.code}: {header.detail}"[:200]
        # A server repeats a refusal, because a message on P+1 may be lost.
        if channel.topic in server.turned_down and server.refused.get(channel.topic) == why:
            return
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
        """Return how long to wait before the next request for a subtree that the rules forbid, in seconds.

        The wait grows, but stays short enough for a client that is granted the right later.
        """
        channel.refusals = min(channel.refusals + 1, DENIED_TIMES)
        return self._timing.put_off_s(self._timing.refused_retry_s, channel.refusals, self._chance)

    def told_alone(self, link: ServerView, topic: bytes, body: bytes, now: float, put_off: bool) -> None:
        """Take a refusal that was sent to this subscriber alone. `topic` is without the nonce at its end."""
        header, _ = decode(body)
        if isinstance(header, headers.Refused) and header.code == "access":
            link.forbidden[topic] = str(header.detail)[:400]
            if (channel := self.by_topic.get(topic)) is not None:
                self.not_subscribed(channel, link, header, now, put_off)

    def _allowed(self, channel: CopyChannel, link: ServerView) -> None:
        """Subscribe again to a channel that an answer on P shows to be allowed by now."""
        link.forbidden.pop(channel.topic, None)
        link.refused.pop(channel.topic, None)
        channel.refusals = 0
        self.subscribe_again(link, channel.topic)

    def echo(self, channel: CopyChannel, body: bytes, now: float) -> headers.Batch | None:
        """Confirm a record of nothing but own batches without unpacking it.

        Returns its header, or None if the record must be handled as any other.
        """
        # A watch needs the changes, so the record is unpacked for it.
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
        """Handle a BATCH or HEARTBEAT of the followed server."""
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
            if verdict is not BatchVerdict.FINE:
                self.obey(channel, verdict, server, now)

    # -- what watches have missed

    def missed(
        self, server: ServerView, request: int, header: Answer | headers.Refused, items: list[Any], now: float
    ) -> None:
        """Take an answer to a request for what a watch missed. Ignore the answer if the request was given up."""
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
        """Ask the active for the changes that watches have missed."""
        for log in self.backlogs.due(server.index, now):
            log.asked(self._next_id(), server.index, now + self._timing.sync_retry_s)
            frames = [ICANHAZ, log.channel.subtree.encode(), packb(log.options())]
            self._out.effects.request.append((server.index, frames))

    # -- time

    def next_deadline(self, silence_s: float, *, follows: bool, synced: bool) -> float:
        """Return the time when a request is made again, or when the followed server is silent for too long."""
        due = self.backlogs.next_due() if follows and self.backlogs.under_way else NEVER
        for channel in self.all:
            if channel.sync is not None:
                due = min(due, channel.sync.progress_at + channel.sync.wait_s)
            if follows:
                due = min(due, max(channel.heard_at + AGAIN * silence_s, channel.again_at))
                if synced:
                    due = min(due, channel.heard_at + silence_s + 0.001)
        return due

    def retry(self, server: ServerView, now: float) -> None:
        """Make each request again that got no answer in time."""
        for channel in self.all:
            sync = channel.sync
            if sync is not None and now - sync.progress_at >= sync.wait_s:
                self._stats["sync_retries"] += 1
                self.ask(channel, server.index, channel.at, now, self._patience_s(sync))

    def _patience_s(self, before: ChannelSync) -> float:
        """Return how long to wait for the next answer.

        The first chunk of a large map takes long, and each request begins from the start. So the wait doubles.
        """
        answered = before.id == 0 or before.next_index >= 0
        return self._timing.sync_retry_s if answered else min(SYNC_RETRY_S_MAX, 2 * before.wait_s)

    def put_off(self, until: float) -> None:
        """Ask for nothing before `until`, as there is no server to ask."""
        self.backlogs.put_off(until)
        for channel in self.all:
            if channel.sync is not None:
                channel.sync.progress_at = max(channel.sync.progress_at, until - channel.sync.wait_s)

    def hear_again(self, server: ServerView, silence_s: float, silent: bool, now: float) -> None:
        """Subscribe again to a channel on which nothing arrives, though its server may live.

        A cancel message of another client may have removed this client's subscription at the server.
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
        """Cancel a subscription and make it again."""
        self._stats["subscribed_again"] += 1
        server.turned_down.discard(topic)
        self._out.effects.unsubscribe.append((server.index, topic))
        self._out.effects.subscribe.append((server.index, topic))
