"""Tests of `chp record` and `chp replay`: kill -9 and failovers leave no gap, or the recording reports the gap."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pq = pytest.importorskip("pyarrow.parquet")

from chp.errors import BadInput  # noqa: E402
from chp.headers import Batch, Header  # noqa: E402
from chp_client import Clone  # noqa: E402
from chp_client.errors import NotRetained  # noqa: E402
from chp_client.port.connection import Connection  # noqa: E402
from chp_client.port.feed import Feed, FeedRecord  # noqa: E402
from chp_client.recording.files import files  # noqa: E402
from chp_client.recording.recorder import FILE_BYTES, RecordingWriter, record  # noqa: E402
from chp_client.recording.replayer import Replayed, replay  # noqa: E402
from chp_server.settings.config import Config  # noqa: E402
from chp_server.testing import Pair, TestServer  # noqa: E402
from tests.talk import WAIT_S, join_all, run, until  # noqa: E402

ENVIRON = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")} | {"NO_COLOR": "1"}


def chp(*args: str, **popen: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "chp_client.cli", "--timeout", "20s", *args]
    return subprocess.Popen(argv, env=ENVIRON, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)  # type: ignore[call-overload,no-any-return]


def rows_of(folder: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for each in files(folder):
        rows += pq.read_table(each.path).to_pylist()
    return rows


@contextmanager
def recorded(servers: list[str], folder: Path, subtree: str = "", **options: Any) -> Iterator[list[str]]:
    """Run a recorder in a thread, and return its output once it has begun."""
    stop, said = threading.Event(), []
    begun = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        begun.set()

    def run() -> None:
        try:
            record(servers, folder, subtree, stop=stop, say=say, **options)
        except BadInput as error:
            say(f"error: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WAIT_S)
    try:
        yield said
    finally:
        stop.set()
        join_all(thread)


def test_rows_of_a_recording_have_key_value_operation_ttl_and_revision(server: TestServer, tmp_path: Path) -> None:
    with Clone([server.address]) as clone:
        first = clone.set_many({"/a/1": b"x", "/a/2": b"y", "/b": b"z"}).wait(WAIT_S)
        with recorded([server.address], tmp_path, "/a/", every_s=600.0):
            second = clone.set("/a/1", b"", ttl=2.5).wait(WAIT_S)
            third = clone.delete("/a/2").wait(WAIT_S)
            clone.set("/b", b"not in the subtree").wait(WAIT_S)
            with Feed([server.address], "/a/") as feed:
                seen = [each for records in feed.fetch(0) for each in records]
    rows = rows_of(tmp_path)
    assert [(row["key"], row["value"], row["operation"], row["ttl"]) for row in rows] == [
        ("/a/1", b"x", "snapshot", None), ("/a/2", b"y", "snapshot", None),
        ("/a/1", b"", "set", 2.5), ("/a/2", None, "delete", None),
    ]  # fmt: skip
    assert [row["revision"] for row in rows] == [first.revision, first.revision, second.revision, third.revision]
    assert (rows[3]["epoch"], rows[3]["sequence"]) == (third.epoch, third.sequence)
    assert [each.keys for each in seen] == [["/a/1", "/a/2"], ["/a/1"], ["/a/2"]]


@pytest.mark.parametrize("lost", [3, 9])
def test_a_feed_fetches_a_batch_that_was_lost_on_the_way(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """The `prev` of the fifth batch shows the loss of the fourth. A heartbeat shows the loss of the last batch."""
    seen: list[bytes] = []
    with Clone([server.address]) as clone, Feed([server.address], "/n/") as feed:
        hear, batches = Connection.published, itertools.count()

        def losing(link: Connection) -> Iterator[tuple[Header, list[object]]]:
            for header, body in hear(link):
                if not isinstance(header, Batch) or next(batches) != lost:
                    yield header, body

        monkeypatch.setattr(Connection, "published", losing)
        changes = feed.follow(feed.facts().newest, idle_s=0.1)
        next(changes)
        for i in range(10):
            clone.set("/n/x", b"%d" % i).wait(WAIT_S)
        end = time.monotonic() + WAIT_S
        while len(seen) < 10 and time.monotonic() < end:
            seen += [value for record in next(changes) for value in record.values]
        assert feed.stats["holes"] == 1
    assert seen == [b"%d" % i for i in range(10)]


def count_up(clone: Clone, stop: threading.Event) -> int:
    """Set one key to 0, 1, 2 ... until told to stop, and return the number of sets."""
    n = 0
    while not stop.is_set():
        for _ in range(200):
            clone.set("/n", b"%d" % n)
            n += 1
        clone.flush(WAIT_S)
        stop.wait(0.002)
    return n


def assert_counts(folder: Path, n: int) -> None:
    """Check that each number is there once and in order, and that files follow one another."""
    values = [int(row["value"]) for row in rows_of(folder)]  # type: ignore[call-overload]
    assert values == list(range(values[0], n))
    done = files(folder)
    assert [each.start for each in done[1:]] == [each.until for each in done[:-1]]


@pytest.mark.slow
def test_kill_9_leaves_no_gap(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    stop, counts = threading.Event(), []
    with TestServer(heartbeat_s=0.1) as server, Clone([server.address]) as clone:
        clone.set("/n", b"-1").wait(WAIT_S)
        thread = threading.Thread(target=lambda: counts.append(count_up(clone, stop)))
        command = ("--servers", server.address, "record", str(folder), "--every", "150ms")
        recorder = chp(*command)
        until(lambda: folder.is_dir() and files(folder), "the first file")
        thread.start()
        for _ in range(2):
            had = len(files(folder))
            until(lambda had=had: len(files(folder)) >= had + 2, "more files")  # type: ignore[misc]
            recorder.send_signal(signal.SIGKILL)
            recorder.communicate()
            recorder = chp(*command)
        had = len(files(folder))
        until(lambda: len(files(folder)) > had, "more files")
        stop.set()
        thread.join()
        until(lambda: rows_of(folder)[-1]["value"] == b"%d" % (counts[0] - 1), "the last number")
        recorder.send_signal(signal.SIGTERM)
        _, said = recorder.communicate(timeout=WAIT_S)
    assert recorder.returncode == 0, said
    assert "goes on after" in said and "GAP" not in said
    assert_counts(folder, counts[0])


def test_a_failover_leaves_no_unreported_gap(pair: Pair, tmp_path: Path) -> None:
    stop, counts = threading.Event(), []
    with Clone(pair.servers) as clone:
        clone.set("/n", b"-1").wait(WAIT_S)
        until(lambda: clone.set("/x", b"").wait(WAIT_S).durability == "replicated", "the pair")
        clone.delete("/x").wait(WAIT_S)
        with recorded(pair.servers, tmp_path, every_s=0.2) as said:
            thread = threading.Thread(target=lambda: counts.append(count_up(clone, stop)))
            thread.start()
            until(lambda: len(files(tmp_path)) >= 3, "files")
            pair.primary.kill()
            had = len(files(tmp_path))
            until(lambda: len(files(tmp_path)) >= had + 3, "files of the new active")
            stop.set()
            thread.join()
            until(lambda: rows_of(tmp_path)[-1]["value"] == b"%d" % (counts[0] - 1), "the last")
    rows = rows_of(tmp_path)
    assert {row["epoch"] for row in rows} == {1, 2}
    # The dead server had published records that the other never had, and the recording reports that.
    if any("GAP" in each for each in said):
        assert [row for row in rows if row["operation"] == "gap"]
    else:
        assert_counts(tmp_path, counts[0])


def test_updates_not_retained_become_a_gap_and_a_snapshot_in_the_recording(tmp_path: Path) -> None:
    with TestServer(heartbeat_s=0.1, retain_memory_bytes=1000) as server, Clone([server.address]) as clone:
        clone.update({"/a/stays": b"1", "/a/goes": b"1"})
        clone.flush(WAIT_S)
        with recorded([server.address], tmp_path, "/a/"):
            pass
        with Feed([server.address], "/a/") as feed:
            before = feed.facts().newest
            del clone["/a/goes"]
            for i in range(20):
                clone.set("/a/new", b"%d" % i * 200).wait(WAIT_S)
            with pytest.raises(NotRetained, match="--retain-bytes"):
                list(feed.fetch(before))
        with recorded([server.address], tmp_path, "/a/") as said:
            until(lambda: any("GAP" in each for each in said), "it to be said")
            clone.set("/a/after", b"1").wait(WAIT_S)
        wanted = dict(clone)
    *rows, last = [(row["operation"], row["key"]) for row in rows_of(tmp_path)]
    assert rows == [
        ("snapshot", "/a/stays"), ("snapshot", "/a/goes"),
        ("gap", "/a/"), ("snapshot", "/a/stays"), ("snapshot", "/a/new"),
    ]  # fmt: skip
    assert last in {("set", "/a/after"), ("snapshot", "/a/after")}, "the gap is said before its snapshot is made"
    assert held_after_replay(tmp_path) == wanted
    assert held_after_replay(tmp_path, after=files(tmp_path)[0].until, begin={"/a/x": b"", "/b": b""}) == {
        **wanted, "/b": b"",
    }  # fmt: skip


def held_after_replay(
    folder: Path, after: int = 0, speed: float | None = None, begin: dict[str, bytes] | None = None
) -> dict[str, bytes]:
    """Play the recording into a new store, and return its contents."""
    with (
        TestServer(heartbeat_s=0.1) as empty,
        Clone([empty.address], None) as writer,
        Clone([empty.address]) as reader,
    ):
        reader.update(begin or {})
        reader.flush(WAIT_S)

        def keys_under(subtree: str) -> set[str]:
            # `chp replay` asks the server for the keys too, because a copy may be behind.
            with Feed([empty.address], subtree) as feed:
                return {key for chunk in feed.snapshot().chunks for key in chunk.keys}

        done = replay(folder, writer, start=after, speed=speed, keys_under=keys_under)
        assert done.number == files(folder)[-1].until
        reader.wait_until_synced(WAIT_S)
        until(lambda: reader.revision >= done.number or reader.verify(contents=False).ok, "the replay to arrive")
        reader.set("/end", b"").wait(WAIT_S)
        return {key: value for key, value in reader.items() if key != "/end"}


def set_some(server: TestServer, n: int) -> str:
    """Set a key n times, and return the id of the server's store."""
    with Clone([server.address]) as clone, Feed([server.address]) as feed:
        for i in range(n):
            clone.set("/a", b"%d" % i).wait(WAIT_S)
        return feed.facts(WAIT_S).store.hex()


