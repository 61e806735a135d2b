"""The journal's interface: the same tests for SQLite and, if it starts here, PostgreSQL; and the memory store's own."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_server.core.state.journal import Journal, JournalError, JournalLocked
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.journal_rows import StoredRow, stored_row
from chp_server.store.sql import sql_journal as cleaning
from chp_server.store.sql import sql_tables
from chp_server.store.store_url import open_journal
from chp_server.tools.journal_tools import backup, restore, verify

EPOCH = 1 << 48
Opener = Callable[..., Journal]


def row(first: int, last: int | None = None, body: bytes | None = None, epoch: int = 1) -> LoggedRow:
    """Return a row of `epoch` that covers the sequences first..last."""
    last = first if last is None else last
    return LoggedRow(epoch * EPOCH | first, epoch * EPOCH | last, b"row %d" % first if body is None else body)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a URL for a new journal."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/data"
    base: str = request.getfixturevalue("postgres")
    return f"{base}{'&' if '?' in base else '?'}schema=t_{tmp_path.name.lower().replace('-', '_')[-40:]}"


@pytest.fixture
def opened(url: str) -> Iterator[Opener]:
    """Return a function that opens and loads the journal at `url`. All are closed at the end."""
    with contextlib.ExitStack() as stack:

        def opener(**options: object) -> Journal:
            journal = open_journal(url, **options)  # type: ignore[arg-type]
            stack.callback(journal.close)
            journal.load()
            return journal

        yield opener


def found(journal: Journal) -> tuple[list[bytes], list[LoggedRow]]:
    loaded = journal.load()
    return list(loaded.snapshot), list(loaded.rows)


def test_the_load_report_gives_the_number_of_rows_and_bytes(opened: Opener) -> None:
    journal = opened()
    assert journal.load().report.endswith(": empty")
    journal.append([row(1), row(2, 4)])
    journal.sync()
    assert journal.load().report.endswith(" and 2 rows (10 bytes) up to 1.4")


def test_synced_rows_are_there_after_reopening(opened: Opener) -> None:
    journal = opened()
    assert journal.durability == 1
    rows = [row(1, 3), row(4, body=bytes(200_000)), row(5, 900, body=b"")]
    journal.append(rows[:2])
    journal.append(rows[2:])
    journal.sync()
    journal.append([row(901)])  # never synced
    journal.close()
    again = opened()
    assert found(again) == ([], rows)
    assert again.load().number == rows[-1].last


def test_an_append_with_a_row_that_does_not_follow_writes_nothing(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1)])
    for wrong in (row(4), row(1), row(2, 1), LoggedRow(EPOCH | 2, 2 * EPOCH | 3, b""), row(2, epoch=1 << 15)):
        with pytest.raises(JournalError, match="does not follow"):
            journal.append([row(2), wrong] if wrong.first > EPOCH | 2 else [wrong])
    journal.append([row(2)])
    # An epoch may be opened without an update.
    journal.append([row(2, epoch=2), row(3, epoch=2)])
    journal.sync()
    assert [r.first for r in found(journal)[1]] == [EPOCH | 1, EPOCH | 2, 2 * EPOCH | 2, 2 * EPOCH | 3]


def test_an_append_before_load_is_refused(url: str) -> None:
    journal = open_journal(url)
    with pytest.raises(JournalError, match="load"):
        journal.append([row(1)])
    journal.close()


def test_read_after_finds_the_rows_behind_known_numbers_only(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1, 10), row(11, 20), row(21, 30)])
    journal.sync()
    assert [r.first & 0xFF for r in journal.read_after(0, 1 << 20) or []] == [1, 11, 21]
    assert [r.first & 0xFF for r in journal.read_after(EPOCH | 10, 1 << 20) or []] == [11, 21]
    assert [r.first & 0xFF for r in journal.read_after(EPOCH | 15, 1 << 20) or []] == [11, 21]
    assert [r.first & 0xFF for r in journal.read_after(EPOCH | 10, 1) or []] == [11]
    assert journal.read_after(EPOCH | 30, 1) == []
    assert journal.read_after(EPOCH | 31, 1) is None, "the future"
    journal.append([row(31, epoch=3)])
    journal.sync()
    assert journal.read_after(2 * EPOCH | 30, 1) is None, "an epoch this history does not have"


def test_drop_after_discards_a_suffix_and_others_may_follow(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1, 10), row(11, 20), row(21, 30)])
    journal.sync()
    assert journal.drop_after(EPOCH | 10) == 2
    journal.append([row(11, 12, epoch=2)])
    journal.sync()
    journal.close()
    journal = opened()
    assert [r.first for r in found(journal)[1]] == [EPOCH | 1, 2 * EPOCH | 11]
    assert journal.drop_after(0) == 2
    assert found(journal)[1] == []


def put(journal: Journal, number: int, chunks: list[bytes], keep_after: int) -> None:
    journal.begin_snapshot(number)
    for chunk in chunks:
        journal.put_snapshot(chunk)
    journal.commit_snapshot(keep_after)


def test_a_snapshot_replaces_the_rows_before_it(opened: Opener) -> None:
    journal = opened()
    journal.append([row(n) for n in range(1, 11)])
    journal.begin_snapshot(EPOCH | 10)
    journal.put_snapshot(b"one")
    journal.append([row(11)])
    journal.sync()
    journal.put_snapshot(b"two")
    journal.commit_snapshot(EPOCH | 6)
    journal.append([row(12)])
    journal.sync()
    journal.close()
    journal = opened()
    assert found(journal) == ([b"one", b"two"], [row(11), row(12)])
    assert journal.read_after(EPOCH | 6, 1 << 20) == [row(n) for n in range(7, 13)]
    assert journal.read_after(EPOCH | 5, 1 << 20) is None
    with pytest.raises(JournalError, match="snapshot"):
        journal.drop_after(EPOCH | 9)


def test_an_uncommitted_snapshot_is_discarded(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1)])
    put(journal, EPOCH | 1, [b"old"], 0)
    journal.begin_snapshot(EPOCH | 1)
    journal.put_snapshot(b"new")
    journal.sync()
    journal.close()
    journal = opened()
    assert found(journal)[0] == [b"old"]
    put(journal, EPOCH | 1, [b"newer"], 0)
    assert found(journal)[0] == [b"newer"]
    journal.begin_snapshot(EPOCH | 1)
    journal.abort_snapshot()
    with pytest.raises(JournalError, match="under way"):
        journal.put_snapshot(b"x")


def test_a_snapshot_from_another_server_replaces_all_rows(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1), row(2)])
    journal.sync()
    put(journal, 3 * EPOCH | 500, [b"state"], 3 * EPOCH | 500)
    journal.append([row(501, epoch=3)])
    journal.sync()
    journal.close()
    journal = opened()
    assert found(journal) == ([b"state"], [row(501, epoch=3)])
    assert journal.read_after(EPOCH | 2, 1 << 20) is None
    assert journal.read_after(3 * EPOCH | 500, 1 << 20) == [row(501, epoch=3)]


def test_a_snapshot_under_way_goes_on_when_a_later_suffix_is_dropped(opened: Opener) -> None:
    journal = opened()
    journal.append([row(1), row(2)])
    journal.begin_snapshot(EPOCH | 2)
    journal.put_snapshot(b"one")
    journal.append([row(3), row(4)])
    assert journal.drop_after(EPOCH | 3) == 1
    journal.put_snapshot(b"two")
    journal.commit_snapshot(EPOCH | 2)
    assert found(journal) == ([b"one", b"two"], [row(3)])
    journal.begin_snapshot(EPOCH | 3)
    journal.drop_after(EPOCH | 2)
    with pytest.raises(JournalError, match="under way"):
        journal.put_snapshot(b"of a state that is no history")


def test_rows_before_a_snapshot_are_retained_up_to_retain_bytes(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}", retain_bytes=48 << 20)
    journal.load()
    body = os.urandom(1 << 20)
    for number in range(1, 61):
        journal.append([row(number, body=body)])
        journal.sync()
        if number % 20 == 0:
            put(journal, EPOCH | number, [b"state"], 0)
    for _ in range(100):
        journal.sync()
    kept = journal.read_after(EPOCH | 20, 1 << 30)
    assert kept is not None and len(kept) == 40
    assert journal.read_after(EPOCH | 5, 1 << 30) is None
    journal.close()


def test_the_journal_stays_under_four_times_the_state(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    chunk, live, number, peak = os.urandom(1 << 20), 40, 0, 0
    put(journal, 0, [chunk] * live, 0)
    for _ in range(800):
        number += 1
        journal.append([row(number, body=chunk[:110_000])])
        journal.sync()
        if journal.snapshot_due():
            put(journal, EPOCH | number, [chunk] * live, EPOCH | number)
        peak = max(peak, int(journal.stats()["bytes"]))
    assert peak < 4 * live << 20
    put(journal, EPOCH | number, [b"small"], EPOCH | number)
    for _ in range(1000):
        journal.sync()
    assert int(journal.stats()["bytes"]) < peak // 2, "what is free is given back"
    journal.close()


def test_rows_and_old_snapshots_are_deleted_in_pieces(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "TRIM_ROWS", 10)
    journal = opened()
    journal.append([row(n) for n in range(1, 101)])
    put(journal, EPOCH | 100, [b"a"] * 100, EPOCH | 100)
    assert journal.stats()["rows"] == 100, "nothing is deleted while the snapshot is committed"
    counts: list[int] = []
    while not counts or counts[-1]:
        journal.sync()
        counts.append(int(journal.stats()["rows"]))
        assert len(counts) < 50
    assert all(0 <= before - after <= 10 for before, after in zip([100, *counts], counts, strict=False))
    journal.close()
    assert opened().stats()["rows"] == 0


def test_retained_rows_are_bounded_in_bytes_once_a_snapshot_covers_them(opened: Opener) -> None:
    journal = opened(retain_bytes=50_000)
    journal.append([row(n, body=bytes(1000)) for n in range(1, 101)])
    journal.sync()
    assert journal.stats()["rows"] == 100, "no snapshot covers them"
    put(journal, EPOCH | 100, [b"state"], 0)
    for _ in range(10):
        journal.sync()
    rows = int(journal.stats()["rows"])
    assert 45 < rows <= 50
    assert journal.read_after(EPOCH | 100 - rows, 1) is not None
    assert journal.read_after(EPOCH | 99 - rows, 1) is None
    assert journal.oldest() == (EPOCH | 100 - rows, False), "a part of a record may be gone"
    journal.append([row(101, body=bytes(1000))])
    journal.sync()
    assert journal.stats()["rows"] == rows + 1, "many rows go at a time, and then none for a while"


def test_oldest_tells_where_rows_begin_and_whether_a_record_begins_there(opened: Opener) -> None:
    journal = opened()
    assert journal.oldest() == (0, True)
    journal.append([row(n) for n in range(1, 6)])
    journal.sync()
    assert journal.oldest() == (0, True)
    put(journal, 3 * EPOCH | 500, [b"state"], 3 * EPOCH | 500)
    assert journal.oldest() == (3 * EPOCH | 500, True)
    journal.append([row(501, epoch=3)])
    journal.sync()
    assert journal.oldest() == (3 * EPOCH | 500, True), "this snapshot is no part of a record"


def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of each row that is read from now on."""
    read: list[int] = []

    def noted(record: tuple[Any, ...]) -> StoredRow:
        read.append(record[0])
        return stored_row(record)

    monkeypatch.setattr(sql_tables, "stored_row", noted)
    return read


