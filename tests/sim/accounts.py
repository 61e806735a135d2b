"""What became of every acknowledged update: it is in the surviving history, or the server that parted with it tells.

A set, a conditional set, a delete, a commit or a lease was acknowledged (journaled or replicated) at a revision. At the
end its record is on the surviving path, and all is well. Or a server has parted with it; then a file of that server
names each of its keys, with this update or one after it that stood for the key when the histories parted, and

    replayed   it was set again: its value is in the surviving history, or its server died first and left the file
    already    the history that survived has its value, from its client
    conflict   it is not there, and whoever reads the file knows

Where a server's log no longer reached back (`complete` is false) it knows only what it held: not what had gone again,
nor which leases were opened and ended.
What ended by its time is no update of anybody: it is never replayed over what lives. Under an arbiter nothing that was
acknowledged is ever parted with.
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
REPEATS = ("retx", "reonce")  # of a version that another operation counted first


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, as it was written."""

    key: str
    value: bytes | None
    number: int
    outcome: str


@dataclass(frozen=True, slots=True)
class File:
    """What a server wrote when it parted with the records up to `end`."""

    node: ServerNode
    starts: int
    end: int
    lines: tuple[Line, ...]
    complete: bool  # the log reached back to where the histories parted

    @property
    def died(self) -> bool:
        """Whether the server that wrote it has ended since, so that it may not have handed over what it meant to."""
        return self.node.starts != self.starts


class Accounts:
    """All files of a run, and the check at its end."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self._world, self._oracle = world, oracle
        self._files: list[File] = []

    def saved(self, node: ServerNode, save: Save, end: int, *, complete: bool) -> None:
        """A server writes a file; one about what came late belongs to the parting before."""
        if save.name.startswith("suffix-late"):
            end = next((file.end for file in reversed(self._files) if file.node is node), end)
        lines = tuple(Line(u.key, u.value, u.number, u.outcome) for u in save.updates)
        self._files.append(File(node, node.starts, end, lines, complete))
        for line in lines:
            self._no_end_of_time(node, line)

    def _no_end_of_time(self, node: ServerNode, line: Line) -> None:
        """A delete that is to be done again was asked for by somebody."""
        if line.value is None and line.outcome == REPLAYED and not self._was_deleted(line.key):
            raise Wrong(f"{line.key} ended by its time at {node.name}, which wants that done again")

    def _was_deleted(self, key: str) -> bool:
        ops = [op for client in self._world.clients for op in client.ops]
        return any(op.kind == "unlease" or (op.kind == "del" and key in op.keys) for op in ops)

    @property
    def complete(self) -> bool:
        """Whether the log of each server that parted with something reached back to where the histories parted."""
        return all(file.complete for file in self._files)

    # -- at the end

    def check(self, end: int) -> None:
        """Every acknowledgement, against the surviving history and the files."""
        for client in self._world.clients:
            for op in client.ops:
                if op.acked and op.result is not None and op.result[2] > 0:
                    self._accounted_for(op, end)

    def _accounted_for(self, op: Op, end: int) -> None:
        assert op.result is not None
        _, revision, durability = op.result
        record = self._oracle.by_first.get(revision)
        if record is None or not _holds(record, op):
            if op.kind in REPEATS:  # its version was committed before, under another name
                return
            raise Wrong(f"{op.name} was acknowledged as {describe(revision)}, a record that does not hold it")
        if self._oracle.on_path(record.last, end):
            return
        if op.kind in REPEATS and all(value != op.value for _, value in record.writes):
            return  # a commit that was done before: its first record is what the accounts tell of
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
        """Whether a server can't have known of it: its log did not reach back, and the key was gone."""
        files = [file for file in self._files if self._oracle.on_path(record.last, file.end)]
        return any(not file.complete and key not in self._oracle.nodes[file.end].values for file in files)

    def _last_line(self, key: str, record: Node) -> tuple[Line | None, File | None]:
        """What the file on a record's history says of a key; of two lines about one update the later one."""
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
        branch = self._branch(file.end, end)  # a delete of a key that is not there leaves no trace
        return any((line.key, None) in node.writes or line.key not in node.values for node in branch)

    def _in_history(self, value: bytes, end: int) -> bool:
        return value in self._oracle.nodes[end].names

    def _told_elsewhere(self, line: Line, file: File) -> bool:
        """It was done again, and whoever did that had to part with it, too."""
        return any(
            other.key == line.key and other.value == line.value and (other.outcome == CONFLICT or at.died)
            for at in self._files
            if at is not file
            for other in at.lines
        )

    def _branch(self, parted: int, end: int) -> Iterator[Node]:
        """The records of the surviving history that the other one did not have."""
        return (node for node in self._oracle.path(end) if not self._oracle.on_path(node.last, parted))

    def _lease_known(self, op: Op, record: Node, end: int) -> None:
        """A lease whose opening was parted with is known to the history that survived, or over there."""
        if any(not file.complete and self._oracle.on_path(record.last, file.end) for file in self._files):
            return
        said = [word for node in self._branch(record.last, end) for word, lease in node.leases if lease == op.lease]
        if op.kind == "refresh" and not said and not self._was_ended(op.lease, record):
            raise Wrong(f"{op.name} was acknowledged, and is lost: nobody knows lease {op.lease!r}")
        active = next(node for node in self._world.servers if node.core.active)
        if op.kind == "unlease" and not said and op.lease in active.core.state.leases:
            raise Wrong(f"{op.name} was acknowledged, and is lost: lease {op.lease!r} goes on")

    def _was_ended(self, lease: bytes, record: Node) -> bool:
        """Whether it ended in the history that was parted with, by its holder or by its time: nothing is left of it."""
        ops = [op for client in self._world.clients for op in client.ops]
        parted = [file.end for file in self._files if self._oracle.on_path(record.last, file.end)]
        return any(op.kind == "unlease" and op.lease == lease and op.acked for op in ops) or any(
            ("unlease", lease) in node.leases for end in parted for node in self._oracle.path(end)
        )


def _holds(record: Node, op: Op) -> bool:
    """Whether a record has what an operation did."""
    if op.lease:
        return any(lease == op.lease for _, lease in record.leases)
    if op.kind == "del":
        return all((key, None) in record.writes or key not in record.values for key in op.keys)  # nothing to delete
    return op.value in record.names