def assert_another_store(said: list[str], folder: Path, mine: str, theirs: str) -> None:
    until(lambda: any("error" in each for each in said), "the error")
    assert f"{folder} is a recording of the store {mine}, and the servers hold the store {theirs}" in said[-1]
    assert "into another directory, or name the servers of this one" in said[-1]


@pytest.mark.parametrize("n", [1, 30])
def test_another_store_is_refused(tmp_path: Path, n: int) -> None:
    """Another store is refused whether its numbers are below or above the recorded ones."""
    with TestServer(heartbeat_s=0.1) as server:
        mine = set_some(server, 10)
        with recorded([server.address], tmp_path):
            pass
    before = rows_of(tmp_path)
    with TestServer(heartbeat_s=0.1) as server:
        theirs = set_some(server, n)
        with recorded([server.address], tmp_path) as said:
            assert_another_store(said, tmp_path, mine, theirs)
    assert rows_of(tmp_path) == before


def test_a_recording_without_rows_refuses_another_store(tmp_path: Path) -> None:
    """The recording has no row yet, only the number that it has reached."""
    with TestServer(heartbeat_s=0.1) as server, recorded([server.address], tmp_path, "/b/", every_s=0.1):
        mine = set_some(server, 3)
        until(lambda: RecordingWriter(tmp_path, "/b/", 1, 1).reached, "the position")
    with TestServer(heartbeat_s=0.1) as server, recorded([server.address], tmp_path, "/b/") as said:
        with Feed([server.address]) as feed:
            theirs = feed.facts(WAIT_S).store.hex()
        assert_another_store(said, tmp_path, mine, theirs)


