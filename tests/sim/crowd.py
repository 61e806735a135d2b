"""A program that subscribes to more channels than one connection may have, at both servers.

    crowd 6    The program subscribes to 6 channels, and a connection may have 4. The command is given before the start.

A server queues at most 4 messages for each of its connections, as XPUB does with a high-water mark, and loses further
messages. The greetings of all channels are sent at once and fill this queue. What must hold is that the program is told
of each channel that it can't have. Otherwise it waits in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgpack

from chp.limits import Limits

from .network import Conn, Frames

if TYPE_CHECKING:
    from .world import World

CROWD = "crowd"
# A connection may have at most this many topics. Other clients of the simulator have up to three.
TOPICS_MAX = 4
REFUSED = 7


class Crowd:
    """The program, which is a node of the network and runs from the beginning to the end."""

    def __init__(self, world: World, count: int) -> None:
        self.world, self.name, self.running = world, CROWD, True
        self._topics = [b"\x02/crowd/%d/\x03" % i for i in range(count)]
        # The topics that each server has refused since the connection to it came up.
        self._refused: dict[str, set[bytes]] = {"P": set(), "B": set()}

    @staticmethod
    def limits(limits: Limits) -> Limits:
        """Return limits with few topics for a connection."""
        return replace(limits, topics_of_one_max=TOPICS_MAX)

    def start(self) -> None:
        """Connect to both servers."""
        for server in "PB":
            self.world.net.connect("upd", self.name, server).mark = TOPICS_MAX

    def resume(self) -> None:
        """Do nothing: the program is never stopped."""

    def connected(self, conn: Conn) -> None:
        """Subscribe to all channels."""
        self._refused[conn.b].clear()
        for topic in self._topics:
            self.world.net.send(conn, "up", [b"\x01" + topic])

    def disconnected(self, conn: Conn) -> None:
        """Do nothing: the program subscribes again when the connection is back."""

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """Take a message of a server."""
        if msgpack.unpackb(frames[4], strict_map_key=False)[0][0] == REFUSED:
            self._refused[conn.b].add(frames[0])

    def untold(self) -> str:
        """Return a text about refused channels of which the program was not told, or "" if it was told of all."""
        lacking = {server: len(self._topics) - TOPICS_MAX - len(found) for server, found in self._refused.items()}
        return f"{self.name} is told nothing of channels that it can't have: {lacking}" if any(lacking.values()) else ""
