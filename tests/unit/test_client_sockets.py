"""The options of the client's sockets that something depends on."""

from __future__ import annotations

import zmq

from chp_client.agent import Agent
from chp_client.dispatch import Dispatcher
from chp_client.hub import Hub
from tests.unit.client_frames import Talk


def test_immediate_is_set_only_where_messages_have_one_frame() -> None:
    """libzmq 4.3.5 ends the process (`!_more`, fq.cpp) when such a pipe goes between two frames of a message."""
    agent = Agent(Hub(Talk().core, "block"), [("tcp://127.0.0.1:1",) * 3], Dispatcher(), "test")
    agent._open()
    dealer, sub, xpub = agent._sockets[0]
    assert [s.getsockopt(zmq.IMMEDIATE) for s in (dealer, sub, xpub)] == [0, 0, 1]
    assert all(s.getsockopt(zmq.MAXMSGSIZE) > 0 and s.getsockopt(zmq.RCVHWM) > 0 for s in (dealer, sub, xpub))
    for socket in (dealer, sub, xpub, agent._pipe, *agent._monitors):
        socket.close(0)
    agent._context.term()


def test_a_server_whose_collector_is_not_there_is_not_voted_for() -> None:
    """Requests would wait in its queue and all arrive when it returns."""
    talk = Talk(servers=2)
    talk.greet()
    talk.up(0)
    talk.snapshot(0, {})
    before = len(talk.requests)
    talk.wait(30)
    assert len(talk.requests) == before
    talk.up(1)
    talk.wait(1)
    assert {i for i, _, _ in talk.requests[before:]} == {1}
