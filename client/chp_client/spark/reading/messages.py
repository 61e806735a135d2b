"""The readers of a topic, as a batch or as a stream. Any number of tasks read the messages between two offsets.

    spark.read.format("chp").option("topic", "orders")                    all that is kept
    .option("startingOffsets", "17").option("endingOffsets", "4711")      from one up to another, which is left out
    spark.readStream.format("chp").option("topic", "orders")              all that is kept, then what comes

    offset   {"topic": "orders", "offset": 4711, "made": "9f...e0.1"}     of the next message

Offsets are dense, so the two ends of a batch tell its number of messages, and a limit of messages holds exactly. `made`
tells a topic from another topic that was made under the same name. Messages that are no longer kept, or never were in
this topic, are a `DataLoss` error, unless the option failOnDataLoss says to go on with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from chp.batch import Segment
from chp.errors import ChpError

from ...errors import NoSuchGroup, NoSuchTopic, Refused
from ...topics.groups import begin, naming
from ...topics.reader import MessageBatch, ReadPosition, batches
from .. import staging
from ..options import BadOption
from ..pairs import readers_of
from ..progress import Progress
from ..spark_api import ADMISSION, ReadLimit, SupportsTriggerAvailableNow
from ..values.columns import layout_of
from ..values.messages import MAKE, put_together
from ..worker import errors_first, settle
from .admission import Admission
from .changes import DataLoss
from .snapshot import port_of

log = logging.getLogger(__name__)
MESSAGES_A_TASK, TASKS_MAX = 500_000, 64
Offset = dict[str, Any]


class OffsetRange(InputPartition):
    """A task's messages: from one offset up to another, which is left out."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


