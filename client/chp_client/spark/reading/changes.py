"""The reader of the changes that the servers retain, between two ends that are numbers or times.

    spark.read.format("chp").option("startingOffsets", "earliest")                         all that are retained
    .option("startingOffsets", "1.42").option("endingRevision", "1.99")                    after one, up to another
    .option("startingTimestamp", "2026-01-05").option("endingTimestamp", "2026-01-06")     of a day

A batch read of changes is one task, because their order matters. Its end is fixed when it is planned, so a frame that
is used twice has equal rows. A stream (stream.py) reads in this way from offset to offset. Changes that the servers no
longer retain are a `DataLoss` error, unless the option failOnDataLoss says to go on with the rest.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chp import columns
from chp.headers import Batch, Kthxbai, expect
from chp.numbers import describe, epoch_of, number, sequence_of
from chp.parts import Parts

from ...errors import Refused
from ...port.ask import QuestionPort
from ..options import BadOption
from ..progress import Progress
from ..values.columns import Updates, layout_of
from ..worker import errors_first, settle
from .snapshot import ReadFailed, port_of

log = logging.getLogger(__name__)
Facts = dict[str, Any]
Offset = dict[str, Any]
NOT_RETAINED = "are not retained any more, or are of a history that another server's has replaced"


class DataLoss(ReadFailed):
    """The error for changes or messages that the servers no longer have, and that the query has not seen."""


class ChangePosition(NamedTuple):
    """A number, and the server that opened its epoch. `opener` is b"" for the number 0 and an unknown server."""

    number: int
    opener: bytes = b""


START = ChangePosition(0)


def offset_of(at: ChangePosition, store: str) -> Offset:
    """Return a position as an offset."""
    return {"epoch": epoch_of(at.number), "sequence": sequence_of(at.number), "store": store, "opener": at.opener.hex()}


def place_of(offset: Offset) -> ChangePosition:
    """Return an offset as a position. An offset that a user wrote, or that an older version saved, has no opener."""
    return ChangePosition(number(offset["epoch"], offset["sequence"]), bytes.fromhex(offset.get("opener", "")))


def newest(facts: Facts) -> ChangePosition:
    """Return the position of the newest change that the servers have."""
    return ChangePosition(facts["newest"], facts["opener"])


def oldest(facts: Facts) -> ChangePosition:
    """Return the position of the oldest change that the servers retain."""
    return ChangePosition(facts["oldest"], facts["oldest_opener"])


def reached(facts: Facts) -> ChangePosition:
    """Return the position that a probe reached."""
    return ChangePosition(facts["number"], facts["opener"])


def proof_of(place: ChangePosition, store: str) -> dict[str, Any]:
    """Return the proof of a position, as an option of a question."""
    return {"proof": [bytes.fromhex(store), place.opener]} if place.opener else {}


class Edge(NamedTuple):
    """The edge of a stream's batch: a position between two records, and the number of rows taken of the next record.

    `row` counts only rows in the stream's subtree. `record` is the position at the end of that next record. Both are
    given only if the batch cuts the record.
    """

    place: ChangePosition
    row: int = 0
    record: ChangePosition = START

    @property
    def reach(self) -> ChangePosition:
        """The position at the end of the last record that has a row before the edge."""
        return self.record if self.row else self.place


def offset_at(edge: Edge, store: str) -> Offset:
    """Return an edge as an offset."""
    offset = offset_of(edge.place, store)
    return {**offset, "row": edge.row, "record": offset_of(edge.record, store)} if edge.row else offset


def edge_of(offset: Offset) -> Edge:
    """Return an offset as an edge."""
    row = offset.get("row", 0)
    return Edge(place_of(offset), row, place_of(offset["record"]) if row else START)


class RetainedChanges(InputPartition):
    """The changes that a task reads: from one edge to another. With several tasks, each has a part of the keys."""

    def __init__(self, after: Edge, until: Edge, store: str, part: int = 0, parts: int = 1) -> None:
        self.after, self.until, self.store, self.part, self.parts = after, until, store, part, parts


class Retained:
    """The changes that the servers retain, for one reader's options; the first question opens its port."""

    def __init__(self, options: dict[str, Any], *, plans: bool = False) -> None:
        self._options, self._plans = options, plans
        self._port: QuestionPort | None = None

    @property
    def port(self) -> QuestionPort:
        """The port to the servers."""
        if self._port is None:
            self._port = port_of(self._options, plans=self._plans)
        return self._port

    def probe(self, after: ChangePosition = START, most: int = 0, store: str = "", at: int = 0) -> Facts:
        """Return how far the changes after a position reach (SPEC.md, section 17.4).

        `most` bounds the numbers after the position; 0 means no bound. `at` is a time in ms at which the changes end.
        """
        meant = {"from": after.number, "feed": True, "probe": most, **proof_of(after, store)}
        return self.port.ask(self._options["subtree"], **meant, **({"at": at} if at else {}))

    def lost(self, what: str, facts: Facts) -> ChangePosition:
        """Log a warning, and return the position to go on from. Raise `DataLoss` if failOnDataLoss is true."""
        if self._options["failOnDataLoss"]:
            raise DataLoss(
                f"{what}. Start with a new checkpoint (startingOffsets=snapshot loses nothing still held), or go on "
                "with what there is: failOnDataLoss=false. Servers keep more with --retain-bytes and --retain-s, those "
                "with --store memory: with --retain-memory-bytes"
            )
        log.warning("%s; going on with the oldest changes there are", what)
        return oldest(facts)

    def before(self, name: str) -> tuple[ChangePosition, Facts]:
        """Return the position before the first change at or after the time in the option `name`, and the facts."""
        moment: dt.datetime = self._options[name]
        ms = round(moment.timestamp() * 1000)
        if ms > time.time() * 1000:
            raise BadOption(f"option {name} is {moment.isoformat()}, which has not come yet; what is read has happened")
        facts = self.probe(at=max(1, ms))
        if name == "startingTimestamp" and facts["number"] == facts["oldest"] != 0:
            there = f"those there are begin after {describe(facts['oldest'])}"
            return self.lost(f"changes since {moment.isoformat()} may be retained no more; {there}", facts), facts
        return reached(facts), facts

    def read(self, port: QuestionPort, wanted: RetainedChanges) -> Iterator[Updates]:
        """Yield the changes of a partition. If failOnDataLoss is false, leave out changes that are not retained."""
        subtree, until = self._options["subtree"], wanted.until.reach
        try:
            yield from _chosen(read_changes(port, subtree, wanted.after.place, until, wanted.store), wanted)
        except Refused as refused:
            from_here = self._oldest(refused, wanted)
            if from_here < until.number:
                rest = read_changes(port, subtree, ChangePosition(from_here), until, wanted.store)
                yield from _chosen(rest, wanted)

    def _oldest(self, refused: Refused, wanted: RetainedChanges) -> int:
        """Return the number to go on from if some changes are lost. Raise `DataLoss` if failOnDataLoss is true."""
        what = f"the changes after {describe(wanted.after.place.number)}"
        if refused.code == "store":
            said = f"{what} are of the store {wanted.store}, and the servers hold {refused.detail.hex()}"
        elif refused.code == "retained":
            said = f"{what} {NOT_RETAINED}"
        else:
            raise refused
        if self._options["failOnDataLoss"]:
            raise DataLoss(f"{said}. Start with a new checkpoint, or leave them out: failOnDataLoss=false") from None
        log.warning("%s; they are left out", said)
        return refused.detail if type(refused.detail) is int else wanted.until.reach.number

    def close(self) -> None:
        """Close the port."""
        if self._port is not None:
            self._port.close()
            self._port = None


