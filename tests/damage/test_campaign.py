"""covers: damage to a SQLite journal's files: it is recovered whole or refused clearly, never silent and never a crash.

A process makes a journal, and is killed or closes it. Then one of its files is flipped, zeroed, cut, shifted, removed,
restored from an earlier moment, written over, or gets columns of another type. A start (`strict` and `prefix`) and `chp
check` look at it. Each damage comes from a seed, so that a failure can be repeated: `damaged(SEED, ...)`.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from chp_server.core.state.journal import JournalError
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.store_url import open_journal
from chp_server.tools.journal_tools import verify

EPOCH = 1 << 48
FEW, MANY = 40, 1000
# name -> (number of rows, bytes of a row, row at which a snapshot is made)
SHAPES = {
    "closed": (40, 3000, 20),
    "killed": (30, 3000, 15),
    "checkpointed": (150, 70_000, 60),
}
FILES = ("journal.sqlite", "journal.sqlite-wal")


def body(n: int, size: int) -> bytes:
    """Return the body of row `n`."""
    return b"row %06d " % n + bytes([n % 256]) * size


def write(place: str, shape: str) -> None:
    """Write the journal of a shape in this process, and copy its files after a third of the rows."""
    rows, size, snapshot = SHAPES[shape]
    journal = open_journal(f"sqlite:{place}")
    journal.load()
    for n in range(1, rows + 1):
        journal.append([LoggedRow(EPOCH | n, EPOCH | n, body(n, size))])
        journal.sync()
        if n == snapshot:
            journal.begin_snapshot(EPOCH | n)
            journal.put_snapshot(b"one" + bytes(size))
            journal.put_snapshot(b"two" + bytes(size))
            journal.commit_snapshot(0)
        if n == rows // 3:
            shutil.copytree(place, f"{place}-earlier")
    if shape == "closed":
        journal.close()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make one journal of each shape."""
    made = {}
    for shape in SHAPES:
        made[shape] = tmp_path_factory.mktemp(shape) / "data"
        call = f"write({str(made[shape])!r}, {shape!r})"
        code = f"import os; from tests.damage.test_campaign import write; {call}; os._exit(0)"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=120)
    return made


# -- what is done to a file


