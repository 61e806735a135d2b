"""Tests that this release reads each format of all releases, of which tests/fixtures has one file each.

covers: journal, backup, recording and suffix formats; the error for an unknown format; a started backup is a new store
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from chp_client.recording.files import FORMAT as RECORDING
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.performing import recover
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import Journal, WrongStore
from chp_server.core.updates.turn import Save
from chp_server.shell.reactor import write_updates
from chp_server.store.journal_rows import FORMAT as JOURNAL
from chp_server.store.store_url import open_journal
from tests.fixtures.make import CONTENT, RECORDED, SERVER, UPDATES

HERE = Path(__file__).parents[1] / "fixtures"
WALL_S = 1_795_000_010.0
OURS = b"O" * 16


def started(file: Path, folder: Path) -> tuple[ServerCore, Journal]:
    """Return a server on a copy of the file, and its journal."""
    folder.mkdir(exist_ok=True)
    if not (folder / "journal.sqlite").exists():
        shutil.copy(file, folder / "journal.sqlite")
    journal = open_journal(f"sqlite:{folder}")
    core = ServerCore(CoreConfig(name="later"), OURS, 100.0)
    recover(core, journal, 100.0, WALL_S)
    return core, journal


@pytest.mark.parametrize("file", sorted(HERE.glob("journal-*.sqlite")) + sorted(HERE.glob("backup-*.db")), ids=str)
def test_a_journal_and_a_backup_of_each_format_are_read(file: Path, tmp_path: Path) -> None:
    core, journal = started(file, tmp_path / "data")
    assert core.state.map.values == CONTENT
    left = core.state.map.remaining_ms("/c", 100.0)
    assert left is not None and 3_500_000 < left <= 3_600_000
    assert [session.no for session in core.state.sessions.values()] == [len(CONTENT)]
    core.state.check()
    journal.close()


def test_there_is_a_file_of_the_present_formats() -> None:
    names = {f"journal-{JOURNAL}.sqlite", f"backup-{JOURNAL}.db", f"recording-{RECORDING}", "suffix-1.jsonl"}
    assert names <= {path.name for path in HERE.iterdir()}


def test_a_started_backup_becomes_another_store_and_a_moved_journal_does_not(tmp_path: Path) -> None:
    core, journal = started(HERE / f"journal-{JOURNAL}.sqlite", tmp_path / "moved")
    assert core.state.store == SERVER
    journal.close()
    file, folder = HERE / f"backup-{JOURNAL}.db", tmp_path / "copied"
    # The server ends before it has written anything, so the next start finds a copy again.
    for _ in range(2):
        core, journal = started(file, folder)
        assert core.state.store == OURS
        journal.close()
    core, journal = started(file, folder)
    core.begin_turn(101.0, WALL_S)
    Snapshotter(journal, core.committer.limits).write(core.end_turn().journal, core)
    journal.sync()
    journal.close()
    core.pair.server = OURS[::-1]
    again, journal = started(file, folder)
    assert again.state.store == OURS and again.state.history[again.state.epoch].opener == OURS
    again.pair.server = b"N" * 16
    assert again.state.proof() == core.state.proof()
    journal.close()


def _spoil(path: Path, version: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={version}")


@pytest.mark.parametrize("version", [1, JOURNAL + 1])
def test_a_journal_of_another_format_is_refused_with_the_remedy(version: int, tmp_path: Path) -> None:
    shutil.copy(HERE / f"journal-{JOURNAL}.sqlite", tmp_path / "journal.sqlite")
    _spoil(tmp_path / "journal.sqlite", version)
    with pytest.raises(WrongStore) as refused:
        open_journal(f"sqlite:{tmp_path}")
    text = str(refused.value)
    assert f"has format {version}" in text and f"reads format {JOURNAL}" in text and "chp dump" in text
    assert "\n" not in text


def test_a_recording_of_each_format_is_read() -> None:
    recorded = pytest.importorskip("chp_client.recording.files")
    for folder in sorted(HERE.glob("recording-*")):
        (file,) = recorded.files(folder)
        table: Any = recorded.opened(file.path).read()
        rows = table.to_pylist()
        assert [(r["key"], r["value"], r["operation"]) for r in rows] == [("/a", b"v", "set"), ("/b", None, "delete")]
        assert [r["revision"] for r in rows] == [RECORDED.first] * 2 and rows[0]["ttl"] == 2.5
        assert table.schema.metadata[b"chp.store"] == SERVER.hex().encode()


def test_a_recording_of_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    recorded = pytest.importorskip("chp_client.recording.files")
    (file,) = recorded.files(HERE / f"recording-{RECORDING}")
    table = recorded.pq.read_table(file.path)
    later = table.replace_schema_metadata({**table.schema.metadata, b"chp.format": b"9"})
    recorded.pq.write_table(later, tmp_path / file.path.name)
    with pytest.raises(recorded.BadInput, match="format 9, and this program reads 1"):
        recorded.opened(tmp_path / file.path.name)


def test_a_suffix_file_begins_with_its_format_and_matches_the_fixture(tmp_path: Path) -> None:
    kept = (HERE / "suffix-1.jsonl").read_text().splitlines()
    written = Path(write_updates(str(tmp_path), Save("suffix", UPDATES))).read_text().splitlines()
    assert json.loads(kept[0]) == {"chp": "suffix", "format": 1}
    assert [json.loads(line) for line in written] == [json.loads(line) for line in kept]
