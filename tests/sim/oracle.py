"""The oracle: the tree of histories and the state at each number, computed from the bodies of records alone.

Each record names the number that it follows. So all records that any server ever committed form a tree, and the
surviving history is one path through it. For each number the oracle keeps the map there and the operations on the path,
which it computes itself. Values name the operation that set them, so an operation can be found in any history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack

from chp.numbers import epoch_of

EPOCH, ACCESS, COMMIT = 9, 12, 14


@dataclass(slots=True)
class Node:
    """A record, and the state after it."""

    prev: int
    first: int
    last: int
    body: bytes
    by: str
    at: float
    # True if another server, a subscriber or a disk may have the record.
    public: bool = False
    values: dict[str, bytes] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    # The operations on the path up to here.
    names: frozenset[bytes] = frozenset()
    # The operations that are on the path more than once.
    twice: frozenset[bytes] = frozenset()
    # epoch -> its last number on the path
    path: dict[int, int] = field(default_factory=dict)
    writes: list[tuple[str, bytes | None]] = field(default_factory=list)
    ttls: dict[str, int] = field(default_factory=dict)
    # ("lease" or "unlease", id)
    leases: list[tuple[str, bytes]] = field(default_factory=list)
    # The keys that this record left with a lease.
    leased: set[str] = field(default_factory=set)
    # The segments of a record whose last part is still to come.
    parts: tuple[Any, ...] = ()
    # What is staged: the segments of each part of each transaction.
    staged: dict[bytes, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    revision: int = 0
    # The rules of access.
    rules: dict[str, Any] | None = None
    # The (application, version) pairs that this record counted.
    versions: list[tuple[str, int]] = field(default_factory=list)


class Wrong(AssertionError):
    """An error that a checker found."""


class Oracle:
    """The tree of records, by their last numbers."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {0: Node(0, 0, 0, b"", "", 0.0, public=True)}
        self.by_first: dict[int, Node] = {}
        # The operations that set keys with a lease.
        self.leased: set[bytes] = set()

    def add(self, body: bytes, by: str, at: float) -> Node:
        """Add a record that the server `by` appends to its journal."""
        header, *items = msgpack.unpackb(body, strict_map_key=False)
        prev, first, last = header[1:4]
        known = self.nodes.get(last)
        if known is not None:
            if known.body == body:
                return known
            if known.public:
                raise Wrong(f"number {last >> 48}.{last & 0xFFFFFFFFFFFF} is issued twice: by {known.by}, now by {by}")
        parent = self.nodes.get(prev)
        if parent is None:
            raise Wrong(f"{by} commits a record that follows on a number nobody issued")
        node = self._apply(parent, Node(prev, first, last, body, by, at), header, items)
        self.nodes[last] = node
        # A record in parts is found by its last part.
        self.by_first[node.revision] = node
        return node

    def _apply(self, parent: Node, node: Node, header: list[Any], items: list[Any]) -> Node:
        node.path = {**parent.path, epoch_of(node.last): node.last}
        node.revision = parent.revision if parent.parts else node.first
        node.rules = next(iter(header[7:] if header[0] == ACCESS else ()), None) or parent.rules
        node.staged = parent.staged
        if header[0] == COMMIT:
            items = self._named(node, items, header)
        elif header[0] not in (EPOCH, ACCESS) and header[6]:
            node.parts = (*parent.parts, *items)
            node.values, node.revisions, node.names = parent.values, parent.revisions, parent.names
            node.twice = parent.twice
            return node
        node.values, node.revisions = dict(parent.values), dict(parent.revisions)
        names: set[bytes] = set()
        for keys, values, extras in (*parent.parts, *items):
            self._segment(node, keys, values, extras or {}, names)
            self.leased.update(values if "l" in (extras or {}) else ())
        # A value may be there twice only in a history that does not survive.
        twice = names & parent.names
        node.twice = parent.twice | twice if twice else parent.twice
        node.names = parent.names | names if names else parent.names
        return node

    @staticmethod
    def _named(node: Node, items: list[Any], header: list[Any]) -> list[Any]:
        """Return the segments of a record that names staged batches."""
        transaction, application, version, parts = header[6:10]
        named: list[Any] = []
        for part, _, numbers in parts:
            found = node.staged.get(transaction, {}).get(part, ())
            if len(found) != len(numbers):
                raise Wrong(f"{node.by} commits {len(numbers)} batches of {part}, and {len(found)} are staged")
            named += found
        return [*items, *named, [[], [], {"done": [application, version, transaction]}]]

    @staticmethod
    def _segment(node: Node, keys: list[str], values: list[bytes], extras: dict[str, Any], names: set[bytes]) -> None:
        if "stage" in extras:
            # Staged updates are invisible until their commit, which repeats or names them.
            transaction, part = extras["stage"]
            rest = {name: column for name, column in extras.items() if name != "stage"}
            parts = node.staged.get(transaction, {})
            parts = {**parts, part: (*parts.get(part, ()), [keys, values, rest])}
            node.staged = {**node.staged, transaction: parts}
            return
        if ended := extras["done"][2] if "done" in extras else extras.get("abort"):
            node.staged = {name: parts for name, parts in node.staged.items() if name != ended}
        if "lease" in extras:
            node.leases.append(("lease", extras["lease"][0]))
        if "unlease" in extras:
            node.leases.append(("unlease", extras["unlease"]))
        if told := extras.get("done") or extras.get("once"):
            node.versions.append((told[0], told[1]))
        deletes = set(extras.get("d", ()))
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            if i in deletes:
                node.values.pop(key, None)
                node.revisions.pop(key, None)
                node.writes.append((key, None))
            else:
                node.values[key], node.revisions[key] = value, node.revision
                node.writes.append((key, value))
                names.add(value)
        (node.leased.update if "l" in extras else node.leased.difference_update)(keys)
        ttl = extras.get("t")
        node.ttls.update((key, ttl if type(ttl) is int else 0) for i, key in enumerate(keys) if i not in deletes)

    def on_path(self, number: int, end: int) -> bool:
        """Return True if the record that ends with `number` is part of the history that ends with `end`."""
        return number <= self.nodes[end].path.get(epoch_of(number), -1)

    def path(self, end: int) -> list[Node]:
        """Return the records of a history, oldest first."""
        out: list[Node] = []
        node = self.nodes[end]
        while node.last:
            out.append(node)
            node = self.nodes[node.prev]
        return out[::-1]
