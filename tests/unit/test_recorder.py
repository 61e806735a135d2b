"""Tests of a recording's directory without a server: what a recorder finds there, and what it leaves.

covers: recording/recorder.py
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow.parquet")

from chp.errors import BadInput
from chp.limits import MIB
from chp.numbers import describe, number
from chp_client.port.feed import FeedRecord
from chp_client.recording import recorder
from chp_client.recording.files import POSITION, file_name, files
from chp_client.recording.recorder import RecordingWriter

STORE = b"s" * 16
BEGIN, SEEN = number(1, 100), number(1, 200)


def quiet(folder: Path, subtree: str = "/a/") -> None:
    """Leave a directory in which nothing but the position was noted."""
    writer = RecordingWriter(folder, subtree, 1e-9, MIB)
    writer.be_of(STORE)
    writer.begin(BEGIN)
    writer.reached = SEEN
    writer.rotate_if_due()
    assert [path.name for path in folder.iterdir()] == [POSITION]


def test_a_position_of_another_subtree_is_refused(tmp_path: Path) -> None:
    quiet(tmp_path)
    with pytest.raises(BadInput, match="is a recording of '/a/', not of '/b/'; give another"):
        RecordingWriter(tmp_path, "/b/", 60.0, MIB)
    assert RecordingWriter(tmp_path, "/a/", 60.0, MIB).reached == SEEN


def test_a_position_of_the_whole_store_is_refused_for_a_subtree(tmp_path: Path) -> None:
    quiet(tmp_path, "")
    with pytest.raises(BadInput, match="is a recording of '', not of '/b/'"):
        RecordingWriter(tmp_path, "/b/", 60.0, MIB)


def first_file(folder: Path) -> str:
    """Record a row after a restart, and return the name of its file."""
    writer = RecordingWriter(folder, "/a/", 60.0, MIB)
    writer.be_of(STORE)
    writer.take(FeedRecord(SEEN + 1, SEEN + 1, 0, ["/a/x"], [b"x"]))
    writer.rotate(writer.reached)
    (file,) = files(folder)
    return file.path.name


def test_the_first_file_after_a_restart_begins_where_the_recording_began(tmp_path: Path) -> None:
    quiet(tmp_path)
    assert first_file(tmp_path) == file_name(BEGIN, SEEN + 1)


def test_the_position_of_an_older_release_is_read(tmp_path: Path) -> None:
    """It names neither the subtree nor the start, so the next file begins at its number."""
    older = {"number": describe(SEEN), "store": STORE.hex(), "opener": ""}
    (tmp_path / POSITION).write_text(json.dumps(older))
    assert RecordingWriter(tmp_path, "/b/", 60.0, MIB).reached == SEEN
    assert first_file(tmp_path) == file_name(SEEN, SEEN + 1)


@pytest.mark.parametrize("changed", [{"subtree": 1}, {"start": "x"}, {"start": None}, {"start": "1.201"}])
def test_an_odd_position_is_ignored(tmp_path: Path, changed: dict[str, Any]) -> None:
    quiet(tmp_path)
    position = json.loads((tmp_path / POSITION).read_text())
    (tmp_path / POSITION).write_text(json.dumps(position | changed))
    assert RecordingWriter(tmp_path, "/a/", 60.0, MIB).reached == 0


def test_a_writer_that_gave_a_file_up_counts_its_bytes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next file is as large as any other."""
    writer = RecordingWriter(tmp_path, "", 60.0, 1000)
    writer.be_of(STORE)
    writer.begin(BEGIN)
    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(recorder.pq, "ParquetWriter", full_disk)
        writer.take(FeedRecord(SEEN, SEEN, 0, ["/a"], [bytes(1000)]))
    writer.take(FeedRecord(SEEN, SEEN, 0, ["/a"], [bytes(500)]))
    assert not files(tmp_path), "500 bytes are less than a file has"
    writer.take(FeedRecord(SEEN + 1, SEEN + 1, 0, ["/a"], [bytes(500)]))
    assert len(files(tmp_path)) == 1


def full_disk(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_snapshot_that_is_interrupted_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of a part of a snapshot would delete all keys that the part lacks."""
    chunks = [FeedRecord(SEEN, SEEN, 0, [f"/a/{i}"], [b"x"]) for i in range(2)]
    found = SimpleNamespace(number=SEEN, chunks=chunks, revisions=[[SEEN]] * 2)
    feed: Any = SimpleNamespace(snapshot=lambda _: found, stats={"holes": 0}, store=STORE, opener=b"")
    writer = RecordingWriter(tmp_path, "/a/", 60.0, MIB)
    writer.be_of(STORE)
    add = writer.add

    def interrupted(record: FeedRecord, *more: Any) -> None:
        if record is chunks[1]:
            raise KeyboardInterrupt
        add(record, *more)

    monkeypatch.setattr(writer, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorder._until(Event(), feed, writer, "snapshot", print)
    assert not files(tmp_path) and not writer.reached
