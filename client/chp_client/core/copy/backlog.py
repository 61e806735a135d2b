"""What a watch missed that begins at a revision or with the oldest record: the feed of the log (SPEC.md, section 17).

    waiting   its channel has not been complete yet, or nobody is there to ask
    asked     RECORDS come: those after the revision, up to where the copy was when the watch was made
    done      the changes, a `Changed` a segment, deletes too; or `NotRetained`, if the log does not reach back so far

A watch that begins with the oldest record asks from 0. If the log does not reach back so far, the refusal says from
where it does, and the watch asks from there.

One subtree after the other is asked for. The watch holds back what comes meanwhile, so its order is the servers'. What
is gathered is bounded: more than `bytes_max` is better read as a snapshot.
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
    """One watch's, on its way."""

    handle: Any  # what the shell calls the watch
    prefix: str
    after: int
    todo: list[tuple[CopyChannel, int]]  # and up to which number; 0 if that is where it is complete for the first time
    found: list[list[Changed]] = field(default_factory=lambda: [[]])  # a list a channel
    size: int = 0
    id: int = 0
    server: int = -1
    due_at: float = float("-inf")  # when to ask, again if it was asked
    reached: int = 0  # the end of the last whole record
    next_index: int = 0
    granted: int = CREDIT
    oldest: bool = False  # `after` moves to where the log begins
    parts: Parts = field(default_factory=Parts)  # of a record whose last one is not here yet

    @property
    def channel(self) -> CopyChannel:
        """Whose records are asked for now."""
        return self.todo[0][0]

    def options(self) -> dict[str, Any]:
        """Of the ICANHAZ that asks for what is missing still."""
        until = self.todo[0][1] or self.channel.first_at
        store = {"store": self.channel.whose[0]} if self.channel.whose[0] else {}
        return {
            **store, "chp": VERSION, "id": self.id,
            "feed": True, "from": self.reached, "until": max(until, self.reached),
            "credit": CREDIT,
        }  # fmt: skip

    def asked(self, request_id: int, server: int, due_at: float) -> None:
        """It is asked for, from the last whole record on; again at `due_at` if nothing comes."""
        self.id, self.server, self.due_at = request_id, server, due_at
        self.next_index, self.granted = 0, CREDIT
        self.parts.drop()

    def on_records(self, header: headers.Records, items: list[Any]) -> int:
        """A chunk of RECORDS; how many more to grant now."""
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
        """All that was missed, in the servers' order."""
        found = [changed for each in self.found for changed in each]
        if len(self.found) > 1:
            found.sort(key=lambda changed: changed.revision_column()[0])
        return found


class Backlogs:
    """Those under way."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._open: list[Backlog] = []

    def add(self, handle: Any, prefix: str, after: int | None, channels: list[CopyChannel]) -> None:
        """Begin to fetch what a watch of `prefix` missed after a revision; None: all that the log retains."""
        held = [c for c in channels if c.subtree.startswith(prefix) or prefix.startswith(c.subtree)]
        todo = [(channel, channel.at if channel.synced_once else 0) for channel in held]
        self._open.append(Backlog(handle, prefix, after or 0, todo, reached=after or 0, oldest=after is None))

    def of(self, request_id: int) -> Backlog | None:
        """The one that this answers."""
        return next((log for log in self._open if log.id == request_id), None)

    def due(self, server: int, now: float) -> Iterator[Backlog]:
        """What is to be asked of the active, which is `server`."""
        for log in self._open:
            if log.channel.synced_once and (now >= log.due_at or log.server != server):
                yield log

    def next_due(self) -> float:
        """When something is to be asked, if somebody is there."""
        return min((log.due_at for log in self._open if log.channel.synced_once), default=NEVER)

    def put_off(self, until: float) -> None:
        """Nobody is there to ask before."""
        for log in self._open:
            log.due_at = max(log.due_at, until)

    def on_reply(
        self, log: Backlog, header: headers.Header, items: list[Any], again_at: float
    ) -> tuple[int, list[Changed] | ChpError | None]:
        """An answer: how many more chunks to grant, and what the watch is to be told, if that is known now.

        What can't be asked just now is asked `again_at`.
        """
        if isinstance(header, headers.Refused):
            return 0, self._refused(log, header, again_at)
        if isinstance(header, headers.Records):
            more = log.on_records(header, items)
            if log.size > self._bytes_max:
                text = f"more than {self._bytes_max} bytes of changes since {log.after}; watch with start='snapshot'"
                self._open.remove(log)
                return 0, Lagging(text)
            return more, None
        log.todo.pop(0)
        log.id, log.server, log.due_at, log.reached = 0, -1, float("-inf"), log.after
        if log.todo:
            log.found.append([])
            return 0, None
        self._open.remove(log)
        return 0, log.result()

    def _refused(self, log: Backlog, header: headers.Refused, again_at: float) -> ChpError | None:
        code, detail = header.code, header.detail
        if code in ("passive", "busy"):
            log.id, log.due_at = 0, again_at
            return None
        if code == "retained" and log.oldest and type(detail) is int and detail > log.after:
            log.id, log.after, log.reached, log.due_at = 0, detail, detail, float("-inf")
            return None
        self._open.remove(log)
        if code in ("retained", "store"):
            return NotRetained(log.after, detail if type(detail) is int else None)
        return Refused(f"the server refused the records ({code}): {detail}", code, detail)

    def broken(self, log: Backlog, server: str, error: ChpError) -> ChpError:
        """The answer can't be read: the watch ends with this."""
        self._open.remove(log)
        return BadFrame(
            f"{server} sent changes since {describe(log.after)} that can't be read: {error}; watch with "
            "start='snapshot', and see that client and servers are of one version"
        )

    def fail(self) -> list[tuple[Any, ChpError]]:
        """Nobody can be asked: the server keeps no log that can be read."""
        ended, self._open = self._open, []
        return [(log.handle, NotRetained(log.after, None)) for log in ended]
