"""What operators do by mistake: a new disk, another pair's disk, the other server's role.

    renew P       its disk is new: only while the other server has everything, so nothing that was promised may be lost
    foreign P 7   its disk is another pair's, with so many numbers; `home P` gives it back its own
    bereave P     the server with the right disk dies, once P, which has a foreign one, has heard it
    misplace P    its next start is with the other server's role, which is also running

Each does nothing where it would be more than a mistake: what comes of it must not depend on luck. So a server that was
to begin, and has never heard the right one (which stood still all the while), is taken away: it can't know better.
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
    """Whether a server runs and holds a store."""
    return node.running and not node.paused and not node.foreign and node.core.state.number > 0


def renew(world: World, name: str) -> None:
    """The disk of a server whose peer has confirmed all that it has, or follows it, is lost."""
    one, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if not (is_well(world, one) and is_well(world, other)):
        return
    active = one if one.core.active else other
    follower = active.core.ctx.follower if active.core.active else None
    confirmed = follower is not None and follower.in_sync and follower.confirmed == active.core.state.number
    if confirmed and active.core.arbitration.both:  # else it takes a person's word to go on
        one.crash()
        one.lost_disk, one.disk = one.disk, Disk(one.disk.durability, one.disk.snapshot_every)


def foreign(world: World, name: str, count: str) -> None:
    """A server is started with the disk of another pair, while the other one runs."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if node.foreign or not is_well(world, other):
        return
    node.crash()
    node.own_disk, node.disk = node.disk, _disk_of_others(node.primary, int(count), world)
    node.foreign, node.met = True, False
    node.start()


def home(world: World, name: str) -> None:
    """It has its own disk again, and is not started."""
    if world.nodes[name].foreign:
        take_away(world.nodes[name])


def take_away(node: ServerNode) -> None:
    """A server's wrong disk, or its wrong role."""
    node.crash()
    if node.own_disk is not None:
        node.disk, node.own_disk, node.foreign = node.own_disk, None, False


def bereave(world: World, name: str) -> None:
    """The right server is gone, and the foreign one knows that it was there, over a restart too."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if node.foreign and node.running and node.met:
        other.crash()
    else:
        home(world, name)  # it can't know better than to begin


def misplace(world: World, name: str) -> None:
    """A server is started as the other one, which runs."""
    node, other = (world.nodes[n] for n in (name, "B" if name == "P" else "P"))
    if not node.foreign and is_well(world, other):
        node.crash()
        node.misplaced, node.met = True, False
        node.start()


def knows_no_better(node: ServerNode) -> bool:
    """Whether a server with a wrong disk or role serves because it has heard nobody, ever."""
    return (node.foreign or node.misplaced) and not node.met and bool(node.core.active)


def _disk_of_others(primary: bool, count: int, world: World) -> Disk:
    """A journal of a server that has nothing to do with ours, and numbers like it."""
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
