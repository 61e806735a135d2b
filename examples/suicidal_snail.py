"""Suicidal Snail of the Guide (chapter 5): a subscriber that falls behind ends itself, so that an operator hears of it.

    python -m examples.suicidal_snail

The subscriber may be one second late (`max_lag_s`), and `on_lag="exit"` ends its process. Here it is stopped for two
seconds while a publisher goes on. The updates that come afterwards are too old. So the process writes one line to
standard error, and ends at once with exit code 75 (EX_TEMPFAIL), at which a supervisor can start it again. A Clone
without `max_lag_s` would catch up instead.
"""

import os
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Event

from chp_client import Clone

from .pair import servers

MAX_LAG_S, STOPPED_S, WAIT_S = 1.0, 2.0, 30.0
FALLEN_BEHIND = os.EX_TEMPFAIL


def subscribe(pair: list[str], listens: Event) -> None:
    """Follow a subtree until this process is told to end, or is too late."""
    with Clone(pair, "/ticks/", max_lag_s=MAX_LAG_S, on_lag="exit") as clone, clone.watch() as changes:
        for change in changes:
            if change.key == "/ticks/10":
                listens.set()


def main() -> None:
    """Publish, stop the subscriber for a while, and tell how it ended."""
    process = get_context("spawn")
    listens = process.Event()
    with servers() as pair, Clone(pair, None) as clone:
        snail = process.Process(target=subscribe, args=(pair, listens))
        snail.start()
        pid = snail.pid
        assert pid is not None
        n, stopped_at = 0, float("inf")
        until = time.monotonic() + WAIT_S
        while snail.exitcode is None and time.monotonic() < until:
            n = n + 1 if listens.is_set() else n % 20 + 1
            clone.set(f"/ticks/{n}", b"%d" % n).wait(WAIT_S)
            if listens.is_set() and stopped_at == float("inf"):
                os.kill(pid, signal.SIGSTOP)
                stopped_at = time.monotonic()
            elif time.monotonic() > stopped_at + STOPPED_S:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        snail.kill()
        snail.join()
        print(f"the subscriber was stopped for {STOPPED_S:.0f} s and ended with exit code {snail.exitcode}")
        sys.exit(0 if snail.exitcode == FALLEN_BEHIND else 1)


if __name__ == "__main__":
    main()
