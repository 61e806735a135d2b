"""A replica with too many readers asks half of them, the newest, to read at another replica (MOVE, client.md).

The replica knows nothing of other replicas: each reader looks at them, and goes or stays by what it sees. If no reader
goes, the other replicas are as full, and this replica asks again after longer waits. Pure.
"""

from __future__ import annotations

from chp.batch import encode
from chp.headers import Move
from chp.keys import CLIENT_BYTES

from ..questions.clients import Clients
from ..updates.channels import greeting
from ..updates.turn import Frames

# A replica that uses this much of a core, in thousandths, is overloaded. Clients use the same bound.
BUSY_CPU = 800
# After ASK_S the readers that were asked are gone, or have decided to stay. ASK_S_MAX is the longest wait before the
# replica asks again, so that its readers soon find an empty replica. With that wait, 1,000 readers of a full replica
# question each other replica 120 times a second.
ASK_S, ASK_S_MAX = 2.0, 4.0
# If less than this part of its readers went, the next wait is longer.
WENT = 0.05


class MoveRequests:
    """The requests of a replica to its readers."""

    def __init__(self, readers_max: int, clients: Clients) -> None:
        self._readers_max, self._clients = readers_max, clients
        self._next_at, self._wait_s = 0.0, ASK_S
        # The number of readers when some were last asked.
        self._had = 0

    def due(self, now: float, readers: int, cpu: int) -> bool:
        """Return True if this replica has too many readers, and it is time to ask."""
        if now < self._next_at:
            return False
        if readers <= self._readers_max and cpu < BUSY_CPU:
            self._wait_s, self._had = ASK_S, 0
            return False
        stayed = self._had and readers > self._had * (1 - WENT)
        self._wait_s = min(ASK_S_MAX, 2 * self._wait_s) if stayed else ASK_S
        self._next_at, self._had = now + self._wait_s, readers
        return True

    def ask(self, readers: int, channels: list[bytes], number: int) -> list[Frames]:
        """Return a MOVE for each of the newest half of the readers, on its own channel, which is one of `channels`."""
        by_client = {topic[2 : 2 + 2 * CLIENT_BYTES].decode(): topic for topic in channels}
        found = [by_client[name] for name in self._clients.movable() if name in by_client][: readers // 2]
        body = encode(Move(readers, len(found)))
        return [greeting(topic, number, body) for topic in found]
