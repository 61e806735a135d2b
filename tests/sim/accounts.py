"""The fate of each acknowledged update: it is in the surviving history, or a server's file tells what became of it.

A set, a conditional set, a delete, a commit or a lease is acknowledged at a revision. At the end its record is usually
in the surviving history. Otherwise a server has discarded the record as part of a suffix. Then a file of that server
has a line for each key, with this update or a later one of the suffix. The line has one of three outcomes:

    replayed   The update was done again. Its value is in the surviving history, unless the server ended after it had
               written the file.
    already    The surviving history has the value, which the client sent again.
    conflict   The surviving history does not have the value, and an operator learns it from the file.

A server whose log does not reach back to the split writes a file with `complete` false. Such a file names only the keys
that the server still held. It does not name keys that were deleted since, nor leases that were opened and ended. An
expiry is not a client's update, so it is never replayed over a living key. Under an arbiter no acknowledged update is
ever discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chp.numbers import describe
from chp_server.core.peer.suffix import CONFLICT, REPLAYED

from .oracle import Node, Oracle, Wrong

if TYPE_CHECKING:
    from chp_server.core.updates.turn import Save

    from .clients import Op
    from .servers import ServerNode
    from .world import World

DURABILITY = ("applied", "journaled", "replicated")
REPLICATED = 2
# Kinds of operations that repeat a version which another operation counted first.
REPEATS = ("retx", "reonce")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, with the key, its update and the outcome."""

    key: str
    value: bytes | None
    number: int
    outcome: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that a server wrote when it discarded a suffix that ends with `end`."""

    node: ServerNode
    starts: int
    end: int
    lines: tuple[Line, ...]
    # True if the server's log reached back to the split.
    complete: bool

    @property
    def died(self) -> bool:
        """True if the server has ended since it wrote the file, so its replay may be unfinished."""
        return self.node.starts != self.starts


class Accounts:
    """The files of a run, and the check at its end."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self._world, self._oracle = world, oracle
        self._files: list[File] = []

    def saved(self, node: ServerNode, save: Save, end: int, *, complete: bool) -> None:
        """Note a file that a server writes. A file about late updates belongs to the suffix of its previous file."""
        if save.name.startswith("suffix-late"):
            end = next((file.end for file in reversed(self._files) if file.node is node), end)
        lines = tuple(Line(u.key, u.value, u.number, u.outcome) for u in save.updates)
        self._files.append(File(node, node.starts, end, lines, complete))
        for line in lines:
            self._no_end_of_time(node, line)

    def _no_end_of_time(self, node: ServerNode, line: Line) -> None:
        """Check that a delete that is to be replayed was a client's, and not an expiry."""
        if line.value is None and line.outcome == REPLAYED and not self._was_deleted(line.key):
            raise Wrong(f"{line.key} ended by its time at {node.name}, which wants that done again")

    def _was_deleted(self, key: str) -> bool:
        ops = [op for client in self._world.clients for op in client.ops]
        return any(op.kind == "unlease" or (op.kind == "del" and key in op.keys) for op in ops)

    @property
    def complete(self) -> bool:
        """True if the log of each server that discarded a suffix reached back to the split."""
        return all(file.complete for file in self._files)

    # -- at the end

    def check(self, end: int) -> None:
        """Check every acknowledgement against the surviving history and the files."""
        for client in self._world.clients:
            for op in client.ops:
                if op.acked and op.result is not None and op.result[2] > 0:
                    self._accounted_for(op, end)

    def _accounted_for(self, op: Op, end: int) -> None:
        assert op.result is not None
        _, revision, durability = op.result
        record = self._oracle.by_first.get(revision)
        disasters = self._world.disasters
        if disasters and durability != REPLICATED and (record is None or record.at <= disasters[-1]):
            # An update that was not replicated may be lost with its disk.
            return
        if record is None or not _holds(record, op):
            # Another operation committed the same version before.
            if op.kind in REPEATS:
                return
            raise Wrong(f"{op.name} was acknowledged as {describe(revision)}, a record that does not hold it")
        if self._oracle.on_path(record.last, end):
            return
        if op.kind in REPEATS and all(value != op.value for _, value in record.writes):
            # The version was committed before. The files tell of the first record of that version.
            return
        how = DURABILITY[durability]
        if self._world.arbiter is not None:
            raise Wrong(f"{op.name} was acknowledged ({how}) under an arbiter, and is lost")
        if durability == REPLICATED and op.keys and op.kind != "del" and not self._in_history(op.value, end):
            raise Wrong(f"{op.name} was acknowledged ({how}), and is lost")
        for key in op.keys:
            self._key_accounted_for(op, key, record, end, how)
        if op.lease:
            self._lease_known(op, record, end)

    def _key_accounted_for(self, op: Op, key: str, record: Node, end: int, how: str) -> None:
        line, file = self._last_line(key, record)
        if line is None or file is None:
            if self._had_gone(key, record):
                return
            raise Wrong(f"{op.name} was acknowledged ({how}), and is lost: no account tells of {key}")
        if line.outcome == CONFLICT:
            return
        if not self._is_there(line, file, end) and not self._told_elsewhere(line, file):
            raise Wrong(f"{op.name} was acknowledged ({how}), and is lost: the account says {key} is {line.outcome}")

    def _had_gone(self, key: str, record: Node) -> bool:
        """Return True if a server could not know of the update: its log was too short and the key was gone."""
        files = [file for file in self._files if self._oracle.on_path(record.last, file.end)]
        return any(not file.complete and key not in self._oracle.nodes[file.end].values for file in files)

    def _last_line(self, key: str, record: Node) -> tuple[Line | None, File | None]:
        """Return the latest line about a key from the files whose suffix holds a record."""
        found: tuple[Line | None, File | None] = None, None
        for file in self._files:
            if not self._oracle.on_path(record.last, file.end):
                continue
            for line in file.lines:
                if line.key == key and line.number >= max(record.revision, found[0].number if found[0] else 0):
                    found = line, file
        return found

    def _is_there(self, line: Line, file: File, end: int) -> bool:
        if line.outcome == REPLAYED and file.died:
            return True
        if line.value is not None:
            return self._in_history(line.value, end)
        if line.key not in self._oracle.nodes[end].values:
            return True
        # A delete of an absent key leaves no trace.
        branch = self._branch(file.end, end)
        return any((line.key, None) in node.writes or line.key not in node.values for node in branch)

    def _in_history(self, value: bytes, end: int) -> bool:
        return value in self._oracle.nodes[end].names

    def _told_elsewhere(self, line: Line, file: File) -> bool:
        """Return True if the update was replayed, and that replay was discarded in turn."""
        return any(
            other.key == line.key and other.value == line.value and (other.outcome == CONFLICT or at.died)
            for at in self._files
            if at is not file
            for other in at.lines
        )

    def _branch(self, parted: int, end: int) -> Iterator[Node]:
        """Return the records of the surviving history that the discarded history did not have."""
        return (node for node in self._oracle.path(end) if not self._oracle.on_path(node.last, parted))

    def _lease_known(self, op: Op, record: Node, end: int) -> None:
        """Check that the surviving history knows a lease whose record was discarded."""
        files = [file for file in self._files if self._oracle.on_path(record.last, file.end)]
        if any(file.died or not file.complete for file in files):
            return
        said = [word for node in self._branch(record.last, end) for word, lease in node.leases if lease == op.lease]
        if op.kind == "refresh" and not said and not self._was_ended(op.lease, record):
            raise Wrong(f"{op.name} was acknowledged, and is lost: nobody knows lease {op.lease!r}")
        active = next(node for node in self._world.servers if node.core.active)
        if op.kind == "unlease" and not said and op.lease in active.core.state.leases:
            raise Wrong(f"{op.name} was acknowledged, and is lost: lease {op.lease!r} goes on")

    def _was_ended(self, lease: bytes, record: Node) -> bool:
        """Return True if the lease ended in the discarded history, by its holder or by expiry."""
        ops = [op for client in self._world.clients for op in client.ops]
        parted = [file.end for file in self._files if self._oracle.on_path(record.last, file.end)]
        return any(op.kind == "unlease" and op.lease == lease and op.acked for op in ops) or any(
            ("unlease", lease) in node.leases for end in parted for node in self._oracle.path(end)
        )


def _holds(record: Node, op: Op) -> bool:
    """Return True if a record holds the effect of an operation."""
    if op.lease:
        return any(lease == op.lease for _, lease in record.leases)
    if op.kind == "del":
        # A delete of an absent key has no effect.
        return all((key, None) in record.writes or key not in record.values for key in op.keys)
    return op.value in record.names
