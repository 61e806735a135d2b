"""Tests that the record of a large commit names what both servers have staged, and that each reader gets the rows.
covers: core/state/commit_record.py; the commit by name in updates/commit.py, its share a turn in updates/channels.py
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp.batch import BATCH, GREETING, HEARTBEAT, KTHXBAI, RECORDS, Segment, encode, packb, split
from chp.errors import BadFrame
from chp.headers import ACCESS, COMMIT, Batch, Commit, State
from chp.keys import RESERVED_KEY, channel_topic
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp.topics import pack_messages
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair import follow
from chp_server.core.performing import read_journal, recover
from chp_server.core.questions import feeds
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.commit_record import is_commit
from chp_server.core.state.journal import Journal, Options
from chp_server.core.updates.turn import Append, Read, ReadOldest, Turn
from chp_server.cores import STEP_S, Cores
from chp_server.store.memory_store import MemoryStore
from chp_server.store.store_url import open_journal
from tests.unit.replicas import WithReplica

SESSION, READER, TRANSACTION = b"s" * 16, b"reader", b"t" * 16
ROWS = {f"/r/{n}": b"%d" % n for n in range(8)}
# Each batch is larger than a part, each commit is large, and the map gets two items a turn.
SMALL = replace(DEFAULT, part_bytes=1, deferred_items_min=0, deferred_slice_items=2, publish_slice_bytes=1)


class Pair(Cores):
    """Two cores with journals in memory, a session that numbers its batches, and what was published."""

    def __init__(self, limits: Limits = SMALL, **config: Any) -> None:
        self.journals: dict[str, Journal] = {name: MemoryStore("memory:", Options()) for name in "PB"}
        self.rows: dict[str, list[bytes]] = {"P": [], "B": []}
        self._snapshots: dict[str, Snapshotter] = {}
        self.no = 0
        super().__init__(limits, **config)

    def turn(self, name: str) -> Turn:
        """Make a turn, and answer its reads of the journal."""
        turn = super().turn(name)
        for read in turn.reads:
            if isinstance(read, Read | ReadOldest):
                self.cores[name].page(read, read_journal(self.journals[name], read))
        return turn

    def write(self, name: str, turn: Turn) -> None:
        """Write what a turn has for the journal."""
        snapshots = self._snapshots.setdefault(name, Snapshotter(self.journals[name], DEFAULT))
        snapshots.write(turn.journal, self.cores[name])
        self.journals[name].sync()
        snapshots.step(self.cores[name])
        self.rows[name] += [op.body for op in turn.journal if isinstance(op, Append)]

    def begin_anew(self, name: str) -> None:
        """Give a server an empty journal."""
        self.journals[name], self.rows[name] = MemoryStore("memory:", Options()), []
        self._snapshots.pop(name, None)

    def send(self, items: dict[str, bytes], servers: str = "PB", **columns: Any) -> None:
        self.no += 1
        self.put(servers, SESSION, self.no, dict(items), **columns)

    def stage(self, servers: str = "PB", transaction: bytes = TRANSACTION) -> None:
        """Stage the rows in two parts, whose batches alternate, each in a record of its own."""
        for n, (key, value) in enumerate(ROWS.items()):
            self.send({key: value}, servers, stage=[transaction, str(n % 2)])
            self.now += STEP_S
            for name in servers:
                self.turn(name)

    def commit(self, servers: str = "PB", transaction: bytes = TRANSACTION, replaces: str | None = None) -> None:
        self.send({}, servers, commit=[transaction, "job", self.no, [["0", 4], ["1", 4]], replaces])

    def last(self, name: str) -> bytes:
        """Return the last record that names staged batches or deletes, or writes keys."""
        return self.rows[name][-1]

    def feed(self, name: str, after: int = 0) -> tuple[list[list[Any]], int | None]:
        """Read all records after a number; return what they write, with revisions, and the end or the refusal."""
        core, first, got = self.cores[name], 0, list[list[Any]]()
        core.request([READER, ICANHAZ, b"", packb({"id": 1, "chp": 3, "feed": True, "from": after, "credit": 64})])
        for _ in range(60):
            self.now += 0.001
            for _, messages in self.turn(name).replies:
                for frames in messages:
                    header, *items = split(frames[4])
                    if header[0] != RECORDS:
                        return got, header[2] if header[0] == KTHXBAI else None
                    for (_, _, start, _, _, _, more, *_), *segments in items:
                        first = first or start
                        for keys, values, _ in segments:
                            got += [[key, value, first] for key, value in zip(keys, values, strict=True)]
                        first = first if more else 0
        raise AssertionError("the feed has no end")


def in_order() -> list[str]:
    """Return the keys in the order in which the commit names the parts."""
    keys = list(ROWS)
    return [*keys[::2], *keys[1::2]]


def kinds(bodies: list[bytes]) -> list[int]:
    return [split(body)[0][0] for body in bodies]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_commit_record_names_staged_batches_and_both_servers_have_the_rows(pair: Pair) -> None:
    pair.stage()
    pair.commit()
    pair.run(1.0)
    assert kinds(pair.rows["P"])[-1:] == kinds(pair.rows["B"])[-1:] == [COMMIT]
    assert is_commit(pair.last("P")) and b"/r/" not in pair.last("P") and pair.last("P") == pair.last("B")
    assert pair.p.state.map.values == pair.b.state.map.values == ROWS
    assert pair.p.state.map.revisions == pair.b.state.map.revisions
    assert pair.p.state.proof() == pair.b.state.proof() and pair.p.pair.in_sync()
    assert not pair.p.state.staging.transactions and not pair.b.state.staging.transactions
    assert pair.b.state.staging.versions["job"].version and pair.answers(SESSION)[-1][1] == "ack"
    for core in (pair.p, pair.b):
        core.state.check()


def test_a_commit_record_deletes_the_keys_that_the_commit_replaces() -> None:
    pair = Pair(replace(SMALL, part_bytes=50))
    pair.send({"/r/old": b"1", "/other": b"1"})
    pair.stage()
    pair.commit(replaces="/r/")
    pair.run(1.0)
    assert is_commit(pair.last("B")) and b"/r/old" in pair.last("B")
    assert pair.p.state.map.values == pair.b.state.map.values == {**ROWS, "/other": b"1"}


@pytest.mark.parametrize(
    "columns", [{"n": [[0], [0]]}, {"l": b"l" * 16}, {"publish": [["t", 1, pack_messages(None, [b"a"])]]}]
)
def test_a_batch_with_conditions_lease_or_messages_is_committed_with_its_rows(columns: dict[str, Any]) -> None:
    pair = Pair()
    pair.send({}, topic=["t", {}])
    pair.send({}, lease=[b"l" * 16, 60_000])
    pair.stage()
    pair.send({"/r/x": b"1"}, stage=[TRANSACTION, "2"], **columns)
    pair.send({}, commit=[TRANSACTION, "job", 1, [["0", 4], ["2", 1]], None])
    pair.run(1.0)
    assert COMMIT not in kinds(pair.rows["P"]) and pair.answers(SESSION)[-1][1] == "ack"
    assert pair.b.state.map.values == {**{key: ROWS[key] for key in in_order()[:4]}, "/r/x": b"1"}


def test_the_record_covers_a_number_for_each_update_or_for_each_segment(pair: Pair) -> None:
    pair.stage()
    pair.commit()
    pair.turn("P")
    (_, _, first, last, *_), *_ = split(pair.last("P"))
    assert last - first + 1 == len(ROWS) + 1, "eight batches of one row, and the segment that says that it is done"
    items = {f"/m/{n}": b"" for n in range(30)}
    pair.send(items, stage=[b"2" * 16, "0"])
    pair.send({}, commit=[b"2" * 16, "job", pair.no, [["0", 1]], None])
    pair.turn("P")
    (_, _, first, last, *_), *_ = split(pair.last("P"))
    assert is_commit(pair.last("P")) and last - first + 1 == len(items)


def test_the_record_of_a_small_commit_has_the_rows() -> None:
    pair = Pair(DEFAULT)
    pair.send({"/a": b"1"}, stage=[TRANSACTION, "0"])
    pair.send({}, commit=[TRANSACTION, "job", 1, [["0", 1]], None])
    pair.run(1.0)
    assert COMMIT not in kinds(pair.rows["P"]) and pair.b.state.map.values == {"/a": b"1"}


# -- peers


def test_a_peer_of_an_older_version_gets_the_rows(pair: Pair) -> None:
    pair.stage()
    pair.p.committer.view.version = 5
    pair.commit()
    pair.turn("P")
    assert COMMIT not in kinds(pair.rows["P"])


def test_an_older_peer_gets_the_whole_state_instead_of_a_commit_record(pair: Pair) -> None:
    at = pair.b.state.proof()
    pair.stage()
    pair.commit()
    pair.run(1.0)
    want = [follow.WANT, packb({"at": at, "history": [], "whole": False})]
    for version, kind in ((6, follow.RECORD), (5, follow.SYNC_CHUNK)):
        pair.p.begin_turn(pair.now, pair.now)
        pair.p.committer.view.version = version
        pair.p.peer_message(want)
        assert kind in [frames[0] for frames in pair.p.end_turn().to_peer]


def test_a_passive_whose_staged_batches_differ_asks_for_the_whole_state(pair: Pair) -> None:
    pair.stage()
    pair.run(0.5)
    pair.b.state.staging.transactions[TRANSACTION].crcs["1"] ^= 1
    pair.commit()
    pair.run(2.0)
    assert pair.b.committer.counts["garbage_peer"] == 1
    assert pair.b.state.map.values == ROWS and pair.p.pair.in_sync()
    with pytest.raises(BadFrame, match="4 batches are staged here, and 3 were committed"):
        pair.stage(transaction=b"2" * 16)
        pair.p.state.staging.named(b"2" * 16, [["0", 0, [1, 2, 3]]])


def test_a_passive_that_joins_between_staging_and_commit_gets_a_record_with_the_rows(pair: Pair) -> None:
    pair.stage()
    pair.run(0.5)
    joined_by_state(pair)
    pair.commit()
    pair.run(1.0)
    assert COMMIT not in kinds(pair.rows["P"]) and pair.b.state.map.values == ROWS
    # Its journal begins after the staged records, and a reader gets the rows from it.
    succeeded(pair)
    pair.b.committer.committed.log.clear()
    begin, _ = pair.journals["B"].oldest()
    assert [key for key, _, _ in pair.feed("B", begin)[0]] == in_order()


def succeeded(pair: Pair) -> None:
    """Let the backup take over from a primary that is gone."""
    pair.stopped = "P"
    pair.run(5.0)
    pair.vote("B")
    pair.run(1.0)
    assert pair.b.active


def joined_by_state(pair: Pair) -> None:
    """Let the backup come back with an empty disk."""
    pair.begin_anew("B")
    config = CoreConfig(has_peer=True, durability=1, primary=False, name="B")
    pair.cores["B"] = ServerCore(config, b"b" * 16, pair.now, pair.limits)
    pair.late("B")
    pair.run(3.0)
    assert pair.p.pair.in_sync() and pair.b.state.staging.transactions


def test_a_passive_that_joins_while_a_commit_is_applied_gets_it_whole(pair: Pair) -> None:
    pair.stage()
    pair.run(0.5)
    pair.stopped = "B"
    pair.commit("P")
    pair.turn("P")
    assert pair.p.state.deferred
    joined = pair.b
    pair.stopped = ""
    pair.run(2.0)
    assert joined.state.map.values == ROWS and pair.p.pair.in_sync()


def test_a_successor_has_the_commit_and_gives_its_rows_to_a_feed(pair: Pair) -> None:
    pair.stage()
    before = pair.p.state.number
    pair.commit()
    pair.turn("P")
    pair.turn("B")
    succeeded(pair)
    assert pair.b.state.map.values == ROWS
    rows, _ = pair.feed("B", before)
    assert [key for key, _, _ in rows] == in_order()


def test_a_suffix_with_a_commit_is_replayed_whole(pair: Pair) -> None:
    pair.run(0.5)
    pair.linked = False
    pair.stage("P")
    pair.commit("P")
    pair.run(5.0)
    assert kinds(pair.rows["P"])[-1] == COMMIT
    pair.vote("B")
    pair.run(1.0)
    assert pair.b.active
    pair.linked = True
    pair.run(8.0)
    assert pair.b.state.map.values == pair.p.state.map.values == ROWS
    assert set(pair.outcomes().values()) == {"replayed"} and pair.b.state.staging.versions["job"]


# -- readers


def published(turns: list[Turn], topic: bytes, *of: int) -> list[list[Any]]:
    bodies = [split(m[4]) for turn in turns for m in turn.publish if m[0] == topic and m[4]]
    return [body for body in bodies if body[0][0] in (of or (BATCH,))]


class Lone:
    """A lone core with subscribers."""

    def __init__(self, *subtrees: str, limits: Limits = SMALL) -> None:
        self.core, self.no, self.now = ServerCore(CoreConfig(), b"s" * 16, 0.0, limits), 0, 0.0
        self.turn()
        self.core.begin_turn(self.now, self.now)
        for subtree in subtrees:
            self.core.subscription([b"1", b"\x01" + channel_topic(subtree)])
        self.core.end_turn()
        for n, (key, value) in enumerate(ROWS.items()):
            self.turn(self.set({key: value}, stage=[TRANSACTION, str(n % 2)]))

    def turn(self, *messages: list[bytes], after_s: float = 0.001) -> Turn:
        self.now += after_s
        self.core.begin_turn(self.now, self.now)
        for frames in messages:
            self.core.collect(frames)
        return self.core.end_turn()

    def set(self, items: dict[str, bytes], **extras: Any) -> list[bytes]:
        self.no += 1
        return [
            RESERVED_KEY,
            pack(self.no),
            SESSION,
            b"",
            Segment([*items], [*items.values()], extras or None).encode(),
        ]

    def commit(self) -> list[bytes]:
        return self.set({}, commit=[TRANSACTION, "job", 1, [["0", 4], ["1", 4]], None])


def test_a_channel_gets_a_commit_in_shares_and_later_updates_behind_it() -> None:
    # The map has the whole commit long before the channel has published it.
    limits = replace(SMALL, deferred_slice_items=100)
    lone, topic, other = Lone("/r/", "/other/", limits=limits), channel_topic("/r/"), channel_topic("/other/")
    first = lone.core.state.number + 1
    turns = [lone.turn(lone.commit(), lone.set({"/r/0": b"x", "/other/a": b"1"}))]
    assert not published(turns, topic) and published(turns, other), "another channel does not wait"
    turns += [lone.turn(after_s=1.0 if n == 3 else 0.001) for n in range(20)]
    batches, share = published(turns, topic), [len(published([turn], topic)) for turn in turns]
    assert max(share) == 1 and sum(share) == 9, "eight parts, and the set"
    headers = [header for header, *_ in batches]
    assert [header[1] for header in headers[1:]] == [header[3] for header in headers[:-1]], "a chain"
    assert [header[6] for header in headers] == [True] * 7 + [False] * 2 and headers[0][2] == first
    assert [key for _, *segments in batches for keys, _, _ in segments for key in keys] == [*in_order(), "/r/0"]
    beats = published([*turns, lone.turn(after_s=1.0)], topic, GREETING, HEARTBEAT)
    assert [beat[0][0] for beat in beats] == [GREETING, HEARTBEAT], "no fingerprint before the last part"
    assert beats[-1][0][2:4] == [lone.core.state.number, headers[-1][3]] and not lone.core.committer.committed.busy


def test_an_access_record_does_not_end_the_publication_of_a_commit() -> None:
    lone, topic = Lone("/r/"), channel_topic("/r/")
    turns = [lone.turn(lone.commit())]
    # The first batch of a client under rules makes such a record.
    lone.core.committer.new_owners = {b"c" * 12: "alice"}
    turns += [lone.turn() for _ in range(20)]
    batches = published(turns, topic)
    assert [key for _, *segments in batches for keys, _, _ in segments for key in keys] == in_order()
    assert kinds([op.body for op in turns[1].journal if isinstance(op, Append)]) == [ACCESS]


def test_a_server_that_becomes_passive_stops_publishing_the_commit(pair: Pair) -> None:
    pair.p.subscription([b"1", b"\x01" + channel_topic("/r/")])
    pair.stage()
    pair.commit()
    pair.turn("P")
    assert pair.p.committer.committed.channels.behind
    pair.p.pair.enter(State.PASSIVE)
    assert not published([pair.turn("P")], channel_topic("/r/")) and not pair.p.committer.committed.channels.behind


def test_a_feed_gets_committed_rows_from_memory_or_from_the_journal(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.send({"/a": b"1"})
    pair.stage()
    pair.commit()
    pair.send({"/r/0": b"x"})
    pair.run(1.0)
    number = pair.p.state.map.revisions["/r/1"]
    expected = [["/a", b"1", pair.p.state.map.revisions["/a"]], *([key, ROWS[key], number] for key in in_order())]
    expected.append(["/r/0", b"x", pair.p.state.number])
    staged = [["/r/0", b"0"], ["/r/1", b"1"]]
    for name in "PB":
        if name == "B":
            succeeded(pair)
        # The records that staged small batches are read together, and those of large ones one by one.
        for memory, small in ((True, 0), (False, feeds.SMALL_BATCH), (False, 0)):
            monkeypatch.setattr(feeds, "SMALL_BATCH", small)
            if not memory:
                pair.cores[name].committer.committed.log.clear()
            got, end = pair.feed(name)
            visible = [row for row in got if row[:2] not in staged or row[2] >= number]
            assert [row for row in visible if row in expected] == expected, (name, memory)
            assert end == pair.cores[name].state.number


def test_a_feed_without_its_staged_rows_is_told_where_to_begin(pair: Pair) -> None:
    pair.stage()
    before = pair.p.state.number
    pair.commit()
    pair.send({"/z": b"1"})
    pair.run(1.0)
    pair.p.committer.committed.log.clear()
    last = split(pair.rows["P"][-2])[0][3]
    journal = pair.journals["P"]
    assert isinstance(journal, MemoryStore)
    for _ in range(4):
        journal._forget_oldest()
    assert pair.feed("P", before) == ([], None)
    oldest = []
    for after in (before, last):
        pair.p.request([READER, ICANHAZ, b"", packb({"id": 2, "chp": 3, "feed": True, "from": after, "credit": 64})])
        turns = [pair.turn("P") for _ in range(4)]
        oldest += [split(m[4])[0] for turn in turns for _, messages in turn.replies for m in messages]
    assert oldest[0][2:] == ["retained", last] and [header[0] for header in oldest[1:]] == [RECORDS, KTHXBAI]


# -- restarts


class Stored(Lone):
    """A lone core whose turns are written to a journal on the disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        journal.load()
        self._snapshots: Snapshotter | None = None
        super().__init__()

    def turn(self, *messages: list[bytes], after_s: float = 0.001) -> Turn:
        turn = super().turn(*messages, after_s=after_s)
        self._snapshots = self._snapshots or Snapshotter(self._journal, DEFAULT)
        self._snapshots.write(turn.journal, self.core)
        self._journal.sync()
        return turn

    def snapshot(self, chunks: int) -> None:
        """Begin a snapshot, and put some of its chunks, or all."""
        assert self._snapshots is not None
        self._snapshots.begin(self.core)
        for _ in range(chunks):
            self._snapshots.step(self.core)

    def restarted(self) -> ServerCore:
        """Return a core that has recovered from the journal, as after a kill."""
        core = ServerCore(CoreConfig(), b"n" * 16, 0.0, SMALL)
        recover(core, self._journal, 0.0, 0.0)
        return core


