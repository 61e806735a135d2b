"""A process that ends with its parent, and takes orders from it.

The demo holds the other end of each of its processes' standard input. A line on it is an order; its end, which the
system brings about even if the demo is killed, ends the process. SIGTERM and Ctrl-C do the same.
"""

import queue
import signal
import sys
import threading
from types import FrameType

STOP = "stop"
Orders = queue.SimpleQueue[str]


def orders(leashed: bool) -> Orders:
    """A queue of orders: lines of standard input if `leashed`, and `STOP` at its end or on a signal."""
    found: Orders = queue.SimpleQueue()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        found.put(STOP)

    def read() -> None:
        for line in sys.stdin:
            found.put(line.strip())
        found.put(STOP)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if leashed:
        threading.Thread(target=read, name="leash", daemon=True).start()
    return found


def next_order(found: Orders, timeout_s: float | None) -> str | None:
    """The next order, or None when there is none in time; without a time, it waits for one."""
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return None
