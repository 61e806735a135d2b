"""Virtual readers: thousands of stand-ins for Clones in the virtual network of the simulator (tests/sim).

The servers are production cores, and each subscription, question and answer of each reader passes through them. What a
server publishes on the channel of everything is the same for all its readers. So it is delivered once, to their
`Audience`, and counts once for each of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chp.batch import peek, record_of
from chp.headers import Batch, Greeting, Heartbeat, Kthxbai, Records, State
from chp.keys import channel_topic, session_topic
from chp_client.core.question import Question
from tests.sim.network import Conn, Frames, Network
from tests.sim.servers import ServerNode
from tests.sim.world import World

EVERYTHING = channel_topic("")
WRITER = "w"
KEYS, CREDIT = 100, 4
# Readers join servers in this many equal steps, which take this many seconds together.
STEPS, STEPS_S = 100, 1.0
SETTLED_S = 4.0


@dataclass(slots=True, eq=False)
class Reader:
    """A reader: its session, its position, and the question that is not answered yet."""

    session: bytes
    at: int = 0
    proof: list[Any] = field(default_factory=list)
    asked: int = 0
    question: Question | None = None
    # While an answer with records comes: the last number of the records so far.
    records_to: int = 0


class CountingNetwork(Network):
    """A network that counts the messages that each process sends."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: Counter[str] = Counter()

    def send(self, conn: Conn, way: str, frames: Frames) -> bool:
        """Count a message, and send it."""
        self.sent[conn.wires[way].src] += 1
        return super().send(conn, way, frames)


class Audience:
    """The readers of one server: a node of the network, with one connection that hears for all of them."""

    def __init__(self, world: World, server: str) -> None:
        self.world, self.server, self.name, self.running = world, server, f"{server}'s", True
        self.readers: list[Reader] = []
        # Counters of what the server sent to readers, and of holes in it.
        self.counts: Counter[str] = Counter()
        self._last = 0
        # The readers that ask as soon as the server greets them.
        self._waiting: list[Reader] = []
        world.nodes[self.name] = self
        world.net.connect("upd", self.name, server)

    def join(self, reader: Reader, *, asks: bool = True) -> None:
        """Subscribe as a reader to everything and to its own channel, where the server greets it alone.

        The reader asks a question only if it follows this server (`asks`).
        """
        conn = Conn("upd", self.name, self.server)
        conn.identity = reader.session
        for topic in (EVERYTHING, session_topic(reader.session)):
            self.world.nodes[self.server].deliver(conn, [b"\x01" + topic])
        self.readers.append(reader)
        self.counts["greetings"] += 1
        if asks:
            self._waiting.append(reader)

    def leave(self) -> list[Reader]:
        """Return the readers of a server that is gone, each at the last record that it heard."""
        for reader in self.readers:
            reader.at = self._last
        return self.readers

    def synced(self) -> bool:
        """Return True if no question of these readers is open."""
        return not self._waiting and all(reader.question is None for reader in self.readers)

    # -- what comes

    def connected(self, conn: Conn) -> None:
        """Subscribe for all readers."""
        self.world.net.send(conn, "up", [b"\x01" + EVERYTHING])

    def disconnected(self, conn: Conn) -> None:
        """Do nothing: the program that runs the world lets the readers join elsewhere."""

    def resume(self) -> None:
        """Do nothing: readers are never stopped."""

    def start(self) -> None:
        """Do nothing: readers are there from the beginning."""

    def deliver(self, _conn: Conn, frames: Frames) -> None:
        """Take what the server publishes, for each reader."""
        peeked, readers = peek(frames[4]), len(self.readers)
        header = None if peeked is None else peeked[0]
        self.counts["heard"] += 1
        self.counts["bytes"] += readers * sum(map(len, frames))
        if isinstance(header, Greeting):
            self.counts["greetings"] += readers
            if header.state == State.ACTIVE:
                waiting, self._waiting = self._waiting, []
                for reader in waiting:
                    self._ask(reader)
            return
        self.counts["messages"] += readers
        if isinstance(header, Heartbeat):
            self.counts["heartbeats"] += readers
            self.counts["holes"] += readers * (header.channel_last > self._last > 0)
        elif isinstance(header, Batch):
            self.counts["holes"] += readers * (header.prev != self._last > 0)
            self._last = header.last

    # -- questions

    def _ask(self, reader: Reader) -> None:
        options: dict[str, Any] = {"from": reader.at, "session": reader.session, "credit": CREDIT}
        if reader.proof:
            options["proof"] = reader.proof
        reader.asked += 1
        reader.question, reader.records_to = Question(reader.asked, b"", options), reader.at
        self.world.outsiders[reader.session] = partial(self._answered, reader)
        self._send(reader, reader.question.frames)

    def _send(self, reader: Reader, frames: Frames) -> None:
        conn = Conn("req", self.name, self.server)
        conn.identity = reader.session
        self.world.nodes[self.server].deliver(conn, frames)

    def _answered(self, reader: Reader, _node: ServerNode, frames: Frames) -> None:
        question = reader.question
        told = None if question is None else question.hear(self.server, frames)
        if question is None or told is None:
            return
        if isinstance(told.header, Records):
            for batch, _ in map(record_of, told.items):
                self.counts["holes"] += batch.prev > reader.records_to
                reader.records_to = batch.last
        elif isinstance(told.header, Kthxbai):
            resumed = told.header.resumed
            self.counts["resumes" if resumed else "snapshots"] += 1
            self.counts["holes"] += told.header.number < self._last or (resumed and reader.records_to < reader.at)
            reader.at, reader.proof, reader.question = told.header.number, list(told.header.proof or ()), None
        if (more := question.granted()) is not None:
            self._send(reader, more)


