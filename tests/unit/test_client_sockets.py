"""The options of the client's sockets that something depends on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import zmq

import chp_client
from chp import columns
from chp_client.agent import sockets
from chp_client.agent.agent import DIRECT_BYTES, DIRECT_ITEMS, Agent
from chp_client.agent.dispatch import Dispatcher
from chp_client.agent.mailbox import Mailbox
from chp_client.agent.sockets import ClientSockets
from chp_server.ports import sockets as server_sockets
from tests.unit.client_frames import PASSIVE, Talk


def test_immediate_is_set_only_where_messages_have_one_frame() -> None:
    """libzmq 4.3.5 ends the process (`!_more`, fq.cpp) when such a pipe goes between two frames of a message."""
    ours = ClientSockets([("tcp://127.0.0.1:1",) * 3], {})
    ours.open()
    dealer, sub, xpub = ours.servers[0]
    assert [s.getsockopt(zmq.IMMEDIATE) for s in (dealer, sub, xpub)] == [0, 0, 1]
    assert all(int(s.getsockopt(zmq.MAXMSGSIZE)) > 0 and int(s.getsockopt(zmq.RCVHWM)) > 0 for s in (dealer, sub, xpub))
    ours.close()


@pytest.fixture
def asleep() -> Iterator[Agent]:
    """Make a sleeping agent with a synced core, which no thread runs."""
    agent = Agent(Mailbox(Talk().joined().core, "block"), [("tcp://127.0.0.1:1",) * 3], Dispatcher(), "test")
    agent.sockets.open()
    agent.mailbox.batch.sleeping = True
    yield agent
    os.close(agent.bell)
    # This closes the sockets that a test made too.
    agent.sockets.context.destroy(linger=0)


def put(agent: Agent, *keys: str) -> list[int]:
    """Set keys as `Clone.set` does; the numbers of the batches under way then."""
    mailbox, batch = agent.mailbox, agent.mailbox.batch
    with mailbox.lock:
        for key in keys:
            batch.keys.append(key)
            batch.values.append(b"1")
        if batch.sleeping:
            agent.wake_or_send()
    return list(mailbox.core.outbox.batches)


def is_rung(agent: Agent) -> bool:
    try:
        return os.eventfd_read(agent.bell) > 0
    except BlockingIOError:
        return False


def test_a_lone_set_is_sent_by_the_thread_that_makes_it(asleep: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[bytes]] = []
    monkeypatch.setattr(sockets, "send", lambda socket, frames: sent.append(frames))
    assert put(asleep, "/a") == [1]
    assert [frames[1][-1] for frames in sent] == [1]
    assert asleep.mailbox.batch.sleeping, "the agent is not disturbed"
    assert not is_rung(asleep)


def test_further_sets_gather_for_the_agent_while_a_batch_is_under_way(asleep: Agent) -> None:
    put(asleep, "/a")
    assert put(asleep, "/b") == [1]
    assert put(asleep, "/c") == [1]
    assert asleep.mailbox.batch.keys == ["/b", "/c"]
    assert is_rung(asleep)
    assert not asleep.mailbox.batch.sleeping


def test_many_sets_at_once_are_left_to_the_agent(asleep: Agent) -> None:
    assert put(asleep, *(f"/{i}" for i in range(DIRECT_ITEMS + 1))) == []
    assert is_rung(asleep)


def queue(agent: Agent, key: str, value: bytes, **extras: object) -> list[int]:
    """Queue a batch of its own, as a conditional set does; the numbers of the batches under way then."""
    mailbox, batch = agent.mailbox, agent.mailbox.batch
    batch.wake = agent.wake_or_send
    with mailbox.lock:
        pending = batch.new()
        pending.keys, pending.values, pending.extras = [key], [value], extras
        batch.push(pending)
    return list(mailbox.core.outbox.batches)


def test_a_small_queued_batch_is_sent_by_the_thread_that_queued_it(asleep: Agent) -> None:
    assert queue(asleep, "/a", b"1") == [1]
    assert asleep.mailbox.batch.sleeping and not is_rung(asleep), "the agent is not disturbed"
    assert queue(asleep, "/b", b"1") == [1], "one is under way, so the next one waits for the agent"
    assert is_rung(asleep)


def test_a_large_queued_batch_is_left_to_the_agent(asleep: Agent) -> None:
    assert queue(asleep, "/a", b"1" * DIRECT_BYTES) == []
    assert is_rung(asleep)


@pytest.mark.parametrize("column", [columns.PUBLISH, columns.SCHEDULE])
def test_a_queued_batch_with_large_messages_is_left_to_the_agent(asleep: Agent, column: str) -> None:
    assert queue(asleep, "/a", b"1", **{column: [["topic", 1, b"1" * DIRECT_BYTES]]}) == []
    assert is_rung(asleep)


def test_a_queued_batch_beside_an_open_batch_is_left_to_the_agent(asleep: Agent) -> None:
    batch = asleep.mailbox.batch
    batch.keys.append("/open")
    batch.values.append(b"1")
    assert queue(asleep, "/queued", b"1") == []
    assert is_rung(asleep), "the agent sends both in their order"


def test_input_during_a_direct_send_is_left_to_the_agent(asleep: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The use of a socket takes the news from its descriptor, for which the agent waits."""
    monkeypatch.setattr(sockets, "has_input", lambda socket: True)
    assert put(asleep, "/a") == [1]
    assert is_rung(asleep)
    assert asleep.sockets.unread == {(0, sockets.LINK)}, "the agent looks there without being told"


