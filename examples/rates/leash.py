"""A process that ends with its parent, and takes orders from it.

The demo holds the other end of the standard input of each process. A line of the input is an order. The end of the
input ends the process; if the demo is killed, the system closes the input. SIGTERM and Ctrl-C end the process too.
"""

import queue
import signal
import sys
import threading
from types import FrameType

STOP = "stop"
Orders = queue.SimpleQueue[str]


def orders(leashed: bool) -> Orders:
    """Return a queue of orders: lines of standard input if `leashed`, and `STOP` at the input's end or on a signal."""
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
    """Return the next order, or None if none comes within `timeout_s`; without a timeout, wait for an order."""
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return None
