"""Tests that a server survives subscribers that come and go while it is paused for moments.

The server is a process, because the fault can end one. libzmq 4.3 tells the other end of a connection of a new
high-water mark even if that end is gone already. A paused server finds many such ends at once.
"""

import random
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from chp_server.testing import free_port
from tests.talk import until

from .cluster import ServerProcess

# libzmq takes a connection that sends this for a peer of ZMTP 1.0 that subscribes to everything.
OLD = b"\x01\x00\x05\x00"
TIMES = 150


def visit(port: int, noise: random.Random) -> None:
    """Subscribe for a moment, read a little, and leave silently."""
    with socket.create_connection(("127.0.0.1", port), 5) as peer:
        try:
            peer.sendall(OLD + noise.randbytes(64))
            # The connection lasts long enough to become a subscriber.
            peer.settimeout(0.02)
            peer.recv(1)
            peer.recv(1000)
        except OSError:
            pass


def lone(directory: Path) -> ServerProcess:
    """Start a server alone, in memory."""
    return ServerProcess(directory, "primary", f"tcp://127.0.0.1:{free_port()}", None, "--store", "memory:").start()


def assert_lives(server: ServerProcess) -> None:
    """Assert that the server has not ended and answers."""
    assert server.process is not None
    assert server.process.poll() is None, f"it ended with {server.process.returncode}"
    until(server.status, "its status")


def test_the_server_outlives_chp1_subscribers_that_leave_at_once(tmp_path: Path) -> None:
    noise = random.Random(5)
    server = lone(tmp_path)
    try:
        until(server.status, "the server")
        for _ in range(TIMES):
            visit(int(server.address.rpartition(":")[2]) + 1, noise)
        assert_lives(server)
    finally:
        server.kill()


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(5, marks=pytest.mark.slow), *(pytest.param(120, marks=pytest.mark.long) for _ in range(9))],
)
def test_the_server_outlives_subscribers_that_leave_while_it_is_paused(tmp_path: Path, seconds: int) -> None:
    server, done = lone(tmp_path), threading.Event()

    def visits(seed: int) -> None:
        noise = random.Random(seed)
        while not done.is_set():
            try:
                visit(int(server.address.rpartition(":")[2]) + 1, noise)
            except OSError:
                # The backlog of the paused server is full.
                done.wait(0.01)

    visitors = [threading.Thread(target=visits, args=(seed,)) for seed in range(8)]
    try:
        until(server.status, "the server")
        for visitor in visitors:
            visitor.start()
        chance, end = random.Random(7), time.monotonic() + seconds
        while time.monotonic() < end and server.process is not None and server.process.poll() is None:
            done.wait(chance.uniform(0.02, 0.3))
            server.signal(signal.SIGSTOP)
            done.wait(chance.uniform(0.02, 0.7))
            server.signal(signal.SIGCONT)
        assert_lives(server)
    finally:
        done.set()
        for visitor in visitors:
            visitor.join()
        server.kill()
