"""Tests of the publisher's high-water mark: it never changes after the start, and slow CHP/1 subscribers have room."""

import zmq

from chp_server.testing import TestServer

# This many sets of 10 KB are more than the sockets of the system hold.
SLOW_SETS = 3000
ZEROS = b"\0" * 8


def test_slow_chp1_subscribers_get_all_sets_without_a_change_of_sndhwm() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with TestServer() as server, context:
        host, _, port = server.address.rpartition(":")
        assert server.server is not None
        core, updates = server.server.core, server.server.sockets.updates
        mark = updates.get(zmq.SNDHWM)
        first, second, writer = (context.socket(kind) for kind in (zmq.SUB, zmq.SUB, zmq.XPUB))
        for socket in (first, second, writer):
            socket.set(zmq.RCVTIMEO, 30_000)
            socket.linger = 0
        writer.sndhwm = 0
        writer.connect(f"{host}:{int(port) + 2}")
        assert writer.recv() == b"\x01"
        for number, socket in enumerate((first, second)):
            socket.rcvhwm = 1
            socket.subscribe(b"/")
            socket.connect(f"{host}:{int(port) + 1}")
            while core.committer.committed.channels.listeners.total <= number:
                writer.poll(10)
        # No client reads meanwhile.
        for i in range(SLOW_SETS):
            writer.send_multipart([b"/%d" % i, ZEROS, b"", b"", b"x" * 10_000])
        for socket in (first, second):
            assert [socket.recv_multipart()[0] for _ in range(SLOW_SETS)] == [b"/%d" % i for i in range(SLOW_SETS)]
        for socket in (first, second, writer):
            socket.close()
        # A change of the mark on a live socket can end the process.
        assert updates.get(zmq.SNDHWM) == mark
