"""The reader of a snapshot: every task reads a part of the image at one number, so all rows are of that number.

    plan      the servers keep their present number                                            (SPEC.md, section 17)
    task i    reads part i of the image at that number, in chunks with credit, as columns from end to end

A part has the keys whose hashes leave one remainder, so each server gives equal rows for a part. If the active goes
away in the middle of a part, the task asks the new active for the part again, and leaves out the keys that it has read.

The servers keep a number for ten minutes after its last use, and for a minute after all parts were read. A data frame
that is used later than that has to be made anew; `cache()` it if it is to last.

Filters are left to Spark, unless the option pushDownPredicate says that a frame is used once. Spark 4.3 plans a Python
source once for all uses of a data frame (or view), so the rows that one use filters out are missing in another. Then
`f.where(a).union(f.where(b))` would have the rows of `b` twice, and a count of `f` after a filtered use would count
only the rows of that filter. The option `subtree` belongs to the frame, and always narrows a read.
"""

import logging
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chp import columns
from chp.errors import ChpError
from chp.headers import Kthxbai, Sync
from chp.numbers import describe

from ...errors import Refused
from ...port.ask import LATER, Interrupted, QuestionPort
from ..pairs import Place, places_of, readers_of
from ..progress import Progress
from ..spark_api import EqualTo, In, StringStartsWith
from ..values.columns import Updates, layout_of, packed_column
from ..worker import errors_first, has_answered, note_answer, settle

log = logging.getLogger(__name__)
KEYS_A_TASK, TASKS_MAX = 500_000, 64
FIRST_S = 15.0
# If a server is silent for this long in the middle of an answer, another server is asked for the rest. An active that
# was asked to hand over, or that is stopped, sends nothing more.
SILENCE_S = 15.0


AGAIN = "load() the data frame again, or start the query again"


class ReadFailed(ChpError):
    """The error if the servers no longer have what the query reads."""


class ImagePartition(InputPartition):
    """A part of the image at a number. `proof` tells its history by the store and the opener of its epoch."""

    def __init__(self, number: int, proof: list[bytes], prefix: str, part: int, parts: int) -> None:
        self.number, self.proof, self.prefix, self.part, self.parts = number, proof, prefix, part, parts

    @property
    def question(self) -> dict[str, Any]:
        """The options of the question for this part."""
        where = {"image": self.number, "proof": self.proof, "store": self.proof[0]}
        return {**where, "prefix": self.prefix, "part": self.part, "parts": self.parts}


class ReadPort(QuestionPort):
    """The port of a read. It notes when a server has answered."""

    def __init__(self, servers: Sequence[str], timeout_s: float, silence_s: float) -> None:
        super().__init__(servers, timeout_s, again=AGAIN, silence_s=silence_s)
        self._named = servers

    def ask(self, subtree: str, **options: Any) -> dict[str, Any]:
        """Return the facts of a REPLY, and note that a server has answered."""
        facts = super().ask(subtree, **options)
        note_answer(self._named)
        return facts


class PlacedPart(InputPartition):
    """A part of an image, with the place whose servers have it."""

    def __init__(self, place: Place, piece: ImagePartition) -> None:
        self.place, self.piece = place, piece


def port_of(
    options: dict[str, Any],
    *,
    plans: bool = False,
    servers: Sequence[str] | None = None,
    silence_s: float | None = None,
) -> ReadPort:
    """Return the port to `servers`, or else to those that the options name for reading.

    `silence_s`, if given, bounds a silence in the middle of an answer.

    With `plans`, the port waits at most `FIRST_S` for servers that have not answered in this session. Such servers are
    more likely wrong or not started than in a failover.
    """
    servers, timeout_s = readers_of(options) if servers is None else servers, options["timeout"]
    if plans and not has_answered(servers):
        timeout_s = min(timeout_s, FIRST_S)
    return ReadPort(servers, timeout_s, timeout_s if silence_s is None else min(timeout_s, silence_s))


