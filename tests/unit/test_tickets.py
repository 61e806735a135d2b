"""covers: tickets.py: awaited, as a future; and what `dir` and `python -m` show of the packages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

import chp_client
from chp_client import Ack, Clone, Refused, Ticket
from chp_client.core.events import ack_of

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


def test_who_is_cancelled_does_no_harm_to_the_ticket() -> None:
    async def run() -> None:
        ticket = fresh()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(awaited(ticket)), 0.01)
        ticket.settle(ACK)
        assert await ticket == ACK

    async def awaited(ticket: Ticket) -> Ack:
        return await ticket

    asyncio.run(run())


def test_a_loop_that_has_ended_is_not_told() -> None:
    ticket = fresh()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ticket

    asyncio.run(run())
    ticket.settle(ACK)
    assert ticket.wait(0) == ACK


def test_a_ticket_is_a_future_too() -> None:
    ticket, refused = fresh(), fresh()
    futures = [ticket.future(), refused.future()]
    assert not futures[0].cancel()
    threading.Timer(0.01, ticket.settle, [ACK]).start()
    threading.Timer(0.01, refused.settle, [Refused("no room", "full", {})]).start()
    done, late = wait(futures, 60)
    assert len(done) == 2 and not late
    assert futures[0].result(0) == ACK == ticket.future().result(60)
    assert isinstance(futures[1].exception(0), Refused) and refused.told


def test_only_public_names_are_listed() -> None:
    assert {name for name in dir(chp_client) if not name.startswith("__")} == set(chp_client.__all__)
    with Clone("tcp://127.0.0.1:9") as clone:
        assert not [name for name in dir(clone) if name.startswith("_") and not name.startswith("__")]
        assert {"set", "under", "sync", "__getitem__"} <= set(dir(clone))
        clone.close(0.0)


@pytest.mark.parametrize(("package", "says"), [("chp_client", "Usage: chp "), ("chp_server", "usage: chp-server")])
def test_both_packages_are_programs(package: str, says: str) -> None:
    command = [sys.executable, "-m", package, "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and says.lower() in done.stdout.lower(), done
