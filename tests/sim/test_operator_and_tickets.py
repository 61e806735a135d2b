"""Tests of the simulator itself: its operator, and its check of tickets.

covers: tests/sim/world.py, tests/sim/checks.py
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chp import headers
from chp.batch import Segment, encode
from chp.numbers import number

from .oracle import Wrong
from .world import World

CUT = ["client c1 model all", "start P", "start B", "start c1", "tick 3", "set c1 /a", "tick 0.5", "set c1 /b",
       "tick 1", "crash P", "crash B", "shorten P 1", "recover B 6", "settle 15"]  # fmt: skip


def test_the_operator_restarts_a_server_that_ended_on_a_cut_journal() -> None:
    """A server whose journal was cut short ends (exit code 6) while its peer is away; the operator restarts it."""
    world = World()
    for command in CUT[:-1]:
        world.do(command)
    started = [server.starts for server in world.servers]
    world.do(CUT[-1])
    assert [server.starts for server in world.servers] == [started[0] + 2, started[1] + 1]


HELD = ["client c1 model all", "start P", "start B", "start c1", "tick 3", "lease c1 L 3000", "tick 0.1",
        "set c1 /l/1 lease=L", "tick 1"]  # fmt: skip


def test_a_world_is_not_quiet_while_keys_of_an_ended_lease_remain() -> None:
    """The keys of an ended lease go with later turns, and the pair may be in sync before (seed 122016)."""
    world = World()
    for command in HELD:
        world.do(command)
    assert not world.checks.quiet()
    for server in world.servers:
        server.core.state.leases.end(b"L".ljust(16, b"."))
    assert "keys of a lease" in world.checks.quiet()
    world.do("tick 1")
    assert not world.checks.quiet() and not world.servers[0].core.state.map.values


def client_at(**views: int) -> Any:
    """Return a client with copies of these subtrees, each at a number."""
    told: list[Any] = [(f"/{name}/", at, True, {}, {}, set()) for name, at in views.items()]
    return SimpleNamespace(name="c1", core=SimpleNamespace(views=lambda: told))


def test_a_ticket_is_checked_only_against_the_copy_of_its_keys() -> None:
    """Another copy may follow the discarded history a moment longer (seed 90205), so it does not count."""
    checks = World().checks
    shared, lost, after = number(1, 1), number(2, 2), number(3, 2)
    for prev, at in ((0, shared), (shared, lost), (shared, after)):
        batch = headers.Batch(prev, at, at, 0, [], False)
        checks.oracle.add(encode(batch, [Segment(["/a/1"], [b"%d" % at], None).encode()]), "P", 0.0)
    checks.settled(client_at(a=after, b=lost), "c1.1", ["/a/1"], lost)
    for own, other in ((lost, after), (shared, after), (shared, lost)):
        with pytest.raises(Wrong, match="its copy is older"):
            checks.settled(client_at(a=own, b=other), "c1.1", ["/a/1"], lost)