@errors_first
class ChangesReader(DataSourceReader):
    """The reader of `spark.read.format("chp")` with a start. It reads the changes from there to now, or to an end."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._layout = layout_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Plan one task, and fix its two ends."""
        settle()
        there = Retained(self._options, plans=True)
        try:
            after, facts = self._start(there)
            until = self._end(there, facts)
        finally:
            there.close()
        # Plan a task even without changes: Spark 4.3 runs a read without tasks as one task, whose partition is None.
        return [RetainedChanges(Edge(after), Edge(until), facts["store"].hex())]

    def _start(self, there: Retained) -> tuple[ChangePosition, Facts]:
        if self._options["startingTimestamp"] is not None:
            return there.before("startingTimestamp")
        start = self._options["startingOffsets"]
        facts = there.probe()
        if start == "earliest":
            return oldest(facts), facts
        after = place_of(start)
        try:
            there.probe(after)
        except Refused as refused:
            if refused.code != "retained":
                raise
            return there.lost(f"the changes after {describe(after.number)} {NOT_RETAINED}", facts), facts
        return after, facts

    def _end(self, there: Retained, facts: Facts) -> ChangePosition:
        if self._options["endingTimestamp"] is not None:
            return there.before("endingTimestamp")[0]
        until = self._options["endingRevision"]
        if until is None:
            return newest(facts)
        if until > facts["newest"]:
            now = describe(facts["newest"])
            raise BadOption(
                f"option endingRevision is {describe(until)}, which has not come yet: the store is at {now}"
            )
        return ChangePosition(until)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the changes in a task, as record batches."""
        assert isinstance(partition, RetainedChanges)
        settle()
        if partition.after.place.number >= partition.until.place.number:
            return
        with port_of(self._options) as port:
            for updates in Retained(self._options).read(port, partition):
                if updates.keys:
                    yield self._layout.batch(updates)


def read_changes(
    port: QuestionPort, subtree: str, after: ChangePosition, until: ChangePosition, store: str
) -> Iterator[Updates]:
    """Yield the updates of the records after one position up to another. An update has the revision of its record."""
    for _, updates in read_parts(port, subtree, after, until, store):
        yield from updates


def sizes_of(
    port: QuestionPort, subtree: str, after: ChangePosition, until: ChangePosition, store: str
) -> Iterator[tuple[int, Any]]:
    """Yield, for each record that has rows in the subtree, its last number and the bytes of each row, as an array."""
    sizes: list[int] = []
    for batch, parts in read_parts(port, subtree, after, until, store):
        for updates in parts:
            keys = (len(key) if key.isascii() else len(key.encode()) for key in updates.keys)
            sizes += [key + len(value or b"") for key, value in zip(keys, updates.values, strict=True)]
        if not batch.more:
            yield batch.last, np.array(sizes, np.int64)
            sizes = []


def read_parts(
    port: QuestionPort, subtree: str, after: ChangePosition, until: ChangePosition, store: str
) -> Iterator[tuple[Batch, list[Updates]]]:
    """Yield each record, or each part of a long one: its head, and its updates with the revision of the record."""
    # `parts` only tells the revision of a part's record. Each part is passed on as it comes.
    parts = Parts()
    progress = Progress(f"changes after {describe(after.number)}", "changes read")
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
            found = [_updates(segment, revision, batch.wall_ms) for segment in segments]
            yield batch, found
            progress.add(sum(len(updates.keys) for updates in found))


def _updates(segment: list[Any], revision: int, wall_ms: int) -> Updates:
    keys, values, extras = segment
    ttls = None
    if extras:
        for i in extras.get(columns.DELETES, ()):
            values[i] = None
        ttls = extras.get(columns.TTLS)
    revisions = np.full(len(keys), revision, np.int64)
    return Updates(keys, values, revisions, dict(zip(*ttls, strict=True)) if type(ttls) is list else ttls, wall_ms)


def _chosen(found: Iterator[Updates], wanted: RetainedChanges) -> Iterator[Updates]:
    """Yield the updates between the two edges. With several tasks, yield only the updates of this task's keys."""
    after, until, skipped, taken = wanted.after, wanted.until, 0, 0
    for updates in found:
        rows = len(updates.keys)
        if not rows:
            continue
        low, high, revision = 0, rows, int(updates.revisions[0])
        if after.row and revision <= after.record.number:
            low, skipped = min(rows, max(0, after.row - skipped)), skipped + rows
        if until.row and revision > until.place.number:
            high, taken = min(rows, max(0, until.row - taken)), taken + rows
        if wanted.parts > 1:
            yield updates.take([i for i in range(low, high) if part_of(updates.keys[i], wanted.parts) == wanted.part])
        elif low < high:
            yield updates if (low, high) == (0, rows) else updates.take(range(low, high))


def part_of(key: str, parts: int) -> int:
    """Return the number of the task that reads a key. One task reads all changes of a key, in their order."""
    return crc32(key.encode()) % parts
