"""Live tables: a mapping that a UDF reads from its worker's own copy, current within milliseconds.

    rates = live(["tcp://a:5556", "tcp://b:5566"], "/rates/", codec="text")

    @udf("double")
    def in_euro(amount, currency):                      # `rates` travels as two addresses and a name
        return amount / float(rates[f"/rates/EUR/{currency}"])

    def convert(batches):                               # mapInPandas, mapInArrow
        for batch in batches:
            now = rates.pin()                           # one view for the whole batch
            yield batch.assign(euro=batch.amount / batch.currency.map(lambda c: float(now[f"/rates/EUR/{c}"])))

A broadcast variable stays as it was; a live table follows the store. A live table has these costs and promises:

- **One copy a worker process.** In each Python worker, the first task that reads the table opens a `Clone` for
  (servers, subtree). All later tasks of that worker share this Clone, whatever their codec, and the Clone stays current
  between tasks. Spark keeps a worker for each core of an executor and reuses it (`spark.python.worker.reuse`, on by
  default). So a thousand tasks on four cores open four copies. With reuse off, each task opens a copy of its own.
- **Start-up**: connecting and one snapshot take some 30 ms, and about a second for each million small keys. The first
  read waits at most `timeout_s` until the copy is complete. After that time it raises a `TimeoutError` that tells the
  servers' states.
- **Consistency**: a read returns what was in the store at one moment, and a worker never goes back in time. An update
  may come between two reads, and the copies of two workers differ by milliseconds. `pin()` returns a plain dict of the
  subtree at one number, never half a record; `pin().revision` is that number. If the servers fall silent, a table keeps
  its last contents: see `state` and `staleness_s`.
- **Purity**: a UDF that reads a live table is not deterministic. Spark may run it again for a row, and the table may
  have newer values then. Mark the UDF `asNondeterministic()` if it must run only once for each row of a plan.
- **End of life**: the copy ends with the worker. Spark ends idle workers after a minute, and all of them with the
  executor. In a program of your own, `close()` ends it sooner.
- **Fork**: Spark's daemon forks the workers. A child never uses the copies of its parent; the child opens its own.

A live table only reads: publish with `format("chp")`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, NamedTuple

from chp.errors import BadInput
from chp.keys import check_subtree
from chp.numbers import Revision

from ..clientfile import ClientFile
from ..clone.clone import Clone
from ..codecs import Codec
from ..core.events import State
from ..target import FilePath, Servers, servers_of
from ..typed import codec_of

TIMEOUT_S = 30.0
# A process may have at most this many copies. Each copy costs the memory of a subtree, and a thread.
REPLICAS_MAX = 32


class Source(NamedTuple):
    """The servers or the client file of a copy, and its subtree. A live table takes only these to the workers."""

    servers: tuple[str, ...]
    client_file: str | None
    subtree: str


def live(
    servers: Servers | None = None,
    subtree: str = "",
    *,
    client_file: FilePath | None = None,
    codec: str | Codec = "raw",
    timeout_s: float = TIMEOUT_S,
) -> Live:
    """Return a live table of a subtree. In each process, the first read opens a copy.

    servers, codec   as for `Clone`; a codec that is an object travels with the table, so it must be picklable
    client_file      in place of servers: the path of a client file. Only the path travels, and each worker reads the
                     file, so the path has to be the same on all executors. The first read raises an error of the file
    timeout_s        how long a read may wait for the first sync of the copy, in seconds; then it raises `TimeoutError`

    Raises `BadInput` and `BadSubtree`.
    """
    return Live(servers, subtree, client_file=client_file, codec=codec, timeout_s=timeout_s)


class Pinned(dict[str, Any]):
    """A live table at one moment; `revision` is the number up to which it is complete."""

    def __init__(self, values: Mapping[str, Any], revision: int, resyncs: int = 0) -> None:
        super().__init__(values)
        self.revision = Revision(revision)
        # The number of snapshots so far. A server that lost its data may reach an equal number with other contents.
        self.resyncs = resyncs


class Live(Mapping[str, Any]):
    """A mapping onto this process's copy of a subtree; see the module. Make one with `live`."""

    def __init__(
        self,
        servers: Servers | None = None,
        subtree: str = "",
        *,
        client_file: FilePath | None = None,
        codec: str | Codec = "raw",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._from = _source_of(servers, client_file, check_subtree(subtree))
        self._codec, self._timeout_s = codec, timeout_s
        found = codec_of(codec)
        self._decode = None if found is None else found.decode
        self._clone: Clone | None = None
        self._pinned: Pinned | None = None
        _TABLES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._from, self._codec, self._timeout_s)

    def __hash__(self) -> int:
        return id(self)

    # -- reading

    def __getitem__(self, key: str) -> Any:
        value = self._here()[key]
        return value if self._decode is None else self._decode(value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default`."""
        value = self._here().get(key)
        if value is None:
            return default
        return value if self._decode is None else self._decode(value)

    def __contains__(self, key: object) -> bool:
        return key in self._here()

    def __len__(self) -> int:
        return len(self._here())

    def __iter__(self) -> Iterator[str]:
        return iter(self._here())

    def values(self) -> ValuesView[Any]:
        """Return the values of the view that `pin` returns now."""
        return self.pin().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the items of the view that `pin` returns now."""
        return self.pin().items()

    def pin(self) -> Pinned:
        """Return one consistent view of the table at this moment. Decode its values only if it has changed."""
        raw, revision, resyncs = self._here().pin()
        before = self._pinned
        if before is None or (before.revision, before.resyncs) != (revision, resyncs):
            decode = self._decode
            values = raw if decode is None else {key: decode(value) for key, value in raw.items()}
            before = self._pinned = Pinned(values, revision, resyncs)
        return before

    # -- the state of the copy

    @property
    def revision(self) -> int:
        """The number up to which this process's copy is complete."""
        return self._here().revision

    @property
    def state(self) -> State:
        """The state of the copy: SYNCED, or STALE while no active server is heard."""
        return self._here().state

    @property
    def staleness_s(self) -> float:
        """The seconds for which this process's copy has not been known to be current."""
        return self._here().staleness_s

    def close(self) -> None:
        """End this process's copy of the subtree, for all tables that share it; the next read opens it anew."""
        with _lock:
            clone = _replicas.pop(self._from, None)
            for table in list(_TABLES):
                if table._clone is clone:
                    table._clone = table._pinned = None
        if clone is not None:
            clone.close()

    def __repr__(self) -> str:
        where = "not opened here" if self._clone is None else repr(self._clone)
        servers, file, subtree = self._from
        return f"<live {subtree or '(everything)'} of {file or ', '.join(servers)}: {where}>"

    def _here(self) -> Clone:
        # An empty mapping is false, so compare with None.
        clone = self._clone
        return clone if clone is not None and not clone.closed else self._open()

    def _open(self) -> Clone:
        clone = _replica(self._from)
        clone.wait_until_synced(self._timeout_s)
        # The numbers of another copy may be of another store.
        self._clone, self._pinned = clone, None
        return clone


# -- this process's copies

_lock = threading.Lock()
_replicas: dict[Source, Clone] = {}
# The copies of the parent processes, from before a fork. They are kept so that the garbage collector closes none.
_parents: list[dict[Source, Clone]] = []
_TABLES: weakref.WeakSet[Live] = weakref.WeakSet()


def _source_of(servers: Servers | None, client_file: FilePath | None, subtree: str) -> Source:
    if client_file is not None and servers is None:
        return Source((), os.path.abspath(client_file), subtree)
    found = servers_of(servers, client_file, subtree)
    return Source((), found.path, subtree) if isinstance(found, ClientFile) else Source(tuple(found), None, subtree)


def _again(source: Source, codec: str | Codec, timeout_s: float) -> Live:
    servers, client_file, subtree = source
    return Live(servers or None, subtree, client_file=client_file, codec=codec, timeout_s=timeout_s)


def _replica(source: Source) -> Clone:
    with _lock:
        clone = _replicas.get(source)
        if clone is None or clone.closed:
            # The new copy takes the place of a closed one.
            if clone is None and len(_replicas) >= REPLICAS_MAX:
                raise BadInput(
                    f"{REPLICAS_MAX} live tables are open in this process; use one of a larger subtree, or close() some"
                )
            servers, file, subtree = source
            name = f"live-{os.getpid()}-{subtree.strip('/')[:40]}"
            clone = _replicas[source] = Clone(servers or None, subtree, client_file=file, name=name)
        return clone


def _after_fork_in_child() -> None:
    """Set the parent's copies aside. Do not close them, because their threads and sockets belong to the parent."""
    global _lock, _replicas
    _lock = threading.Lock()
    _parents.append(_replicas)
    _replicas = {}
    for table in list(_TABLES):
        table._clone = table._pinned = None


os.register_at_fork(after_in_child=_after_fork_in_child)
