"""Reading the changes as a stream: the servers' retained log, from offset to offset, the same each time.

    offset   {"epoch": 1, "sequence": 4711, "store": "9f...", "opener": "3c..."}   all up to there has been delivered
    batch    the records after one offset up to another; both lie on the border of a record, so none is ever cut

The store id in an offset tells a checkpoint of another store, where the same number means something else, and the
opener of its epoch one of a history that a split has ended; a task says whose numbers it means, so a batch that was
planned before the servers were replaced, or gave way, is not read from the new ones. A query that starts with
"snapshot" has everything held as its first batch, as sets, and then the changes from that number on. If that first
batch is run again, keys changed meanwhile are left out of it: they come with the changes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from chp.numbers import describe, sequence_of

from ...errors import Refused
from ..values.columns import Layout, Updates
from ..worker import errors_first
from .changes import (
    NOT_RETAINED,
    START,
    ChangePosition,
    Facts,
    Offset,
    Retained,
    RetainedChanges,
    newest,
    offset_of,
    oldest,
    place_of,
    reached,
)
from .snapshot import ImagePartition, make_image, port_of, read_slice


class SnapshotSlice(InputPartition):
    """A slice of what was held, as far as it had not changed after `until`."""

    def __init__(self, piece: ImagePartition, until: int) -> None:
        self.piece, self.until = piece, until


@errors_first
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._subtree: str = options["subtree"]
        self._layout = Layout(schema, options["codec"], options["mode"])
        self._there = Retained(options)  # of the driver; tasks open their own
        self._ceiling: ChangePosition | None = None
        self._lag: Offset | None = None  # where the store was when the last batch was planned

    # -- beside the driver

    def initialOffset(self) -> Offset:
        """Where a new query starts, by the options startingOffsets and startingTimestamp."""
        if self._options["startingTimestamp"] is not None:
            after, facts = self._there.before("startingTimestamp")
            return offset_of(after, facts["store"].hex())
        facts = self._there.probe()
        start, store = self._options["startingOffsets"] or "snapshot", facts["store"].hex()
        if isinstance(start, dict):
            return {**start, "store": store}
        if start == "snapshot":
            return {**offset_of(START, store), "snapshot": True}
        return offset_of(oldest(facts) if start == "earliest" else newest(facts), store)

    def getDefaultReadLimit(self) -> ReadLimit:
        """By the option maxOffsetsPerTrigger."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        facts = self._there.probe()
        store = facts["store"].hex()
        after = place_of(start)
        if start["store"] != store:
            said = f"the checkpoint is of the store {start['store']}, and the servers hold {store}"
            after = self._there.lost(said, facts)
        end = newest(facts) if start.get("snapshot") else self._end(after, most, facts)
        end = end if self._ceiling is None else min(end, self._ceiling)
        behind = max(0, sequence_of(facts["newest"]) - sequence_of(end.number))
        self._lag = {**offset_of(newest(facts), store), "behind": behind, "revision": describe(facts["newest"])}
        return offset_of(end, store)

    def reportLatestOffset(self) -> Offset | None:
        """For `query.lastProgress`: where the store was when the batch was planned, and how many changes that is
        `behind` the end of the batch."""
        return self._lag

    def _end(self, after: ChangePosition, most: int, facts: Facts) -> ChangePosition:
        store = facts["store"].hex()
        try:
            return reached(self._there.probe(after, most, store))
        except Refused as refused:
            if refused.code != "retained":
                raise
            there = f"those there are begin after {describe(facts['oldest'])} and end with {describe(facts['newest'])}"
            said = NOT_RETAINED if after.number < facts["newest"] else "never were in this store"
            after = self._there.lost(f"the changes after {describe(after.number)} {said}; {there}", facts)
            return reached(self._there.probe(after, most, store))

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where "now" is; the batches go that far."""
        self._ceiling = newest(self._there.probe())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task, as the order of changes matters; for a snapshot as many as for a batch read."""
        after, until = place_of(start), place_of(end)
        if start.get("snapshot"):
            facts = self._there.probe()
            if facts["store"].hex() != end["store"]:
                said = f"the batch is of the store {end['store']}, and the servers hold {facts['store'].hex()}"
                self._there.lost(said, facts)
            pieces = make_image(self._there.port, self._subtree, self._subtree, self._options["partitions"])
            return [SnapshotSlice(piece, until.number) for piece in pieces]
        if start["store"] != end["store"]:
            after = START  # said already, by latestOffset
        elif after.number > until.number:
            after = START  # it never was in this store: said there too
        return [RetainedChanges(after, until, end["store"])] if after.number < until.number else []

    def commit(self, end: Offset) -> None:
        """Nothing to let go of: what is retained is the servers' own decision."""

    def stop(self) -> None:
        """The query has ended."""
        self._there.close()

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of a partition, as record batches."""
        with port_of(self._options) as port:
            found: Iterator[Updates]
            if isinstance(partition, SnapshotSlice):
                found = (_unchanged(u, partition.until) for u in read_slice(port, self._subtree, partition.piece))
            else:
                assert isinstance(partition, RetainedChanges)
                found = Retained(self._options).read(port, partition)
            for updates in found:
                if updates.keys:
                    yield self._layout.batch(updates)


def _unchanged(updates: Updates, until: int) -> Updates:
    """Only what was written up to `until`: what is newer comes as a change."""
    keep = updates.revisions <= until
    if keep.all():
        return updates
    rows = np.flatnonzero(keep).tolist()
    ttls = updates.ttls_ms
    if isinstance(ttls, dict):
        ttls = {new: ttls[old] for new, old in enumerate(rows) if old in ttls}
    return Updates([updates.keys[i] for i in rows], [updates.values[i] for i in rows], updates.revisions[keep], ttls)
