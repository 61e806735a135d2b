"""covers: tickets.py: awaited, as a future; and what `dir` and `python -m` show of the packages."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial

import pytest

import chp_client
from chp_client import Ack, Clone, Refused, Ticket
from chp_client.agent.mailbox import Mailbox
from chp_client.agent.open_batch import SHUT, OpenBatch
from chp_client.core.events import ack_of
from tests.talk import NO_SERVER, WAIT_S

from .client_frames import Talk

ACK = ack_of(7, "replicated")


def fresh() -> Ticket:
    return Ticket(lambda: "state")


def test_a_ticket_is_awaited_and_its_error_raised() -> None:
    async def run() -> None:
        ticket, other = fresh(), fresh()
        threading.Timer(0.01, ticket.settle, [ACK]).start()
        threading.Timer(0.01, other.settle, [Refused("no room", "full", {})]).start()
        assert await ticket == ACK == await ticket
        with pytest.raises(Refused, match="no room"):
            await other
        assert other.told

    asyncio.run(run())


def test_sets_join_a_batch_up_to_the_bound_that_the_server_asks_for() -> None:
    batch = OpenBatch(fresh)

    def sizes() -> list[int]:
        return [len(pending.keys) for pending in batch.sealed]

    with batch.lock:
        for i in range(4):
            batch.join([f"/{i}/{j}" for j in range(3)], [b""] * 3, {}, ())
    assert sizes() == [12]
    batch.bound(7)
    assert batch.room == batch.most == 7
    with batch.lock:
        for i in range(4):
            batch.join([f"/{i}/{j}" for j in range(3)], [b""] * 3, {}, ())
    assert sizes() == [12, 6, 6]
    batch.bound(None)
    assert batch.room == batch.most > 1000
    with batch.lock:
        batch.shut()
    batch.bound(7)
    assert batch.room == SHUT


def test_a_cancelled_waiter_does_no_harm_to_the_ticket() -> None:
    async def run() -> None:
        ticket = fresh()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(awaited(ticket)), 0.01)
        ticket.settle(ACK)
        assert await ticket == ACK

    async def awaited(ticket: Ticket) -> Ack:
        return await ticket

    asyncio.run(run())


def test_a_ticket_settles_after_its_event_loop_has_ended() -> None:
    ticket = fresh()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ticket

    asyncio.run(run())
    ticket.settle(ACK)
    assert ticket.wait(0) == ACK


def test_a_ticket_can_be_used_as_a_future() -> None:
    ticket, refused = fresh(), fresh()
    futures = [ticket.future(), refused.future()]
    assert not futures[0].cancel()
    threading.Timer(0.01, ticket.settle, [ACK]).start()
    threading.Timer(0.01, refused.settle, [Refused("no room", "full", {})]).start()
    done, late = wait(futures, 60)
    assert len(done) == 2 and not late
    assert futures[0].result(0) == ACK == ticket.future().result(60)
    assert isinstance(futures[1].exception(0), Refused) and refused.told


def test_a_raised_error_is_freed_without_a_garbage_collection() -> None:
    """The error's traceback once kept the frame of `wait`, and so the ticket and itself, until a garbage collection."""
    gc.disable()
    try:
        refused().wait(0)
    except Refused as error:
        gone = weakref.ref(error)
    finally:
        gc.enable()
    assert gone() is None


def refused() -> Ticket:
    """Return a refused ticket."""
    ticket = fresh()
    ticket.settle(Refused("no room", "full", {}))
    return ticket


def test_a_refusal_that_was_seen_is_not_kept_for_a_flush() -> None:
    """A program that raises a counter by conditions would keep a thousand errors, with the frames that they rose in."""
    mailbox = Mailbox(Talk().core, "block")
    told, silent, late = [refused() for _ in range(3)], refused(), refused()
    for ticket in (*told, silent, late):
        mailbox.note_refused(ticket)
        assert ticket not in told or ticket.error
    assert list(mailbox.refused) == [silent, late]
    assert mailbox.unsettled() == [silent, late] and not mailbox.refused
    mailbox.note_refused(told[0])
    assert list(mailbox.refused) == [told[0]]


def test_tasks_and_tickets_may_come_and_go_while_others_look_at_them() -> None:
    """On a Python without the GIL, a Clone ended when a task began to wait at the wrong moment."""
    mailbox, ended, ticket = Mailbox(Talk().core, "block"), threading.Event(), refused()
    waits: list[Callable[[], object]] = [partial(int, i) for i in range(300)]

    def come_and_go() -> None:
        while not ended.is_set():
            for each in waits:
                mailbox.awaiting.add(each)
                mailbox.refused.append(ticket)
            mailbox.awaiting.difference_update(waits)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(2000):
            mailbox.notify()
            assert set(mailbox.unsettled()) <= {ticket}
    finally:
        ended.set()
        thread.join(WAIT_S)


def test_only_public_names_are_listed() -> None:
    assert {name for name in dir(chp_client) if not name.startswith("__")} == set(chp_client.__all__)
    with Clone(NO_SERVER) as clone:
        assert not [name for name in dir(clone) if name.startswith("_") and not name.startswith("__")]
        assert {"set", "prefix", "sync", "__getitem__"} <= set(dir(clone))
        clone.close(0.0)


@pytest.mark.parametrize(("package", "says"), [("chp_client", "Usage: chp "), ("chp_server", "usage: chp-server")])
def test_both_packages_are_programs(package: str, says: str) -> None:
    command = [sys.executable, "-m", package, "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and says.lower() in done.stdout.lower(), done