@pytest.mark.parametrize("n", [1, 30])
def test_a_recording_refuses_a_memory_store_after_a_restart(tmp_path: Path, n: int) -> None:
    with TestServer(heartbeat_s=0.1) as server:
        mine = set_some(server, 10)
        with recorded([server.address], tmp_path, start="begin", every_s=0.1) as said:
            until(lambda: files(tmp_path), "the rows")
            server.restart()
            theirs = set_some(server, n)
            assert_another_store(said, tmp_path, mine, theirs)
    assert mine != theirs and [row["value"] for row in rows_of(tmp_path)] == [b"%d" % i for i in range(10)]


def test_a_recording_goes_on_after_a_restart_with_a_journal(tmp_path: Path) -> None:
    with TestServer(heartbeat_s=0.1, store=f"sqlite:{tmp_path / 'data'}") as server:
        mine = set_some(server, 10)
        with recorded([server.address], tmp_path / "rec", start="begin", every_s=0.1) as said:
            until(lambda: files(tmp_path / "rec"), "the rows")
            server.restart()
            assert set_some(server, 5) == mine
            until(lambda: len(rows_of(tmp_path / "rec")) == 15, "the rest")
    assert not any("error" in each or "GAP" in each for each in said)


def test_start_says_where_a_new_recording_begins(server: TestServer, tmp_path: Path) -> None:
    with Clone([server.address]) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
        seen = clone.set("/b", b"2").wait(WAIT_S).revision
        clone.set("/c", b"3").wait(WAIT_S)
        for start, keys in (("begin", ["/a", "/b", "/c"]), (seen, ["/c"]), (str(seen), ["/c"]), ("end", [])):
            folder = tmp_path / str(start)
            with recorded([server.address], folder, start=start) as said:
                until(partial(bool, said), "it to begin")
            assert [row["key"] for row in rows_of(folder)] == keys, start
        with pytest.raises(BadInput, match=r"start=9\.1 is above the servers' number, 1\.\d+"):
            record([server.address], tmp_path / "above", start="9.1")


