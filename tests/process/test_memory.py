"""covers: --max-memory and --max-keys of real servers: sets are refused, no server ends, and there is room again."""

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone, Refused
from chp_server.testing import free_port
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess

pytestmark = pytest.mark.slow
MIB = 1 << 20


def fill(clone: Clone, most: int) -> tuple[int, str]:
    """Set values of 1 MiB until a set is refused, and return the number of accepted sets and the refusal."""
    for i in range(most):
        try:
            clone.set(f"/large/{i}", os.urandom(MIB)).wait(WAIT_S)
        except Refused as refused:
            return i, str(refused)
    return most, ""


def test_a_pair_at_its_memory_limit_refuses_sets_but_deletes(tmp_path: Path) -> None:
    with ProcessPair(tmp_path, "--max-memory", "200MiB") as pair, Clone(pair.servers, None) as clone:
        done, why = fill(clone, 300)
        assert 20 < done < 250 and "(full): memory: " in why and "of 200 MiB" in why
        for status in pair.statuses():
            assert status is not None and status["room"]["memory"] < 260 * MIB
        for i in range(done):
            clone.delete(f"/large/{i}")
        clone.flush(WAIT_S)
        until(lambda: all(status and not status["room"]["full"] for status in pair.statuses()), "room")
        clone.set("/small", b"1").wait(WAIT_S)
        pair.wait_in_sync()


def test_a_limit_on_address_space_does_not_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = subprocess.Popen

    def limited(*args: Any, **more: Any) -> Any:
        bound = 500 * MIB
        return real(*args, **more, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (bound, bound)))

    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None)
    monkeypatch.setattr(subprocess, "Popen", limited)
    server.start()
    monkeypatch.setattr(subprocess, "Popen", real)
    try:
        with Clone(server.address, None) as clone:
            done, why = fill(clone, 700)
            assert done > 20 and "(full): memory: " in why
            assert server.process is not None and server.process.poll() is None
            clone.delete("/large/0").wait(WAIT_S)
        assert "Traceback" not in server.log.read_text()
    finally:
        server.kill()


def test_a_server_refuses_more_keys_than_max_keys(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--max-keys", "10").start()
    try:
        with Clone(server.address) as clone:
            clone.set_many({f"/{i}": b"1" for i in range(10)}).wait(WAIT_S)
            with pytest.raises(Refused, match=r"the map has 10, and may have 10.*--max-keys"):
                clone.set("/more", b"1").wait(WAIT_S)
            clone.set("/1", b"2").wait(WAIT_S)
            clone.delete("/2").wait(WAIT_S)
            clone.set("/more", b"1").wait(WAIT_S)
    finally:
        server.kill()
