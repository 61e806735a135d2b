"""The reader of changes as a stream. A batch is a part of the servers' retained log, and is equal in each run.

    offset   {"epoch": 1, "sequence": 4711, "store": "9f...", "opener": "3c..."}   all up to there has been delivered
             {..., "row": 1000, "record": {...}}    and 1000 rows of the next record, which ends at `record`
    batch    the records after one offset up to another. Only a record above the option maxRowsPerTrigger or
             maxBytesPerTrigger is cut
    task     one, or by the option `partitions` several. Each reads all changes of the batch, and keeps those of its
             keys, so that all changes of a key are in one task and in their order

The store id in an offset reveals a checkpoint of another store, in which an equal number means something else. The
opener of the offset's epoch reveals a checkpoint of a history that a split has ended. A task sends its store and opener
with its question. So servers that replaced the old ones never answer for a batch that was planned before.

A query starts with "snapshot" unless an option says otherwise. Then its first batch has all keys of the subtree, as
sets, and the next batches have the changes after the snapshot's number. If the first batch runs again, it leaves out
the keys that changed meanwhile: they come with the changes.
"""

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from chp.numbers import describe, sequence_of

from ...errors import Refused
from ...port.ask import Interrupted
from ..options import BadOption
from ..spark_api import ADMISSION, ReadLimit, SupportsTriggerAvailableNow
from ..values.columns import Updates, layout_of
from ..worker import errors_first
from .admission import Admission
from .changes import (
    NOT_RETAINED,
    START,
    ChangePosition,
    Edge,
    Facts,
    Offset,
    Retained,
    RetainedChanges,
    edge_of,
    newest,
    offset_at,
    offset_of,
    oldest,
    reached,
    sizes_of,
)
from .snapshot import SILENCE_S, ImagePartition, ReadFailed, plan_read, port_of, read_part