def test_record_refuses_a_directory_of_an_unknown_store(server: TestServer, tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "", 1, 1)
    writer.begin(1)
    writer.take(FeedRecord(2, 2, 0, ["/a"], [b"1"]))
    assert len(files(tmp_path)) == 1
    with pytest.raises(BadInput, match="is a recording of no store that is known"):
        record([server.address], tmp_path)


@pytest.fixture
def recording(server: TestServer, tmp_path: Path) -> Path:
    """Record a second of sets, deletes and ttls into several files."""
    with Clone([server.address]) as clone, recorded([server.address], tmp_path / "rec", every_s=0.25):
        for i in range(1000):
            clone.set(f"/k/{i % 97}", b"%d" % i, ttl=100 if i % 5 == 0 else None)
            if i % 3 == 0:
                clone.delete(f"/k/{(i * 7) % 97}")
            if i % 50 == 49:
                clone.flush(WAIT_S)
                # The pause gives the recording its duration. It waits for nothing.
                time.sleep(0.05)
        clone.flush(WAIT_S)
    (tmp_path / "wanted.json").write_text(json.dumps({key: value.decode() for key, value in clone.items()}))
    return tmp_path / "rec"


def wanted(recording: Path) -> dict[str, bytes]:
    return {k: v.encode() for k, v in json.loads((recording.parent / "wanted.json").read_text()).items()}


@pytest.mark.parametrize("speed", [None, 3.0])
def test_a_replay_makes_the_map_that_was_recorded(recording: Path, speed: float | None) -> None:
    began = time.monotonic()
    assert held_after_replay(recording, speed=speed) == wanted(recording)
    assert speed is None or time.monotonic() - began >= 0.25


def test_a_replay_goes_on_from_a_number(recording: Path) -> None:
    half = files(recording)[1]
    first = {}
    for row in rows_of(recording):
        if (row["epoch"] << 48 | row["sequence"]) <= half.until:  # type: ignore[operator]
            first[row["key"]] = row["value"]
    begin = {key: value for key, value in first.items() if value is not None}
    assert held_after_replay(recording, half.until, begin=begin) == wanted(recording)  # type: ignore[arg-type]


def test_a_replay_gives_the_updates_of_a_record_one_revision(server: TestServer, tmp_path: Path) -> None:
    with Clone([server.address]) as clone, recorded([server.address], tmp_path):
        clone.set_many({f"/t/{i}": b"1" for i in range(20_000)}).wait(WAIT_S)
    with (
        TestServer(heartbeat_s=0.1) as empty,
        Clone([empty.address], None) as writer,
        Clone([empty.address]) as reader,
    ):
        replay(tmp_path, writer)
        until(lambda: len(reader) == 20_000, "all")
        assert len({reader.entry(key).revision for key in reader}) == 1  # type: ignore[union-attr]


