"""Reading the changes as a stream: the servers' retained log, from offset to offset, the same each time.

    offset   {"epoch": 1, "sequence": 4711, "store": "9f..."}      the number up to which everything has been delivered
    batch    the records after one offset up to another; both lie on the border of a record, so none is ever cut

The store id in an offset tells a checkpoint of another store, where the same number means something else; a task says
whose numbers it means, so a batch that was planned before the servers were replaced is not read from the new. A query
that starts with "snapshot" has everything held as its first batch, as sets, and then the changes from that number
on. If that first batch is run again, keys changed meanwhile are left out of it: they come with the changes.
"""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from chp import columns
from chp.headers import Batch, Kthxbai, expect
from chp.numbers import describe, epoch_of, number, sequence_of
from chp.parts import Parts

from ..errors import Refused
from ..port import Port
from .columns import Layout, Updates
from .read import ReadFailed, Slice, make_image, port_of, read_slice

log = logging.getLogger(__name__)
Offset = dict[str, Any]


class DataLoss(ReadFailed):
    """Changes that the query has not seen are not there any more."""


def offset_of(at: int, store: str) -> Offset:
    """A number as an offset."""
    return {"epoch": epoch_of(at), "sequence": sequence_of(at), "store": store}


def number_of(offset: Offset) -> int:
    """An offset as a number."""
    return number(offset["epoch"], offset["sequence"])


class Changes(InputPartition):
    """The records of a store after one number up to another."""

    def __init__(self, after: int, until: int, store: str) -> None:
        self.after, self.until, self.store = after, until, store


