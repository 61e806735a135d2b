"""A line every few seconds about work that takes long: how much of it is done, and how fast it goes.

    progress = Progress("partition 3", "rows staged")
    for batch in batches: ...; progress.add(batch.num_rows)    # partition 3: 3,400,000 rows staged, 480,000 a second

Short work prints nothing. The lines go to the log `chp_client.progress`. Where no logging is set up, as in Spark's own
Python workers, they go to standard error.
"""

import logging
import sys
from collections.abc import Callable
from time import monotonic

EVERY_S = 5.0
log = logging.getLogger("chp_client.progress")


def say(line: str) -> None:
    """Write a line to the log, or to standard error if there is no log."""
    if log.hasHandlers():
        log.info("%s", line)
    else:
        print(f"chp: {line}", file=sys.stderr, flush=True)


class Progress:
    """The progress of one piece of work."""

    def __init__(
        self, whose: str, what: str, clock: Callable[[], float] = monotonic, to: Callable[[str], None] | None = None
    ) -> None:
        self._whose, self._what, self._clock, self._to = whose, what, clock, to
        self._began = self._said = clock()
        self._done = 0

    def add(self, n: int) -> None:
        """Count `n` more as done."""
        self._done += n
        now = self._clock()
        if now - self._said >= EVERY_S:
            self._said = now
            rate = self._done / (now - self._began)
            (self._to or say)(f"{self._whose}: {self._done:,} {self._what}, {rate:,.0f} a second")