def test_replay_as_a_command(recording: Path) -> None:
    with TestServer(heartbeat_s=0.1) as server, Clone([server.address]) as clone:
        run = chp("--servers", server.address, "--json", "replay", str(recording), "--speed", "max")
        out, said = run.communicate(timeout=60)
        assert run.returncode == 0, said
        done = json.loads(out)
        assert done["complete"] and done["rows"] == len(rows_of(recording)) and done["deletes"] > 300
        until(lambda: dict(clone) == wanted(recording), "the map")


def test_a_missing_file_is_noticed(recording: Path) -> None:
    gone = files(recording)[1]
    gone.path.unlink()
    with pytest.raises(BadInput, match="lacks a file between"):
        held_after_replay(recording)
    held_after_replay(recording, after=gone.until)


def test_a_damaged_file_is_named(recording: Path) -> None:
    path = files(recording)[0].path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match="can't be read"):
        held_after_replay(recording)


def refused(done: Result, code: int, text: str) -> None:
    assert done.exit_code == code and text in done.stderr, done.output


@pytest.mark.slow
def test_record_and_replay_refuse_wrong_arguments(server: TestServer, tmp_path: Path, recording: Path) -> None:
    servers = ("--servers", server.address)
    (tmp_path / "empty").mkdir()
    refused(run(*servers, "replay", str(tmp_path / "empty")), 2, "holds no recording")
    refused(run(*servers, "replay", str(tmp_path / "nowhere")), 2, "is not there")
    refused(run(*servers, "replay", str(recording), "--speed", "fast"), 2, "give a number above 0")
    refused(run(*servers, "record", str(recording), "--subtree", "/x/"), 2, "is a recording of '', not of '/x/'")
    refused(run(*servers, "record", str(tmp_path / "new"), "--subtree", "x"), 2, "must be '' or begin and end")
    nobody = ("--servers", "tcp://127.0.0.1:9", "--timeout", "300ms")
    refused(run(*nobody, "record", str(tmp_path / "new")), 3, "no server")
    with recorded([server.address], tmp_path / "busy"):
        refused(run(*servers, "record", str(tmp_path / "busy")), 2, "somebody records into")
    for directory in ("/proc/x", "/proc/self"):
        refused(run(*servers, "record", directory), 1, f"{directory}: ")
        refused(run(*servers, "record", directory), 1, "; give another directory")


def test_a_recording_is_split_into_files_by_size(server: TestServer, tmp_path: Path) -> None:
    with Clone([server.address]) as clone, recorded([server.address], tmp_path, file_bytes=100_000):
        for i in range(30):
            clone.set(f"/{i}", b"x" * 20_000).wait(WAIT_S)
    sizes = [sum(len(v) for v in pq.read_table(f.path)["value"].to_pylist()) for f in files(tmp_path)]
    assert len(sizes) >= 4 and max(sizes) <= 140_000 and sum(sizes) == 600_000


def test_a_recording_of_a_quiet_subtree_advances_its_position(server: TestServer, tmp_path: Path) -> None:
    with Clone([server.address]) as clone, recorded([server.address], tmp_path, "/a/", every_s=0.2):
        ack = clone.set("/b", b"1").wait(WAIT_S)
        until(lambda: RecordingWriter(tmp_path, "/a/", 1, 1).reached >= ack.revision, "the position")
    assert files(tmp_path) == []


def test_the_progress_of_a_replay_never_goes_back(recording: Path) -> None:
    seen: list[int] = []
    with TestServer(heartbeat_s=0.1) as server, Clone([server.address], None) as writer:
        note: Callable[[Replayed], object] = lambda done: seen.append(done.number)  # noqa: E731
        done = replay(recording, writer, speed=5, progress=note)
    assert seen == sorted(seen) and done.number == files(recording)[-1].until


def test_servers_retain_two_recording_files_of_updates_by_default() -> None:
    assert Config().retain_memory_bytes >= 2 * FILE_BYTES
