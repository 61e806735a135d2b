"""A schedule of our own for Python's collector of cycles, which otherwise looks at all objects in one turn.

With 3 M keys, such a look took 70 ms for each image that was read, and 76 ms for 100,000 sessions. To encode a state of
100,000 sessions took 390 ms, of which the collector took 290 ms. Long-lived objects of a server need no collector:
records, sessions, images and leases are in no cycle, so they are freed with their last reference. So an object that has
lived for a while is *frozen*, which takes no time, and the collector never looks at it again. Before that, the
collector finds cycles among new objects (a traceback has one).

The schedule is that of the whole process. So the program `chp-server` uses it, and a server inside of a test does not.
"""

from __future__ import annotations

import gc

# After this many new containers that were not freed, the collector looks at them, which takes 2 ms.
NEW_MAX = 20_000


class Cycles:
    """The collector of cycles, on a schedule of ours."""

    def begin(self) -> None:
        """Freeze all objects, now that the journal was read, and take over the schedule."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def end(self) -> None:
        """Give the schedule back."""
        gc.unfreeze()
        gc.enable()

    def step(self, gathering: bool) -> None:
        """Collect or freeze at the end of a turn. `gathering`: it made slices of an image, which are in no cycle."""
        if gathering:
            gc.freeze()
        elif gc.get_count()[0] > NEW_MAX:
            gc.collect(0)
            gc.freeze()
