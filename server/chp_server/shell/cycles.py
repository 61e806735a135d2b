"""The schedule of Python's collector of cycles, which by itself looks at all objects now and then, in one turn.

That was measured with 3 M keys: 70 ms for each image that is read, 76 ms for 100,000 sessions; and a state of 100,000
sessions was encoded in 390 ms, of which the collector had 290. Long-lived objects are freed here by their last
reference: records, sessions, images and leases are in no cycle. So an object that has lived for a while is *frozen*,
which takes no time, and the collector never looks at it again. Cycles among new objects (a traceback has one) are found
before that.

The schedule is that of the whole process, so it is for the program `chp-server`, and not for servers inside of tests.
"""

from __future__ import annotations

import gc

# After so many new containers that were not freed the collector looks at them: 2 ms.
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
        """Collect or freeze at the end of a turn. Slices of an image (`gathering`) are in no cycle."""
        if gathering:
            gc.freeze()
        elif gc.get_count()[0] > NEW_MAX:
            gc.collect(0)
            gc.freeze()