def flip(rng: random.Random, file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    for _i in range(rng.choice([1, 1, 1, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def _block(rng: random.Random, size: int) -> slice:
    length = min(size, rng.choice([16, 512, 4096, 16384]))
    start = rng.randrange(size - length + 1)
    start -= start % rng.choice([1, length])
    return slice(start, start + length)


def zero(rng: random.Random, file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    where = _block(rng, len(data))
    data[where] = bytes(where.stop - where.start)
    file.write_bytes(data)


def garbage(rng: random.Random, file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    where = _block(rng, len(data))
    data[where] = rng.randbytes(where.stop - where.start)
    file.write_bytes(data)


def misplaced(rng: random.Random, file: Path, _: Path) -> None:
    """Overwrite a block of the file with another block of it."""
    data = bytearray(file.read_bytes())
    size = min(len(data), rng.choice([512, 4096, 16384]))
    a, b = (rng.randrange(len(data) // size) * size for _i in range(2))
    data[b : b + size] = data[a : a + size]
    file.write_bytes(data)


def cut(rng: random.Random, file: Path, _: Path) -> None:
    size = file.stat().st_size
    with open(file, "r+b") as opened:
        opened.truncate(rng.choice([0, rng.randrange(size), rng.randrange(size), size * 9 // 10]))


def shift(rng: random.Random, file: Path, _: Path) -> None:
    data = file.read_bytes()
    at, by = rng.randrange(len(data)), rng.choice([1, 32, 24, 512, 16408])
    file.write_bytes(data[:at] + rng.randbytes(by) + data[at:] if rng.random() < 0.5 else data[:at] + data[at + by :])


def remove(rng: random.Random, file: Path, _: Path) -> None:
    file.unlink()


def put_back(rng: random.Random, file: Path, earlier: Path) -> None:
    """Restore a file from an earlier moment. Remove it if it was not there yet."""
    old = earlier / file.name
    if old.exists():
        shutil.copy(old, file)
    else:
        file.unlink()


def retype(rng: random.Random, file: Path, _: Path) -> None:
    """Store a value of another type in a column, as SQLite would read a record whose header is zeroed."""
    tables = {"rows": ("last", "prev", "wrote", "crc", "body"), "chunks": ("crc", "body"), "meta": ("value", "crc")}
    table = rng.choice(list(tables))
    value = rng.choice(["NULL", "0", "-1", "'text'", "x''", "1.5", "CAST(x'ff' AS TEXT)", "zeroblob(10)"])
    db = sqlite3.connect(file.parent / "journal.sqlite", isolation_level=None)
    db.execute("PRAGMA writable_schema=ON")
    db.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    db.execute("PRAGMA writable_schema=OFF")
    db.close()
    db = sqlite3.connect(file.parent / "journal.sqlite", isolation_level=None)
    ids = [i for (i,) in db.execute(f"SELECT rowid FROM {table}")]
    db.execute(f"UPDATE {table} SET {rng.choice(tables[table])} = {value} WHERE rowid = ?", (rng.choice(ids),))
    db.close()


KINDS: list[Callable[[random.Random, Path, Path], None]] = [
    flip, zero, garbage, misplaced, cut, shift, remove, put_back, retype
]  # fmt: skip


def damaged(seed: int, originals: dict[str, Path], place: Path) -> tuple[str, str]:
    """Copy a journal with the damage of a seed, and return its shape and the kind of damage."""
    rng = random.Random(seed)
    shape = rng.choice(list(SHAPES))
    shutil.copytree(originals[shape], place)
    kind = KINDS[seed % len(KINDS)]
    file = place / rng.choice([name for name in FILES if (place / name).exists() and (place / name).stat().st_size])
    kind(rng, file, Path(f"{originals[shape]}-earlier"))
    return shape, f"{kind.__name__} of {file.name} ({shape})"


# -- what becomes of it


def rows_of(place: Path, recover: str) -> tuple[list[LoggedRow], int, str]:
    """Return what a start finds: the rows after the snapshot, the snapshot's number, and the report."""
    journal = open_journal(f"sqlite:{place}", recover=recover)
    try:
        loaded = journal.load()
        chunks = [chunk[:3] for chunk in loaded.snapshot]
        assert chunks == ([b"one", b"two"] if loaded.snapshot_number else [])
        return list(loaded.rows), loaded.snapshot_number, loaded.report
    finally:
        journal.close()


def outcome(place: Path, shape: str) -> str:
    """Return "refused" or "whole" for a damaged journal. Raise AssertionError if anything else happens."""
    rows, size, snapshot = SHAPES[shape]
    report = verify(f"sqlite:{place}")
    spare = place.parent / f"{place.name}-prefix"
    shutil.copytree(place, spare)
    try:
        found, base, _ = rows_of(place, "strict")
    except JournalError as error:
        result = "refused"
        assert len(str(error)) > 20, "a refusal says what is wrong"
    else:
        wanted = [LoggedRow(EPOCH | n, EPOCH | n, body(n, size)) for n in range(snapshot + 1, rows + 1)]
        assert base == EPOCH | snapshot and found == wanted, f"silently lost: {len(found)} of {len(wanted)} rows"
        result = "whole"
    if result == "refused":
        assert not report.ok, "chp check calls sound what a start refuses"
        _prefix(spare, shape)
    return result


def _prefix(place: Path, shape: str) -> None:
    """Check that `--recover prefix` gives the rows before the damage and reports the rest, or refuses."""
    rows, size, _ = SHAPES[shape]
    try:
        found, base, report = rows_of(place, "prefix")
    except JournalError:
        return
    first = (base & 0xFFFF) + 1
    assert found == [LoggedRow(EPOCH | n, EPOCH | n, body(n, size)) for n in range(first, first + len(found))]
    if first + len(found) <= rows:
        assert "damaged at" in report or "mark" in report or "can't be read" in report or "is gone" in report, report
    again, base_again, _ = rows_of(place, "strict")
    assert (again, base_again) == (found, base), "what prefix kept is a journal without damage"


def campaign(seeds: range, originals: dict[str, Path], tmp_path: Path) -> Counter[str]:
    """Run all seeds, and return the number of each outcome. An error names the seeds that went wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        place = tmp_path / str(seed)
        shape, what = damaged(seed, originals, place)
        try:
            counts[outcome(place, shape)] += 1
        except Exception as error:
            wrong.append(f"seed {seed}, {what}: {type(error).__name__} {str(error)[:200]}")
        for left in tmp_path.glob(f"{seed}*"):
            shutil.rmtree(left)
    assert not wrong, f"{len(wrong)} of {len(seeds)} ({dict(counts)}): " + "\n".join(wrong[:30])
    return counts


def test_a_few_damages_are_recovered_or_refused(originals: dict[str, Path], tmp_path: Path) -> None:
    counts = campaign(range(FEW), originals, tmp_path)
    assert counts["refused"] > FEW // 4, counts


def test_check_finds_a_damaged_index(originals: dict[str, Path], tmp_path: Path) -> None:
    """A start once refused a journal that `chp check` had called sound, since SQLite's quick check reads no index."""
    assert campaign(range(1839, 1840), originals, tmp_path) == {"refused": 1}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1000 + MANY, 50))
def test_a_thousand_damages_are_recovered_or_refused(originals: dict[str, Path], tmp_path: Path, first: int) -> None:
    counts = campaign(range(first, first + 50), originals, tmp_path)
    print(f"\n50 damages from {first}: {dict(counts)}, 0 silent, 0 crashes")


@pytest.mark.parametrize("column", ["NULL", "7", "1.5", "'text'"])
def test_a_row_body_of_another_type_is_refused(originals: dict[str, Path], tmp_path: Path, column: str) -> None:
    """A zeroed block may give a body another type. A start on such a journal once ended with exit code 70."""
    shutil.copytree(originals["closed"], place := tmp_path / "data")
    db = sqlite3.connect(place / "journal.sqlite", isolation_level=None)
    db.execute("PRAGMA writable_schema=ON")
    db.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    db.close()
    db = sqlite3.connect(place / "journal.sqlite", isolation_level=None)
    db.execute(f"UPDATE rows SET body = {column} WHERE rowid = (SELECT max(rowid) FROM rows)")
    db.close()
    assert outcome(place, "closed") == "refused"


def test_a_damaged_mark_is_refused_and_a_missing_mark_is_made_anew(originals: dict[str, Path], tmp_path: Path) -> None:
    """A journal without a mark may be older than marks. A damaged mark cannot prove that no row is missing."""
    rng = random.Random(1)
    for i, kind in enumerate((flip, zero, garbage, cut, shift, remove)):
        place = tmp_path / str(i)
        shutil.copytree(originals["killed"], place)
        kind(rng, place / "journal.sqlite.mark", place)
        assert outcome(place, "killed") == ("whole" if kind is remove else "refused"), kind.__name__
    assert (place / "journal.sqlite.mark").stat().st_size == 80


def test_a_journal_with_all_files_gone_but_its_mark_is_refused(originals: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "gone"
    shutil.copytree(originals["killed"], place)
    for file in place.glob("journal.sqlite*"):
        if not file.name.endswith(".mark"):
            file.unlink()
    with pytest.raises(JournalError, match=r"is gone.*1\.30"):
        open_journal(f"sqlite:{place}")
    assert not (place / "journal.sqlite").exists(), "nothing is made in its place"


def test_catch_up_opens_a_journal_with_missing_rows(originals: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "cut"
    shutil.copytree(originals["checkpointed"], place)
    (place / "journal.sqlite-wal").unlink()
    journal = open_journal(f"sqlite:{place}", catch_up=True)
    loaded = journal.load()
    assert loaded.number < loaded.marked == EPOCH | 150 and loaded.seen_epoch == 1
    rows = [LoggedRow(EPOCH | n, EPOCH | n, b"again") for n in range((loaded.number & 0xFFFF) + 1, 150)]
    journal.append(rows)
    journal.sync()
    journal.close()
    with pytest.raises(JournalError, match=r"1\.149.*1\.150"):
        rows_of(place, "strict")
    journal = open_journal(f"sqlite:{place}", catch_up=True)
    assert journal.load().marked == EPOCH | 150
    journal.append([LoggedRow(EPOCH | 150, EPOCH | 150, b"again")])
    journal.sync()
    journal.close()
    rows_of(place, "strict")


def test_dropping_rows_moves_the_mark_back(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    journal.append([LoggedRow(EPOCH | n, EPOCH | n, b"") for n in range(1, 21)])
    journal.sync()
    journal.drop_after(EPOCH | 12)
    journal.close()
    found = open_journal(f"sqlite:{tmp_path}")
    assert found.load().number == EPOCH | 12
    found.close()
