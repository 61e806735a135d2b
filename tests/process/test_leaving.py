"""Subscribers that come and go: the mark of the publisher is raised for CHP/1 while others leave.

A process, since what this is about ends one: libzmq 4.3 tells the other end of a connection of a new mark even if that
end is gone already.
"""

import random
import socket
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from chp_server.testing import TestServer, free_port

from .cluster import ServerProcess, wait_for

OLD = b"\x01\x00\x05\x00"  # a peer of ZMTP 1.0, which subscribes to everything, as libzmq takes it
TIMES = 150


def test_the_server_outlives_chp1_subscribers_that_leave_at_once(tmp_path: Path) -> None:
    noise = random.Random(5)
    server = ServerProcess(tmp_path, "primary", f"tcp://127.0.0.1:{free_port()}", None, "--store", "memory:").start()
    try:
        wait_for("the server", server.status)
        port = int(server.address.rpartition(":")[2])
        for _ in range(TIMES):
            with socket.create_connection(("127.0.0.1", port + 1)) as peer:
                peer.sendall(OLD + noise.randbytes(64))
                peer.settimeout(0.02)  # long enough to be a subscriber
                try:
                    peer.recv(1)
                    peer.recv(1000)
                except OSError:
                    pass
        assert server.process is not None
        assert server.process.poll() is None, f"it ended with {server.process.returncode}"
        wait_for("its status", server.status)
    finally:
        server.kill()


def joined(channels: Any, n: int) -> bool:
    return bool(channels.chp1_joins == n)


def marked(sockets: Any, n: int) -> bool:
    return bool(sockets.chp1_joins == n)


def test_the_mark_is_raised_when_nobody_has_left_lately() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with TestServer() as server, context:
        host, _, port = server.address.rpartition(":")
        assert server.server is not None
        sockets, channels = server.server.sockets, server.server.core.commits.channels
        for joins in (1, 2):
            with context.socket(zmq.SUB) as plain:
                plain.subscribe(b"/")
                plain.connect(f"{host}:{int(port) + 1}")
                wait_for("the subscription", partial(joined, channels, joins))
                wait_for("the mark", partial(marked, sockets, joins))
            wait_for("its end", lambda: not channels.chp1)