def test_a_start_reads_no_row_that_the_snapshot_covers(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened()
    journal.append([row(n, body=bytes(100)) for n in range(1, 101)])
    put(journal, EPOCH | 80, [b"state"], 0)
    journal.append([row(101, body=bytes(100))])
    journal.sync()
    before = journal.stats()
    journal.close()
    read = rows_read(monkeypatch)
    journal = opened()
    assert [each.first for each in journal.load().rows] == [EPOCH | n for n in range(81, 102)]
    assert min(read) == EPOCH | 80, "one row is looked at, as it might reach beyond the snapshot"
    counted = ("rows", "row_bytes", "number")
    assert [journal.stats()[name] for name in counted] == [before[name] for name in counted]
    assert journal.read_after(0, 1 << 20) == [row(n, body=bytes(100)) for n in range(1, 102)], "they are there"


def test_a_start_with_prefix_reads_all_rows(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened()
    journal.append([row(n) for n in range(1, 11)])
    put(journal, EPOCH | 10, [b"state"], 0)
    journal.close()
    read = rows_read(monkeypatch)
    assert opened(recover="prefix").stats()["rows"] == 10
    assert min(read) == EPOCH | 1


def test_the_row_count_is_right_after_deletes_and_a_restart(opened: Opener) -> None:
    journal = opened()
    journal.append([row(n, body=bytes(100)) for n in range(1, 101)])
    put(journal, EPOCH | 100, [b"state"], 0)
    journal.append([row(n, body=bytes(100)) for n in range(101, 111)])
    journal.sync()
    journal.drop_after(EPOCH | 105)
    journal.close()
    journal = opened(retain_bytes=5000)
    assert journal.stats()["rows"] == 105
    for _ in range(3):
        journal.sync()
    counts = int(journal.stats()["rows"]), journal.stats()["row_bytes"]
    assert 0 < counts[0] < 60
    journal.close()
    journal = opened(retain_bytes=5000)
    assert (journal.stats()["rows"], journal.stats()["row_bytes"]) == counts
    assert len(journal.read_after(journal.oldest()[0], 1 << 20) or []) == counts[0]


def test_a_short_disk_deletes_only_retained_rows(opened: Opener) -> None:
    journal = opened()
    journal.append([row(n, body=bytes(100_000)) for n in range(1, 101)])
    put(journal, EPOCH | 90, [b"state"], 0)
    journal.press(3_000_000)
    for _ in range(5):
        journal.sync()
    assert journal.stats()["rows"] == 70 and journal.stats()["short_bytes"] == 3_000_000
    journal.press(0)
    journal.sync()
    assert journal.stats()["rows"] == 70 and journal.stats()["short_bytes"] == 0
    journal.press(1 << 30)
    for _ in range(5):
        journal.sync()
    assert journal.stats()["rows"] == 10, "those after the snapshot are needed"
    journal.close()
    assert len(found(opened())[1]) == 10


def test_a_short_disk_gets_room_back_from_the_file(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    body = os.urandom(1 << 20)
    for number in range(1, 65):
        journal.append([row(number, body=body)])
        journal.sync()
    put(journal, EPOCH | 64, [b"state"], 0)
    full = int(journal.stats()["bytes"])
    # Of 24 MiB, 16 MiB of free pages stay for the next rows.
    journal.press(24 << 20)
    for _ in range(30):
        journal.sync()
    assert journal.stats()["rows"] == 40
    assert full - int(journal.stats()["bytes"]) > 6 << 20
    journal.close()


def test_synced_meta_values_are_there_after_reopening(opened: Opener) -> None:
    journal = opened()
    assert journal.get_meta("server") is None
    journal.set_meta("server", b"uuid")
    assert journal.get_meta("server") == b"uuid"
    journal.sync()
    journal.set_meta("server", b"unsynced")
    journal.close()
    assert opened().get_meta("server") == b"uuid"


def test_a_second_open_of_a_journal_is_refused(opened: Opener, url: str) -> None:
    journal = opened()
    with pytest.raises(JournalLocked, match=f"pid {os.getpid()}|session"):
        open_journal(url)
    journal.close()
    opened()


def test_the_sync_modes_interval_and_off_have_durability_0(opened: Opener) -> None:
    for mode, first in (("interval", 1), ("off", 2)):
        journal = opened(sync=mode, interval_s=0.0)
        assert journal.durability == 0
        journal.append([row(first)])
        journal.sync()
        journal.sync()
        journal.close()
    assert len(found(opened())[1]) == 2
    with pytest.raises(JournalError, match="always"):
        opened(sync="sometimes")


def test_verify_backup_and_restore_on_a_live_journal(opened: Opener, url: str, tmp_path: Path) -> None:
    journal = opened()
    journal.append([row(1), row(2)])
    put(journal, EPOCH | 1, [b"state"], EPOCH | 1)
    journal.set_meta("server", b"uuid")
    journal.append([row(3)])
    journal.sync()
    report = verify(url)
    assert report.ok and report.rows == 2 and report.number == EPOCH | 3, report.line()
    copied = backup(url, f"{tmp_path}/copy.sqlite")
    assert copied.ok and copied.rows == 2, copied.line()
    with pytest.raises(JournalError, match="exists"):
        backup(url, f"{tmp_path}/copy.sqlite")
    with pytest.raises(JournalError, match=r"empty|exists"):
        journal.close()
        restore(f"{tmp_path}/copy.sqlite", url)
    elsewhere = f"{url}2"
    assert restore(f"{tmp_path}/copy.sqlite", elsewhere).ok
    again = open_journal(elsewhere)
    assert found(again) == ([b"state"], [row(2), row(3)])
    assert again.get_meta("server") == b"uuid"
    again.close()


def test_the_memory_store_keeps_rows_up_to_retain_bytes() -> None:
    journal = open_journal("memory:", retain_bytes=30)
    assert journal.durability == 0
    journal.append([row(n, body=bytes(10)) for n in range(1, 6)])
    assert journal.read_after(EPOCH | 1, 1000) is None
    assert [r.first for r in journal.read_after(EPOCH | 2, 1000) or []] == [EPOCH | n for n in (3, 4, 5)]
    assert journal.oldest() == (EPOCH | 2, False)
    assert journal.drop_after(EPOCH | 4) == 1
    put(journal, 2 * EPOCH | 9, [b"x"], 0)
    journal.append([row(10, epoch=2)])
    assert found(journal) == ([], [])
    with pytest.raises(JournalError):
        open_journal("floppy:a")
