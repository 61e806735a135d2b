"""The checkers: what must hold whatever the faults. They see what nodes do, never what was done to them.

    after each turn of a server   its map is the one its number stands for; numbers go up; nothing is issued twice
    when it acknowledges          what it says is on its disk (journaled), on both disks (replicated); it is not fenced
    whatever is sent              is nothing that the rules of access deny (access.py)
    after each turn of a client   a complete copy is the one its number stands for; its number never goes down
    at the end (`healed`)         everyone in sync within a stated time; replicas equal, and equal to a replay of the
                                  journal; every promise kept in the surviving history; one key at a time linearizable

With an arbiter, nobody acknowledges while another is active and holds the lease, whatever was cut or stopped. Fencing,
with two nodes and none, can mean no more than this: once the word of a successor (STATE: active, higher epoch) lies
in a server's socket, no turn that begins afterwards acknowledges anything. Where the link from successor to predecessor
is whole, that is at most `FENCE_S` after the successor began, whatever pauses there were.
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
from .oracle import Oracle, Wrong
from .topics import TopicChecks

if TYPE_CHECKING:
    from .clients import ClientNode, Op
    from .network import Conn
    from .servers import ServerNode
    from .world import World

FENCE_S = 0.15  # a delay, a turn and a sync at their longest
STUCK_S = 12.0  # clocks may run up to 10 % slow
WELL_S = 8.0  # or fast, and a successor waits for votes
ALONE_S = 2.2  # of the three seconds of solo_wait_s, by clocks that run fast; half a second without a turn is no stop
WORD_S = 0.88  # of a second of peer_timeout_s, by clocks that run fast
PATIENCE_S = 3 * WORD_S  # while the connection stands
BELIEVED = 64  # epochs above its own of which a server believes a client
SYNC_S = 0.05  # a STATE leaves before the sync of the turn it tells of
DURABILITY = ("applied", "journaled", "replicated")
TTL_EARLY = 0.85  # clocks may run up to 10 % fast
ACTIVE = 3


class Checks:
    """All checkers of one run."""

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
        self.active_since: dict[int, tuple[str, float]] = {}  # epoch -> who, when its epoch was on the disk
        self.fenced: dict[str, tuple[int, float]] = {}  # server -> epoch of a successor it was told of, when
        self.began: dict[str, float] = {}
        self.pauses: dict[str, float] = {}
        self.words: dict[str, float] = {}  # server -> when its peer was last heard at its P+3
        self.seen: dict[str, int] = {}  # server -> the highest epoch that a client has told this run of it
        self.saved: set[bytes] = set()  # values that a server wrote to a file of what is not history
        self.replayed: set[bytes] = set()  # values that the active took over out of a history that was parted with
        self.replays: dict[bytes, tuple[Any, ServerNode, int]] = {}  # value -> update, who is to replay it, its start
        self.roles_mixed_up = False  # a server was started with the role of the other
        self.discarded: list[int] = []  # the last numbers of what servers had to part with

    def fail(self, text: str) -> None:
        """A rule does not hold."""
        raise Wrong(text)

    # -- servers

    def recovered(self, node: ServerNode) -> None:
        """A server has read its journal."""
        if node.foreign:
            return
        self.last_number[node.name] = node.core.state.number
        self.fenced.pop(node.name, None)
        self.words.pop(node.name, None)
        self.seen.pop(node.name, None)
        for key in [key for key in self.last_published if key[0] == node.name]:
            del self.last_published[key]
        self._same_as_oracle(node.name, node.core.state)

    def crashed(self, node: ServerNode) -> None:
        """A server died: nothing to hold against it."""

    def resumed(self, node: ServerNode) -> None:
        """A server runs again after a pause."""
        self.pauses[node.name] = self.world.time.now

    def said(self, node: ServerNode, fact: Fact) -> None:
        """A server tells of itself. What both hold was looked at by this code too, so it may find nothing new."""
        if fact.event == "contents differ":
            self.fail(f"{node.name} finds that contents differ: {fact.fields}")

    def word(self, node: ServerNode, conn: Conn, frames: list[bytes]) -> None:
        """Note that the other server said something, which lies in a server's socket.

        What a stranger says is no word, nor what a server with a new disk says: it can't prove that it is the peer.
        """
        known = frames[0] == b"BEAT"
        if frames[0] == b"STATE":
            known = msgpack.unpackb(frames[1])["store"] == node.core.state.store
        if known and self.world.net.conns.get((conn.kind, conn.a, conn.b)) is conn:
            self.words[node.name] = self.world.time.now

    def asked(self, node: ServerNode, frames: list[bytes]) -> None:
        """A client asks, and tells the epoch that it has seen."""
        if len(frames) == 3 and not node.core.config.keyed:
            options = msgpack.unpackb(frames[2])
            if options.get("proof", [b""])[0] == node.core.state.store != b"" and options.get("from", 0) > 0:
                self.seen[node.name] = max(self.seen.get(node.name, 0), epoch_of(options["from"]))

    def _is_there(self, node: ServerNode) -> str:
        """Why the other server counts as living: it was heard a moment ago, or its connection stands and it was heard.

        A server that has another store, or the wrong role, is no peer.
        """
        now, other = self.world.time.now, next(n for n in self.world.servers if n is not node)
        conn, word = self.world.net.conns.get(("peer", node.name, other.name)), self.words.get(node.name)
        if {True} & {one.foreign or one.misplaced for one in (node, other)} or self.roles_mixed_up or word is None:
            return ""
        stands = conn is not None and conn.up and conn.up_at < word
        if now - word < (PATIENCE_S if stands else WORD_S):
            return f"{other.name} was heard {now - word:.1f} s ago{' by a connection that stands' * stands}"
        return ""

    def _was_silent(self, node: ServerNode) -> None:
        """Who takes over: the other one is gone, was stopped, is cut off, waits, or is stuck; and not only busy."""
        now, other = self.world.time.now, next(n for n in self.world.servers if n is not node)
        if why := self._is_there(node):
            self.fail(f"{node.name} takes over, though {why}")
        whole = max(self.world.whole_since(other.name, node.name), *(n.started_at for n in self.world.servers))
        ran = max(self.pauses.get(other.name, 0.0), self.pauses.get(node.name, 0.0), whole) < now - WELL_S
        well = other.running and not other.paused and not other.foreign and not other.misplaced
        if ran and well and not (other.lacked_room or other.waits) and now - self.began[other.name] < WELL_S:
            self.fail(
                f"{node.name} takes over, and {other.name} was busy for {now - self.began[other.name]:.1f} s only"
            )

    def _listened(self, node: ServerNode) -> None:
        """Who begins alone could have heard the other one for as long as it has to wait."""
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

    def told(self, node: ServerNode, frames: list[bytes]) -> None:
        """A peer message lies in a server's socket."""
        if frames[0] == b"STATE":
            said = msgpack.unpackb(frames[1])
            if said["state"] == ACTIVE and said["epoch"] > self.fenced.get(node.name, (0, 0.0))[0]:
                self.fenced[node.name] = (said["epoch"], self.world.time.now)

    def begins(self, node: ServerNode) -> None:
        """A server begins a turn."""
        self.began[node.name] = self.world.time.now

    def saves(self, node: ServerNode, save: Save) -> None:
        """A server writes a file of what is not history."""
        values = {u.value: u for u in save.updates if u.key and u.value is not None}  # and not rules
        self.saved.update(values)
        self.replays.update((value, (update, node, node.starts)) for value, update in values.items())
        self.discarded.append(self.last_number[node.name])
        whole = all(fact.fields.get("complete", True) for fact in node.performed.facts)
        self.accounts.saved(node, save, self.last_number[node.name], complete=whole)

    def decided(self, node: ServerNode, turn: Turn) -> None:
        """A server knows what to do, and nobody else does yet."""
        self._keeps_apart(node, turn)
        for why in [fact.fields["because"] for fact in turn.facts if fact.event == "state"]:
            if why == "vote_peer_silent":
                self._was_silent(node)  # now: it says so at the end of the turn, which may be long
            elif why == "alone":
                self._listened(node)
        replays = any(fact.event == "suffix_taken_over" for fact in turn.facts)  # what expired where it was set
        for op in turn.journal:
            if isinstance(op, Append):
                self.oracle.add(op.body, node.name, self.world.time.now)
                if replays:
                    self.replayed.update(v for _, v in self.oracle.nodes[op.last].writes if v is not None)
                else:
                    self._not_early(node, op.body)
                    if node.core.active:
                        self.access.commits(node, op.body)

    def _keeps_apart(self, node: ServerNode, turn: Turn) -> None:
        """Who holds another store, or has the other one's role, neither begins nor follows; nobody else ends."""
        state = node.core.bstate
        if node.foreign or node.misplaced:
            took = any(not isinstance(op, Remember) for op in turn.journal)
            if state in (State.ACTIVE, State.PASSIVE) or took:
                what = "a foreign store" if node.foreign else "the role of the other"
                self.fail(f"{node.name} has {what}, and is {state.name}")
        self.roles_mixed_up |= node.misplaced
        if node.core.ends and not (state in (State.PRIMARY, State.BACKUP) and self.roles_mixed_up):
            self.fail(f"{node.name} ends, and is {state.name}: {node.core.ends}")

    def told_peer(self, node: ServerNode, frames: list[bytes]) -> None:
        """A message has left for the other server: a record, or the word that one is in the journal."""
        if frames[0] == b"RECORD":
            self.oracle.nodes[msgpack.unpackb(frames[1], strict_map_key=False)[0][3]].public = True
        elif frames[0] == b"CONFIRM":
            self._on_disk(node, "confirms", msgpack.unpackb(frames[1])[1])

    def beats(self, node: ServerNode, frames: list[bytes]) -> None:
        """In the middle of a turn a server tells of the last one that was done, and not for ever."""
        _, turn_ms, _, at = msgpack.unpackb(frames[1])
        if not node.foreign and at[1] != self.last_number[node.name]:
            done = describe(self.last_number[node.name])
            self.fail(f"{node.name} vouches for #{describe(at[1])}, and the last turn that was done ended at {done}")
        if self.world.time.now - self.began[node.name] > STUCK_S:
            self.fail(f"{node.name} says that it lives, and is stuck for {turn_ms} ms")

    def synced(self, node: ServerNode, turn: Turn) -> None:
        """What a turn appended is on the disk."""
        for op in turn.journal:
            if isinstance(op, Append):
                self.oracle.nodes[op.last].public = True
                epoch = epoch_of(op.last)
                if node.core.active and epoch == node.core.state.epoch and epoch not in self.active_since:
                    self.active_since[epoch] = (node.name, self.world.time.now)

    def publishes(self, node: ServerNode, messages: list[list[bytes]]) -> None:
        """Publications leave: in order, and none of what is not on the disk."""
        for frames in messages:
            number = self._published_in_order(node, frames)
            if number:
                self._on_disk(node, "publishes", number)

    def _on_disk(self, node: ServerNode, does: str, number: int) -> None:
        if node.disk.durability and not self.oracle.on_path(number, node.disk.number):
            self.fail(f"{node.name} {does} #{describe(number)}, and its journal ends at {describe(node.disk.number)}")

    def _published_in_order(self, node: ServerNode, frames: list[bytes]) -> int:
        """The numbers on a channel, and of KVPUBs, strictly increase. Returns the number; 0 if there is none."""
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
        """A server has done its turn."""
        if node.foreign:
            return
        state = node.core.state
        last, peer = self.last_number[node.name], node.core.ctx.peer
        if peer is not None and peer.server == stranger.OWN and self.world.time.now - node.posed_at < FENCE_S:
            self.fail(f"{node.name} takes a stranger for its peer, which it had just heard")
        if state.number < last:
            self.fail(f"{node.name} goes back from {describe(last)} to {describe(state.number)}")
        self.last_number[node.name] = state.number
        if turn.journal or turn.facts or node.turns % 16 == 0:
            self._same_as_oracle(node.name, state)
            state.check()
        if self.world.arbiter is not None:
            self.world.arbiter.check(node)

    def _same_as_oracle(self, name: str, state: Any) -> None:
        node = self.oracle.nodes.get(state.number)
        if node is None:
            self.fail(f"{name} is at {describe(state.number)}, a number that nobody issued")
        elif node.parts == () and (state.map.values != node.values or state.map.revisions != node.revisions):
            self.fail(f"{name} at {describe(state.number)} {_difference(state.map.values, node.values)}")
        self.compared += 1

    def _not_early(self, node: ServerNode, body: bytes) -> None:
        """A key with a ttl is not deleted by a server before its time."""
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
        """What a server deletes by itself was last written with a ttl or a lease."""
        record = self.oracle.by_first.get(revision or 0)
        if record is not None and key not in record.leased and not record.ttls.get(key):
            self.fail(f"{name} deletes {key}, which was set anew without a ttl or a lease")

    def _leased_keys_went(self) -> None:
        """A key that was last written with a lease has not outlived it."""
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
            return  # over a restart a ttl ages by the server's own wall clock: nothing better is to be had
        ttl_ms = record.ttls.get(key, 0)
        lived = self.world.time.now - record.at
        if lived < ttl_ms / 1000 * TTL_EARLY:
            self.fail(f"{name} expires {key} after {lived:.3f} s of {ttl_ms / 1000:.3f} s")

    # -- acknowledgements

    def acknowledges(self, node: ServerNode, acks: list[list[bytes]]) -> None:
        """A server is about to answer clients."""
        for frames in acks:
            header = msgpack.unpackb(frames[4], strict_map_key=False)[0]
            if header[0] == 6:
                self.not_fenced(node)
                for _, _, revision in header[1]:
                    self.acks += 1
                    self._promise(node, revision, header[2])

    def not_fenced(self, node: ServerNode) -> None:
        """Nobody else is active by now, as far as this server could know."""
        epoch, when = self.fenced.get(node.name, (0, 0.0))
        own = node.core.state.epoch
        if epoch > own and when < self.began[node.name]:
            self.fail(f"{node.name} acknowledges in epoch {own}, and was told of epoch {epoch}")
        for other_epoch, (who, since) in self.active_since.items():
            if who == node.name or other_epoch <= own:
                continue
            other = self.world.nodes[who]
            if other.line is not None and other.running and other.core.active and other.holds_lease:
                self.fail(f"{node.name} acknowledges in epoch {own}, and {who} is active in epoch {other_epoch} too")
            if self.world.whole_since(who, node.name) < since - SYNC_S < self.world.time.now - FENCE_S:
                self.fail(f"{node.name} acknowledges in epoch {own} while {who} is active in epoch {other_epoch}")

    def _promise(self, node: ServerNode, revision: int, durability: int) -> None:
        """Journaled: on this disk now. Replicated: on the other one too."""
        # A batch that leaves no record is acknowledged at the last record before it, by that one's last number.
        record = self.oracle.by_first.get(revision) or self.oracle.nodes.get(revision)
        if record is None:
            self.fail(f"{node.name} acknowledges revision {describe(revision)}, which no record has")
            return
        for server in [node] if durability == 1 else self.world.servers if durability == 2 else []:
            held = [server.own_disk or server.disk, *filter(None, [server.lost_disk])]
            ends = [max(disk.number, disk.mark) for disk in held]  # or was cut short
            if held[0].durability and not any(self.oracle.on_path(record.last, end) for end in ends):
                self.fail(f"{node.name} acknowledges {describe(revision)} as {DURABILITY[durability]},"
                          f" and a journal that ends at {describe(held[0].number)} does not hold it")  # fmt: skip

    # -- clients

    def client_started(self, node: ClientNode) -> None:
        """A new process has no past."""
        for key in [key for key in self.last_at if key[0] == node.name]:
            del self.last_at[key]

    def settled(self, node: ClientNode, op: str, lacking: list[str], revision: int) -> None:
        """A client tells its application of an acknowledgement; its copy may be of a history that parted before it.

        Of several copies that of the keys counts: another may be of the history that is lost, a moment longer.
        """
        record, on_path = self.oracle.by_first.get(revision), self.oracle.on_path
        if not lacking or record is None:
            return
        copies = [at for subtree, at, *_ in node.core.views() if any(key.startswith(subtree) for key in lacking)]
        if any(on_path(at, record.last) or on_path(record.last, at) for at in copies):
            self.fail(f"{node.name} is told that {op} is done at {describe(revision)}; its copy is older: {lacking}")

    def client_synced(self, node: ClientNode, op: Op) -> None:
        """A client's `sync` is answered: it needs no room, and the copy has what both servers had before the call."""
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
        """A client has done its turn."""
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
            return  # all of it
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
        """What is not as it should be once all is healed; empty when everyone is in sync."""
        servers = self.world.servers
        states = sorted(int(node.core.bstate) for node in servers)
        if states != [3, 4]:
            return "states: " + ", ".join(f"{n.name} {n.core.bstate.name}" for n in servers)
        links = [node.core.link for node in servers]
        if any(link.replay.under_way or link.filler.lacks for link in links) or any(n.disk.unsynced for n in servers):
            return "a suffix is still being handed over, or messages are"
        active = next(node for node in servers if node.core.active)
        if self.not_served_by(active) or active.core.state.leases.ending:
            return self.not_served_by(active) or "the keys of a lease that has ended go, some with each turn"
        numbers = {node.core.state.number for node in servers}
        if len(numbers) > 1 or not active.core.ctx.in_sync():
            return "the passive is not in sync: " + ", ".join(
                f"{n.name} {describe(n.core.state.number)}" for n in servers
            )
        follower = active.core.ctx.follower
        if follower is None or follower.confirmed != active.core.state.number:
            return "the passive has not confirmed, so its last record may not be synced yet"
        behind = [r.name for r in self.world.readers if r.complete != active.core.state.number]
        if behind:
            return f"{behind} have not read everything"
        both = active.core.arbitration.both
        return self.topics.groups.undrained(active.core) if both else "the arbiter's set does not have both"

    def not_served_by(self, server: ServerNode) -> str:
        """What is missing until `server` serves everybody; empty when it does."""
        if not server.core.active:
            return f"{server.name} is {server.core.bstate.name}"
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
        """All is healed and quiet: what was promised must be so."""
        active = next(node for node in self.world.servers if node.core.active)
        end = active.core.state.number
        self._replicas_equal()
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
        promised = 1 if self.world.gentle and not self.discarded else 2
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
        """Replaying the journal gives what is in memory."""
        held, replayed = node.core.state, node.recovered_anew().state
        replayed.check()
        for what, a, b in (
            ("values", replayed.map.values, held.map.values), ("sessions", _sessions(replayed), _sessions(held)),
            ("leases", _leases(replayed), _leases(held)), ("histories", replayed.history, held.history),
        ):  # fmt: skip
            if a != b:
                self.fail(f"{node.name}'s journal and memory have different {what}: {_difference(a, b)}")

    def _promises_kept(self, end: int) -> None:
        """Nothing is there twice, and what a file says of a value is so."""
        names, doubled = self.oracle.nodes[end].names, self.oracle.nodes[end].twice
        parted = self.saved | self.replayed
        twice = set(doubled)
        if not self.accounts.complete:  # of what the log has no more the keys are known, and no version
            twice -= {op.value for c in self.world.clients for op in c.ops if op.kind in ("tx", "once")} & parted
        twice -= {name for name in twice & parted if not self._a_key_twice(end, name)}
        if twice:
            self.fail(f"{min(twice).decode()} is in the surviving history more than once")
        for value, (update, node, starts) in self.replays.items():
            if update.outcome == "replayed" and node.starts == starts and value not in names:
                self.fail(f"{value.decode()} was to be replayed by {node.name}, and is in no history")
            if update.outcome == "already" and value not in names:
                self.fail(f"{value.decode()} is accounted for as there already, and is in no history")

    def _versions_count_once(self, end: int) -> None:
        """An application's version is in a history once, whoever sent it again or handed it over."""
        counted: set[tuple[str, int]] = set()
        for node in self.oracle.path(end):
            for version in node.versions:
                if version in counted and version[0]:
                    self.fail(f"version {version[1]} of {version[0]} is in the surviving history more than once")
                counted.add(version)

    def _a_key_twice(self, end: int, name: bytes) -> bool:
        """Whether a history has one update of a batch twice: a batch of a suffix may be done in pieces."""
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
