"""When Python's collector of cycles looks at what: left to itself, it looks at everything now and then, in one turn.

Measured with 3 M keys: 70 ms for each image that is read, 76 ms for 100,000 sessions; and a state of 100,000 sessions
was encoded in 390 ms, of which the collector had 290. What is long-lived here is freed by its last reference: records,
sessions, images, leases are in no cycle. So once something has lived for a while it is *frozen*, which takes no time,
and never looked at again; cycles among what is new (a traceback has one) are found before that.

Of the whole process, so this is for the program `chp-server`, and not for servers inside somebody's tests.
"""

from __future__ import annotations

import gc

NEW_MAX = 20_000  # containers made, and not freed again, until they are looked at: 2 ms


class Cycles:
    """The collector, on a schedule of ours."""

    def begin(self) -> None:
        """Everything was read: it stays."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def end(self) -> None:
        """As it was."""
        gc.unfreeze()
        gc.enable()

    def step(self, gathering: bool) -> None:
        """At the end of a turn; `gathering`: it made slices of an image, large and in no cycle."""
        if gathering:
            gc.freeze()
        elif gc.get_count()[0] > NEW_MAX:
            gc.collect(0)
            gc.freeze()
