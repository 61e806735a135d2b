"""The replicas that follow this server: each gets its whole state, or what it lacks, and then every record.

    ICANHAZ? STX follow ETX {id, at, below, ...}    a replica asks, with its position (server.md, section 44)
    REPLY {number, hops, age}                                first, and with each heartbeat: this server lives
    SYNC chunk ..., RECORDS [STATE]                          the state as it is, if the position is not of this history
    RECORDS [record, ...]                                    all records after the position, and then each new one
    ICANHAZ? "" {id, more, number, readers}                  the replica grants chunks, and says how it is

The replica gets what the active sends its passive (pair/follow.py), but on port P. The answer never ends. A replica
answers this question too, so one replica can follow another.

A replica that confirms says so in its question (`confirms`). It tells what its journal has synced
(`confirmed`), and gets the messages of topics with their records. It asks for messages that it lacks (`lack`, answered
by `fill`). It is in sync, and falls out of sync, by the rules for the passive: `Confirmations` in pair/follow.py.

A chunk is under way from the moment when it is sent until the replica has granted another one in its place. What is
under way to each replica is bounded in chunks and in bytes, and so is what is under way to all. A replica that does not
report, or that grants nothing while chunks are under way, loses its place and asks again. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chp import headers
from chp.access import VOUCH
from chp.batch import encode
from chp.errors import BadFrame
from chp.limits import Limits
from chp.numbers import describe, pack, sequence_of

from ..core_config import CoreConfig
from ..pair.follow import Confirmations, whole_state
from ..pair.set_shares import SetShares
from ..pair.throttle import Throttle
from ..state.history import Position
from ..state.image import NOT_YET
from ..state.missing_messages import PAGE_BYTES as MESSAGES_BYTES
from ..state.missing_messages import answer, asked, packed
from ..state.record_log import LoggedMessages, Record
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn, Frames, ReadMessages
from .feeds import PAGE_BYTES, FeedPage, FeedPages
from .syncs import reply

# A replica has at most this many hops to the pair. Each hop adds its delay, and a loop would add hops without an end.
HOPS_MAX = 8
# A server that wants to follow is remembered for this many seconds, and at most this many servers are. Such a server
# asks at least once a second.
BELOW_S, BELOW_MAX = 5.0, 32
# A replica's name is cut to this many characters.
NAME_MAX = 64
# The messages of a record that has none, or whose messages are not in memory.
NO_MESSAGES = packed(())


@dataclass(slots=True)
class ReplicaStream:
    """A replica on a connection: how far it was sent records, and what it said of itself."""

    identity: bytes
    request_id: int
    name: str
    # The number up to which records were sent.
    position: int
    credit: int
    # The time when it last said something.
    heard: float
    # What is left of the whole state, and the body that ends it.
    chunks: Iterator[Any] | None = None
    rest: Iterator[Any] | None = None
    # Records that are being read from the journal.
    page: FeedPage | None = None
    chunk: int = 0
    number: int = 0
    readers: int = 0
    hops: int = 0
    user: str = ""
    # The bytes of each chunk that is under way, their sum, and when the replica last took one of them.
    sizes: deque[int] = field(default_factory=deque)
    under_way: int = 0
    took: float = 0.0
    # What it has confirmed, if it is a replica that confirms; else None.
    confirmations: Confirmations | None = None
    # The name of its journal, and True while messages are read that it lacks.
    journal: bytes = b""
    lacks: bool = False

    def idle_s(self, now: float) -> float:
        """Return for how long the replica has said nothing, or has taken nothing of what is under way to it."""
        return now - (min(self.heard, self.took) if self.sizes else self.heard)


class Replicas:
    """All replicas that follow this server."""

    def __init__(
        self, turn: CurrentTurn, committed: Committed, pages: FeedPages, config: CoreConfig, sets: SetShares
    ) -> None:
        self._turn, self._committed, self._pages, self._config, self._sets = turn, committed, pages, config, sets
        # The reads of messages that replicas lack, each with the replicas that asked, and where the part of each ends.
        self._asked: dict[ReadMessages, list[tuple[ReplicaStream, int]]] = {}
        # The stream of each replica, by its connection.
        self.streams: dict[bytes, ReplicaStream] = {}
        # The number of the rules by which the replicas were admitted.
        self._rules = 0
        # The id of this run of the server, if it is a replica. A replica must not follow a server that follows it.
        self.server = b""
        # Returns the facts that a replica tells of itself; None on a server of the pair.
        self.load: Callable[[], dict[str, Any] | None] = lambda: None
        # Returns the active's wall clock in ms, as a replica knows it; 0 if this server's own clock is to be used.
        self.wall_ms: Callable[[], int] = lambda: 0
        # True if records are being read from the journal.
        self.reads = False
        # True if the next turn can send more at once.
        self.more = False
        # The bytes that are under way to all replicas.
        self.under_way = 0
        # The servers that want to follow this one while it does not serve, and the time when each last said so.
        self._below: dict[bytes, float] = {}

    def __len__(self) -> int:
        """Return the number of replicas."""
        return len(self.streams)

    @property
    def _limits(self) -> Limits:
        return self._committed.limits

    def serves(self, identity: bytes) -> bool:
        """Return True if a replica follows by this connection."""
        return identity in self.streams

    def full(self, identity: bytes) -> bool:
        """Return True if no further replica may follow."""
        return identity not in self.streams and len(self.streams) >= self._limits.replicas_max

    def open(self, identity: bytes, options: dict[str, Any], at: Position, user: str) -> None:
        """Begin to send a user's replica what it lacks, and end the earlier stream of the same connection."""
        turn, committed, limits = self._turn, self._committed, self._limits
        state = committed.state
        credit, name = options.get("credit", 1), options.get("name", "")
        if type(credit) is not int or credit < 1 or type(name) is not str:
            raise BadFrame("'credit' of a replica is a number from 1, and 'name' is text")
        stream = ReplicaStream(
            identity, options["id"], name[:NAME_MAX], at.number, min(credit, limits.sync_credit_max), turn.now
        )
        self.gone(identity)
        self.streams[identity] = stream
        resumes = at.number > 0 and committed.holds(at) and options.get("whole") is not True
        if not resumes:
            committed.counts["snapshots"] += 1
            stream.position = state.number
            stream.chunks, stream.rest = whole_state(state, turn, limits)
        stream.number, stream.user = at.number, user
        journal = options.get("confirms")
        if type(journal) is bytes and not self._config.replica:
            # Each journal is one copy: an earlier connection of its replica is over.
            for each in [each for each in self.streams.values() if each.journal == journal]:
                self.gone(each.identity)
            stream.journal = journal
            throttle = Throttle(self._sets.pace, self._config.slow_peer_s)
            stream.confirmations = Confirmations(stream.position, state.number, throttle)
        self._say_life(stream, self._life())
        fields = {"name": stream.name, "from": describe(at.number), "number": describe(state.number)}
        turn.effects.fact("a replica follows", **fields, by="records" if resumes else "whole state")

    def told(self, identity: bytes, options: dict[str, Any]) -> None:
        """Take the credit that a replica grants, and what it says of itself."""
        stream = self.streams.get(identity)
        if stream is None or stream.request_id != options["id"]:
            return
        more = options["more"]
        if type(more) is int and more >= 0:
            stream.credit = min(stream.credit + more, self._limits.sync_credit_max)
            stream.heard = self._turn.now
            self._took(stream, more)
            if stream.confirmations is not None:
                self._heed_confirming(stream, stream.confirmations, options)
        for name in ("number", "readers", "hops"):
            if type(options.get(name)) is int:
                setattr(stream, name, options[name])

    def _took(self, stream: ReplicaStream, chunks: int) -> None:
        """Note that a replica has taken the oldest chunks of those that are under way."""
        for _ in range(min(chunks, len(stream.sizes))):
            size = stream.sizes.popleft()
            stream.under_way -= size
            self.under_way -= size
            stream.took = self._turn.now

    # -- replicas that confirm

    def _heed_confirming(self, stream: ReplicaStream, confirmations: Confirmations, options: dict[str, Any]) -> None:
        """Take a confirmation, and a question for messages that the replica lacks."""
        if "confirmed" in options and stream.chunks is None:
            self._confirmed(stream, confirmations, Position.of(options["confirmed"]))
        if type(options.get("lack")) is bytes and not stream.lacks and stream.credit > 0:
            topic, first, end = asked(options["lack"])
            stream.lacks = True
            read = ReadMessages(topic, first, self._committed.state.number, MESSAGES_BYTES)
            self._asked.setdefault(read, []).append((stream, end))
            self._turn.effects.reads.append(read)

    def _confirmed(self, stream: ReplicaStream, confirmations: Confirmations, at: Position) -> None:
        turn, committed = self._turn, self._committed
        if not committed.holds(at):
            ours = describe(committed.state.number)
            turn.effects.fact("a replica differs", "warning", name=stream.name, replica=at.describe(), number=ours)
            self.gone(stream.identity)
            return
        was = confirmations.in_sync
        confirmations.confirm(at.number, turn.now, self._config.replica_timeout_s)
        if confirmations.in_sync and not was:
            turn.effects.fact("a replica is in sync", name=stream.name, number=describe(at.number))

    def read(self, read: ReadMessages, found: list[LoggedMessages] | Exception) -> None:
        """Send messages that replicas lack, if the read was for them; a replica asks again if they can't be read."""
        for stream, end in self._asked.pop(read, ()):
            stream.lacks = False
            if not isinstance(found, Exception) and self.streams.get(stream.identity) is stream:
                facts = {"fill": answer(read.topic, end, found)[1]}
                self._send_counted(stream, encode(headers.Reply(stream.request_id, facts)))
                self.more = True

    def _watch(self, stream: ReplicaStream, confirmations: Confirmations) -> None:
        """Put a replica out of sync that is silent, late or slow."""
        now, config = self._turn.now, self._config
        silent = now - stream.heard > config.peer_timeout_s
        slow = confirmations.is_slow(now, waits=confirmations.throttle.holds_all(confirmations.under_way))
        if confirmations.in_sync and (silent or slow or confirmations.overdue(now, config.replica_timeout_s)):
            confirmations.put_out(self._committed.state.number)
            why = "silent" if silent else "slow" if slow else "late"
            self._turn.effects.fact(
                "a replica fell out of sync",
                "warning",
                name=stream.name,
                why=why,
                confirmed=describe(confirmations.confirmed),
            )
            self._committed.counts["replicas_degraded"] += 1

    def confirmed_by(self, n: int) -> int | None:
        """Return the number that `n` replicas in sync have confirmed; None if fewer are in sync."""
        found = sorted((each.confirmed for each in self._confirming() if each.in_sync), reverse=True)
        return found[n - 1] if len(found) >= n else None

    def copies_of(self, number: int) -> int:
        """Return how many replicas have confirmed a number."""
        return sum(each.confirmed >= number for each in self._confirming())

    def confirming_in_sync(self) -> int:
        """Return how many replicas that confirm are in sync."""
        return sum(each.in_sync for each in self._confirming())

    def _confirming(self) -> Iterator[Confirmations]:
        return (stream.confirmations for stream in self.streams.values() if stream.confirmations is not None)

    def excuse(self) -> None:
        """Give all replicas their full time again: this server took no turn for a while."""
        for each in self._confirming():
            each.excuse(self._turn.now)

    # -- signs of life

    def _say_life(self, stream: ReplicaStream, life: dict[str, Any]) -> None:
        told = life if stream.confirmations is None else {**life, "confirms": True}
        self._say(stream, headers.Reply(stream.request_id, told))

    def _life(self) -> dict[str, Any]:
        """Return the sign of life of this server."""
        wall_ms = self.wall_ms() or round(self._turn.wall_s * 1000)
        return {
            "number": self._committed.state.number, "wall_ms": wall_ms, **(self.load() or {"hops": 0, "age": 0}),
        }  # fmt: skip

    def note_below(self, servers: list[bytes]) -> None:
        """Note servers that want to follow this one, directly or through a replica. Each says so again and again."""
        self._below |= dict.fromkeys(servers[:BELOW_MAX], self._turn.now)

    def below(self) -> list[bytes]:
        """Return the servers that said a moment ago that they want to follow this one."""
        self._below = {each: at for each, at in self._below.items() if self._turn.now - at < BELOW_S}
        return list(self._below)[:BELOW_MAX]

    def beat(self, blocked: set[bytes]) -> None:
        """Tell each replica that this server lives, and drop those that were silent for long."""
        life = self._life()
        for stream in list(self.streams.values()):
            if stream.idle_s(self._turn.now) > self._limits.follower_idle_s_max:
                self.gone(stream.identity)
                idle_s = round(stream.idle_s(self._turn.now))
                self._turn.effects.fact("a replica lost its place", "warning", name=stream.name, silent_s=idle_s)
                continue
            if stream.confirmations is not None:
                self._watch(stream, stream.confirmations)
            if stream.identity not in blocked:
                self._say_life(stream, life)

    def pump(self, blocked: set[bytes], room: int) -> None:
        """Send each replica that has credit what it lacks, up to the bytes that all readers may still have."""
        self.reads = self.more = False
        if self._rules != self._committed.state.access.changed:
            self._heed_rules()
        room = min(room, self._limits.sync_turn_bytes)
        if room <= 0:
            return
        for identity, stream in list(self.streams.items()):
            before = self.under_way
            while room > self.under_way - before and self._may_send(stream) and identity not in blocked:
                if not (self._state_chunk(stream) if stream.chunks is not None else self._records(stream)):
                    break
            room -= self.under_way - before
            if room <= 0:
                # Replicas that come after this one are served first in the next turn.
                self.more = True
                if identity in self.streams:
                    self.streams[identity] = self.streams.pop(identity)
                break

    def _may_send(self, stream: ReplicaStream) -> bool:
        """Return True if a replica has credit, and there is room for one more chunk that is under way.

        Two chunks are kept free for each replica that may follow, so that replicas that take nothing stop no other one.
        """
        limits = self._limits
        if stream.credit <= 0 or self.under_way >= limits.followers_bytes_max:
            return False
        kept_free = 2 * limits.sync_chunk_bytes * limits.replicas_max
        crowded = self.under_way >= limits.followers_bytes_max - kept_free
        return stream.under_way < (limits.sync_chunk_bytes if crowded else limits.follower_bytes_max)

    def _heed_rules(self) -> None:
        """Drop the replicas whose users may not vouch any more; each of them asks again, and is refused."""
        access = self._committed.state.access
        self._rules = access.changed
        for stream in list(self.streams.values()):
            if access.rules is not None and VOUCH not in access.rules.rights(stream.user).admin:
                self.gone(stream.identity)

    def _state_chunk(self, stream: ReplicaStream) -> bool:
        """Send the next chunk of the whole state; return False if it is not complete yet."""
        body = next(stream.chunks or iter(()), None)
        if body is NOT_YET:
            return False
        if body is not None:
            self._chunk(stream, headers.Sync(stream.request_id, stream.chunk), [body])
            return True
        end = next(stream.rest or iter(()), NOT_YET)
        if end is NOT_YET:
            return False
        stream.chunks = stream.rest = None
        self._chunk(stream, headers.Records(stream.request_id, stream.chunk), [end])
        return True

    def _records(self, stream: ReplicaStream) -> bool:
        """Send the next records; return False if there are none now."""
        committed = self._committed
        if stream.position == committed.state.number:
            return False
        records: list[Record] | None = committed.log.after(stream.position, self._limits.sync_chunk_bytes)
        if not records:
            page = stream.page = stream.page or self._pages.ask(stream.position, PAGE_BYTES)
            if page.waits:
                self.reads = True
                return False
            records, stream.page = page.records, None
        if not records:
            # The records are gone. The replica asks again, and gets the whole state.
            text = f"the records after {describe(stream.position)} are not retained any more"
            self._say(stream, headers.Refused(stream.request_id, "retained", text))
            self.gone(stream.identity)
            return False
        if stream.confirmations is None:
            items, stream.position = [record.body for record in records], records[-1].last
        else:
            items = self._with_messages(records, stream.confirmations)
            stream.position = stream.confirmations.position
        opener = committed.state.opener_of(stream.position)
        header = headers.Records(stream.request_id, stream.chunk, opener)
        self._chunk(stream, header, items)
        return True

    def _with_messages(self, records: list[Record], confirmations: Confirmations) -> list[bytes]:
        """Return the first of some records, each followed by its messages, up to the bytes of a chunk."""
        items, left = list[bytes](), self._limits.sync_chunk_bytes
        for record in records:
            if items and record.weight > left:
                break
            left -= record.weight
            items += record.body, packed(record.messages) if record.messages else NO_MESSAGES
            confirmations.sent(record.last, record.weight, self._turn.now)
        return items

    def _chunk(self, stream: ReplicaStream, header: headers.Header, items: list[bytes]) -> None:
        stream.chunk += 1
        self._send_counted(stream, encode(header, items))

    def _send_counted(self, stream: ReplicaStream, body: bytes) -> None:
        """Send a chunk. It costs one credit, and is under way until the replica grants another chunk."""
        stream.credit -= 1
        if not stream.sizes:
            stream.took = self._turn.now
        stream.sizes.append(len(body))
        stream.under_way += len(body)
        self.under_way += len(body)
        self._send(stream, body)

    def _say(self, stream: ReplicaStream, header: headers.Header) -> None:
        self._send(stream, encode(header))

    def _send(self, stream: ReplicaStream, body: bytes) -> None:
        message: Frames = reply(pack(self._committed.state.number), body)
        self._turn.effects.replies.append((stream.identity, [message]))

    def gone(self, identity: bytes) -> None:
        """Forget a replica whose connection has ended."""
        stream = self.streams.pop(identity, None)
        if stream is not None:
            self.under_way -= stream.under_way
        if not self.streams:
            # Nothing is read or sent for replicas any more.
            self.reads = self.more = False

    def clear(self) -> None:
        """Drop all replicas: this server no longer serves."""
        self.streams.clear()
        self.reads = self.more = False
        self._asked.clear()
        self.under_way = 0

    def status(self) -> list[dict[str, Any]]:
        """Return the facts for the status: each replica, the updates that it lacks, and its readers."""
        newest = sequence_of(self._committed.state.number)
        return [
            {
                "name": stream.name,
                "hops": stream.hops,
                "readers": stream.readers,
                "lag": max(0, newest - sequence_of(stream.number)),
                "silent_s": round(self._turn.now - stream.heard, 3),
                # None for a replica that does not confirm.
                "in_sync": None if stream.confirmations is None else stream.confirmations.in_sync,
            }
            for stream in self.streams.values()
        ]
