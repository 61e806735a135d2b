"""The checkers: the rules that must hold under any faults. A checker sees what nodes do, and never the faults.

    after each turn of a server   Its map is the one its number stands for, numbers go up, and none is issued twice.
    at an acknowledgement         The record is on this disk (journaled) or on both (replicated), and the server is not
                                  fenced.
    at each message to a client   The rules of access allow it (access.py).
    after each turn of a client   A complete copy is the one its number stands for, and its number never goes down.
    at the end (`settle`)         All nodes are in sync within a stated time. Both servers are equal, and equal to a
                                  replay of each journal. The surviving history keeps every promise, and each key
                                  of /lin/ is linearizable.

With an arbiter, no server acknowledges while the other one is active and holds the lease, whatever was cut or stopped.
Without an arbiter, two servers can promise only this: a STATE of the peer with a higher epoch that says "active" fences
a server. No turn that begins after that STATE arrived acknowledges anything. If the link between them is whole, the
STATE arrives at most `FENCE_S` after the successor became active, whatever pauses there were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from chp.headers import REPLICATED, State
from chp.numbers import describe, epoch_of
from chp_server.core.updates.turn import Append, Fact, Remember, Save, Turn

from . import linear, stranger
from .access import AccessChecks
from .accounts import Accounts
from .copies import further_copies
from .flooder import FLOODER
from .oracle import Oracle, Wrong
from .topics import TopicChecks

if TYPE_CHECKING:
    from .clients import ClientNode, Op
    from .network import Conn
    from .servers import ServerNode
    from .world import World

# A message reaches the peer within this time: the longest delay, turn and sync together.
FENCE_S = 0.15
# A server that has been in one turn for longer must send no BEAT. Its bound is 10 s, by a clock up to 10 % slow.
STUCK_S = 12.0
# While a server has been in one turn for less than this, its peer must not take over. This is the same bound by a fast
# clock. A successor also waits for votes.
WELL_S = 8.0
# A server that begins alone has listened for at least this time: solo_wait_s (3 s) by a fast clock, less half a second
# in which a server may take no turn.
ALONE_S = 2.2
# A peer counts as living for at least this time after its last message: peer_timeout_s (1 s) by a fast clock.
WORD_S = 0.88
# A peer counts as living for at most this time after its last message: peer_timeout_s by a slow clock, and the time
# until the next turn.
GONE_S = 1.2
# While the connection stands, a peer counts as living for at least this time after its last message.
PATIENCE_S = 3 * WORD_S
# A server believes a client that tells of up to this many epochs above the server's own.
BELIEVED = 64
# A server notices each pause that is longer than `PAUSE_S`, and none that is shorter than `SHORT_PAUSE_S`.
PAUSE_S, SHORT_PAUSE_S = 0.6, 0.45
# A STATE leaves before the sync of its turn, which takes up to this long.
SYNC_S = 0.05
DURABILITY = ("applied", "journaled", "replicated")
# A key lives for at least this share of its ttl, because clocks may run up to 10 % fast.
TTL_EARLY = 0.85
ACTIVE = 3


class Checks:
    """The checkers of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.oracle = Oracle()
        self.accounts = Accounts(world, self.oracle)
        self.failed: str | None = None
        self.topics = TopicChecks(world)
        self.access = AccessChecks(world)
        self.acks = 0
        self.compared = 0
        self.last_number: dict[str, int] = {}
        self.last_published: dict[tuple[str, bytes], int] = {}
        self.last_at: dict[tuple[str, str], int] = {}
        # epoch -> (active server, time when the epoch was on its disk)
        self.active_since: dict[int, tuple[str, float]] = {}
        # server -> (epoch of a successor, time when the server was told of it)
        self.fenced: dict[str, tuple[int, float]] = {}
        # server -> (epoch of a possible successor, time when the server was told of it)
        self.warned: dict[str, tuple[int, float]] = {}
        self.began: dict[str, float] = {}
        self.pauses: dict[str, float] = {}
        # server -> the end of its last turn that was so long that its peer may take over
        self.woke: dict[str, float] = {}
        # server -> the end of the last pause that it noticed
        self.stops: dict[str, float] = {}
        # server -> the time when its peer was last heard at its P+3
        self.words: dict[str, float] = {}
        # server -> the end of the first pause that it noticed since it last heard its peer
        self.excused: dict[str, float] = {}
        # server -> the end of the first pause that it may have noticed since it last heard its peer
        self.perhaps: dict[str, float] = {}
        # server -> the time of the last message that counts as the peer's: any but STATE, or a STATE with a proof
        self.spoken: dict[str, float] = {}
        # server -> the time and the connection's identity of the last STATE that it took for its peer's
        self.taken: dict[str, tuple[float, bytes]] = {}
        # server -> the highest epoch that a client has told this run of the server
        self.seen: dict[str, int] = {}
        # Values that a server wrote to a file of its suffix.
        self.saved: set[bytes] = set()
        # Values that the active replayed from a suffix.
        self.replayed: set[bytes] = set()
        # value -> (update, server that is to replay it, number of that server's start)
        self.replays: dict[bytes, tuple[Any, ServerNode, int]] = {}
        # True if a server was started with the role of the other one.
        self.roles_mixed_up = False
        # The last numbers of discarded suffixes.
        self.discarded: list[int] = []

    def fail(self, text: str) -> None:
        """Raise `Wrong`: a rule does not hold."""
        raise Wrong(text)

    # -- servers

    def recovered(self, node: ServerNode) -> None:
        """Forget what the last run of a server heard, and compare the recovered state."""
        if node.foreign:
            return
        self.last_number[node.name] = node.core.state.number
        times = (self.stops, self.words, self.excused, self.perhaps, self.spoken)
        for told in (self.fenced, self.warned, *times, self.taken, self.seen):
            told.pop(node.name, None)
        for key in [key for key in self.last_published if key[0] == node.name]:
            del self.last_published[key]
        self._same_as_oracle(node.name, node.core.state)

    def crashed(self, node: ServerNode) -> None:
        """Do nothing: a server that dies breaks no rule."""

    def resumed(self, node: ServerNode) -> None:
        """Note that a server runs again after a pause. If it noticed the pause, its peer gets the full time again."""
        now = self.pauses[node.name] = self.world.time.now
        if now - self.began.get(node.name, now) > PAUSE_S:
            self.stops[node.name] = now
            self._excuse(node)

    def _excuse(self, node: ServerNode) -> None:
        """Note that a server gives its peer the full time again after a pause that it noticed.

        The server does so once in each silence of the peer.
        """
        if self.words.get(node.name, float("-inf")) >= self.excused.get(node.name, float("-inf")):
            self.excused[node.name] = self.world.time.now

    def said(self, node: ServerNode, fact: Fact) -> None:
        """Check a fact that a server reports.

        A scrub must find no difference, because the checkers also compare both servers.
        """
        if fact.event == "contents differ":
            self.fail(f"{node.name} finds that contents differ: {fact.fields}")

    def word(self, node: ServerNode, conn: Conn, frames: list[bytes]) -> None:
        """Note that a message of the peer lies in a server's socket, and the epoch that an active peer tells.

        A stranger's message is no sign of life of the peer. A message of a server with a new disk is none either,
        because that server cannot prove to be the peer.
        """
        known, proves = frames[0] == b"BEAT", frames[0] != b"STATE"
        if frames[0] == b"STATE":
            said = msgpack.unpackb(frames[1])
            known = said["store"] == node.core.state.store
            proves = self._proves(node, said)
            another = not proves and self._hears_another(node, conn)
            higher = said["state"] == ACTIVE and said["epoch"] > self.fenced.get(node.name, (0, 0.0))[0]
            if higher and not another:
                self.fenced[node.name] = (said["epoch"], self.world.time.now)
            elif higher and known and self.spoken.get(node.name, 0.0) <= self.stops.get(node.name, -1.0):
                self.warned[node.name] = (said["epoch"], self.world.time.now)
            if proves or (known and not another):
                self.taken[node.name] = (self.world.time.now, conn.identity)
        if proves:
            self.spoken[node.name] = self.world.time.now
        if known and self.world.net.conns.get((conn.kind, conn.a, conn.b)) is conn:
            self.words[node.name] = self.world.time.now

    def _proves(self, node: ServerNode, said: dict[str, Any]) -> bool:
        """Return True if a STATE proves to be of the peer: by the receiver's secret, or by a position of the
        receiver's history.
        """
        state = node.core.state
        here = said["store"] == state.store and self.oracle.on_path(said["number"], state.number)
        # A server can check only what its log has, and the last number of each epoch.
        tenure = state.history.get(epoch_of(said["number"]))
        last = tenure is not None and tenure.last == said["number"]
        here &= last or node.core.committer.committed.log.digest_at(said["number"]) is not None
        return said["echo"] == node.core.pair.config.secret or here

    def _hears_another(self, node: ServerNode, conn: Conn) -> bool:
        """Return True if a server still counts an earlier run of its peer as living.

        Until that run is silent, a STATE by another connection, without a proof, is a stranger's and fences no server.
        Otherwise any program that connects to P+3 could stop the active. A successor says STATE again and again, so it
        is believed soon. If it dies before that, the server that was stopped goes on alone, and the two histories meet
        later as after a split.

        After a stop, the earlier run gets its full time again. Until a message of that run comes, each such STATE warns
        the server: it acknowledges nothing for a `peer_timeout_s` after the STATE.
        """
        if node.name not in self.taken or self.taken[node.name][1] == conn.identity:
            return False
        began, now = self.began.get(node.name, 0.0), self.world.time.now
        # A server that was stopped first gives the earlier run its full time again. Then it reads the messages that
        # wait in its socket.
        now = began if node.paused or now - began > SHORT_PAUSE_S else now
        since = max(self.taken[node.name][0], self.pauses.get(node.name, float("-inf")))
        back = self.world.net.conns.get(("peer", conn.b, conn.a))
        stands = back is not None and back.up and back.up_at < since
        return now - since < (3 * GONE_S if stands else GONE_S)

    def asked(self, node: ServerNode, frames: list[bytes]) -> None:
        """Note the epoch that a client has seen and tells with its question."""
        if len(frames) == 3 and b"\xa5proof" in frames[2] and not node.core.pair.config.keyed:
            options = msgpack.unpackb(frames[2])
            if options.get("proof", [b""])[0] == node.core.state.store != b"" and options.get("from", 0) > 0:
                self.seen[node.name] = max(self.seen.get(node.name, 0), epoch_of(options["from"]))

    def _is_there(self, node: ServerNode) -> str:
        """Return why the other server counts as living, or "" if it does not.

        It lives if it was heard a moment ago, or a longer moment ago over a connection that still stands. The time in
        which `node` was stopped does not count then. A server that has another store, or the wrong role, is no peer.
        """
        now, other = self.world.time.now, next(n for n in self.world.servers if n is not node)
        conn, word = self.world.net.conns.get(("peer", node.name, other.name)), self.words.get(node.name)
        if {True} & {one.foreign or one.misplaced for one in (node, other)} or self.roles_mixed_up or word is None:
            return ""
        stands = conn is not None and conn.up and conn.up_at < word
        excused, perhaps = self.excused.get(node.name, word), self.perhaps.get(node.name, word)
        counts = max(word, min(excused, perhaps) if perhaps > word else excused) if stands else word
        if now - counts < (PATIENCE_S if stands else WORD_S):
            return f"{other.name} was heard {now - word:.1f} s ago{' by a connection that stands' * stands}"
        return ""

    def _was_silent(self, node: ServerNode) -> None:
        """Check, at a takeover, that the other server is not merely busy."""
        now, other = self.world.time.now, next(n for n in self.world.servers if n is not node)
        if why := self._is_there(node):
            self.fail(f"{node.name} takes over, though {why}")
        whole = max(self.world.whole_since(other.name, node.name), *(n.started_at for n in self.world.servers))
        ran = max(self.pauses.get(other.name, 0.0), self.pauses.get(node.name, 0.0), whole) < now - WELL_S
        well = other.running and not other.paused and not other.foreign and not other.misplaced
        # After a turn that was too long, the other server's messages may come a moment too late.
        well &= now - self.woke.get(other.name, 0.0) > FENCE_S
        if ran and well and not (other.lacked_room or other.waits) and now - self.began[other.name] < WELL_S:
            self.fail(
                f"{node.name} takes over, and {other.name} was busy for {now - self.began[other.name]:.1f} s only"
            )

    def _listened(self, node: ServerNode) -> None:
        """Check that a server that begins alone has listened as long as it has to wait."""
        listened = self.world.time.now - node.listens_at
        if listened < ALONE_S:
            self.fail(f"{node.name} begins alone, and has listened for {listened:.1f} s only")
        if why := self._is_there(node):
            self.fail(f"{node.name} begins alone, though {why}")
        other = next(n for n in self.world.servers if n is not node)
        conn, word = self.world.net.conns.get(("peer", node.name, other.name)), self.words.get(node.name)
        if conn is not None and conn.up and word is None and node.connected_at is not None:
            stood = self.world.time.now - node.connected_at
            if stood < PATIENCE_S:
                self.fail(f"{node.name} begins alone, though its connection to {other.name} stands for {stood:.1f} s")
        ours, seen = epoch_of(self.last_number[node.name]), self.seen.get(node.name, 0)
        if self.world.arbiter is None and 0 < seen - ours <= BELIEVED:
            self.fail(f"{node.name} begins alone above epoch {ours}, though a client told it of epoch {seen}")

    def begins(self, node: ServerNode) -> None:
        """Note the time when a server begins a turn, perhaps after a long one, such as a turn that waited for room."""
        paused = self.world.time.now - self.began.get(node.name, self.world.time.now)
        if paused > WELL_S:
            self.woke[node.name] = self.world.time.now
        if paused > PAUSE_S:
            self._excuse(node)
        elif paused > SHORT_PAUSE_S and self.words.get(node.name, 0.0) >= self.perhaps.get(node.name, 0.0):
            self.perhaps[node.name] = self.world.time.now
        self.began[node.name] = self.world.time.now

    def saves(self, node: ServerNode, save: Save) -> None:
        """Note the values that a server writes to a file of its suffix."""
        # Lines without a key are rules. The pair may forget what it answered to a flooder.
        lines = (u for u in save.updates if u.key and not (u.value or b"").startswith(FLOODER.encode()))
        values = {u.value: u for u in lines if u.value is not None}
        self.saved.update(values)
        self.replays.update((value, (update, node, node.starts)) for value, update in values.items())
        self.discarded.append(self.last_number[node.name])
        whole = all(fact.fields.get("complete", True) for fact in node.performed.facts)
        self.accounts.saved(node, save, self.last_number[node.name], complete=whole)

    def decided(self, node: ServerNode, turn: Turn) -> None:
        """Check what a server has decided in a turn, before any of it is performed."""
        if node.foreign or node.misplaced:
            self._keeps_apart(node, turn)
        if node.core.link.ends:
            self._ends(node)
        for why in [fact.fields["because"] for fact in turn.facts if fact.event == "state"]:
            if why == "vote_peer_silent":
                # This is checked now, because the turn may be long and its fact comes at the end.
                self._was_silent(node)
            elif why == "alone":
                self._listened(node)
        if not turn.journal:
            return
        if node.is_replica:
            self._follows(node, turn)
            return
        # A replay also brings the expiries of the other server.
        replays = any(fact.event == "suffix_taken_over" for fact in turn.facts)
        for op in turn.journal:
            if isinstance(op, Append):
                self.oracle.add(op.body, node.name, self.world.time.now)
                if replays:
                    self.replayed.update(v for _, v in self.oracle.nodes[op.last].writes if v is not None)
                else:
                    self._not_early(node, op.body)
                    if node.core.active:
                        self.access.commits(node, op.body)

    def _follows(self, node: ServerNode, turn: Turn) -> None:
        """Check that a replica keeps the records of the active, byte for byte."""
        for op in turn.journal:
            if isinstance(op, Append):
                known = self.oracle.nodes.get(op.last)
                if known is None or known.body != op.body:
                    self.fail(f"{node.name} follows with #{describe(op.last)}, which no server committed")

    def _keeps_apart(self, node: ServerNode, turn: Turn) -> None:
        """Check that a server with a foreign store or a wrong role stays out."""
        state = node.core.pair.bstate
        took = any(not isinstance(op, Remember) for op in turn.journal)
        if state in (State.ACTIVE, State.PASSIVE) or took:
            what = "a foreign store" if node.foreign else "the role of the other"
            self.fail(f"{node.name} has {what}, and is {state.name}")
        self.roles_mixed_up |= node.misplaced

    def _ends(self, node: ServerNode) -> None:
        """Check that a server ends only if the roles were mixed up."""
        state = node.core.pair.bstate
        if not (state in (State.PRIMARY, State.BACKUP) and self.roles_mixed_up):
            self.fail(f"{node.name} ends, and is {state.name}: {node.core.link.ends}")

    def told_peer(self, node: ServerNode, frames: list[bytes]) -> None:
        """Check a RECORD or a CONFIRM that has left for the peer."""
        if frames[0] == b"RECORD":
            self.oracle.nodes[msgpack.unpackb(frames[1], strict_map_key=False)[0][3]].public = True
        elif frames[0] == b"CONFIRM":
            self._on_disk(node, "confirms", msgpack.unpackb(frames[1])[1])

    def beats(self, node: ServerNode, frames: list[bytes]) -> None:
        """Check that a BEAT tells of the last finished turn, and that the server is not stuck."""
        _, turn_ms, _, at = msgpack.unpackb(frames[1])
        if not node.foreign and at[1] != self.last_number[node.name]:
            done = describe(self.last_number[node.name])
            self.fail(f"{node.name} vouches for #{describe(at[1])}, and the last turn that was done ended at {done}")
        if self.world.time.now - self.began[node.name] > STUCK_S:
            self.fail(f"{node.name} says that it lives, and is stuck for {turn_ms} ms")

    def synced(self, node: ServerNode, turn: Turn) -> None:
        """Note that the records which a turn appended are on the disk."""
        for op in turn.journal:
            if isinstance(op, Append):
                self.oracle.nodes[op.last].public = True
                epoch = epoch_of(op.last)
                ours = node.core.active and not node.is_replica and epoch == node.core.state.epoch
                if ours and epoch not in self.active_since:
                    self.active_since[epoch] = (node.name, self.world.time.now)

    def publishes(self, node: ServerNode, messages: list[list[bytes]]) -> None:
        """Check that publications leave in order and that their records are on the disk."""
        for frames in messages:
            number = self._published_in_order(node, frames)
            if number:
                self._on_disk(node, "publishes", number)

    def _on_disk(self, node: ServerNode, does: str, number: int) -> None:
        if node.disk.durability and not self.oracle.on_path(number, node.disk.number):
            self.fail(f"{node.name} {does} #{describe(number)}, and its journal ends at {describe(node.disk.number)}")

    def _published_in_order(self, node: ServerNode, frames: list[bytes]) -> int:
        """Check that the numbers of a channel, or of KVPUBs, strictly increase.

        Return the number, or 0 if there is none.
        """
        topic = frames[0]
        if topic[:1] == b"\x02":
            header = msgpack.unpackb(frames[4], strict_map_key=False)[0]
            if header[0] != 1 or header[6]:
                return 0
            number = int(header[3])
            if header[1] >= number:
                self.fail(f"{node.name} publishes #{describe(number)} after #{describe(header[1])}")
        elif topic in (b"HUGZ", b"KTHXBAI"):
            return 0
        else:
            number, topic = int.from_bytes(frames[1], "big"), b"kvpub"
        last = self.last_published.get((node.name, topic), 0)
        if number <= last:
            self.fail(f"{node.name} publishes #{describe(number)} on {topic!r} after #{describe(last)}")
        self.last_published[node.name, topic] = number
        return number

    def server_turned(self, node: ServerNode, turn: Turn) -> None:
        """Check the state of a server after its turn."""
        if node.foreign:
            return
        state = node.core.state
        last, peer = self.last_number[node.name], node.core.pair.peer
        if peer is not None and peer.server == stranger.OWN and self.world.time.now - node.stranger_spoke_at < FENCE_S:
            self.fail(f"{node.name} takes a stranger for its peer, which it had just heard")
        if state.number < last:
            self.fail(f"{node.name} goes back from {describe(last)} to {describe(state.number)}")
        self.last_number[node.name] = state.number
        # The checks read the whole map, which would complete a deferred commit. So they wait until there is none.
        if (turn.journal or turn.facts or node.turns % 16 == 0) and not state.deferred:
            self._same_as_oracle(node.name, state)
            state.check()
        if self.world.arbiter is not None and not node.is_replica:
            self.world.arbiter.check(node)

    def _same_as_oracle(self, name: str, state: Any) -> None:
        node = self.oracle.nodes.get(state.number)
        if node is None:
            self.fail(f"{name} is at {describe(state.number)}, a number that nobody issued")
        elif node.parts == () and (state.map.values != node.values or state.map.revisions != node.revisions):
            self.fail(f"{name} at {describe(state.number)} {_difference(state.map.values, node.values)}")
        self.compared += 1

    def _not_early(self, node: ServerNode, body: bytes) -> None:
        """Check that a server does not expire a key before its ttl is over."""
        header, *items = msgpack.unpackb(body, strict_map_key=False)
        if header[0] != 1 or header[5] or not node.core.active:
            return
        parent = self.oracle.nodes[header[1]]
        for keys, _, extras in items:
            for i in (extras or {}).get("d", ()) if not (extras or {}).get("u") else ():
                self._lived_its_time(parent.revisions.get(keys[i]), keys[i], node.name)
                if (extras or {}).get("ended"):
                    self._had_an_end(parent.revisions.get(keys[i]), keys[i], node.name)

    def _had_an_end(self, revision: int | None, key: str, name: str) -> None:
        """Check that a key which a server expires was last written with a ttl or a lease."""
        record = self.oracle.by_first.get(revision or 0)
        if record is not None and key not in record.leased and not record.ttls.get(key):
            self.fail(f"{name} deletes {key}, which was set anew without a ttl or a lease")

    def _leased_keys_went(self) -> None:
        """Check that no key has outlived the lease with which it was last written."""
        for node in self.world.servers:
            state = node.core.state
            for key, revision in state.map.revisions.items():
                record = self.oracle.by_first.get(revision)
                if record is not None and key in record.leased and state.lease_of.get(key) not in state.leases:
                    self.fail(f"{node.name} has {key}, whose lease has ended")
            for key, value in state.map.values.items():
                if value in self.oracle.leased and key not in state.lease_of:
                    self.fail(f"{node.name} has {key}, which was set with a lease, and has none")
            if state.leases.ending:
                self.fail(f"{node.name} has {len(state.leases.ending)} leases that have not come to their end")

    def _lived_its_time(self, revision: int | None, key: str, name: str) -> None:
        record = self.oracle.by_first.get(revision or 0)
        if record is None:
            return
        if self.world.walls_were_set and any(record.at < n.started_at for n in self.world.servers):
            # Over a restart a ttl ages by the server's wall clock, because the server has no better one.
            return
        ttl_ms = record.ttls.get(key, 0)
        lived = self.world.time.now - record.at
        if lived < ttl_ms / 1000 * TTL_EARLY:
            self.fail(f"{name} expires {key} after {lived:.3f} s of {ttl_ms / 1000:.3f} s")

    # -- acknowledgements

    def acknowledges(self, node: ServerNode, acks: list[list[bytes]]) -> None:
        """Check the acknowledgements that a server is about to send."""
        for frames in acks:
            header = msgpack.unpackb(frames[4], strict_map_key=False)[0]
            if header[0] == 6:
                self.not_fenced(node)
                for _, _, revision in header[1]:
                    self.acks += 1
                    self._promise(node, revision, header[2])
                    self._copies_there(node, revision, header)

    def not_fenced(self, node: ServerNode) -> None:
        """Check that no other server is active by now, as far as this server could know."""
        epoch, when = self.fenced.get(node.name, (0, 0.0))
        own = node.core.state.epoch
        if epoch > own and when < self.began[node.name]:
            self.fail(f"{node.name} acknowledges in epoch {own}, and was told of epoch {epoch}")
        epoch, when = self.warned.get(node.name, (0, 0.0))
        if epoch > own and self.world.time.now - WORD_S < when < self.began[node.name]:
            self.fail(f"{node.name} acknowledges in epoch {own}, and a possible successor told of epoch {epoch}")
        for other_epoch, (who, since) in self.active_since.items():
            if who == node.name or other_epoch <= own:
                continue
            other = self.world.nodes[who]
            if other.line is not None and other.running and other.core.active and other.holds_lease:
                self.fail(f"{node.name} acknowledges in epoch {own}, and {who} is active in epoch {other_epoch} too")
            if self.world.whole_since(who, node.name) < since - SYNC_S < self.world.time.now - FENCE_S:
                self.fail(f"{node.name} acknowledges in epoch {own} while {who} is active in epoch {other_epoch}")

    def _promise(self, node: ServerNode, revision: int, durability: int) -> None:
        """Check that a journaled record is on this disk, and a replicated one on both disks."""
        # A batch that leaves no record is acknowledged with the last number of the record before it.
        record = self.oracle.by_first.get(revision) or self.oracle.nodes.get(revision)
        if record is None:
            self.fail(f"{node.name} acknowledges revision {describe(revision)}, which no record has")
            return
        for server in [node] if durability == 1 else self.world.servers if durability == 2 else []:
            held = [server.own_disk or server.disk, *filter(None, [server.lost_disk])]
            # The journal may have been cut short since, but its high-water mark tells how far it was.
            ends = [max(disk.number, disk.mark) for disk in held]
            if held[0].durability and not any(self.oracle.on_path(record.last, end) for end in ends):
                self.fail(f"{node.name} acknowledges {describe(revision)} as {DURABILITY[durability]},"
                          f" and a journal that ends at {describe(held[0].number)} does not hold it")  # fmt: skip

    def _copies_there(self, node: ServerNode, revision: int, header: list[Any]) -> None:
        """Check that as many disks have a record as its acknowledgement says, and as `--copies` asks for."""
        record = self.oracle.by_first.get(revision) or self.oracle.nodes.get(revision)
        wanted = self.world.server_settings.get("copies", 2)
        if wanted == 2 or record is None:
            return
        told = (*header[3:], None, None)[1]
        least = wanted if header[2] == REPLICATED else 1
        if told is not None and told < least:
            self.fail(f"{node.name} acknowledges {describe(revision)} as {DURABILITY[header[2]]} with {told} copies")
        there = 0
        for each in (*self.world.servers, *further_copies(self.world)):
            disks = [each.disk, *filter(None, [each.lost_disk])]
            there += any(self.oracle.on_path(record.last, max(disk.number, disk.mark)) for disk in disks)
        if there < max(told or 0, least):
            self.fail(f"{node.name} acknowledges {describe(revision)} with {told} copies, and {there} disks hold it")

    # -- clients

    def client_started(self, node: ClientNode) -> None:
        """Forget the numbers of a client that starts as a new process."""
        for key in [key for key in self.last_at if key[0] == node.name]:
            del self.last_at[key]

    def settled(self, node: ClientNode, op: str, lacking: list[str], revision: int) -> None:
        """Check that a client's copy holds an update before its application hears of the acknowledgement.

        The copy may belong to a history that split off before the update. Only the copies that hold its keys count,
        because another copy may follow the discarded history a moment longer.
        """
        record, on_path = self.oracle.by_first.get(revision), self.oracle.on_path
        if not lacking or record is None:
            return
        copies = [at for subtree, at, *_ in node.core.views() if any(key.startswith(subtree) for key in lacking)]
        if any(on_path(at, record.last) or on_path(record.last, at) for at in copies):
            self.fail(f"{node.name} is told that {op} is done at {describe(revision)}; its copy is older: {lacking}")

    def client_synced(self, node: ClientNode, op: Op) -> None:
        """Check an answered `sync`: it needs no room, and the copy holds all that was replicated before the call."""
        assert op.result is not None
        if not op.acked:
            if "(full)" in op.result[2]:
                self.fail(f"{node.name} is refused a sync, which needs no room: {op.result[2]}")
            return
        if op.result[2] != REPLICATED and self.world.arbiter is None:
            return
        known = [each for client in self.world.clients for each in client.ops if each.acked and each.keys]
        for each in known:
            assert each.result is not None and each.answered is not None
            record = self.oracle.by_first.get(each.result[1])
            if record is None or each.result[2] != REPLICATED or each.answered >= op.called:
                continue
            for subtree, at, *_ in node.core.views():
                if any(key.startswith(subtree) for key in each.keys) and self.oracle.on_path(at, record.prev):
                    self.fail(f"{node.name} has synced, and is at {describe(at)}: {each.name}, which was acknowledged"
                              f" before that, is at {describe(record.revision)}")  # fmt: skip

    def client_turned(self, node: ClientNode) -> None:
        """Check the copies of a client after its turn."""
        if node.core.digest_mismatches:
            self.fail(f"{node.name} has other digests than the server, though nothing is changed on its way")
        for subtree, at, complete, values, revisions, hidden in node.core.views():
            last = self.last_at.get((node.name, subtree), 0)
            if complete:
                if at < last:
                    self.fail(f"{node.name} goes back from {describe(last)} to {describe(at)}")
                self.last_at[node.name, subtree] = at
                self._client_is_right(node, subtree, at, (values, revisions, hidden))

    def _client_is_right(
        self,
        node: ClientNode,
        subtree: str,
        at: int,
        copy: tuple[dict[str, bytes], dict[str, int], set[str]],
    ) -> None:
        values, revisions, hidden = copy
        known = self.oracle.nodes.get(at)
        if known is None:
            self.fail(f"{node.name} is at {describe(at)}, a number that nobody issued")
            return
        self.compared += 1
        if not (subtree or hidden) and revisions == known.revisions and known.values.items() == values.items():
            # The copy holds the whole map.
            return
        extra = {key for key in values.keys() - known.values.keys() - hidden if key.startswith(subtree)}
        if extra:
            self.fail(f"{node.name} at {describe(at)} shows {min(extra)}, which no server has")
        wanted = {k: r for k, r in known.revisions.items() if k.startswith(subtree)}
        if revisions != wanted:
            self.fail(f"{node.name} at {describe(at)} has other revisions: {_difference(revisions, wanted)}")
        for key in wanted:
            if key not in hidden and values.get(key) != known.values[key]:
                self.fail(f"{node.name} at {describe(at)} has {key}={values.get(key)!r}, not {known.values[key]!r}")

    # -- the end

    def quiet(self) -> str:  # noqa: PLR0911
        """Return what is not in sync yet after all was healed, or "" if all is in sync."""
        servers = self.world.servers
        states = sorted(int(node.core.pair.bstate) for node in servers)
        if states != [3, 4]:
            return "states: " + ", ".join(f"{n.name} {n.core.pair.bstate.name}" for n in servers)
        links = [node.core.link for node in servers]
        if any(link.replay.under_way or link.backfill.lacks for link in links) or any(n.disk.unsynced for n in servers):
            return "a suffix is still being handed over, or messages are"
        active = next(node for node in servers if node.core.active)
        if self.not_served_by(active) or active.core.state.leases.ending:
            return self.not_served_by(active) or "the keys of a lease that has ended go, some with each turn"
        numbers = {node.core.state.number for node in servers}
        if len(numbers) > 1 or not active.core.pair.in_sync():
            return "the passive is not in sync: " + ", ".join(
                f"{n.name} {describe(n.core.state.number)}" for n in servers
            )
        follower = active.core.pair.follower
        if follower is None or follower.confirmed != active.core.state.number:
            return "the passive has not confirmed, so its last record may not be synced yet"
        for replica in self.world.replicas:
            if not replica.core.active or replica.core.state.number != active.core.state.number:
                at = describe(replica.core.state.number)
                return f"{replica.name} is {replica.core.pair.bstate.name} at {at}, and the active is further"
        if (copies := active.core.requests.replicas.confirming_in_sync()) < len(further_copies(self.world)):
            return f"{copies} replicas that confirm are in sync"
        behind = [r.name for r in self.world.readers if r.complete != active.core.state.number]
        if behind:
            return f"{behind} have not read everything"
        if self.world.crowd is not None and (untold := self.world.crowd.untold()):
            return untold
        both = active.core.pair.arbitration.both
        return self.topics.groups.undrained(active.core) if both else "the arbiter's set does not have both"

    def not_served_by(self, server: ServerNode) -> str:
        """Return what is missing until `server` serves all clients, or "" if it does."""
        if not server.core.active:
            return f"{server.name} is {server.core.pair.bstate.name}"
        for client in self.world.clients:
            for subtree, at, complete, *_ in client.core.views():
                if not complete or epoch_of(at) != epoch_of(server.core.state.number):
                    return f"{client.name} is not complete on {subtree!r}: at {describe(at)}, complete: {complete}"
            hidden = sorted(key for *_, keys in client.core.views() for key in keys)
            if hidden and not client.core.unsettled:
                return f"{client.name} shows its own sets of {', '.join(hidden)}, which are answered, not confirmed"
            if client.core.unsettled:
                return f"{client.name} has {client.core.unsettled} sets without an answer"
        return ""

    def end(self) -> None:
        """Check all promises, once all is healed and quiet."""
        active = next(node for node in self.world.servers if node.core.active)
        end = active.core.state.number
        self._replicas_equal()
        for replica in self.world.replicas:
            if replica.core.state.proof() != active.core.state.proof():
                self.fail(f"{replica.name} has another position than {active.name}: {replica.core.state.proof()}")
        self.topics.check(self.oracle.nodes[end].names)
        self.access.end()
        for node in self.world.servers:
            if node.disk.durability:
                self._equals_its_journal(node)
        self._promises_kept(end)
        self._versions_count_once(end)
        self.accounts.check(end)
        for reader in self.world.readers:
            reader.check(end)
        self._reads_true()
        self._leased_keys_went()
        ops = [op for client in self.world.clients for op in client.ops]
        sure = self.world.gentle and not self.discarded and not self.world.disks_lost
        promised = 1 if sure else 2
        linear.check(self.oracle, end, ops, promised, self.saved | self.replayed)

    def _replicas_equal(self) -> None:
        one, two = (node.core.state for node in self.world.servers)
        both: tuple[tuple[str, Any, Any], ...] = (
            ("values", one.map.values, two.map.values), ("revisions", one.map.revisions, two.map.revisions),
            ("sessions", _sessions(one), _sessions(two)), ("leases", _leases(one), _leases(two)),
            ("histories", one.history, two.history), ("uuids", set(one.uuids), set(two.uuids)),
        )  # fmt: skip
        for what, a, b in both:
            if a != b:
                self.fail(f"the servers' {what} differ: {_difference(a, b) if isinstance(a, dict) else (a, b)}")
        if set(one.map.deadlines) != set(two.map.deadlines):
            self.fail("the servers disagree on which keys have a ttl")

    def _equals_its_journal(self, node: ServerNode) -> None:
        """Check that a replay of the journal gives the state in memory."""
        held, replayed = node.core.state, node.recovered_anew().state
        replayed.check()
        for what, a, b in (
            ("values", replayed.map.values, held.map.values), ("sessions", _sessions(replayed), _sessions(held)),
            ("leases", _leases(replayed), _leases(held)), ("histories", replayed.history, held.history),
        ):  # fmt: skip
            if a != b:
                self.fail(f"{node.name}'s journal and memory have different {what}: {_difference(a, b)}")

    def _promises_kept(self, end: int) -> None:
        """Check that the surviving history has no value twice and that the files of suffixes are true."""
        names, doubled = self.oracle.nodes[end].names, self.oracle.nodes[end].twice
        parted = self.saved | self.replayed
        twice = set(doubled)
        # A server whose log does not reach back to the split knows its keys, but not their versions.
        if not self.accounts.complete:
            twice -= {op.value for c in self.world.clients for op in c.ops if op.kind in ("tx", "once")} & parted
        twice -= {name for name in twice & parted if not self._a_key_twice(end, name)}
        twice -= {name for name in twice if name.startswith(FLOODER.encode())}
        if twice:
            self.fail(f"{min(twice).decode()} is in the surviving history more than once")
        for value, (update, node, starts) in self.replays.items():
            if update.outcome == "replayed" and node.starts == starts and value not in names:
                self.fail(f"{value.decode()} was to be replayed by {node.name}, and is in no history")
            # The history that had the value may be lost with its disks.
            if update.outcome == "already" and value not in names and not self.world.disasters:
                self.fail(f"{value.decode()} is accounted for as there already, and is in no history")

    def _versions_count_once(self, end: int) -> None:
        """Check that each version of an application is in the history once."""
        counted: set[tuple[str, int]] = set()
        for node in self.oracle.path(end):
            for version in node.versions:
                if version in counted and version[0] and not version[0].startswith(FLOODER):
                    self.fail(f"version {version[1]} of {version[0]} is in the surviving history more than once")
                counted.add(version)

    def _a_key_twice(self, end: int, name: bytes) -> bool:
        """Return True if a history has one key of a batch twice. A batch of a suffix may be replayed in pieces."""
        keys = [key for node in self.oracle.path(end) for key, value in node.writes if value == name]
        return len(keys) > len(set(keys))

    def _reads_true(self) -> None:
        for client in self.world.clients:
            for op in client.ops:
                if op.kind == "read" and op.result is not None and op.result[0] == "read":
                    _, revision, value, number = op.result
                    node = self.oracle.nodes[number]
                    if (node.values.get(op.keys[0], b""), node.revisions.get(op.keys[0], 0)) != (value, revision):
                        self.fail(f"{op.name} read {op.keys[0]}={value!r}, not what {describe(number)} has")


def _sessions(state: Any) -> dict[bytes, Any]:
    return {name: (s.no, s.skipped) for name, s in state.sessions.items()}


def _leases(state: Any) -> dict[bytes, Any]:
    return {name: (lease.ttl_ms, sorted(lease.keys)) for name, lease in state.leases.items()}


def _difference(a: dict[Any, Any], b: dict[Any, Any]) -> str:
    only = {k: v for k, v in a.items() if b.get(k) != v}
    lacking = {k: v for k, v in b.items() if a.get(k) != v}
    return f"has {only}, where {lacking} was right"