class HeldThen(InputPartition):
    """A slice of what was held, as far as it had not changed after `until`."""

    def __init__(self, piece: Slice, until: int) -> None:
        self.piece, self.until = piece, until


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._subtree: str = options["subtree"]
        self._layout = Layout(schema, options["codec"], options["mode"])
        self._port: Port | None = None  # of the driver; tasks open their own
        self._ceiling: int | None = None

    # -- beside the driver

    def _probe(self, after: int, most: int) -> dict[str, Any]:
        if self._port is None:
            self._port = port_of(self._options)
        return self._port.ask(self._subtree, **{"from": after, "feed": True, "probe": most})

    def initialOffset(self) -> Offset:
        """Where a new query starts, by the option startingOffsets."""
        facts = self._probe(0, 0)
        start, store = self._options["startingOffsets"], facts["store"].hex()
        if isinstance(start, dict):
            return {**start, "store": store}
        if start == "snapshot":
            return {**offset_of(0, store), "snapshot": True}
        return offset_of(facts["oldest"] if start == "earliest" else facts["newest"], store)

    def getDefaultReadLimit(self) -> ReadLimit:
        """By the option maxOffsetsPerTrigger."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        facts = self._probe(0, 0)
        store = facts["store"].hex()
        after = number_of(start)
        if start["store"] != store:
            after = self._lost(f"the checkpoint is of the store {start['store']}, and the servers hold {store}", facts)
        end = facts["newest"] if start.get("snapshot") else self._end(after, most, facts)
        return offset_of(end if self._ceiling is None else min(end, self._ceiling), store)

    def _end(self, after: int, most: int, facts: dict[str, Any]) -> int:
        try:
            return int(self._probe(after, most)["number"])
        except Refused as refused:
            if refused.code != "retained":
                raise
            there = f"those there are begin after {describe(facts['oldest'])} and end with {describe(facts['newest'])}"
            said = "are not retained any more" if after < facts["newest"] else "never were in this store"
            after = self._lost(f"the changes after {describe(after)} {said}; {there}", facts)
            return int(self._probe(after, most)["number"])

    def _lost(self, what: str, facts: dict[str, Any]) -> int:
        if self._options["failOnDataLoss"]:
            raise DataLoss(
                f"{what}. Start with a new checkpoint (startingOffsets=snapshot loses nothing still held), or go on "
                "with what there is: failOnDataLoss=false. Servers keep more with --retain-bytes and --retain-s"
            )
        log.warning("%s; going on with the oldest changes there are", what)
        return int(facts["oldest"])

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where "now" is; the batches go that far."""
        self._ceiling = int(self._probe(0, 0)["newest"])

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task, as the order of changes matters; for a snapshot as many as for a batch read."""
        after, until = number_of(start), number_of(end)
        if start.get("snapshot"):
            facts = self._probe(0, 0)
            if facts["store"].hex() != end["store"]:
                self._lost(
                    f"the batch is of the store {end['store']}, and the servers hold {facts['store'].hex()}", facts
                )
            assert self._port is not None, "a probe opens it"
            pieces = make_image(self._port, self._subtree, self._subtree, self._options["partitions"])
            return [HeldThen(piece, until) for piece in pieces]
        if start["store"] != end["store"]:
            after = 0  # said already, by latestOffset
        elif after > until:
            after = 0  # it never was in this store: said there too
        return [Changes(after, until, end["store"])] if after < until else []

    def commit(self, end: Offset) -> None:
        """Nothing to let go of: what is retained is the servers' own decision."""

    def stop(self) -> None:
        """The query has ended."""
        if self._port is not None:
            self._port.close()

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of a partition, as record batches."""
        with port_of(self._options) as port:
            found: Iterator[Updates]
            if isinstance(partition, HeldThen):
                found = (_unchanged(u, partition.until) for u in read_slice(port, self._subtree, partition.piece))
            else:
                assert isinstance(partition, Changes)
                found = self._changes(port, partition)
            for updates in found:
                if updates.keys:
                    yield self._layout.batch(updates)

    def _changes(self, port: Port, wanted: Changes) -> Iterator[Updates]:
        store = bytes.fromhex(wanted.store)
        try:
            yield from read_changes(port, self._subtree, wanted.after, wanted.until, store)
        except Refused as refused:
            oldest = self._oldest(refused, wanted)
            if oldest < wanted.until:
                yield from read_changes(port, self._subtree, oldest, wanted.until, store)

    def _oldest(self, refused: Refused, wanted: Changes) -> int:
        """Where to go on if some of it is gone; `DataLoss` unless the option allows that."""
        what = f"the changes after {describe(wanted.after)}"
        if refused.code == "store":
            said = f"{what} are of the store {wanted.store}, and the servers hold {refused.detail.hex()}"
        elif refused.code == "retained":
            said = f"{what} are not retained any more"
        else:
            raise refused
        if self._options["failOnDataLoss"]:
            raise DataLoss(f"{said}. Start with a new checkpoint, or leave them out: failOnDataLoss=false") from None
        log.warning("%s; they are left out", said)
        return refused.detail if type(refused.detail) is int else wanted.until


def read_changes(port: Port, subtree: str, after: int, until: int, store: bytes | None = None) -> Iterator[Updates]:
    """The updates of the records after `after` up to `until`; those of one record have its revision."""
    parts = Parts()  # each is passed on as it comes, with its record's revision
    for header, items in port.stream(subtree, **{"from": after, "feed": True, "until": until, "store": store}):
        if isinstance(header, Kthxbai):
            if header.number < until:
                raise ReadFailed(f"the server's history ends with {describe(header.number)}, before {describe(until)}")
            return
        for head, *segments in items:
            batch = expect(Batch, head)
            revision = parts.revision(batch)
            parts.add(batch, [])
            for segment in segments:
                yield _updates(segment, revision, batch.wall_ms)


def _updates(segment: list[Any], revision: int, wall_ms: int) -> Updates:
    keys, values, extras = segment
    ttls = None
    if extras:
        for i in extras.get(columns.DELETES, ()):
            values[i] = None
        ttls = extras.get(columns.TTLS)
    revisions = np.full(len(keys), revision, np.int64)
    return Updates(keys, values, revisions, dict(zip(*ttls, strict=True)) if type(ttls) is list else ttls, wall_ms)


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
