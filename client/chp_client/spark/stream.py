"""Reading the changes as a stream: the servers' retained log, from offset to offset, the same each time.

    offset   {"epoch": 1, "sequence": 4711, "store": "9f...", "opener": "3c..."}   all up to there has been delivered
    batch    the records after one offset up to another; both lie on the border of a record, so none is ever cut

The store id in an offset tells a checkpoint of another store, where the same number means something else, and the
opener of its epoch one of a history that a split has ended; a task says whose numbers it means, so a batch that was
planned before the servers were replaced, or gave way, is not read from the new ones. A query that starts with
"snapshot" has everything held as its first batch, as sets, and then the changes from that number on. If that first
batch is run again, keys changed meanwhile are left out of it: they come with the changes.
"""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from chp import columns
from chp.headers import Batch, Kthxbai, expect
from chp.numbers import describe, epoch_of, number, sequence_of
from chp.parts import Parts

from ..ask.port import Port
from ..errors import Refused
from .read import ReadFailed, Slice, make_image, port_of, read_slice
from .values.columns import Layout, Updates

log = logging.getLogger(__name__)
Offset = dict[str, Any]
NOT_RETAINED = "are not retained any more, or are of a history that another server's has replaced"


class DataLoss(ReadFailed):
    """Changes that the query has not seen are not there any more."""


class Place(NamedTuple):
    """A number, and who opened its epoch; nobody for 0, and where that is not known."""

    number: int
    opener: bytes = b""


START = Place(0)


def offset_of(at: Place, store: str) -> Offset:
    """A place as an offset."""
    return {"epoch": epoch_of(at.number), "sequence": sequence_of(at.number), "store": store, "opener": at.opener.hex()}


def place_of(offset: Offset) -> Place:
    """An offset as a place; those of a user, and of older checkpoints, do not tell the opener."""
    return Place(number_of(offset), bytes.fromhex(offset.get("opener", "")))


def proof_of(place: Place, store: str) -> dict[str, Any]:
    """What proves it, as an option of a question."""
    return {"proof": [bytes.fromhex(store), place.opener]} if place.opener else {}


def number_of(offset: Offset) -> int:
    """An offset as a number."""
    return number(offset["epoch"], offset["sequence"])


class Changes(InputPartition):
    """The records of a store after one number up to another."""

    def __init__(self, after: Place, until: Place, store: str) -> None:
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
        self._ceiling: Place | None = None

    # -- beside the driver

    def _probe(self, after: Place = START, most: int = 0, store: str = "") -> dict[str, Any]:
        if self._port is None:
            self._port = port_of(self._options)
        proof = proof_of(after, store)
        return self._port.ask(self._subtree, **{"from": after.number, "feed": True, "probe": most, **proof})

    def initialOffset(self) -> Offset:
        """Where a new query starts, by the option startingOffsets."""
        facts = self._probe()
        start, store = self._options["startingOffsets"], facts["store"].hex()
        if isinstance(start, dict):
            return {**start, "store": store}
        if start == "snapshot":
            return {**offset_of(START, store), "snapshot": True}
        return offset_of(_oldest(facts) if start == "earliest" else _newest(facts), store)

    def getDefaultReadLimit(self) -> ReadLimit:
        """By the option maxOffsetsPerTrigger."""
        most = self._options["maxOffsetsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        facts = self._probe()
        store = facts["store"].hex()
        after = place_of(start)
        if start["store"] != store:
            after = self._lost(f"the checkpoint is of the store {start['store']}, and the servers hold {store}", facts)
        end = _newest(facts) if start.get("snapshot") else self._end(after, most, facts)
        return offset_of(end if self._ceiling is None else min(end, self._ceiling), store)

    def _end(self, after: Place, most: int, facts: dict[str, Any]) -> Place:
        store = facts["store"].hex()
        try:
            return _reached(self._probe(after, most, store))
        except Refused as refused:
            if refused.code != "retained":
                raise
            there = f"those there are begin after {describe(facts['oldest'])} and end with {describe(facts['newest'])}"
            said = NOT_RETAINED if after.number < facts["newest"] else "never were in this store"
            after = self._lost(f"the changes after {describe(after.number)} {said}; {there}", facts)
            return _reached(self._probe(after, most, store))

    def _lost(self, what: str, facts: dict[str, Any]) -> Place:
        if self._options["failOnDataLoss"]:
            raise DataLoss(
                f"{what}. Start with a new checkpoint (startingOffsets=snapshot loses nothing still held), or go on "
                "with what there is: failOnDataLoss=false. Servers keep more with --retain-bytes and --retain-s"
            )
        log.warning("%s; going on with the oldest changes there are", what)
        return _oldest(facts)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where "now" is; the batches go that far."""
        self._ceiling = _newest(self._probe())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task, as the order of changes matters; for a snapshot as many as for a batch read."""
        after, until = place_of(start), place_of(end)
        if start.get("snapshot"):
            facts = self._probe()
            if facts["store"].hex() != end["store"]:
                self._lost(
                    f"the batch is of the store {end['store']}, and the servers hold {facts['store'].hex()}", facts
                )
            assert self._port is not None, "a probe opens it"
            pieces = make_image(self._port, self._subtree, self._subtree, self._options["partitions"])
            return [HeldThen(piece, until.number) for piece in pieces]
        if start["store"] != end["store"]:
            after = START  # said already, by latestOffset
        elif after.number > until.number:
            after = START  # it never was in this store: said there too
        return [Changes(after, until, end["store"])] if after.number < until.number else []

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
        try:
            yield from read_changes(port, self._subtree, wanted.after, wanted.until, wanted.store)
        except Refused as refused:
            oldest = self._oldest(refused, wanted)
            if oldest < wanted.until.number:
                yield from read_changes(port, self._subtree, Place(oldest), wanted.until, wanted.store)

    def _oldest(self, refused: Refused, wanted: Changes) -> int:
        """Where to go on if some of it is gone; `DataLoss` unless the option allows that."""
        what = f"the changes after {describe(wanted.after.number)}"
        if refused.code == "store":
            said = f"{what} are of the store {wanted.store}, and the servers hold {refused.detail.hex()}"
        elif refused.code == "retained":
            said = f"{what} {NOT_RETAINED}"
        else:
            raise refused
        if self._options["failOnDataLoss"]:
            raise DataLoss(f"{said}. Start with a new checkpoint, or leave them out: failOnDataLoss=false") from None
        log.warning("%s; they are left out", said)
        return refused.detail if type(refused.detail) is int else wanted.until.number


def _newest(facts: dict[str, Any]) -> Place:
    return Place(facts["newest"], facts["opener"])


def _oldest(facts: dict[str, Any]) -> Place:
    return Place(facts["oldest"], facts["oldest_opener"])


def _reached(facts: dict[str, Any]) -> Place:
    return Place(facts["number"], facts["opener"])


def read_changes(port: Port, subtree: str, after: Place, until: Place, store: str) -> Iterator[Updates]:
    """The updates of the records after one place up to another; those of one record have its revision."""
    parts = Parts()  # each is passed on as it comes, with its record's revision
    meant = {"from": after.number, "until": until.number, "store": bytes.fromhex(store), **proof_of(after, store)}
    for header, items in port.stream(subtree, feed=True, **meant):
        if isinstance(header, Kthxbai):
            if header.number < until.number or (until.opener and header.proof and header.proof[1] != until.opener):
                raise ReadFailed(
                    f"{describe(until.number)} is no part of the server's history, which is at "
                    f"{describe(header.number)}: another server's took its place; run the query again"
                )
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
