"""A pair and a replica as cores, joined by hand: the lines of the replica's upstream carry the messages at once."""

from __future__ import annotations

from typing import Any

from chp.batch import decode
from chp.headers import Header
from chp.keys import channel_topic
from chp.limits import DEFAULT, Limits
from chp_server.core.core import CoreConfig
from chp_server.core.replica.core import ReplicaCore
from chp_server.core.replica.upstream import PASSED, QUESTIONS, SETS, UPDATES
from chp_server.core.updates.turn import Frames, Read, ReadOldest, ReadSpans, Turn
from chp_server.cores import STEP_S, Cores


class WithReplica(Cores):
    """A pair, and a replica R of it; R2 follows R."""

    def __init__(self, limits: Limits = DEFAULT, *, row: bool = False, confirms: str = "", **config: Any) -> None:
        self.replicas: dict[str, ReplicaCore] = {}
        # The replica that confirms.
        self.confirms = confirms
        self.upstream: dict[str, tuple[str, ...]] = {"R": ("P", "B"), "R2": ("R",)}
        # The messages that each replica's lines bring with its next turn: line, frames.
        self._lines: dict[str, list[tuple[bytes, Frames]]] = {"R": [], "R2": []}
        self.heard: dict[str, set[bytes]] = {}
        # Replicas that hear no word of upstream.
        self.cut: set[str] = set()
        # True if the servers answer no question that a replica passes, and all that replicas have sent upstream.
        self.deaf = False
        self.sent_up: list[Frames] = []
        self.published: dict[str, list[Frames]] = {"P": [], "B": [], "R": [], "R2": []}
        self.replied: list[tuple[str, bytes, Frames]] = []
        super().__init__(limits, **config)
        for name in ("R", "R2")[: 1 + row]:
            self.start(name)
        self.run(1.0)

    def start(self, name: str) -> ReplicaCore:
        """Start a replica, with nothing."""
        config = CoreConfig(replica=True, name=name, confirms=name == self.confirms)
        servers = len(self.upstream[name])
        core = self.replicas[name] = ReplicaCore(
            config, name.encode() * (16 // len(name)), self.now, self.limits, upstream=servers
        )
        self.published[name] = []
        for place in range(servers):
            self._up(name, UPDATES + bytes([place]), [b"\x01HUGZ"])
        return core

    @property
    def r(self) -> ReplicaCore:
        """The replica."""
        return self.replicas["R"]

    def core(self, name: str) -> Any:
        """Return a server or a replica."""
        return self.replicas.get(name) or self.cores[name]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            super().run(STEP_S)
            for name in self.replicas:
                if name not in self.stopped:
                    self.replica_turn(name)

    def replica_turn(self, name: str) -> Turn:
        """Make one turn of a replica."""
        core = self.replicas[name]
        core.begin_turn(self.now, self.now)
        lines, self._lines[name] = self._lines[name], []
        for line, frames in lines:
            core.peer_message(frames, line)
        turn = core.end_turn()
        self.sent(name, turn)
        self._read_nothing(name, turn)
        if name not in self.cut:
            for line, *frames in [*turn.to_peer, *turn.confirm]:
                self._up(name, line, frames)
        return turn

    def turn(self, name: str) -> Turn:
        """Make one turn of a server of the pair."""
        turn = super().turn(name)
        self.sent(name, turn)
        self._read_nothing(name, turn)
        return turn

    def _read_nothing(self, name: str, turn: Turn) -> None:
        """Answer the reads of a turn: there is no journal here."""
        core = self.core(name)
        for read in turn.reads:
            if isinstance(read, Read):
                core.page(read, None)
            elif isinstance(read, ReadSpans) and name in self.replicas:
                core.page(read, {})
            elif isinstance(read, ReadOldest):
                core.page(read, (core.state.number, True))

    def _up(self, name: str, line: bytes, frames: Frames) -> None:
        source = self.upstream[name][line[1]]
        self.sent_up.append([line, *frames])
        if source in self.stopped or source not in {*self.cores, *self.replicas}:
            return
        if line[:1] == PASSED and (self.deaf or not frames):
            return
        if line[:1] in (QUESTIONS, PASSED):
            self.core(source).request([name.encode() + line, *frames])
        elif line[:1] == SETS:
            self.core(source).collect(frames)
        else:
            topics = self.heard.setdefault(f"{name}>{source}", set())
            (topics.add if frames[0][:1] == b"\x01" else topics.discard)(frames[0][1:])
            self.core(source).subscription([name.encode(), *frames])

    def sent(self, name: str, turn: Turn) -> None:
        """Carry what a server has published and replied to the replicas that follow it."""
        self.published[name] += turn.publish
        for replica, sources in self.upstream.items():
            for place in [i for i, source in enumerate(sources) if source == name and replica not in self.cut]:
                topics = tuple(self.heard.get(f"{replica}>{name}", ()))
                for frames in [*turn.publish, *turn.acks] if topics else []:
                    if frames[0].startswith(topics):
                        self._lines[replica].append((UPDATES + bytes([place]), frames))
        for identity, messages in turn.replies:
            owner = next((each for each in ("R2", "R") if identity.startswith(each.encode())), "")
            for frames in messages:
                self.replied.append((name, identity, frames))
                if owner and owner not in self.cut:
                    self._lines[owner].append((identity[len(owner) :], frames))

    def take_lines(self, name: str) -> list[tuple[bytes, Frames]]:
        """Take out the messages of upstream that wait for a replica."""
        lines, self._lines[name] = self._lines[name], []
        return lines

    def give_lines(self, name: str, lines: list[tuple[bytes, Frames]]) -> None:
        """Let messages of upstream come to a replica with its next turn."""
        self._lines[name] += lines

    def listen(self, subtree: str, *names: str) -> None:
        """Let a client hear a subtree's channel at some servers."""
        for name in names:
            self.core(name).subscription([b"client", b"\x01" + channel_topic(subtree)])

    def batches(self, name: str, subtree: str) -> list[bytes]:
        """Return the bodies of the BATCHes that a server has published on a channel."""
        bodies = [frames[4] for frames in self.published[name] if frames[0] == channel_topic(subtree)]
        return [body for body in bodies if type(decode(body)[0]).__name__ == "Batch"]

    def answers_to(self, identity: bytes) -> list[Header]:
        """Return the headers of the answers to a connection."""
        return [decode(frames[4])[0] for _, who, frames in self.replied if who == identity]
