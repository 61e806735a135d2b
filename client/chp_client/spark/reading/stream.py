"""The reader of changes as a stream: of the servers' retained log, from offset to offset, equal in each run.

    offset   {"epoch": 1, "sequence": 4711, "store": "9f...", "opener": "3c..."}   all up to there has been delivered
    batch    the records after one offset up to another; both lie between records, so no record is ever cut

The store id in an offset shows a checkpoint of another store, where an equal number means something else. The opener of
its epoch shows a checkpoint of a history that a split has ended. A task names its store and opener, so the new servers
never answer for a batch that was planned before they replaced the old ones.

A query starts with "snapshot" unless an option says otherwise. Then its first batch has everything held, as sets, and
the next ones have the changes after that number. If the first batch runs again, it leaves out the keys that changed
meanwhile: they come with the changes.
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
    """A slice of the snapshot, without the keys that changed after `until`."""

    def __init__(self, piece: ImagePartition, until: int) -> None:
        self.piece, self.until = piece, until


@errors_first
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._subtree: str = options["subtree"]
        self._layout = Layout(schema, options["codec"], options["mode"])
        # The driver's; each task opens its own.
        self._there = Retained(options)
        self._ceiling: ChangePosition | None = None
        # The end of the store at the last plan.
        self._lag: Offset | None = None

    # -- beside the driver

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query starts, by startingOffsets and startingTimestamp."""
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
        """Return the limit of the option maxOffsetsPerTrigger."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch."""
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
        """Return, for `query.lastProgress`, the store's end at the last plan; `behind` counts the changes left."""
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
        """Note the end of the store; the batches go that far."""
        self._ceiling = newest(self._there.probe())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan one task, because the order of changes matters; for a snapshot as many as for a batch read."""
        after, until = place_of(start), place_of(end)
        if start.get("snapshot"):
            facts = self._there.probe()
            if facts["store"].hex() != end["store"]:
                said = f"the batch is of the store {end['store']}, and the servers hold {facts['store'].hex()}"
                self._there.lost(said, facts)
            pieces = make_image(self._there.port, self._subtree, self._subtree, self._options["partitions"])
            return [SnapshotSlice(piece, until.number) for piece in pieces]
        if start["store"] != end["store"]:
            # `latestOffset` has reported it.
            after = START
        elif after.number > until.number:
            # The number never was in this store, which `latestOffset` has reported too.
            after = START
        return [RetainedChanges(after, until, end["store"])] if after.number < until.number else []

    def commit(self, end: Offset) -> None:
        """Do nothing: the servers' own settings say what is retained."""

    def stop(self) -> None:
        """Close the port at the end of the query."""
        self._there.close()

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the changes of a partition, as record batches."""
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
    """Return the updates up to `until`: newer ones come as changes."""
    keep = updates.revisions <= until
    if keep.all():
        return updates
    rows = np.flatnonzero(keep).tolist()
    ttls = updates.ttls_ms
    if isinstance(ttls, dict):
        ttls = {new: ttls[old] for new, old in enumerate(rows) if old in ttls}
    return Updates([updates.keys[i] for i in rows], [updates.values[i] for i in rows], updates.revisions[keep], ttls)
