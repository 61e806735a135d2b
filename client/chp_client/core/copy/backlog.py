"""The changes that a watch missed, if it begins at a revision or with the oldest record. They come as a feed (SPEC.md,
section 17).

    waiting   the channel was not complete yet, or there is no server to ask
    asked     RECORDS come: those after the revision, up to the number of the copy when the watch was made
    done      the result is known: a `Changed` for each segment, with deletes, or `NotRetained` if the log is too short

A watch that begins with the oldest record asks from 0. If the log begins later, the refusal tells where, and the watch
asks from there.

The subtrees are asked for one after the other. The watch holds back new changes meanwhile, so it keeps the order of the
servers. The gathered changes may have at most `bytes_max` bytes; for more, a snapshot is the better start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chp import headers
from chp.batch import narrow, record_of
from chp.errors import BadFrame, ChpError
from chp.numbers import describe
from chp.parts import Parts
from chp.versions import VERSION

from ...errors import Lagging, NotRetained, Refused
from ..events import Changed
from .channel import CREDIT, CopyChannel, changed_by

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Backlog:
    """The missed changes of one watch, as far as they have come."""

    # The watch, as the shell knows it.
    handle: Any
    prefix: str
    after: int
    # Each channel has the number to read up to. 0 means the number at which the channel becomes complete.
    todo: list[tuple[CopyChannel, int]]
    # One list of changes for each channel.
    found: list[list[Changed]] = field(default_factory=lambda: [[]])
    size: int = 0
    id: int = 0
    server: int = -1
    # The time to ask, or to ask again.
    due_at: float = float("-inf")
    # The number of the last whole record.
    reached: int = 0
    next_index: int = 0
    granted: int = CREDIT
    # True if the watch begins with the oldest record: `after` then moves to the start of the log.
    oldest: bool = False
    # The parts of a record whose last part is not here yet.
    parts: Parts = field(default_factory=Parts)

    @property
    def channel(self) -> CopyChannel:
        """The channel whose records are asked for now."""
        return self.todo[0][0]

    def options(self) -> dict[str, Any]:
        """Return the options of the ICANHAZ for what is still missing."""
        until = self.todo[0][1] or self.channel.first_at
        store = {"store": self.channel.whose[0]} if self.channel.whose[0] else {}
        return {
            **store, "chp": VERSION, "id": self.id,
            "feed": True, "from": self.reached, "until": max(until, self.reached),
            "credit": CREDIT,
        }  # fmt: skip

    def asked(self, request_id: int, server: int, due_at: float) -> None:
        """Note a request, which begins after the last whole record. It is due again at `due_at`."""
        self.id, self.server, self.due_at = request_id, server, due_at
        self.next_index, self.granted = 0, CREDIT
        self.parts.drop()

    def on_records(self, header: headers.Records, items: list[Any]) -> int:
        """Take a chunk of RECORDS. Return how many more chunks to grant now."""
        if header.chunk != self.next_index:
            raise BadFrame(f"chunk {header.chunk} came where {self.next_index} was due")
        self.next_index += 1
        for item in items:
            self._record(item)
        self.granted -= 1
        if self.granted > CREDIT // 2:
            return 0
        more, self.granted = CREDIT - self.granted, CREDIT
        return more

    def _record(self, item: Any) -> None:
        header, segments = record_of(item)
        kept = []
        if self.parts.revision(header) > self.after:
            kept = [part for segment in segments if (part := narrow(segment, self.prefix)) is not None]
        self.size += sum(sum(map(len, part.keys)) + sum(map(len, part.values)) for part in kept)
        record = self.parts.add(header, kept)
        if record is not None:
            self.found[-1] += [changed for part in record.segments if (changed := changed_by(part, record.first))]
            self.reached = record.last

    def result(self) -> list[Changed]:
        """Return all missed changes in the order of the servers."""
        found = [changed for each in self.found for changed in each]
        if len(self.found) > 1:
            found.sort(key=lambda changed: changed.revision_column()[0])
        return found


class Backlogs:
    """The backlogs that are under way."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.under_way: list[Backlog] = []

    def add(self, handle: Any, prefix: str, after: int | None, channels: list[CopyChannel]) -> None:
        """Begin to fetch what a watch of `prefix` missed after a revision. None asks for all that the log retains."""
        held = [c for c in channels if c.subtree.startswith(prefix) or prefix.startswith(c.subtree)]
        todo = [(channel, channel.at if channel.synced_once else 0) for channel in held]
        self.under_way.append(Backlog(handle, prefix, after or 0, todo, reached=after or 0, oldest=after is None))

    def of(self, request_id: int) -> Backlog | None:
        """Return the backlog with this request, or None."""
        return next((log for log in self.under_way if log.id == request_id), None)

    def due(self, server: int, now: float) -> Iterator[Backlog]:
        """Yield the backlogs to ask the active for now. `server` is the active."""
        for log in self.under_way:
            if log.channel.synced_once and (now >= log.due_at or log.server != server):
                yield log

    def next_due(self) -> float:
        """Return the time when the next request is due."""
        return min((log.due_at for log in self.under_way if log.channel.synced_once), default=NEVER)

    def put_off(self, until: float) -> None:
        """Ask for nothing before `until`, as there is no server to ask."""
        for log in self.under_way:
            log.due_at = max(log.due_at, until)

    def on_reply(
        self, log: Backlog, header: headers.Header, items: list[Any], again_at: float
    ) -> tuple[int, list[Changed] | ChpError | None]:
        """Take an answer. Return how many more chunks to grant, and the result for the watch, or None.

        A request that the server can't answer now is due again at `again_at`.
        """
        if isinstance(header, headers.Refused):
            return 0, self._refused(log, header, again_at)
        if isinstance(header, headers.Records):
            more = log.on_records(header, items)
            if log.size > self._bytes_max:
                self.under_way.remove(log)
                text = f"more than {self._bytes_max} bytes of changes since {describe(log.after)}"
                return 0, Lagging(text, "watch with start='snapshot'")
            return more, None
        log.todo.pop(0)
        log.id, log.server, log.due_at, log.reached = 0, -1, float("-inf"), log.after
        if log.todo:
            log.found.append([])
            return 0, None
        self.under_way.remove(log)
        return 0, log.result()

    def _refused(self, log: Backlog, header: headers.Refused, again_at: float) -> ChpError | None:
        code, detail = header.code, header.detail
        if code in ("passive", "busy"):
            log.id, log.due_at = 0, again_at
            return None
        if code == "retained" and log.oldest and type(detail) is int and detail > log.after:
            log.id, log.after, log.reached, log.due_at = 0, detail, detail, float("-inf")
            return None
        self.under_way.remove(log)
        if code in ("retained", "store"):
            return NotRetained(log.after, detail if type(detail) is int else None)
        return Refused(f"the server refused the records ({code}): {detail}", code, detail)

    def broken(self, log: Backlog, server: str, error: ChpError) -> ChpError:
        """End the watch because its answer can't be read, and return the error for it."""
        self.under_way.remove(log)
        return BadFrame(
            f"{server} sent changes since {describe(log.after)} that can't be read: {error}; watch with "
            "start='snapshot', and see that client and servers are of one version"
        )

    def fail(self) -> list[tuple[Any, ChpError]]:
        """End all watches that wait, as the server keeps no log that can be read. Return their errors."""
        ended, self.under_way = self.under_way, []
        return [(log.handle, NotRetained(log.after, None)) for log in ended]
