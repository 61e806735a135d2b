"""Mistakes of operators: a new disk, another pair's disk, the other server's role.

    renew P       P gets a new disk, but only while the other server has everything, so no promise is lost.
    foreign P 7   P gets another pair's disk with seven numbers. `home P` gives it back its own disk.
    bereave P     The other server dies, if P has a foreign disk and has heard that server.
    misplace P    P starts with the role of the other server, which also runs.

A command does nothing where its outcome would depend on luck. A server with a wrong disk or role may become active if
it has never heard the right server, which was stopped all the while. Such a server can't know better. So the simulator
stops it and takes its wrong disk or role away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chp.batch import Segment
from chp.keys import RESERVED_KEY
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.turn import Append

from .disk import Disk

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World


def is_well(world: World, node: ServerNode) -> bool:
    """Return True if a server runs and holds the pair's store."""
    return node.running and not node.paused and not node.foreign and node.core.state.number > 0


def renew(world: World, name: str) -> None:
    """Replace the disk of a server by a new one, if the passive has confirmed all that the active has."""
    one, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if not (is_well(world, one) and is_well(world, other)):
        return
    active = one if one.core.active else other
    follower = active.core.pair.follower if active.core.active else None
    confirmed = follower is not None and follower.in_sync and follower.confirmed == active.core.state.number
    # If the arbiter's set did not name both servers, an operator would have to decide how to go on.
    if confirmed and active.core.pair.arbitration.both:
        one.crash()
        one.lost_disk, one.disk = one.disk, Disk(one.disk.durability, one.disk.snapshot_every)


def foreign(world: World, name: str, count: str) -> None:
    """Start a server with the disk of another pair, while the other server runs."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if node.foreign or not is_well(world, other):
        return
    node.crash()
    node.own_disk, node.disk = node.disk, _disk_of_others(node.primary, int(count), world)
    node.foreign, node.met = True, False
    node.start()


def home(world: World, name: str) -> None:
    """Give a server its own disk again, without starting it."""
    if world.nodes[name].foreign:
        take_away(world.nodes[name])


def take_away(node: ServerNode) -> None:
    """Stop a server, and take away its wrong disk or role."""
    node.crash()
    if node.own_disk is not None:
        node.disk, node.own_disk, node.foreign = node.own_disk, None, False


def bereave(world: World, name: str) -> None:
    """Kill the right server, if the one with the foreign disk has heard it."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if node.foreign and node.running and node.met:
        other.crash()
    else:
        # The server has not heard the right server, so it would begin alone.
        home(world, name)


def misplace(world: World, name: str) -> None:
    """Start a server with the role of the other one, which runs."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if not node.foreign and is_well(world, other):
        node.crash()
        node.misplaced, node.met = True, False
        node.start()


def knows_no_better(node: ServerNode) -> bool:
    """Return True if a server with a wrong disk or role is active because it has never heard the right one.

    A right server that has lost its whole disk does not count as heard. It looks like the empty server that an operator
    starts to give a store up.
    """
    peer = node.core.pair.peer
    met = node.met and not (node.foreign and peer is not None and peer.number == 0)
    return (node.foreign or node.misplaced) and not met and bool(node.core.active)


def _disk_of_others(primary: bool, count: int, world: World) -> Disk:
    """Return the journal of an unrelated server, whose numbers look like ours."""
    core, disk = ServerCore(CoreConfig(primary=primary, name="F"), b"F" * 16, 0.0), Disk()
    for no in range(count):
        core.begin_turn(no / 10, 0.0)
        if no:
            body = Segment([f"/a/{no}"], [b"F.%d" % no]).encode()
            core.collect([RESERVED_KEY, pack(no), b"F" * 12 + bytes(4), b"", body])
        appended: list[Any] = [op for op in core.end_turn().journal if isinstance(op, Append)]
        disk.append([LoggedRow(op.first, op.last, op.body) for op in appended])
    disk.sync()
    return disk
