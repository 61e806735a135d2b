"""The changes that the servers retain: where they begin and end, by number or by time, and reading them.

    spark.read.format("chp").option("startingOffsets", "earliest")                         all that is retained
    .option("startingOffsets", "1.42").option("endingRevision", "1.99")                    after one, up to another
    .option("startingTimestamp", "2026-01-05").option("endingTimestamp", "2026-01-06")     of a day

A batch read of changes is one task, as their order matters; its end is fixed when it is planned, so a frame that is
used twice has the same rows. A stream (stream.py) reads the same way, from offset to offset. What has gone meanwhile is
`DataLoss`, unless the option failOnDataLoss says to go on with the rest.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from ..values.columns import Layout, Updates
from ..worker import errors_first, settle
from .snapshot import ReadFailed, port_of

log = logging.getLogger(__name__)
Facts = dict[str, Any]
Offset = dict[str, Any]
NOT_RETAINED = "are not retained any more, or are of a history that another server's has replaced"


class DataLoss(ReadFailed):
    """Changes that the query has not seen are not there any more."""


class ChangePosition(NamedTuple):
    """A number, and who opened its epoch; nobody for 0, and where that is not known."""

    number: int
    opener: bytes = b""


START = ChangePosition(0)


def offset_of(at: ChangePosition, store: str) -> Offset:
    """A place as an offset."""
    return {"epoch": epoch_of(at.number), "sequence": sequence_of(at.number), "store": store, "opener": at.opener.hex()}


def place_of(offset: Offset) -> ChangePosition:
    """An offset as a place; those of a user, and of older checkpoints, do not tell the opener."""
    return ChangePosition(number(offset["epoch"], offset["sequence"]), bytes.fromhex(offset.get("opener", "")))


def newest(facts: Facts) -> ChangePosition:
    """The end of what there is."""
    return ChangePosition(facts["newest"], facts["opener"])


def oldest(facts: Facts) -> ChangePosition:
    """Where what is retained begins."""
    return ChangePosition(facts["oldest"], facts["oldest_opener"])


def reached(facts: Facts) -> ChangePosition:
    """How far a probe reaches."""
    return ChangePosition(facts["number"], facts["opener"])


def proof_of(place: ChangePosition, store: str) -> dict[str, Any]:
    """What proves it, as an option of a question."""
    return {"proof": [bytes.fromhex(store), place.opener]} if place.opener else {}


class RetainedChanges(InputPartition):
    """The records of a store after one number up to another."""

    def __init__(self, after: ChangePosition, until: ChangePosition, store: str) -> None:
        self.after, self.until, self.store = after, until, store


class Retained:
    """What the servers retain, as one reader's options want it; the port is opened when it is first asked."""

    def __init__(self, options: dict[str, Any], *, plans: bool = False) -> None:
        self._options, self._plans = options, plans
        self._port: QuestionPort | None = None

    @property
    def port(self) -> QuestionPort:
        """What asks the servers."""
        if self._port is None:
            self._port = port_of(self._options, plans=self._plans)
        return self._port

    def probe(self, after: ChangePosition = START, most: int = 0, store: str = "", at: int = 0) -> Facts:
        """How far the changes after a place reach (SPEC.md, section 17.4)."""
        meant = {"from": after.number, "feed": True, "probe": most, **proof_of(after, store)}
        return self.port.ask(self._options["subtree"], **meant, **({"at": at} if at else {}))

    def lost(self, what: str, facts: Facts) -> ChangePosition:
        """Where to go on, with a warning; raises `DataLoss` unless the option allows that."""
        if self._options["failOnDataLoss"]:
            raise DataLoss(
                f"{what}. Start with a new checkpoint (startingOffsets=snapshot loses nothing still held), or go on "
                "with what there is: failOnDataLoss=false. Servers keep more with --retain-bytes and --retain-s"
            )
        log.warning("%s; going on with the oldest changes there are", what)
        return oldest(facts)

    def before(self, name: str) -> tuple[ChangePosition, Facts]:
        """The place before the first change that is not older than the moment of the option `name`."""
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
        """The changes of a partition; without those that have gone, if the option allows that."""
        subtree = self._options["subtree"]
        try:
            yield from read_changes(port, subtree, wanted.after, wanted.until, wanted.store)
        except Refused as refused:
            from_here = self._oldest(refused, wanted)
            if from_here < wanted.until.number:
                yield from read_changes(port, subtree, ChangePosition(from_here), wanted.until, wanted.store)

    def _oldest(self, refused: Refused, wanted: RetainedChanges) -> int:
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

    def close(self) -> None:
        """Close the port."""
        if self._port is not None:
            self._port.close()
            self._port = None


@errors_first
class ChangesReader(DataSourceReader):
    """`spark.read.format("chp")` with a start: the changes from there to now, or to the end that is given."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._layout = Layout(schema, options["codec"], options["mode"])

    def partitions(self) -> list[InputPartition]:
        """When the query is planned: one task, with its two ends."""
        settle()
        there = Retained(self._options, plans=True)
        try:
            after, facts = self._start(there)
            until = self._end(there, facts)
        finally:
            there.close()
        return [
            RetainedChanges(after, until, facts["store"].hex())
        ]  # one also if nothing is between: Spark reads None of none

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
        """In a task."""
        assert isinstance(partition, RetainedChanges)
        settle()
        if partition.after.number >= partition.until.number:
            return
        with port_of(self._options) as port:
            for updates in Retained(self._options).read(port, partition):
                if updates.keys:
                    yield self._layout.batch(updates)


def read_changes(
    port: QuestionPort, subtree: str, after: ChangePosition, until: ChangePosition, store: str
) -> Iterator[Updates]:
    """The updates of the records after one place up to another; those of one record have its revision."""
    parts = Parts()  # each is passed on as it comes, with its record's revision
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
            for segment in segments:
                yield (updates := _updates(segment, revision, batch.wall_ms))
                progress.add(len(updates.keys))


def _updates(segment: list[Any], revision: int, wall_ms: int) -> Updates:
    keys, values, extras = segment
    ttls = None
    if extras:
        for i in extras.get(columns.DELETES, ()):
            values[i] = None
        ttls = extras.get(columns.TTLS)
    revisions = np.full(len(keys), revision, np.int64)
    return Updates(keys, values, revisions, dict(zip(*ttls, strict=True)) if type(ttls) is list else ttls, wall_ms)
