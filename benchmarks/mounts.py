"""A failover in one of four mounts: the sets a second of the other three before it and during it.

One Clone follows four pairs, each with a mount. A thread for each of three mounts sets one key after the other, and
waits for each acknowledgement. Beside them a thread sets a key of the fourth mount each 20 ms. The active server of the
fourth mount is killed. "During" is the time from the kill to the next acknowledgement of this mount. "Before" is a time
of about the same length before the kill. The killed server is back and in sync before the next round.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from .roles import Pipe, Role, closing_all
from .rounds import ratio, summary
from .servers import ChpPair, status, wait_in_sync

MOUNTS = ("/", "/rates/", "/orders/", "/stock/")
KILLED = "/stock/"
# A failover takes about a second.
BEFORE_S = 1.2
KILLS = (20, 3)  # whole, quick


def run(quick: bool = False) -> dict[str, Any]:
    """Kill the active server of one mount again and again."""
    rounds: dict[str, list[dict[str, Any]]] = {"before": [], "during": []}
    with closing_all() as keep:
        pairs = {mount: keep(ChpPair(store="memory:")) for mount in MOUNTS}
        for pair in pairs.values():
            wait_in_sync(pair)
        client = keep(Role(setting, mounts={mount: pair.addresses for mount, pair in pairs.items()}))
        client.hear()
        killed = pairs[KILLED]
        for _ in range(KILLS[quick]):
            client.ask(begin=True)
            time.sleep(BEFORE_S)
            active = next(i for i in (0, 1) if status(killed.addresses[i])["state"] == "active")
            rounds["before"].append(client.ask(lap=True))
            killed.servers[active].kill()
            rounds["during"].append(client.ask(60, until_served=True))
            killed.servers[active].close()
            killed.restart(active)
            wait_in_sync(killed)
    case = {
        "contenders": {name: summary(found) for name, found in rounds.items()},
        "raw": rounds,
        "ratio_during_to_before": ratio(rounds, "rate", "during", "before"),
    }
    name = f"awaited sets of three mounts while {KILLS[quick]} failovers happen in the fourth"
    return {"title": "A failover in one of four mounts", "unit": "sets/s", "cases": {name: case}}


def setting(pipe: Pipe, mounts: dict[str, list[str]]) -> None:
    """Set keys in all mounts; tell the rate of acknowledged sets of all mounts but `KILLED`, and the seconds."""
    from chp_client import Clone

    clone = Clone(mounts)
    clone.wait_until_synced(60)
    counts = dict.fromkeys(mounts, 0)

    def write(mount: str) -> None:
        while True:
            clone.set(f"{mount}key", b"v" * 100).wait(60)
            counts[mount] += 1
            if mount == KILLED:
                time.sleep(0.02)

    for mount in mounts:
        threading.Thread(target=write, args=(mount,), daemon=True).start()

    def others() -> int:
        return sum(count for mount, count in counts.items() if mount != KILLED)

    pipe.say(up=True)
    began, first = time.monotonic(), others()
    while True:
        asked = pipe.hear()
        if "until_served" in asked:
            # One acknowledgement from before the kill may have been on its way, so wait for two.
            served = counts[KILLED] + 2
            while counts[KILLED] < served:
                time.sleep(0.001)
        seconds, done = time.monotonic() - began, others() - first
        pipe.say(rate=done / seconds, seconds=seconds)
        began, first = time.monotonic(), others()
