"""covers: snapshots.py: a state that a passive took over is put into its journal a chunk a turn, then confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chp.batch import Segment
from chp.headers import State
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.numbers import pack
from chp.topics import pack_messages
from chp_server.core.asks import RiseAbove, Vote
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair import follow
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.performing import recover, steps
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import Journal, JournalFull
from chp_server.core.updates.turn import Frames, JournalOp, JournalRead, ReadSpans
from chp_server.store.store_url import open_journal

LIMITS = replace(DEFAULT, sync_chunk_items=10, gather_items_max=16_384)
KEYS = [f"/{i:03}" for i in range(200)]
CHUNKS = len(KEYS) // LIMITS.sync_chunk_items


def server(name: str) -> ServerCore:
    return ServerCore(CoreConfig(primary=name == "P", has_peer=True, name=name), name.encode() * 16, 0.0, LIMITS)


class Passive:
    """A core over a real journal. Its turns are performed as those of a server."""

    def __init__(self, path: Path) -> None:
        self.core, self.journal = server("B"), self.open(path)
        recover(self.core, self.journal, 0.0, 0.0)
        self.snapshotter = Snapshotter(self.journal, LIMITS)
        self.told: list[Frames] = []
        self.reads: list[JournalRead] = []
        self.puts = 0

    @staticmethod
    def open(path: Path) -> Journal:
        return open_journal(f"sqlite:{path}")

    def turn(self, now: float, heard: list[Frames], sets: list[Frames] | None = None) -> list[Frames]:
        """Take a turn, and return its messages to the peer."""
        self.told = []
        self.core.begin_turn(now, now)
        for frames in heard:
            self.core.peer_message(frames)
        for frames in sets or []:
            self.core.collect(frames)
        for _ in steps(self.core, self.core.end_turn(), self):  # type: ignore[arg-type]
            pass
        return self.told

    def now(self) -> float:
        return self.core.turn.now

    def to_peer(self, messages: list[Frames]) -> None:
        self.told += messages

    def write(self, ops: Sequence[JournalOp], *, again: bool) -> None:
        self.snapshotter.write(ops, self.core, again=again)

    def sync(self) -> None:
        self.journal.sync()

    def read(self, read: JournalRead) -> dict[int, list[list[int]]]:
        """Note what a turn wants to read, and find nothing."""
        self.reads.append(read)
        return {}

    def __getattr__(self, name: str) -> object:
        # The other effects of a turn do not matter here.
        return lambda *_: None


class Pair:
    """An active with a state of many chunks, and a passive that asks for it."""

    def __init__(self, path: Path) -> None:
        self.active, self.passive, self.path = server("P"), Passive(path), path
        self.now, self._no = 1.0, 0
        self._mail: list[Frames] = []
        self.active.begin_turn(1.0, 1.0)
        self.active.peer_message(server("B").link.state_message())
        self.put(KEYS)
        self.active.committer.committed.log.clear()
        self._mail = [self.active.link.state_message()]

    def put(self, keys: list[str], **extras: object) -> None:
        """Set keys at the active."""
        self._no += 1
        body = Segment(keys, [b"%d" % self._no] * len(keys), extras or None).encode()
        self.active.collect([RESERVED_KEY, pack(self._no), b"c" * 16, b"", body])
        self._mail += self.active.end_turn().to_peer

    def step(self) -> list[Frames]:
        """Let each server take a turn, and return the messages of the passive."""
        self.now += 0.01
        said = self.passive.turn(self.now, self._mail)
        self.active.begin_turn(self.now, self.now)
        for frames in said:
            self.active.peer_message(frames)
        done = self.active.end_turn()
        self._mail = done.to_peer + done.opened + done.confirm
        return said

    def until_taken_over(self) -> list[Frames]:
        """Run until the passive has the whole state, and return its messages of that turn."""
        said: list[Frames] = []
        while self.passive.core.pair.replacing is None:
            said = self.step()
            assert self.now < 5
        return said

    def restarted(self) -> ServerCore:
        """Return the core that a start would make now."""
        self.passive.journal.close()
        journal, core = self.passive.open(self.path), server("B")
        recover(core, journal, 0.0, 0.0)
        journal.close()
        return core


def confirmed(said: list[Frames]) -> bool:
    return any(frames[0] == follow.CONFIRM for frames in said)


def test_a_taken_over_state_is_confirmed_after_its_last_chunk_is_written(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert not confirmed(pair.until_taken_over())
    assert pair.passive.core.state.map.values == pair.active.state.map.values, "it has everything"
    turns = 0
    while not pair.passive.snapshotter.step(pair.passive.core):
        turns += 1
        pair.put([f"/more/{turns}"])
        assert not confirmed(pair.step()), "its journal does not have it yet"
    assert turns >= CHUNKS - 3
    said = pair.step()
    assert confirmed(said)
    assert pair.restarted().state.map.values == pair.passive.core.state.map.values
    assert len(pair.passive.core.state.map) > len(KEYS), "what came meanwhile was followed"


def test_a_restart_before_the_last_chunk_finds_the_earlier_state(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.until_taken_over()
    for _ in range(CHUNKS // 2):
        pair.passive.snapshotter.step(pair.passive.core)
    pair.passive.journal.sync()
    assert len(pair.restarted().state.map) == 0


def test_a_passive_is_not_elected_before_its_new_state_is_written(tmp_path: Path) -> None:
    """A passive that writes a whole state is not elected, since the active may be busy and not dead."""
    pair = Pair(tmp_path)
    pair.until_taken_over()
    core = pair.passive.core
    core.begin_turn(pair.now + 2, pair.now + 2)
    assert not core.pair.peer_lives() and not core.do(Vote())
    while not pair.passive.snapshotter.step(core):
        pass
    assert core.do(Vote())


def test_a_forced_passive_writes_the_rest_of_the_state_at_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.until_taken_over()
    pair.passive.core.begin_turn(pair.now + 2, pair.now + 2)
    # An operator forces it.
    pair.passive.core.do(PairEvent.FORCED)
    pair.passive.turn(pair.now + 2.2, [])
    assert pair.passive.core.pair.bstate is State.ACTIVE
    assert pair.passive.core.pair.replacing is None
    found = pair.restarted().state
    assert (found.number, found.map.values) == (
        pair.passive.core.state.number,
        dict.fromkeys(KEYS, b"1"),
    ), "with the epoch that it opened"


def test_a_state_is_written_again_after_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path)
    pair.until_taken_over()
    passive = pair.passive
    put = passive.journal.put_snapshot

    def full(_body: bytes) -> None:
        raise JournalFull("no room")

    monkeypatch.setattr(passive.journal, "put_snapshot", full)
    with pytest.raises(JournalFull):
        passive.snapshotter.step(passive.core)
    monkeypatch.setattr(passive.journal, "put_snapshot", put)
    # The reactor does the same.
    passive.snapshotter.give_up(pair.now + 1)
    assert not confirmed(pair.step())
    pair.now += 1
    pair.step()
    while not passive.snapshotter.step(passive.core):
        pass
    assert confirmed(pair.step())
    assert pair.restarted().state.map.values == dict.fromkeys(KEYS, b"1")


def test_a_second_state_in_one_turn_does_not_change_the_common_number(tmp_path: Path) -> None:
    """The journal has the messages that this server placed while it was active, until the first state replaces it."""
    pair = Pair(tmp_path)
    pair.until_taken_over()
    core = pair.passive.core
    while not pair.passive.snapshotter.step(core):
        pass
    pair.step()
    common = core.state.number
    # Both are active: the passive publishes a message, and the active opens an epoch above.
    core.begin_turn(pair.now, pair.now)
    core.do(PairEvent.FORCED)
    pair.passive.turn(pair.now, [])
    publish = {"publish": [["t", 1, pack_messages(None, [b"one"])]]}
    body = Segment([], [], publish).encode()
    pair.passive.turn(pair.now, [], [[RESERVED_KEY, pack(1), b"d" * 16, b"", body]])
    assert core.state.number > common and core.state.topics.by_name
    pair.active.begin_turn(pair.now, pair.now)
    pair.active.do(RiseAbove(core.state.epoch))
    pair.put([], **publish)
    pair._mail = [pair.active.link.state_message()]
    answer: list[Frames] = []
    while not any(frames[0] == follow.END for frames in pair._mail):
        answer += [frames for frames in pair._mail if frames[0] == b"SYNC"]
        pair.step()
        assert pair.now < 5
    # The whole answer comes twice.
    pair._mail += [*answer, *pair._mail]
    said = [*pair.step(), *pair.step()]
    assert pair.passive.reads == [ReadSpans(common), ReadSpans(common)]
    assert core.pair.replacing == common
    assert follow.REPLAY not in {frames[0] for frames in said}, "a start would hand its suffix over once more"
    said = []
    while follow.REPLAY not in {frames[0] for frames in said}:
        said = pair.step()
        assert core.pair.replacing is None or follow.REPLAY not in {frames[0] for frames in said}
        pair.passive.snapshotter.step(core)
        assert pair.now < 5
