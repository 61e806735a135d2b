"""The limits of a stream's micro-batches: a maximum of rows and of bytes, and a minimum of rows to wait for.

    maxOffsetsPerTrigger   rows; a batch of changes ends with a whole record
    maxRowsPerTrigger      rows; a record that has more is cut
    maxBytesPerTrigger     bytes of keys and values; one row at least
    minRowsPerTrigger      a batch waits until there are so many rows, or for maxTriggerDelay seconds

The limits hold for each trigger except `once`, which takes everything. With `availableNow` no batch waits for rows.
"""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from ..spark_api import ADMISSION, ReadAllAvailable, ReadLimit, ReadMaxRows, left_out

# Spark gets this number of rows as the limit if the options limit only something else.
NO_BOUND = (1 << 63) - 1
NAMES = ("maxOffsetsPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger")


class Admission:
    """The limits of one stream's micro-batches, by its options."""

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = monotonic) -> None:
        self.offsets: int | None = options["maxOffsetsPerTrigger"]
        self.rows: int | None = options["maxRowsPerTrigger"]
        self.bytes: int | None = options["maxBytesPerTrigger"]
        self._least: int | None = options["minRowsPerTrigger"]
        self._delay_s: float = options["maxTriggerDelay"]
        self._clock, self._last = clock, clock()
        if not ADMISSION:
            for name in NAMES:
                if options[name] is not None:
                    left_out(name, "4.2", "each micro-batch has everything there is")

    @property
    def read_limit(self) -> Any:
        """The limit for Spark. Spark passes it back to each `latestOffset`, unless the trigger takes everything."""
        most = [each for each in (self.offsets, self.rows) if each is not None]
        if most or self.bytes is not None or self._least is not None:
            return ReadMaxRows(min(most, default=NO_BOUND))
        return ReadAllAvailable()

    def holds(self, limit: ReadLimit) -> bool:
        """Return True if the limits hold for a batch that Spark asks for with `limit`."""
        return isinstance(limit, ReadMaxRows)

    def waits(self, there: int) -> bool:
        """Return True if the next batch has to wait for more rows; `there` is the number of rows so far."""
        if self._least is None:
            return False
        if there < self._least and self._clock() - self._last < self._delay_s:
            return True
        self._last = self._clock()
        return False
