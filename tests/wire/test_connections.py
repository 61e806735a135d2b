"""Tests that the user with most connections makes room for others when too many are open (SPEC.md, section 38).

covers: ports/connections.py: Users, and what sockets.py tells it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import zmq

from chp.batch import packb
from chp.keyfiles import KeyPair
from chp.keys import channel_topic
from chp.messages import ICANHAZ
from chp_server.testing import TestServer
from tests.talk import until
from tests.wire import keys
from tests.wire.hand import at

ALICE, BOB = keys.new_pair(), keys.new_pair()
WAIT_MS = 30_000
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)


class Asker:
    """A connection to P or P+1 that does not reconnect. `is_cut` tells whether the server has cut it."""

    def __init__(self, ending: ExitStack, context: zmq.Context[keys.Socket], server: TestServer, pair: KeyPair,
                 offset: int = 0) -> None:  # fmt: skip
        kind = zmq.SUB if offset else zmq.DEALER
        self.socket = ending.enter_context(
            keys.socket(context, kind, pair, keys.public_of(Path(str(server.config.keys))))
        )
        self.socket.set(zmq.RECONNECT_IVL, -1)
        self._monitor = self.socket.get_monitor_socket(DISCONNECTED)
        ending.callback(self.socket.disable_monitor)
        self.socket.connect(at(server.address, offset))
        if offset:
            self.socket.subscribe(channel_topic("/"))
            assert self.socket.poll(WAIT_MS)
        else:
            assert self.asks()

    def asks(self) -> bool:
        """Return True if a question is answered."""
        self.socket.send_multipart([ICANHAZ, b"/", packb({"chp": 4, "id": 1, "from": 0, "credit": 8})])
        if not self.socket.poll(WAIT_MS):
            return False
        while self.socket.poll(50):
            self.socket.recv_multipart()
        return True

    @property
    def is_cut(self) -> bool:
        return bool(self._monitor.poll(0))


def test_the_user_with_most_connections_loses_the_longest_silent_ones(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE), ("bob", BOB))
    with TestServer(keys=str(a)) as server, ExitStack() as ending:
        context: zmq.Context[keys.Socket] = ending.enter_context(zmq.Context())
        assert server.server is not None
        users, core = server.server.sockets.users, server.server.core
        bob = [Asker(ending, context, server, BOB, offset) for offset in (0, 1)]
        alice = [Asker(ending, context, server, ALICE, offset) for offset in (0, 1) for _ in range(20)]
        assert alice[0].asks()
        until(lambda: not core.committer.counts["connections_cut"], "nobody is cut as long as there is room")
        users.files, users.most = lambda: len(bob) + len(alice) - core.committer.counts["connections_cut"], 32
        until(lambda: core.committer.counts["connections_cut"] == 10, "connections are cut")
        until(lambda: sum(each.is_cut for each in alice) == 10, "they were alice's")
        assert not any(each.is_cut for each in bob) and bob[0].asks()
        assert not alice[0].is_cut and alice[1].is_cut, "those go that were heard longest ago"


def test_no_connection_is_cut_without_keys() -> None:
    with TestServer() as server:
        assert server.server is not None
        server.server.sockets.users.most = 0
        server.server.sockets.look_after_users()
        assert server.server.sockets.users.cut == 0
