"""The times that a client's core waits for, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The client subscribes again after this part of the allowed silence, so it may still hear the active in time.
AGAIN = 0.75
NEVER = float("inf")
SYNC_RETRY_S_MAX = 60.0
# A function that returns a random number from 0 to 1. It spreads the requests of many clients.
Chance = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Timing:
    """The waits of one client, in seconds."""

    # The active may be silent for at least this time, and for at least four of its heartbeats.
    silence_s: float = 1.0
    vote_s: float = 0.2
    # A server that sent nothing is asked in CHP/2 after this time. A CHP/1 server would send a HUGZ each second.
    unheard_s: float = 2.5
    # A request is made again after this time without a chunk. The wait doubles each time.
    sync_retry_s: float = 2.0
    # Batches are sent again after this time without an acknowledgement.
    resend_s: float = 2.0
    refused_retry_s: float = 1.0
    # A repaired copy that differs again is repaired once more after this time. The wait doubles each time.
    resync_s: float = 0.1
    resync_s_max: float = 30.0
    # A server that lives, but sends nothing on P+1 for this time while no server is heard, is connected anew.
    deaf_s: float = 5.0

    def put_off_s(self, first_s: float, times: int, chance: Chance) -> float:
        """Return how long to wait before try number `times` after a failure: longer each time, and partly random."""
        return min(self.resync_s_max, first_s * 2.0 ** min(times - 1, 20)) * (0.5 + chance())
