"""Tests that read a journal and its high-water mark by hand, after spec/server.md, without code of our stores.
covers: sections 31 to 33 of the specification: the tables, the checksums, the chain of rows, snapshots, the mark
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest

from chp_server.store.sql.journal_mark import MarkFile
from tests.fixtures.make import CONTENT, SERVER

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = [FIXTURES / "journal-2.sqlite", FIXTURES / "backup-2.db"]


class ByHand:
    """A reader of a journal's file, which compares each checksum."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        assert [self.one(f"PRAGMA {name}") for name in ("application_id", "user_version")] == [0x43485032, 2]
        raw = self.db.execute("SELECT key, value, crc FROM meta").fetchall()
        self.meta: dict[str, bytes] = {key: value for key, value, _ in raw}
        self.seed = crc32(self.meta["chp.store"])
        assert all(crc == self.sum(key.encode() + b"\0", value) for key, value, crc in raw)
        self.serial, self.snapshot, self.chunks, self.bytes, self.floor = struct.unpack(">5Q", self.meta["chp.book"])

    def one(self, sql: str) -> Any:
        return self.db.execute(sql).fetchone()[0]

    def sum(self, head: bytes, body: bytes) -> int:
        return crc32(body, crc32(head, self.seed))

    def bodies(self) -> list[Any]:
        """Return the chunks of the snapshot."""
        low, high = self.serial << 32, (self.serial + 1) << 32
        found = self.db.execute("SELECT id, crc, body FROM chunks WHERE id >= ? AND id < ? ORDER BY id", (low, high))
        out = []
        for place, (key, crc, body) in enumerate(found.fetchall()):
            assert key == low + place and crc == self.sum(struct.pack(">QQ", self.serial, place), body)
            out.append(msgpack.unpackb(body))
        assert len(out) == self.chunks
        return out

    def rows(self) -> list[Any]:
        """Return the rows, also those before the snapshot."""
        found = self.db.execute(
            "SELECT first, last, prev, crc, body FROM rows WHERE first > ? ORDER BY first", [self.floor]
        )
        out, last = [], None
        for first, upto, prev, crc, body in found.fetchall():
            assert crc == self.sum(struct.pack(">QQQ", prev, first, upto), body)
            assert prev == last if last is not None else prev <= self.snapshot
            out.append(msgpack.unpackb(body))
            assert out[-1][0][1:4] == [prev, first, upto]
            last = upto
        return out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_journal_file_has_the_format_of_the_specification(path: Path) -> None:
    file, found = ByHand(path), dict[str, bytes]()
    *chunks, state = file.bodies()
    assert [chunk[0][:3] for chunk in chunks] == [[3, 0, i] for i in range(len(chunks))]
    for _, (keys, values, extras) in chunks:
        assert sum(n for _, n in extras["r"]) == len(keys)
        found.update(zip(keys, values, strict=True))
    head, (number, history, sessions, _, _, _, _, store, _, digest) = state
    assert head[:3] == [10, number, len(found)] and number == file.snapshot and store == SERVER
    assert history[-1][:4] == [1, number, digest, SERVER]
    for header, *segments in file.rows():
        if header[0] == 1 and header[3] > number:
            assert not header[6]
            for keys, values, _ in segments:
                found.update(zip(keys, values, strict=True))
    assert found == CONTENT and sessions[0][1] <= len(CONTENT)
    assert bool(file.meta.get("copy")) == (path.suffix == ".db")


def test_a_snapshot_digest_is_computed_from_the_rows_before_the_snapshot() -> None:
    file, digest = ByHand(FILES[0]), 0
    for header, *rest in file.rows():
        if header[3] <= file.snapshot:
            digest = crc32(crc32(msgpack.packb([header, *rest])).to_bytes(4, "big"), digest)
    state = file.bodies()[-1]
    assert digest == state[1][-1] != 0


def test_a_mark_file_has_the_format_of_the_specification(tmp_path: Path) -> None:
    store, number = bytes(range(16)), 1 << 48 | 7
    mark = MarkFile(tmp_path / "journal.sqlite", store, "always", 0)
    mark.write(number)
    mark.close()
    data = (tmp_path / "journal.sqlite.mark").read_bytes()
    assert len(data) == 80 and data[:8] == b"CHPMARK1" and data[8:24] == store and data[40:48] == b"always  "
    assert struct.unpack(">I", data[48:52])[0] == crc32(data[:48])
    assert struct.unpack(">QI", data[64:76]) == (number, crc32(struct.pack(">Q", number), crc32(store)))
