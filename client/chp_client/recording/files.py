"""The files of a recording: Parquet in a directory, which recorders write, and replays and Spark read.

    DIR/00001.000000000000042-00001.000000000090017.parquet     the changes after 1.42, up to 1.90017
    DIR/00001.000000000090017-00001.000000000180023.parquet     the next file begins where this one ends
    DIR/_writing.part  _position  _lock                         the recorder's own; Spark leaves out names with a _

    key, value      text; binary, null for a delete
    operation       set | delete | snapshot (the key as it was when the recording began) | gap (see below)
    epoch, sequence the number of the row's record: rows that share it were committed together, and lie together
    revision        the revision that the key got (epoch in the upper 16 bits)
    timestamp       the active's clock, ms, UTC
    ttl             seconds, null for none

- A file appears by rename, complete and synced, and never changes. Its rows are in the store's order. So it can be read
  at any time, and Spark reads the directory as plain Parquet: `spark.read.parquet(DIR)`.
- A file's name tells which of the store's numbers the file covers. A recorder goes on at the end of the last file.
- A file's metadata has its format, store and subtree, and the server that opened the epoch of its last number.
  `_position` has a number, its store and subtree, the start of the next file, and the server that opened its epoch.

Needs pyarrow and numpy: pip install 'chp-clone[parquet]'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from chp.errors import BadInput
from chp.numbers import epoch_of, number, sequence_of

from ..port.feed import FeedRecord


def need_parquet() -> tuple[Any, Any, Any]:
    """Return numpy, pyarrow and its Parquet part; an `ImportError` names the extra that brings them."""
    try:
        import numpy
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{error}; recordings need the extra: pip install 'chp-clone[parquet]'") from error
    return numpy, pyarrow, pyarrow.parquet


np, pa, pq = need_parquet()

SET, DELETE, SNAPSHOT, GAP = range(4)
OPERATIONS = ("set", "delete", "snapshot", "gap")
# The number of the format, which is in each file's metadata. Files of 0.1 have this format, but no number.
FORMAT = 1
PART, POSITION, LOCK = "_writing.part", "_position", "_lock"
SCHEMA = pa.schema(
    [
        ("key", pa.string()), ("value", pa.binary()), ("operation", pa.string()),
        ("epoch", pa.int32()), ("sequence", pa.int64()), ("revision", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")), ("ttl", pa.float64()),
    ]
)  # fmt: skip
_NAME = re.compile(r"(\d{5})\.(\d{15})-(\d{5})\.(\d{15})\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class RecordingFile:
    """A finished file with the rows after the number `start`, up to `until`."""

    until: int
    start: int
    path: Path


def files(directory: Path) -> list[RecordingFile]:
    """Return the finished files, in the store's order."""
    found = []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            a, b, c, d = map(int, match.groups())
            found.append(RecordingFile(number(c, d), number(a, b), path))
    return sorted(found)


@contextmanager
def readable(path: Path, otherwise: str) -> Iterator[None]:
    """Raise `BadInput` for a file that can't be read; `otherwise` is a remedy for an operator without a backup."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} can't be read ({error}); take it from a backup, or {otherwise}") from None


def opened(path: Path) -> Any:
    """Return a finished file; raise `BadInput` for a format that this program can't read."""
    file = pq.ParquetFile(path)
    found = (file.schema_arrow.metadata or {}).get(b"chp.format", b"1").decode(errors="replace")
    if found != str(FORMAT):
        text = f"{path} is a recording of format {found}, and this program reads {FORMAT}"
        raise BadInput(f"{text}; use the release that wrote it, or a later one")
    return file


def file_name(start: int, until: int) -> str:
    """Return the name of the file with the rows after `start`, up to `until`."""
    return f"{_digits(start)}-{_digits(until)}.parquet"


def _digits(n: int) -> str:
    return f"{epoch_of(n):05d}.{sequence_of(n):015d}"


def batch_of(added: list[tuple[FeedRecord, int, list[int] | None]]) -> Any:
    """Return records as one Arrow batch; numpy repeats what the rows of a record share."""
    records = [record for record, _, _ in added]
    counts = [len(record.keys) for record in records]
    values: list[bytes | None] = list(chain.from_iterable(record.values for record in records))
    operations = np.repeat(np.array([operation for _, operation, _ in added], np.int8), counts)
    ttls = np.full(len(values), np.nan)
    revisions = np.repeat(np.array([record.first for record in records], np.int64), counts)
    start = 0
    for (record, operation, own), count in zip(added, counts, strict=True):
        for i in record.deletes:
            values[start + i] = None
            operations[start + i] = DELETE if operation == SET else operation
        for i, ms in record.ttls_ms.items():
            ttls[start + i] = ms / 1000
        if own is not None:
            revisions[start : start + count] = own
        start += count
    numbers = np.array([record.last for record in records], np.int64)
    walls = np.array([record.wall_ms for record in records], np.int64)
    return pa.record_batch(
        [
            pa.array(list(chain.from_iterable(record.keys for record in records)), pa.string()),
            pa.array(values, pa.binary()),
            pa.DictionaryArray.from_arrays(operations, list(OPERATIONS)).cast(pa.string()),
            pa.array(np.repeat(numbers >> 48, counts).astype(np.int32)),
            pa.array(np.repeat(numbers & ((1 << 48) - 1), counts)),
            pa.array(revisions),
            pa.array(np.repeat(walls, counts)).cast(SCHEMA.field("timestamp").type),
            pa.array(ttls, from_pandas=True),  # nan is null
        ],
        schema=SCHEMA,
    )