class VirtualReaders:
    """A pair, its replicas, a writer, and readers that all begin within `STEPS_S`."""

    def __init__(self, replicas: int, readers: int, rate: float) -> None:
        self.world = world = World(tracing=False)
        world.net = self._net = CountingNetwork(world)
        self._rate, self._made = rate, 0
        self._do(f"client {WRITER} production all", "start P", "start B", f"start {WRITER}")
        self._run(SETTLED_S)
        self._do("set " + WRITER + "".join(f" /{i}" for i in range(KEYS)))
        self._run(SETTLED_S)
        # Leave out the snapshot of the writer.
        self._by_pair = -self._snapshots_of_pair()
        self._replicas = [f"R{i}" for i in range(1, replicas + 1)]
        for name in self._replicas:
            self._do(f"replica {name}", f"start {name}")
        self._run(SETTLED_S)
        self._servers = self._replicas or ["P"]
        if not all(world.nodes[name].core.active for name in self._servers):
            raise RuntimeError("a server does not serve")
        # A Clone of a pair hears both servers.
        self._audiences = {name: Audience(world, name) for name in self._replicas or ["P", "B"]}
        self._readers = [Reader(b"r%015d" % i) for i in range(readers)]
        self._run(SETTLED_S)
        self._write()

    def _do(self, *lines: str) -> None:
        for line in lines:
            self.world.do(line)

    def _run(self, seconds: float) -> None:
        self.world.time.run_until(self.world.time.now + seconds)

    def _write(self) -> None:
        self._do(f"set {WRITER} /{self._made % KEYS}")
        self._made += 1
        self.world.time.at(self.world.time.now + 1 / self._rate, self._write)

    def _snapshots_of_pair(self) -> int:
        return sum(self.world.nodes[name].core.committer.counts["snapshots"] for name in "PB")

    def start(self) -> dict[str, int]:
        """Let all readers begin; return the most that a server sent for this, and how many snapshots the pair made."""
        taken = self._join(self._readers, self._servers)
        taken["snapshots_by_the_pair"] = self._by_pair + self._snapshots_of_pair()
        return taken

    def steady(self, seconds: float) -> dict[str, float]:
        """Return what is sent in a second while nothing else happens."""
        sent, before = self._net.sent.copy(), self._counted()
        self._run(seconds)
        since = self._since(before)
        to_readers = {name: counts["messages"] for name, counts in since.items()}
        found: dict[str, float] = {"readers_each": len(self._audiences[self._servers[0]].readers)}
        for role, name in (("active", "P"), ("passive", "B"), ("replica", self._servers[0])):
            found[f"{role}_to_readers_a_s"] = to_readers.get(name, 0) / seconds
            others = self._net.sent[name] - sent[name] - since.get(name, Counter())["heard"]
            found[f"{role}_to_others_a_s"] = others / seconds
        total: Counter[str] = Counter()
        for counts in since.values():
            total += counts
        found["heartbeats_a_reader_a_s"] = total["heartbeats"] / len(self._readers) / seconds
        found["bytes_a_message"] = total["bytes"] / total["messages"]
        found["holes"] = total["holes"]
        return found

    def lose(self) -> dict[str, int]:
        """Kill a replica, so that its readers go to the others; return their number, and the most a server sent."""
        lost, *left = self._servers
        self._do(f"crash {lost}")
        readers = self._audiences.pop(lost).leave()
        return {"moved": len(readers), **self._join(readers, left)}

    def _join(self, readers: list[Reader], servers: list[str]) -> dict[str, int]:
        before, step = self._counted(), max(1, len(self._readers) // STEPS)
        for at in range(0, len(readers), step):
            part = readers[at : at + step]
            for i, reader in enumerate(part, at):
                self._audiences[servers[i % len(servers)]].join(reader)
                if "B" in self._audiences:
                    self._audiences["B"].join(reader, asks=False)
            self._run(STEPS_S / STEPS)
        self._run(SETTLED_S)
        if not all(self._audiences[name].synced() for name in servers):
            raise RuntimeError("readers are not in sync")
        since = self._since(before)
        answers = {kind: [counts[kind] for counts in since.values()] for kind in ("snapshots", "resumes")}
        return {
            "greetings_each": max(counts["greetings"] for counts in since.values()),
            "answers_each": max(map(sum, zip(*answers.values(), strict=True))),
            **{kind: sum(found) for kind, found in answers.items()},
            "holes": sum(counts["holes"] for counts in since.values()),
        }

    def _counted(self) -> dict[str, Counter[str]]:
        return {name: audience.counts.copy() for name, audience in self._audiences.items()}

    def _since(self, before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
        return {name: audience.counts - before[name] for name, audience in self._audiences.items()}
