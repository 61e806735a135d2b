"""Tests of kill -9 of the active during a read: each row comes once, as it was at the number of the plan."""

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.talk import join_all, synced

from .cluster import ProcessPair

pytest.importorskip("pyspark", reason="the reader is Spark's")
from chp_client.spark.reading.snapshot import ImagePartition, plan_read, port_of, read_part

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
ROWS, PARTS = 1_000_000, 8
VALUE = b"first".ljust(50, b".")
# 500 keys change, and then the writer pauses for this many seconds. So a minute changes less than the servers keep for
# the number that is read.
PAUSE_S = 0.1


def rows(servers: list[str], piece: ImagePartition) -> Iterator[list[tuple[str, bytes]]]:
    with port_of({"timeout": 120}, servers=servers, silence_s=15) as port:
        for updates in read_part(port, "/a/", piece, packed=True):
            assert not isinstance(updates.keys, list) and not isinstance(updates.values, list)
            yield list(zip(updates.keys.to_pylist(), updates.values.to_pylist(), strict=True))


def test_a_read_goes_on_at_the_successor_if_the_active_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "chp_client.spark")
    with ProcessPair(tmp_path) as pair, synced(pair.servers, None) as clone:
        for start in range(0, ROWS, 10_000):
            clone.set_many({f"/a/{n}": VALUE for n in range(start, start + 10_000)})
        clone.flush(300)
        with port_of({"timeout": 120}, servers=pair.servers) as port:
            pieces = plan_read(port, "/a/", "/a/", PARTS)
        over = Event()

        def write() -> None:
            n = 0
            while not over.wait(PAUSE_S):
                keys = [f"/a/{(n + i) * 7 % (2 * ROWS)}" for i in range(500)]
                clone.set_many(dict.fromkeys(keys[:400], b"later"))
                clone.delete_many(keys[400:]).wait(120)
                n += 500

        writer = Thread(target=write)
        writer.start()
        try:
            begun = [rows(pair.servers, piece) for piece in pieces]
            first = [next(read) for read in begun[:3]]
            active = pair.active()
            assert active is not None
            active.kill()
            rest = list(chain.from_iterable(chain.from_iterable(begun)))
        finally:
            over.set()
            join_all(writer)
    found = [*chain.from_iterable(first), *rest]
    assert len(found) == ROWS and dict(found) == {f"/a/{n}": VALUE for n in range(ROWS)}
    assert "in the middle of an answer" in caplog.text, "parts were interrupted, and read on at the successor"
