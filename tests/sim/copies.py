"""Further copies: what becomes of all that was acknowledged as replicated, if two of three disks are lost at once.

    copies 3          a set is replicated once three servers have synced it: the active, the passive and a replica
    lose P R1         two servers die, and their disks are gone; they start again with new ones
    lose P B          both servers of the pair are gone, and P starts on the disk of the replica with the highest number

At the end `accounts.py` and `topics.py` find each set and each message that was acknowledged as replicated. What was
only journaled before a loss may be gone with its disk. `Checks` counts the disks at each acknowledgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import Disk

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World


def further_copies(world: World) -> list[ServerNode]:
    """Return the replicas that confirm."""
    return [node for node in world.replicas if node.confirms]


def lose(world: World, *names: str) -> None:
    """Lose the disks of two servers; do nothing if no other disk has records."""
    lost = [world.nodes[name] for name in names]
    left = [node for node in (*world.servers, *further_copies(world)) if node not in lost and node.disk.number]
    if not left:
        return
    for node in lost:
        node.crash()
        node.promotes = False
    world.disasters.append(world.time.now)
    world.disks_lost = True
    if {"P", "B"} == set(names):
        _promote(world, max(left, key=lambda node: node.disk.number), world.nodes["P"])
    for node in lost:
        if not node.promotes:
            _renew(node)


def _renew(node: ServerNode) -> None:
    node.lost_disk, node.disk = node.disk, Disk(node.disk.durability, node.disk.snapshot_every)


def _promote(world: World, replica: ServerNode, server: ServerNode) -> None:
    """Start a server on the disk of a replica, as `--promote` does."""
    replica.crash()
    server.lost_disk, server.disk = server.disk, replica.disk
    replica.disk = Disk(server.disk.durability, server.disk.snapshot_every)
    server.promotes = True
    server.start()
