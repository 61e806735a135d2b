"""covers: performing.py: the order of inputs and of effects, and what a journal tells before the first turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import inf
from typing import Any

import pytest

from chp.batch import Segment
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.set_shares import SetShares
from chp_server.core.performing import (
    NO_EFFECTS,
    ORDER,
    ServerPort,
    Step,
    recover,
    short_port,
    short_turn,
    steps,
    take_inputs,
)
from chp_server.core.state.journal import JournalFull, LoadedJournal, Options
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.turn import Append, Copy, DropAfter, Fact, Frames, JournalOp, JournalRead, Read, Save, Turn
from chp_server.store.memory_store import MemoryStore
from chp_server.testing import Cores

ALONE = CoreConfig(name="P")
PAIR = CoreConfig(name="P", has_peer=True, peer_timeout_s=1.0)


class Recorder:
    """Ports and inboxes that write down what is asked of them."""

    def __init__(self, now: float = 0.0, full: Sequence[str] = ()) -> None:
        self.did: list[str] = []
        # The steps that were done when the cut was asked for.
        self.cut_after: list[str] | None = None
        self.time = now
        # The operations for which the journal has no room, once each.
        self.full = list(full)

    def now(self) -> float:
        return self.time

    def cut_denied(self) -> None:
        self.cut_after = list(self.did)

    def save(self, save: Save) -> None:
        self.did.append(f"save {save.name}")

    def to_peer(self, messages: list[Frames]) -> None:
        self.did.append(f"to_peer {messages[0][0].decode()}")

    def write(self, ops: Sequence[JournalOp], *, again: bool) -> None:
        self.did.append(f"write {len(ops)}" + " again" * again)
        self._room_for("write")

    def sync(self) -> None:
        self.did.append("sync")
        self._room_for("sync")

    def _room_for(self, what: str) -> None:
        if self.full and self.full[0] == what:
            raise JournalFull(self.full.pop(0))

    def no_room(self, error: JournalFull) -> None:
        self.did.append(f"no room to {error}")

    def publish(self, messages: list[Frames]) -> None:
        self.did.append(f"publish {messages[0][0].decode()}")

    def acknowledge(self, acks: list[Frames]) -> None:
        self.did.append(f"acknowledge {len(acks)}")

    def reply(self, identity: bytes, messages: list[Frames]) -> None:
        self.did.append(f"reply {identity.decode()}")

    def fact(self, fact: Fact) -> None:
        self.did.append(f"fact {fact.event}")

    def read(self, read: JournalRead) -> Any:
        assert isinstance(read, Read)
        self.did.append(f"read {read.after}")
        return None

    def copy(self, copy: Copy) -> None:
        self.did.append(copy.command)

    ready = frozenset(ServerPort)

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        self.did.append(port)


def full_turn() -> Turn:
    """Return a turn with something in each field."""
    return Turn(
        saves=[Save("suffix", [])],
        to_peer=[[b"RECORD"]],
        deliveries=[(b"member", [[b"MESSAGES"]])],
        journal=[Append(1, 1, b""), DropAfter(1)],
        opened=[[b"STATE"]],
        publish=[[b"/key"]],
        acks=[[b"ack"]],
        promises=[(b"root", [[b"REPLY"]])],
        confirm=[[b"CONFIRM"]],
        replies=[(b"reader", [[b"REPLY"]])],
        facts=[Fact("info", "said", {})],
        reads=[Read(7, 100)],
        copies=[Copy("backup", b"operator", {"id": 1})],
    )


def a_core(config: CoreConfig = ALONE, now: float = 0.0) -> ServerCore:
    return ServerCore(config, b"s" * 16, now)


def test_a_turn_is_performed_in_the_order_of_the_contract() -> None:
    ports = Recorder()
    named = list(steps(a_core(), full_turn(), ports))
    assert ports.did == [
        "save suffix", "to_peer RECORD", "reply member", "write 2", "sync", "to_peer STATE",
        "publish /key", "acknowledge 1", "reply root", "to_peer CONFIRM", "reply reader", "fact said", "read 7",
        "backup",
    ]  # fmt: skip
    assert named == [step for step in Step if step is not Step.NO_ROOM]
    assert ports.cut_after == [], "who is denied is cut off first"


def test_a_turn_without_room_in_the_journal_retries_before_it_publishes() -> None:
    ports = Recorder(full=["sync", "write", "sync"])
    pulled = steps(a_core(), full_turn(), ports)
    before = ["save suffix", "to_peer RECORD", "reply member", "write 2", "sync", "no room to sync"]
    tries = ["write 2 again", "no room to write", "write 2 again", "sync", "no room to sync", "write 2 again", "sync"]
    named = [step for step in pulled if step in (Step.NO_ROOM, Step.PUBLISH)]
    assert named == [Step.NO_ROOM, Step.NO_ROOM, Step.NO_ROOM, Step.PUBLISH]
    assert ports.did[: len(before + tries)] == before + tries
    after = ports.did[len(before + tries) :]
    assert after[:2] == ["to_peer STATE", "publish /key"], "and only then anything that others hear"


def test_the_order_of_effects_is_the_order_of_turn_fields() -> None:
    # A sync belongs to the journal.
    done = [effects for step, effects, _ in ORDER if step is not Step.SYNC]
    assert done == [field.name for field in fields(Turn)]


def test_a_step_is_named_before_it_is_done() -> None:
    ports = Recorder()
    pulled = steps(a_core(), full_turn(), ports)
    for step in pulled:
        if step is Step.SYNC:
            break
    assert ports.did == ["save suffix", "to_peer RECORD", "reply member", "write 2"], "who stops here has not synced"
    next(pulled)
    assert ports.did[4:] == ["sync"]


def test_an_empty_turn_has_no_effects() -> None:
    ports = Recorder()
    assert list(steps(a_core(), Turn(), ports)) == ports.did == []


def test_acknowledgements_wait_if_the_server_was_stopped_in_mid_turn() -> None:
    core, turn = a_core(PAIR), Turn(acks=[[b"ack"]])
    list(steps(core, turn, late := Recorder(now=0.6)))
    assert late.did == ["acknowledge 0"]
    list(steps(core, turn, soon := Recorder(now=0.4)))
    assert soon.did == ["acknowledge 1"]


def test_the_answer_to_new_rules_waits_if_the_server_was_stopped() -> None:
    core, turn = a_core(PAIR), Turn(promises=[(b"root", [[b"REPLY"]])])
    list(steps(core, turn, late := Recorder(now=0.6)))
    assert late.did == []
    list(steps(core, turn, soon := Recorder(now=0.4)))
    assert soon.did == ["reply root"]


def test_the_peer_is_heard_first() -> None:
    inboxes = Recorder()
    take_inputs(a_core(), inboxes)
    assert inboxes.did == [ServerPort.PEER, ServerPort.UPDATES, ServerPort.COLLECTOR, ServerPort.SNAPSHOT]


def test_readers_wait_but_sets_do_not_while_a_large_commit_is_applied() -> None:
    core, inboxes = a_core(), Recorder()
    core.state.apply(Segment(["/a"], [b"1"], None), 1, 0.0, deferred=True)
    take_inputs(core, inboxes)
    assert inboxes.did == [ServerPort.PEER, ServerPort.COLLECTOR]


class Inbox:
    """A message that has come at one port."""

    ready = frozenset(ServerPort)

    def __init__(self, port: ServerPort, frames: Frames) -> None:
        self._port, self._frames = port, frames

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        assert port is self._port
        handle(self._frames)


def of_a_client() -> Inbox:
    body = Segment(["/a"], [b"1"]).encode()
    return Inbox(ServerPort.COLLECTOR, [RESERVED_KEY, pack(1), b"c" * 16, b"", body])


def of_the_passive(pair: Cores) -> Inbox:
    """Return the confirmation of a set, which both servers have."""
    pair.put("P", b"c" * 16, 1, {"/a": b"1"})
    pair.turn("P")
    (frames,) = pair.turn("B").confirm
    pair.late("P")
    return Inbox(ServerPort.PEER, [b"", *frames])


def short(pair: Cores, name: str, inbox: Inbox, after: float = 0.01, due: float = inf) -> Turn | None:
    core = pair.cores[name]
    pair.now += after
    return short_turn(core, inbox, pair.now, pair.now, min(due, core.next_deadline()))


def test_a_passive_keeps_sets_of_a_short_turn_for_a_takeover() -> None:
    pair = Cores()
    assert short_port(pair.b) is ServerPort.COLLECTOR
    assert short(pair, "B", of_a_client()) is NO_EFFECTS and pair.b.turn.now == pair.now
    pair.stopped = "P"
    pair.run(4.0)
    pair.vote("B")
    pair.run(0.1)
    assert pair.b.active and pair.b.state.map.values == {"/a": b"1"}


def test_the_active_releases_confirmed_acks_in_a_short_turn() -> None:
    pair = Cores()
    inbox = of_the_passive(pair)
    assert short_port(pair.p) is ServerPort.PEER
    turn = short(pair, "P", inbox)
    assert turn is not None
    did = [step for step, field, _ in ORDER if getattr(turn, field)]
    assert did == [Step.ACKS] and len(turn.acks) == 1
    assert pair.turn("P").acks == [], "each answer leaves once"


@pytest.mark.parametrize("why", ["a heartbeat is due", "it was stopped", "a reader waits", "sets wait"])
def test_a_confirmation_waits_for_a_whole_turn_if(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Cores()
    inbox, core = of_the_passive(pair), pair.p
    began, after, due = core.turn.now, 0.01, inf
    core.requests.awake = why == "a reader waits"
    if why == "a heartbeat is due":
        due = pair.now
    if why == "it was stopped":
        # No heartbeat was due meanwhile.
        core._deadlines.first, after = inf, core.pair.config.peer_timeout_s / 2 + 0.01
    if why == "sets wait":
        # They wait for the passive.
        monkeypatch.setattr(SetShares, "ready", lambda *_: False)
        core.link.sets.queue.add([RESERVED_KEY, pack(2), b"c" * 16, b"", b""])
    assert short(pair, "P", inbox, after, due) is None
    assert core.turn.now == began, "the turn that comes sees the whole gap"


def test_a_short_turn_leaves_other_messages_to_the_next_whole_turn() -> None:
    pair = Cores()
    state = pair.b.link.state_message()
    assert short(pair, "P", Inbox(ServerPort.PEER, [b"", *state])) is None
    peer = pair.p.pair.peer
    assert peer is not None and peer.heard == pair.now, "it was heard"
    garbage = Inbox(ServerPort.COLLECTOR, [RESERVED_KEY])
    assert short(pair, "B", garbage, 0.0) is NO_EFFECTS
    assert [fact.event for fact in pair.turn("B").facts] == ["garbage"]


class Told(MemoryStore):
    """A journal that finds rows."""

    def __init__(self, rows: list[LoggedRow], seen_epoch: int = 0) -> None:
        super().__init__("memory:", Options())
        self.dropped: list[int] = []
        self._found, self._seen = rows, seen_epoch

    def load(self) -> LoadedJournal:
        last = self._found[-1].last if self._found else 0
        return LoadedJournal(last, 0, iter(()), iter(self._found), "told", seen_epoch=self._seen)

    def drop_after(self, number: int) -> int:
        self.dropped.append(number)
        return 1


def rows_of(core: ServerCore, *segments: list[Segment]) -> list[LoggedRow]:
    """Return the rows of a lone server: its epoch, and then a record of each list."""
    written: list[LoggedRow] = []
    for each in [[], *segments]:
        core.begin_turn(core.turn.now + 0.01, 0.0)
        if each:
            core.committer.commit_in_parts(core.turn, each)
        written += [op.row() for op in core.end_turn().journal if isinstance(op, Append)]
    return written


def a_set(**items: bytes) -> Segment:
    return Segment([f"/{name}" for name in items], list(items.values()), None)


def test_recovery_restores_the_map_and_the_log_from_the_rows() -> None:
    rows = rows_of(a_core(), [a_set(a=b"1")], [a_set(b=b"2")])
    core, journal = a_core(), Told(rows)
    loaded = recover(core, journal, 0.0, 0.0)
    assert core.state.map.values == {"/a": b"1", "/b": b"2"}
    assert core.state.number == loaded.number == rows[-1].last
    assert core.committer.committed.log.reaches(rows[0].last), "who comes back soon resumes from it"
    assert journal.dropped == []


def test_a_start_opens_an_epoch_above_the_seen_epoch_of_the_journal() -> None:
    core = a_core()
    recover(core, Told([], seen_epoch=7), 0.0, 0.0)
    core.begin_turn(0.1, 0.0)
    assert core.state.epoch > 7


def test_recovery_drops_the_parts_of_an_incomplete_record() -> None:
    writer = ServerCore(ALONE, b"s" * 16, 0.0, replace(DEFAULT, part_bytes=10))
    rows = rows_of(writer, [a_set(a=b"1")], [a_set(b=b"x" * 10), a_set(c=b"x" * 10)])
    assert len(rows) == 4, "an epoch, a record, and one in two parts"
    core, journal = a_core(), Told(rows[:3])
    recover(core, journal, 0.0, 0.0)
    assert core.state.map.values == {"/a": b"1"}
    assert journal.dropped == [core.state.number] == [rows[1].last]
