"""Tests of a replay without a server: which rows go out together, and which number it may go on from.

covers: recording/replayer.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow.parquet")

from chp.numbers import number
from chp_client.port.feed import FeedRecord
from chp_client.recording import replayer
from chp_client.recording.files import GAP, SNAPSHOT
from chp_client.recording.recorder import RecordingWriter
from chp_client.recording.replayer import Replayed, replay

BEGIN = number(1, 1)
SNAPSHOT_AT = number(1, 500_000)


class Acknowledged:
    """A ticket of a batch that the servers have."""

    done = True

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""


class Store:
    """A stand-in for a Clone: it notes the batches, the deletes and the keys that are there."""

    subtrees = ()

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.deleted: list[str] = []
        self.keys: set[str] = set()

    def put_columns(self, keys: list[str], values: list[bytes], deletes: list[int], ttls: Any) -> Acknowledged:
        self.batches.append(list(keys))
        self.keys.update(keys)
        return Acknowledged()

    def delete_many(self, keys: list[str]) -> Acknowledged:
        self.deleted += keys
        self.keys.difference_update(keys)
        return Acknowledged()

    def under(self, subtree: str) -> set[str]:
        """Return the keys of a subtree."""
        return {key for key in self.keys if key.startswith(subtree)}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Let a replay write into a stand-in."""
    monkeypatch.setattr(replayer, "internals", lambda clone: SimpleNamespace(writer=clone))
    return Store()


def writer_of(folder: Path) -> RecordingWriter:
    writer = RecordingWriter(folder, "", 60, 1 << 30)
    writer.be_of(b"s" * 16)
    writer.begin(BEGIN)
    return writer


def take(writer: RecordingWriter, at: int, keys: list[str]) -> None:
    writer.take(FeedRecord(at, at, 0, keys, [b"x"] * len(keys)))


def record_gap(folder: Path, keys: list[str]) -> None:
    """Record one key, then a gap and the snapshot behind it."""
    writer = writer_of(folder)
    take(writer, BEGIN + 1, ["/first"])
    writer.rotate(BEGIN + 1)
    writer.add(FeedRecord(SNAPSHOT_AT, SNAPSHOT_AT, 0, [""], [b""]), GAP)
    snapshot = FeedRecord(SNAPSHOT_AT, SNAPSHOT_AT, 0, keys, [b"y"] * len(keys))
    writer.add(snapshot, SNAPSHOT, [SNAPSHOT_AT] * len(keys))
    writer.begin(SNAPSHOT_AT)
    writer.rotate(SNAPSHOT_AT)


def until_call(stop: Event, call: int) -> Callable[[Replayed], object]:
    """Return a progress function whose `call`th call stops the replay."""
    seen: list[int] = []

    def progress(done: Replayed) -> None:
        seen.append(done.number)
        if len(seen) == call:
            stop.set()

    return progress


def played(folder: Path, store: Store, **options: Any) -> Replayed:
    return replay(folder, store, keys_under=store.under, **options)  # type: ignore[arg-type]


SNAPSHOT_KEYS = [f"/s/{i:06d}" for i in range(100_000)]


def test_a_replay_that_is_stopped_in_a_snapshot_deletes_nothing_of_it(tmp_path: Path, store: Store) -> None:
    record_gap(tmp_path, SNAPSHOT_KEYS)
    store.keys = {*SNAPSHOT_KEYS, "/gone"}
    stop = Event()
    done = played(tmp_path, store, stop=stop, progress=until_call(stop, 2))
    assert 0 < sum(map(len, store.batches)) < len(SNAPSHOT_KEYS), "it was stopped within the snapshot"
    assert store.deleted == [] and done.deletes == 0
    assert done.number == BEGIN + 1, "the snapshot is not complete"

    rest = played(tmp_path, store, start=done.number)
    assert store.deleted == ["/first", "/gone"] and store.keys == set(SNAPSHOT_KEYS)
    assert rest.number == SNAPSHOT_AT


def test_a_replay_that_sent_nothing_names_the_number_that_it_began_after(tmp_path: Path, store: Store) -> None:
    record_gap(tmp_path, ["/s"])
    stop = Event()
    stop.set()
    assert played(tmp_path, store, start=BEGIN + 1, stop=stop).number == BEGIN + 1
    assert store.batches == store.deleted == []