@pytest.mark.parametrize("chunks", [-1, 0, 2, 40], ids=["rows", "begun", "under way", "snapshot"])
def test_a_restart_while_a_commit_is_applied_finds_the_whole_commit(tmp_path: Path, chunks: int) -> None:
    with closing(open_journal(f"sqlite:{tmp_path}")) as journal:
        lone = Stored(journal)
        if chunks >= 0:
            lone.snapshot(chunks)
        lone.turn(lone.commit())
        lone.turn()
        assert 0 < len(lone.core.state.map_so_far) < len(ROWS)
        if chunks == 2:
            lone.snapshot(40)
        core = lone.restarted()
        assert core.state.map.values == ROWS and core.state.proof() == lone.core.state.proof()
        assert core.state.map.revisions == lone.core.state.map.revisions and not core.state.staging.transactions
        core.state.check()


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_restart_between_staging_and_commit_makes_a_record_with_the_rows(tmp_path: Path, snapshot: bool) -> None:
    with closing(open_journal(f"sqlite:{tmp_path}")) as journal:
        lone = Stored(journal)
        if snapshot:
            lone.snapshot(40)
        lone.core = lone.restarted()
        records = [op.body for op in lone.turn(lone.commit()).journal if isinstance(op, Append)]
        assert COMMIT not in kinds(records) and lone.core.state.map.values == ROWS


