"""How long a client's core waits for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

AGAIN = 0.75  # of the time for which the active may be silent: then we subscribe again, and may hear it in time
NEVER = float("inf")
SYNC_RETRY_S_MAX = 60.0
Chance = Callable[[], float]  # from 0 to 1: that of many clients not all ask at the same time


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    silence_s: float = 1.0  # at least; never less than four of the active's heartbeats
    vote_s: float = 0.2
    unheard_s: float = 2.5  # before a server that said nothing is asked in CHP/2: a HUGZ of CHP/1 comes each second
    sync_retry_s: float = 2.0  # without a chunk; then twice as long each time
    resend_s: float = 2.0  # without an acknowledgement
    refused_retry_s: float = 1.0
    resync_s: float = 0.1  # before a copy that was mended and differs again is mended once more; then twice as long
    resync_s_max: float = 30.0
    deaf_s: float = 5.0  # without a word on P+1 of a server that lives, while nobody else is heard

    def put_off_s(self, first_s: float, times: int, chance: Chance) -> float:
        """How long to wait before what failed so often is tried again: longer each time, and some by chance."""
        return min(self.resync_s_max, first_s * 2.0 ** min(times - 1, 20)) * (0.5 + chance())
