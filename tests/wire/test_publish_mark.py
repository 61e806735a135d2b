"""The mark of the publisher: raised for CHP/1; who was served with the higher one is served on when they are gone."""

from dataclasses import replace

import zmq

from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp_server.testing import TestServer

SETS = 400
SLOW_SETS = 3000  # of 10 KB: more than the sockets of the system hold
ZEROS = b"\0" * 8


def test_a_subscriber_goes_on_hearing_after_the_last_chp1_client_has_left() -> None:
    limits = replace(DEFAULT, publish_mark=100, publish_mark_chp1=100_000)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with TestServer(limits) as server, context:
        host, _, port = server.address.rpartition(":")
        follower, plain, writer = (context.socket(kind) for kind in (zmq.SUB, zmq.SUB, zmq.XPUB))
        for socket in (follower, plain, writer):
            socket.set(zmq.RCVTIMEO, 30_000)
            socket.linger = 0
        for socket, topic in ((follower, channel_topic("")), (plain, b"/")):
            socket.subscribe(topic)
            socket.connect(f"{host}:{int(port) + 1}")
        writer.connect(f"{host}:{int(port) + 2}")
        assert writer.recv() == b"\x01"
        follower.recv_multipart()
        for i in range(SETS):  # each heard before the next, so nobody is ever behind
            writer.send_multipart([b"/a", ZEROS, b"", b"", b"%d" % i])
            while b"%d" % i not in follower.recv_multipart()[4]:
                pass
        plain.close()
        core = server.server.core  # type: ignore[union-attr]
        while core.commits.channels.chp1:
            follower.recv_multipart()  # heartbeats: the time passes
        for i in range(SETS, SETS + 3):
            writer.send_multipart([b"/a", ZEROS, b"", b"", b"%d" % i])
            while b"%d" % i not in follower.recv_multipart()[4]:
                pass
        for socket in (follower, writer):
            socket.close()


def test_a_chp1_subscriber_that_comes_after_another_has_its_room_too() -> None:
    limits = replace(DEFAULT, publish_mark=10, publish_mark_chp1=100_000)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with TestServer(limits) as server, context:
        host, _, port = server.address.rpartition(":")
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
            while server.server.core.commits.channels.chp1_joins <= number:  # type: ignore[union-attr]
                writer.poll(10)
        for i in range(SLOW_SETS):  # nobody reads meanwhile
            writer.send_multipart([b"/%d" % i, ZEROS, b"", b"", b"x" * 10_000])
        for socket in (first, second):
            assert [socket.recv_multipart()[0] for _ in range(SLOW_SETS)] == [b"/%d" % i for i in range(SLOW_SETS)]
        for socket in (first, second, writer):
            socket.close()