def plan_read(port: QuestionPort, subtree: str, prefix: str, partitions: int | None) -> list[ImagePartition]:
    """Let the servers keep their present number. Return the parts of the image at that number."""
    try:
        facts = port.ask(subtree, image=0, prefix=prefix, **({} if partitions else {"count": True}))
    except Refused as refused:
        if refused.code == "bad" and "16 bytes" in str(refused.detail):
            raise ReadFailed(f"the server plans no reads by number ({refused}); upgrade both servers first") from None
        raise
    parts = partitions or max(1, min(TASKS_MAX, -(-facts["keys"] // KEYS_A_TASK)))
    proof = [facts["store"], facts["opener"]]
    return [ImagePartition(facts["number"], proof, prefix, part, parts) for part in range(parts)]


def read_part(
    port: QuestionPort, subtree: str, piece: ImagePartition, *, packed: bool = False, timeout_s: float = 120.0
) -> Iterator[Updates]:
    """Yield the updates of a part, chunk by chunk; if `packed`, with keys and values in Arrow's form.

    If the server goes away in the middle, ask another server for the part again, and leave out the keys that were
    yielded. Raise `Interrupted` if `timeout_s` have passed without a new key.
    """
    seen, until = SeenKeys(), monotonic() + timeout_s
    while True:
        try:
            for updates in _answer(port, subtree, piece, packed=packed):
                rest = seen.without(updates)
                if len(rest.keys):
                    until = monotonic() + timeout_s
                    seen.add(rest.keys)
                    yield rest
            return
        except Interrupted as broken:
            if monotonic() > until:
                raise
            log.warning("part %d of the snapshot at %s: %s", piece.part, describe(piece.number), broken)
            seen.begin_again()


class SeenKeys:
    """The keys of a part that were yielded, in the columns in which they came. `begin_again` makes them searchable."""

    def __init__(self) -> None:
        self._columns: list[Any] = []
        self._known: pa.Array | None = None

    def add(self, keys: Any) -> None:
        """Add the keys of a chunk."""
        self._columns.append(keys)

    def begin_again(self) -> None:
        """Let `without` leave out all keys so far, because the part is read again."""
        arrays = [keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string()) for keys in self._columns]
        self._known = pa.chunked_array(arrays, pa.string()).combine_chunks()

    def without(self, updates: Updates) -> Updates:
        """Return the updates whose keys were not seen before the part was read again."""
        if self._known is None:
            return updates
        keys = updates.keys if isinstance(updates.keys, pa.Array) else pa.array(updates.keys, pa.string())
        fresh = pc.invert(pc.is_in(keys, value_set=self._known)).to_numpy(zero_copy_only=False)
        return updates if fresh.all() else updates.take(np.flatnonzero(fresh).tolist())


def _answer(port: QuestionPort, subtree: str, piece: ImagePartition, *, packed: bool) -> Iterator[Updates]:
    at = describe(piece.number)
    try:
        for header, items in port.stream(subtree, **piece.question, packed=packed):
            if isinstance(header, Sync):
                yield from map(updates_of, items)
            elif isinstance(header, Kthxbai) and header.number != piece.number:
                raise ReadFailed(f"the servers hold the snapshot at {describe(header.number)}, not at {at}; read again")
    except Refused as refused:
        if refused.code in LATER:
            raise Interrupted(f"{refused.text} in the middle of an answer; {AGAIN}") from None
        raise ReadFailed(
            f"the servers can't give the snapshot at {at}: {refused.detail}. A data frame keeps to its snapshot, so "
            "load() it again and run that, and cache() what is to last; a stream's query is started again"
        ) from None


def updates_of(segment: list[Any]) -> Updates:
    """Return the updates of a segment of a SYNC."""
    keys, values, extras = segment
    runs = extras[columns.REVISIONS]
    revisions = np.repeat(np.array([run[0] for run in runs], np.int64), [run[1] for run in runs])
    ttls = extras.get(columns.TTLS)
    if type(keys) is bytes:
        keys = packed_column(keys, extras[columns.KEY_BYTES], pa.string())
        values = packed_column(values, extras[columns.VALUE_BYTES], pa.binary())
    return Updates(keys, values, revisions, dict(zip(*ttls, strict=True)) if type(ttls) is list else ttls)


@errors_first
class BatchReader(DataSourceReader):
    """The reader of `spark.read.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._layout = layout_of(options, schema)
        self._prefix: str = options["subtree"]

    def narrow(self, prefixes: list[str]) -> None:
        """Narrow the read to the keys that begin with all of these prefixes."""
        for prefix in prefixes:
            if prefix.startswith(self._prefix):
                self._prefix = prefix

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks. All of them read at one number, or with several mounts at one number for each mount."""
        settle()
        found: list[InputPartition] = []
        for place in places_of(self._options, self._prefix):
            with port_of(self._options, plans=True, servers=place.servers) as port:
                pieces = plan_read(port, place.subtree, place.prefix, self._options["partitions"])
            found += [PlacedPart(place, piece) for piece in pieces]
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a part in a task, as record batches."""
        assert isinstance(partition, PlacedPart)
        settle()
        place, piece, timeout_s = partition.place, partition.piece, self._options["timeout"]
        progress = Progress(f"part {piece.part}", "keys read")
        with port_of(self._options, servers=place.servers, silence_s=SILENCE_S) as port:
            for updates in read_part(port, place.subtree, piece, packed=True, timeout_s=timeout_s):
                yield self._layout.batch(place.own(updates))
                progress.add(len(updates.keys))


@errors_first
class NarrowedReader(BatchReader):
    """A reader with pushDownPredicate: it reads no keys whose beginning the filters rule out."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Narrow the read, and return all filters for Spark to apply again: a prefix says less than a filter."""
        self.narrow([prefix for each in filters if (prefix := key_prefix(each)) is not None])
        return filters


def key_prefix(condition: Any) -> str | None:
    """Return the prefix of all keys that meet the condition; None if the condition implies none."""
    if getattr(condition, "attribute", None) != ("key",):
        return None
    if isinstance(condition, EqualTo | StringStartsWith):
        return str(condition.value) if isinstance(condition.value, str) else None
    if isinstance(condition, In):
        return _common([str(value) for value in condition.value])
    return None


def _common(texts: list[str]) -> str:
    """Return the common prefix of all texts, which is that of the first and the last in order."""
    low, high = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
