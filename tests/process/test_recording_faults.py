"""Tests of obstacles to a recording: no server, one that ends while it answers, a full disk, odd files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.parquet")

import zmq

from chp.errors import BadInput
from chp.limits import MIB
from chp_client import Clone
from chp_client.port.feed import Feed
from chp_client.recording.files import POSITION, SCHEMA, file_name, files, pq
from chp_client.recording.recorder import RecordingWriter, record
from chp_client.recording.replayer import replay
from chp_server.testing import TestServer
from tests.talk import WAIT_S

FULL = """
import os, resource, signal, sys
from pathlib import Path
from chp_client.port.feed import FeedRecord
from chp_client.recording.recorder import RecordingWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RecordingWriter(Path(sys.argv[1]), "", 60.0, 1 << 20)
writer.be_of(bytes(16))
writer.begin(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    writer.take(FeedRecord(2, 2, 0, ["/a"] * 70_000, [b""] * 70_000))
finally:
    writer.rotate(writer.reached)
"""


def test_record_makes_no_directory_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        record("tcp://127.0.0.1:9", tmp_path / "new" / "log", timeout_s=0.1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("room", [4, 100, 1500])
def test_a_full_disk_ends_a_recording_without_a_new_file(tmp_path: Path, room: int) -> None:
    argv = [sys.executable, "-c", FULL, str(tmp_path), str(room)]
    died = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert died.stderr.strip().splitlines()[-1] == f"OSError: [Errno 27] File too large: '{tmp_path}/_writing.part'"
    assert "During handling" not in died.stderr and "Exception ignored" not in died.stderr
    assert not files(tmp_path) and RecordingWriter(tmp_path, "", 60.0, MIB).reached == 0


def test_a_feed_asks_again_if_the_answer_of_a_server_breaks_off(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = zmq.Socket.send_multipart
    went: list[list[bytes]] = []

    def gone_once(socket: Any, frames: list[bytes], *args: Any, **options: Any) -> Any:
        if not went and b"more" in frames[-1]:
            went.append(frames)
            # The send fails as if the connection were gone.
            raise zmq.Again
        return send(socket, frames, *args, **options)

    with Clone(server.address) as clone, Feed([server.address]) as feed:
        for i in range(20):
            clone.set("/large", bytes([i]) * MIB).wait(WAIT_S)
        monkeypatch.setattr(zmq.Socket, "send_multipart", gone_once)
        seen = [record.values[0][0] for records in feed.fetch(0) for record in records]
    assert seen == list(range(20)) and len(went) == 1


def test_an_invalid_position_file_is_ignored(tmp_path: Path) -> None:
    for text in ("", "[1]", "null", '{"number": null, "store": 1}'):
        (tmp_path / POSITION).write_text(text)
        assert RecordingWriter(tmp_path, "", 60.0, MIB).reached == 0


def test_record_and_replay_name_a_file_that_cannot_be_read(server: TestServer, tmp_path: Path) -> None:
    broken = tmp_path / file_name(0, 5)
    broken.write_bytes(b"not Parquet")
    with pytest.raises(BadInput, match=f"{broken} can't be read"):
        record(server.address, tmp_path)
    pq.write_table(SCHEMA.empty_table(), tmp_path / file_name(0, 2))
    broken.rename(broken := tmp_path / file_name(3, 5))
    with Clone(server.address, subtree=None) as clone, pytest.raises(BadInput, match=f"{broken} can't be read"):
        replay(tmp_path, clone)