def record_sizes(folder: Path, sizes: list[int]) -> list[list[str]]:
    """Record one record of each size; return their keys."""
    writer = writer_of(folder)
    records = [[f"/{i}/{j}" for j in range(size)] for i, size in enumerate(sizes)]
    for i, keys in enumerate(records):
        take(writer, BEGIN + 1 + i, keys)
    writer.rotate(BEGIN + len(sizes))
    return records


@pytest.mark.parametrize("sizes", [[3000] * 50, [60_000, 65_536, 1, 65_536], [1, 8191, 8193, 50_000, 20_000, 65_000]])
def test_the_rows_of_a_record_go_out_in_one_batch(tmp_path: Path, store: Store, sizes: list[int]) -> None:
    records = record_sizes(tmp_path, sizes)
    done = played(tmp_path, store)
    assert [key for batch in store.batches for key in batch] == [key for keys in records for key in keys]
    for batch in store.batches:
        first, last = batch[0].split("/")[1], batch[-1].split("/")[1]
        assert batch[0] == f"/{first}/0" and batch[-1] == f"/{last}/{sizes[int(last)] - 1}"
    assert done.number == BEGIN + len(sizes) and done.rows == sum(sizes)


@pytest.mark.parametrize("sizes", [[3000] * 50, [5, 200_000, 7, 65_537, 131_072, 3]])
def test_a_replay_that_was_stopped_goes_on_without_a_loss(tmp_path: Path, store: Store, sizes: list[int]) -> None:
    """The replay is stopped after a portion, and goes on from the number that it named."""
    records = record_sizes(tmp_path, sizes)
    for call in range(1, 12, 2):
        store.keys.clear()
        stop = Event()
        done = played(tmp_path, store, stop=stop, progress=until_call(stop, call))
        for keys in records[: max(0, done.number - BEGIN)]:
            assert store.keys.issuperset(keys), "the number names a record only once all of it is sent"
        assert played(tmp_path, store, start=done.number).number == BEGIN + len(sizes)
        assert len(store.keys) == sum(sizes)


def test_a_record_larger_than_a_batch_goes_out_in_parts(tmp_path: Path, store: Store) -> None:
    records = record_sizes(tmp_path, [5, 200_000, 7])
    seen: list[tuple[int, int]] = []
    played(tmp_path, store, progress=lambda done: seen.append((done.rows, done.number - BEGIN)))
    assert [len(batch) for batch in store.batches] == [5, 65_536, 65_536, 65_536, 3392, 7]
    assert store.batches[1] + store.batches[2] + store.batches[3] + store.batches[4] == records[1]
    assert [number for rows, number in seen if 5 <= rows < 200_005] == [1, 1, 1, 1], "parts are no record"


def test_a_snapshot_is_named_with_its_deletes(tmp_path: Path, store: Store) -> None:
    record_gap(tmp_path, SNAPSHOT_KEYS)
    store.keys = {"/gone"}
    seen: list[int] = []
    done = played(tmp_path, store, progress=lambda done: seen.append(done.number))
    assert store.deleted == ["/first", "/gone"] and store.keys == set(SNAPSHOT_KEYS)
    assert set(seen[:-1]) == {BEGIN + 1} and done.number == SNAPSHOT_AT


@pytest.mark.parametrize("gone", [True, False])
def test_a_gap_with_an_empty_snapshot_is_named(tmp_path: Path, store: Store, gone: bool) -> None:
    record_gap(tmp_path, [])
    store.keys = {"/gone"} if gone else set()
    done = played(tmp_path, store, start=BEGIN + 1)
    assert store.keys == set() and done.number == SNAPSHOT_AT


def test_a_replay_reads_one_row_group_at_a_time(tmp_path: Path) -> None:
    """The groups bound the memory of a recording with large values."""
    writer = writer_of(tmp_path)
    for i in range(24):
        writer.take(FeedRecord(BEGIN + 1 + i, BEGIN + 1 + i, 0, [f"/{i}"], [bytes(1 << 20)]))
    writer.rotate(BEGIN + 24)
    (file,) = replayer.chain_of(tmp_path, 0)
    sizes = [sum(map(len, rows.values)) for rows in replayer.rows_of(file.path, 0)]
    assert sum(sizes) == 24 << 20 and max(sizes) <= 9 << 20