def test_a_record_has_the_rows_if_the_journal_may_drop_staged_batches() -> None:
    for retains, kind in (((1 << 30, 86_400.0), COMMIT), ((200, 86_400.0), BATCH), ((1 << 30, 1.0), BATCH)):
        lone = Lone()
        lone.core.committer.retains = retains
        for n in range(4):
            lone.turn(lone.set({f"/other/{n}": b"1" * 50}), after_s=0.2)
        assert kinds([op.body for op in lone.turn(lone.commit()).journal if isinstance(op, Append)])[0] == kind


def test_is_commit_recognizes_a_commit_record_with_any_number_of_items() -> None:
    for items in (0, 14, 15, 70_000):
        body = encode(Commit(0, 1, 1, 0, [], TRANSACTION, "job", 1, []), [b"\xc0"] * items)
        assert is_commit(body) and not is_commit(encode(Batch(0, 1, 1, 0, [], False), [b"\xc0"] * items))
    assert not is_commit(b"\x90")


# -- replicas


def test_a_replica_publishes_what_the_pair_publishes() -> None:
    pair = WithReplica(SMALL)
    for name in ("P", "R"):
        pair.core(name).subscription([b"1", b"\x01" + channel_topic("/r/")])
    pair.run(0.5)
    sent = {name: len(pair.published[name]) for name in ("P", "R")}
    for n, (key, value) in enumerate(ROWS.items(), 1):
        pair.put("PB", SESSION, n, {key: value}, stage=[TRANSACTION, "0"])
    pair.put("PB", SESSION, 9, {}, commit=[TRANSACTION, "job", 1, [["0", 8]], None])
    pair.run(3.0)
    batches = {
        name: [m[4] for m in pair.published[name][n:] if m[0] == channel_topic("/r/") and kinds([m[4]]) == [BATCH]]
        for name, n in sent.items()
    }
    assert batches["P"] == batches["R"] and len(batches["P"]) == 8
    assert is_commit(pair.p.committer.committed.log.after(pair.p.state.number - 9, 1)[0].body)
    assert pair.r.state.map.values == ROWS and pair.r.state.proof() == pair.p.state.proof()


def test_a_replica_whose_staged_batches_differ_gets_the_whole_state() -> None:
    pair = WithReplica(SMALL)
    for n, (key, value) in enumerate(ROWS.items(), 1):
        pair.put("PB", SESSION, n, {key: value}, stage=[TRANSACTION, "0"])
    pair.run(0.5)
    pair.r.state.staging.transactions[TRANSACTION].crcs["0"] ^= 1
    pair.put("PB", SESSION, 9, {}, commit=[TRANSACTION, "job", 1, [["0", 8]], None])
    pair.run(5.0)
    assert pair.r.committer.counts["garbage_upstream"] == 1 and pair.r.active
    assert pair.r.state.map.values == ROWS and pair.r.state.proof() == pair.p.state.proof()