class Source:
    """The topic of one reader, as its options say. The driver and the tasks use it."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self.options, self.name = options, str(options["topic"])
        self._layout = layout_of(options, schema, MAKE)

    def facts(self, *, plans: bool = False) -> dict[str, Any]:
        """Return what the servers tell of the topic; `port_of` explains `plans`."""
        with port_of(self.options, plans=plans) as port:
            try:
                return port.ask("", topic=self.name, facts=True)
            except Refused as refused:
                if refused.code != "topic":
                    raise
                said = f"there is no topic {self.name!r}; it is made by its first message, or by `chp topic create`"
                raise NoSuchTopic(said, "topic", self.name, refused.server) from None

    def start(self, facts: dict[str, Any]) -> int:
        """Return the offset of the first message to read, by startingOffsets; by default the oldest kept."""
        start = self.options["startingOffsets"]
        if type(start) is int:
            return self.kept(start, facts) if start <= facts["next"] else self._beyond("startingOffsets", start, facts)
        return int(facts["first" if (start or "earliest") == "earliest" else "next"])

    def end(self, facts: dict[str, Any]) -> int:
        """Return the offset at which the read ends, by endingOffsets. The default is the end of the topic."""
        end = self.options["endingOffsets"]
        if end is None:
            return int(facts["next"])
        return end if end <= facts["next"] else self._beyond("endingOffsets", end, facts)

    def _beyond(self, option: str, offset: int, facts: dict[str, Any]) -> int:
        said = f"option {option} is {offset}, which has not come yet: the next message of topic {self.name} is"
        raise BadOption(f"{said} {facts['next']}")

    def kept(self, offset: int, facts: dict[str, Any]) -> int:
        """Return the offset if its message is kept. Else report the loss, and return the first offset that is kept."""
        if offset >= facts["first"]:
            return offset
        self.lost(f"the messages {offset} to {facts['first'] - 1} of topic {self.name} are kept no more")
        return int(facts["first"])

    def lost(self, what: str) -> None:
        """Log a warning about lost messages. Raise `DataLoss` if failOnDataLoss is true."""
        if self.options["failOnDataLoss"]:
            raise DataLoss(
                f"{what}. Start with a new checkpoint, or go on with what there is: failOnDataLoss=false. How much a "
                "topic keeps is said when it is made (chp topic create --keep)"
            )
        log.warning("%s; going on with what there is", what)

    def fitting(self, first: int, end: int, most: int) -> int:
        """Return the end of the messages from `first` on that have `most` bytes or fewer; take at least one message."""
        at, size = first, 0
        with closing(self._batches(OffsetRange(first, end))) as found:
            for batch in found:
                keys = [0 if key is None else len(key.encode()) for key in batch.keys]
                for offset, key, value in zip(batch.offsets, keys, batch.values, strict=True):
                    size += key + len(value)
                    if size > most and at > first:
                        return at
                    at = offset + 1
        return max(at, min(end, first + 1))

    def move_group(self, offset: int) -> None:
        """Move the query's group to an offset. Make the group if it does not exist."""
        group, timeout_s = str(self.options["group"]), self.options["timeout"]
        writer = staging.writer_of(self.options["servers"])

        def put(**again: bool) -> None:
            extras = begin(self.name, group, offset, **again)
            with naming(self.name, group):
                writer.put_encoded(Segment([], [], extras).encode(), timeout_s).wait(timeout_s)

        try:
            put(again=True)
        except NoSuchGroup:
            put()

    def ranges(self, first: int, end: int) -> list[InputPartition]:
        """Return even ranges of offsets for the tasks, as many as the option partitions says; at least one."""
        wanted = self.options["partitions"] or min(TASKS_MAX, -(-(end - first) // MESSAGES_A_TASK))
        tasks = max(1, min(wanted, end - first))
        edges = [first + (end - first) * i // tasks for i in range(tasks + 1)]
        return [OffsetRange(low, high) for low, high in pairwise(edges)]

    def read(self, piece: InputPartition) -> Iterator[Any]:
        """Yield a task's messages as record batches."""
        assert isinstance(piece, OffsetRange)
        settle()
        if piece.first >= piece.end:
            return
        progress = Progress(f"messages {piece.first} to {piece.end - 1} of {self.name}", "messages read")
        for delivered in put_together(self.name, self._batches(piece)):
            yield self._layout.batch(delivered)
            progress.add(len(delivered.values))

    def _batches(self, piece: OffsetRange) -> Generator[MessageBatch, None, None]:
        place, servers = ReadPosition(piece.first, piece.end), readers_of(self.options)
        for batch in batches(servers, self.name, place, None, wait=False, patience_s=self.options["timeout"]):
            if batch is not None:
                self._look(batch.missed, batch.offset)
                yield batch
        self._look(place.missed, min(place.offset, piece.end))
        if place.offset < piece.end:
            self.lost(f"topic {self.name} ends with {place.offset - 1}: another was made under its name")

    def _look(self, missed: int, before: int) -> None:
        if missed:
            self.lost(f"{missed} messages of topic {self.name} before {before} are kept no more")


@errors_first
class MessagesReader(DataSourceReader):
    """The reader of `spark.read.format("chp")` for a topic."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._source = Source(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, and fix both ends."""
        settle()
        facts = self._source.facts(plans=True)
        first, end = self._source.start(facts), self._source.end(facts)
        return self._source.ranges(first, max(first, end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's messages as record batches."""
        yield from self._source.read(partition)


@errors_first
class MessagesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("chp")` for a topic."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._source = Source(options, schema)
        self._admission = Admission(options)
        self._ceiling: int | None = None
        # The offset to which this reader has moved the query's group; -1 before the first move.
        self._moved = -1
        self._lag: Offset | None = None

    def _offset(self, offset: int, facts: dict[str, Any], **more: int) -> Offset:
        return {"topic": self._source.name, "offset": offset, "made": facts["made"], **more}

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query starts."""
        facts = self._source.facts()
        start = self._source.start(facts)
        if self._source.options["group"] is not None:
            self._source.move_group(start)
            self._moved = start
        return self._offset(start, facts)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits of the stream's options."""
        return self._admission.read_limit

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the end of the next batch. Spark before 4.2 passes no start, and the end is the topic's end."""
        facts = self._source.facts()
        if start is None:
            return self._offset(facts["next"], facts)
        first, end = self._start(start, facts), int(facts["next"])
        # Spark calls this when the batch before `start` is done, also after the last batch of the trigger availableNow.
        self._follow(first)
        if self._ceiling is not None:
            end = max(first, min(end, self._ceiling))
        if self._admission.holds(limit):
            end = self._limited(first, end)
        self._lag = self._offset(facts["next"], facts, behind=facts["next"] - end)
        return self._offset(end, facts)

    def _limited(self, first: int, end: int) -> int:
        """Return the end of a batch that begins at `first`, by the limits. The topic has messages up to `end`."""
        admission = self._admission
        if self._ceiling is None and admission.waits(end - first):
            return first
        end = min(end, *(first + most for most in (admission.offsets, admission.rows) if most is not None), end)
        return end if admission.bytes is None else self._source.fitting(first, end, admission.bytes)

    def _start(self, start: Offset, facts: dict[str, Any]) -> int:
        """Return the offset of the first message after a checkpoint's offset. Report lost messages."""
        name = self._source.name
        if "topic" not in start:
            raise BadOption(f"the checkpoint is of keys, and the option topic is {name}; give each query its own")
        if start["topic"] != name:
            raise BadOption(f"the checkpoint is of topic {start['topic']}, not {name}; give each query its own")
        if start["made"] != facts["made"] or start["offset"] > facts["next"]:
            self._source.lost(f"the checkpoint is of another topic {name}, which was removed, or is in another store")
            return int(facts["first"])
        return self._source.kept(start["offset"], facts)

    def reportLatestOffset(self) -> Offset | None:
        """Return, for `query.lastProgress`, the topic's end at the last plan; `behind` counts the messages left."""
        return self._lag

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present end of the topic. The batches of this trigger end there."""
        self._ceiling = int(self._source.facts()["next"])

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks of a batch."""
        if not ADMISSION:
            # Report lost messages here. Newer versions of Spark pass the start to `latestOffset`, which reports them.
            self._start(start, self._source.facts())
        first = start["offset"] if start["made"] == end["made"] else 0
        return self._source.ranges(first, end["offset"]) if first < end["offset"] else []

    def commit(self, end: Offset) -> None:
        """Move the query's group, if it has one. Else only the topic's settings say which messages are kept."""
        self._follow(end["offset"])

    def _follow(self, offset: int) -> None:
        """Move the query's group, if it has one, to the first message that it has not taken."""
        group = self._source.options["group"]
        if group is None or offset <= self._moved:
            return
        try:
            self._source.move_group(offset)
            self._moved = offset
        except ChpError as error:
            # The query does not need the group, because it has its checkpoint. The next batch moves the group.
            log.warning("group %s stays where it is: %s", group, error)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's messages as record batches."""
        yield from self._source.read(partition)