log = logging.getLogger(__name__)


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
        self._layout = layout_of(options, schema)
        # The driver's connection; each task opens its own.
        self._there = Retained(options)
        self._admission = Admission(options)
        self._ceiling: ChangePosition | None = None
        # The end of the record that was cut last, and the bytes of each of its rows.
        self._record: tuple[int, Any] = (0, None)
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
        """Return the limits of the stream's options."""
        return self._admission.read_limit

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the end of the next batch. Spark before 4.2 passes no start, and the end is the store's end."""
        if start is None:
            facts = self._there.probe()
            return offset_of(newest(facts), facts["store"].hex())
        _check_kind(start)
        facts = self._there.probe()
        store = facts["store"].hex()
        after = edge_of(start)
        if start["store"] != store:
            said = f"the checkpoint is of the store {start['store']}, and the servers hold {store}"
            after = Edge(self._there.lost(said, facts))
        limited = self._admission.holds(limit) and not start.get("snapshot")
        if limited and self._ceiling is None and self._admission.waits(_between(after, newest(facts)) - after.row):
            return start
        end = Edge(newest(facts)) if start.get("snapshot") else self._end(after, facts, limited=limited)
        if self._ceiling is not None and self._ceiling < end.place:
            end = Edge(self._ceiling)
        behind = max(0, _between(end, newest(facts)) - end.row)
        self._lag = {**offset_of(newest(facts), store), "behind": behind, "revision": describe(facts["newest"])}
        return offset_at(end, store)

    def reportLatestOffset(self) -> Offset | None:
        """Return, for `query.lastProgress`, the store's end at the last plan; `behind` counts the changes left."""
        return self._lag

    def _end(self, after: Edge, facts: Facts, *, limited: bool) -> Edge:
        admission, store = self._admission, facts["store"].hex()
        # The probe counts the changes of the whole store. They are the rows only if the stream has no subtree. Else
        # `_fitting` counts the rows.
        bounds = (admission.offsets, None if self._subtree else admission.rows)
        most = min((each for each in bounds if limited and each is not None), default=0)
        try:
            end = reached(self._there.probe(after.place, most, store))
        except Refused as refused:
            if refused.code != "retained":
                raise
            number = after.place.number
            there = f"those there are begin after {describe(facts['oldest'])} and end with {describe(facts['newest'])}"
            said = NOT_RETAINED if number < facts["newest"] else "never were in this store"
            after = Edge(self._there.lost(f"the changes after {describe(number)} {said}; {there}", facts))
            end = reached(self._there.probe(after.place, most, store))
        end = end if self._ceiling is None else min(end, self._ceiling)
        if not limited or end.number <= after.place.number:
            return Edge(end)
        rows = admission.rows
        if admission.bytes is None and (rows is None or _between(after, end) <= rows):
            return Edge(end)
        # Try again here, because Spark repeats a failed task, but not this call.
        until = monotonic() + self._options["timeout"]
        while True:
            try:
                return self._fitting(after, end, store)
            except Interrupted as broken:
                if monotonic() > until:
                    raise
                log.warning("the sizes of the changes after %s: %s", describe(after.place.number), broken)

    def _fitting(self, after: Edge, end: ChangePosition, store: str) -> Edge:
        """Return the end of the batch after `after`: `end`, or an earlier edge if that is too many rows or bytes.

        The servers tell the sizes of the rows. The sizes of a record that is cut are kept for the next batches.
        """
        rows = self._admission.rows or end.number
        most = self._admission.bytes
        whole = after.place.number
        with closing(self._sizes(after, end, store)) as found:
            for number, sizes in found:
                skip = after.row if number == after.record.number else 0
                bytes_to = np.cumsum(sizes[skip:])
                fits = min(rows, len(bytes_to))
                if most is not None:
                    fits = min(fits, int(np.searchsorted(bytes_to, most, "right")))
                if fits < len(bytes_to):
                    if whole > after.place.number:
                        return Edge(self._position(after, whole, store))
                    self._record = number, sizes
                    return Edge(after.place, skip + max(1, fits), self._position(after, number, store))
                rows -= len(bytes_to)
                if most is not None:
                    most -= int(bytes_to[-1]) if len(bytes_to) else 0
                whole = number
        return Edge(end)

    def _sizes(self, after: Edge, end: ChangePosition, store: str) -> Generator[tuple[int, Any], None, None]:
        """Yield, for each record between two positions, its end and the bytes of each of its rows."""
        place = after.place
        if after.row and self._record[0] == after.record.number:
            yield self._record
            place = after.record
        if place.number < end.number:
            with port_of(self._options) as port:
                yield from sizes_of(port, self._subtree, place, end, store)

    def _position(self, after: Edge, number: int, store: str) -> ChangePosition:
        """Return the position at the end of a record, with the opener of its epoch."""
        found = reached(self._there.probe(after.place, sequence_of(number) - sequence_of(after.place.number), store))
        if found.number != number:
            raise ReadFailed(f"the changes up to {describe(number)} are not there any more; start the query again")
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present end of the store. The batches of this trigger end there."""
        self._ceiling = newest(self._there.probe())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan one task, or as many as the option `partitions` says; for a snapshot as many as for a batch read."""
        _check_kind(start)
        after, until = edge_of(start), edge_of(end)
        if start.get("snapshot"):
            facts = self._there.probe()
            if facts["store"].hex() != end["store"]:
                said = f"the batch is of the store {end['store']}, and the servers hold {facts['store'].hex()}"
                self._there.lost(said, facts)
            pieces = plan_read(self._there.port, self._subtree, self._subtree, self._options["partitions"])
            return [SnapshotSlice(piece, until.place.number) for piece in pieces]
        if start["store"] != end["store"]:
            self._report(f"the checkpoint is of the store {start['store']}, and the servers hold {end['store']}")
            after = Edge(START)
        elif after.place.number > until.place.number:
            self._report(f"the changes after {describe(after.place.number)} never were in this store")
            after = Edge(START)
        changes = _between(after, until.place) + until.row - after.row
        parts = min(self._options["partitions"] or 1, changes)
        return [RetainedChanges(after, until, end["store"], part, parts) for part in range(parts)]

    def _report(self, what: str) -> None:
        """Report lost changes, unless this Spark passes the start to `latestOffset`, which reports them then."""
        if not ADMISSION:
            self._there.lost(what, self._there.probe())

    def commit(self, end: Offset) -> None:
        """Do nothing: the servers' own settings say what is retained."""

    def stop(self) -> None:
        """Close the port at the end of the query."""
        self._there.close()

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the changes of a partition, as record batches."""
        again = SILENCE_S if isinstance(partition, SnapshotSlice) else None
        with port_of(self._options, silence_s=again) as port:
            found: Iterator[Updates]
            if isinstance(partition, SnapshotSlice):
                read = read_part(port, self._subtree, partition.piece, timeout_s=self._options["timeout"])
                found = (_unchanged(u, partition.until) for u in read)
            else:
                assert isinstance(partition, RetainedChanges)
                found = Retained(self._options).read(port, partition)
            for updates in found:
                if updates.keys:
                    yield self._layout.batch(updates)


def _check_kind(start: Offset) -> None:
    """Raise `BadOption` if a checkpoint's offset is one of messages."""
    if "topic" in start:
        raise BadOption(
            f"the checkpoint is of topic {start['topic']}, and there is no option topic; give each query its own"
        )


def _between(after: Edge, end: ChangePosition) -> int:
    """Return how many changes of the store are between two places."""
    return sequence_of(end.number) - sequence_of(after.place.number)


def _unchanged(updates: Updates, until: int) -> Updates:
    """Return the updates up to `until`: newer ones come as changes."""
    keep = updates.revisions <= until
    return updates if keep.all() else updates.take(np.flatnonzero(keep).tolist())
