"""Tests of what an application may do in its callbacks, and of a Clone whose callback raises or closes it.

A ticket's callbacks run on the thread of the listeners, never on the agent's. So they may set, wait and close.
"""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import Future

import pytest

from chp_client import Clone, Closed, State, Ticket
from chp_client.clone.base import internals
from chp_server.testing import TestServer
from tests.talk import WAIT_S


def test_a_callback_that_raises_is_logged_and_the_clone_goes_on(clone: Clone, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def callback(ticket: Ticket) -> None:
        raise ZeroDivisionError("the application's own")

    for wrong in (callback, lambda ticket: sys.exit(3)):
        clone.set("/a", b"1").add_done_callback(wrong)
        clone.flush(WAIT_S)
    clone.set("/b", b"2").add_done_callback(lambda ticket: called.set())
    assert called.wait(WAIT_S)
    clone.set("/c", b"3").wait(WAIT_S)
    assert clone.state is State.SYNCED
    assert "ZeroDivisionError: the application's own" in caplog.text and "SystemExit: 3" in caplog.text


def test_a_callback_of_a_settled_ticket_that_raises_is_logged_too(
    clone: Clone, caplog: pytest.LogCaptureFixture
) -> None:
    ticket = clone.set("/a", b"1")
    ticket.wait(WAIT_S)
    ticket.add_done_callback(lambda _: 1 / 0)
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_may_set_and_wait(clone: Clone) -> None:
    result: Future[bytes] = Future()

    def callback(ticket: Ticket) -> None:
        clone.set("/b", b"2").wait(WAIT_S)
        clone.flush(WAIT_S)
        result.set_result(clone["/b"])

    clone.set("/a", b"1").add_done_callback(callback)
    assert result.result(WAIT_S) == b"2"


def test_a_callback_may_close_the_clone(clone: Clone, caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    def callback(ticket: Ticket) -> None:
        clone.close()
        closed.set()

    clone.set("/a", b"1").add_done_callback(callback)
    assert closed.wait(WAIT_S)
    assert clone.state is State.CLOSED and not caplog.records
    with pytest.raises(Closed, match="this Clone is closed"):
        clone.set("/b", b"2")


def test_close_returns_when_the_callbacks_were_called(clone: Clone) -> None:
    acks: list[object] = []
    clone.set("/a", b"").add_done_callback(lambda ticket: threading.Event().wait(0.3))
    for i in range(100):
        clone.set(f"/{i}", b"").add_done_callback(lambda ticket: acks.append(ticket.ack))
    clone.close(WAIT_S)
    assert len(acks) == 100 and None not in acks


def test_callbacks_of_lost_sets_are_called_with_the_error() -> None:
    clone = Clone("tcp://127.0.0.1:9")
    result: Future[Exception | None] = Future()
    clone.set("/a", b"").add_done_callback(lambda ticket: result.set_result(ticket.error))
    clone.close(0.05)
    assert isinstance(result.result(WAIT_S), Closed)


def test_a_clone_that_is_collected_on_its_own_agents_thread_ends(server: TestServer) -> None:
    clone = Clone(server.address)
    clone.wait_until_synced(WAIT_S)
    mailbox, agent = internals(clone).mailbox, clone._agent.thread
    cycle: list[object] = [clone]
    cycle.append(cycle)
    del clone, cycle

    def collect(now: float) -> None:
        gc.collect()

    # The agent's thread runs `collect`, with the mailbox's lock held.
    mailbox.command(collect)
    agent.join(WAIT_S)
    assert not agent.is_alive()