def test_a_set_wakes_the_agent_if_the_agent_would_sleep_too_long(asleep: Agent) -> None:
    # The agent would wake too late to see that no answer came.
    asleep.due = float("inf")
    assert put(asleep, "/a") == []
    assert is_rung(asleep)


def test_messages_beyond_the_turn_limit_are_read_by_the_next_turn(asleep: Agent) -> None:
    """Its descriptor says nothing of it any more."""
    ours, theirs = (asleep.sockets.context.socket(zmq.PAIR) for _ in range(2))
    ours.bind("inproc://many")
    theirs.connect("inproc://many")
    for _ in range(sockets.TURN_MESSAGES + 1):
        theirs.send(b"x")
    asleep.sockets.monitors[0] = ours
    place = (0, sockets.MONITOR)
    asleep.sockets.unread = {place}
    assert [len(messages) for _, messages in asleep.sockets.drain()] == [sockets.TURN_MESSAGES]
    assert asleep.sockets.unread == {place}
    assert [len(messages) for _, messages in asleep.sockets.drain()] == [1]
    assert asleep.sockets.unread == set()


def test_a_client_does_not_vote_at_a_server_whose_collector_is_down() -> None:
    """Requests would wait in its queue and all arrive when it returns."""
    talk = Talk(servers=2)
    talk.greet()
    talk.greet(PASSIVE, server=1)
    talk.up(0)
    talk.snapshot(0, {})
    before = len(talk.requests)
    talk.wait(30)
    assert len(talk.requests) == before
    talk.up(1)
    talk.wait(1)
    assert {i for i, _, _ in talk.requests[before:]} == {1}


@pytest.mark.parametrize("sending", [sockets, server_sockets], ids=["client", "server"])
@pytest.mark.parametrize("n", [100, 1 << 20])
def test_a_large_last_frame_is_sent_without_a_copy(
    sending: ModuleType, n: int, monkeypatch: pytest.MonkeyPatch, asleep: Agent
) -> None:
    copied: list[bool] = []
    real = sending._send_frame

    def spy(socket: object, frame: bytes, flags: int, copy: bool = True) -> object:
        copied.append(copy)
        return real(socket, frame, flags, copy)

    monkeypatch.setattr(sending, "_send_frame", spy)
    out, into = asleep.sockets.context.socket(zmq.PAIR), asleep.sockets.context.socket(zmq.PAIR)
    out.bind("inproc://there")
    into.connect("inproc://there")
    sending.send(out, [b"k" * n, b"v" * n])
    assert copied == [True, n < zmq.COPY_THRESHOLD]
    assert into.recv_multipart() == [b"k" * n, b"v" * n]


def test_no_client_code_sets_zmtp_heartbeats() -> None:
    sources = Path(chp_client.__file__).parent.rglob("*.py")
    assert not [path for path in sources if "heartbeat_ivl" in path.read_text(encoding="utf-8").lower()]
