"""What a Python worker of Spark is spared.

A worker lives from task to task, and collects garbage after each. With pandas and PyArrow imported that looks at a
few hundred thousand objects that will never go, for 40 ms: as long as a small batch takes. `settle` has the collector
forget those that are there when the first task of ours begins. Only for Spark's own processes; never in a driver.
"""

import gc

_done = False


def settle() -> None:
    """Once a process."""
    global _done
    if not _done:
        _done = True
        gc.collect()
        gc.freeze()
