"""The link of the pair: how a passive catches up with the active, and stays with it (SPEC.md, section 21).

    passive                                     active
      WANT position             ------------->    is that position part of my history, and does my log reach back to it?
      RECORD body, RECORD body  <-------------    yes: what follows, and then each record as it is committed (with the
                                                  messages that it has placed, missing_messages.py)
      SYNC chunk ..., END state <-------------    no: the state as it is, and then each record after it
      MORE n                    ------------->    room for n more chunks
      CONFIRM position          ------------->    everything up to there is in my journal

`Confirmations` is what the active knows of a server that journals its records. `Follower` is the passive as the active
knows it. It takes from the log whatever must be sent next, so catching up and following are the same work. `Loader`
builds a state from chunks; the passive takes it over only as a whole.

Each WANT is answered from the beginning. If a passive asked again too early on a slow link, no answer would ever be
complete. So while no part of an answer comes, the passive doubles its wait before each new WANT. Answers to earlier
WANTs may still come. The passive drops a chunk from the middle of such an answer, and begins again with a first chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from math import inf

from chp import columns
from chp.batch import decode, encode, packb, peek, segment_of
from chp.errors import BadFrame
from chp.headers import StateHead, Sync, name_of
from chp.limits import Limits
from chp.numbers import describe
from chp.unpacking import WHOLE_STATE

from ..state.history import Position
from ..state.image import NOT_YET
from ..state.missing_messages import packed
from ..state.record_log import RecordLog
from ..state.state import ReplicatedState
from ..updates.turn import CurrentTurn, Frames
from .throttle import Pace, Throttle

STATE, WANT, RECORD, SYNC_CHUNK, END, MORE, CONFIRM, HANDOVER, REPLAY, REPLAYED, LEAVE = (
    b"STATE", b"WANT", b"RECORD", b"SYNC", b"END", b"MORE", b"CONFIRM", b"HANDOVER",
    b"REPLAY", b"REPLAYED", b"LEAVE",
)  # fmt: skip
# At most this many chunks of a snapshot are under way to a passive.
CREDIT = 16


class Confirmations:
    """The records sent to a passive, or to a replica that confirms, and how far its journal has confirmed them."""

    def __init__(self, position: int, goal: int, throttle: Throttle | None = None) -> None:
        self.throttle = throttle or Throttle(Pace(), inf)
        # The number up to which records were sent.
        self.position = position
        self.confirmed = 0
        # The server is in sync once it has confirmed this number.
        self.goal = goal
        self.in_sync = False
        self._unconfirmed: deque[tuple[int, int, float]] = deque()
        # The bytes of records that were sent and are not confirmed.
        self.under_way = 0
        # The bytes of all records that were confirmed.
        self.confirmed_bytes = 0
        # The time of the last confirmation of something new.
        self._heard_at = -inf
        # The chunks of the whole state that are still to be sent.
        self._chunks: Iterator[bytes] | None = None

    def sent(self, number: int, weight: int, now: float) -> None:
        """Note that a record of `weight` bytes, which ends with `number`, was sent."""
        if not self.under_way and now >= self.throttle.probe_at:
            self.throttle.sent_alone(number, weight, now)
        self._unconfirmed.append((number, weight, now))
        self.under_way += weight
        self.position = number

    def put_out(self, goal: int) -> None:
        """Note that the server is out of sync until it has confirmed `goal`."""
        self.in_sync, self.goal = False, goal

    def confirm(self, number: int, now: float, timeout_s: float) -> None:
        """Note that the server has everything up to `number` in its journal.

        The server is in sync once it has confirmed the goal. But if a later record has waited longer than half of
        `timeout_s`, the server stays out of sync, and all that was sent so far is the next goal.
        """
        if number > self.confirmed:
            self.confirmed, self._heard_at = number, now
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            weight = self._unconfirmed.popleft()[1]
            self.under_way -= weight
            self.confirmed_bytes += weight
        if self.throttle.alone is not None:
            self.throttle.confirmed(number, now)
        if self._chunks is None and self.confirmed >= self.goal and not self.in_sync:
            self.in_sync = not self._is_late(now, timeout_s / 2)
            self.goal = self.position

    def _is_late(self, now: float, timeout_s: float) -> bool:
        """Return whether something that was sent has waited too long for its confirmation."""
        return bool(self._unconfirmed) and now - self._unconfirmed[0][2] > timeout_s

    def overdue(self, now: float, timeout_s: float) -> bool:
        """Return whether something waits for its confirmation, and the server has confirmed nothing for `timeout_s`."""
        return now > self.overdue_at(timeout_s)

    def overdue_at(self, timeout_s: float) -> float:
        """Return when `overdue` will be true; infinity if nothing is under way."""
        return max(self._unconfirmed[0][2], self._heard_at) + timeout_s if self._unconfirmed else inf

    def is_slow(self, now: float, *, waits: bool) -> bool:
        """Return True if a server in sync is much slower than the active; `waits` says that sets wait."""
        return self.in_sync and self.throttle.is_slow(now, self.confirmed_bytes, waits=waits)

    def excuse(self, now: float) -> None:
        """Count what is under way as sent now, because the active itself was not running."""
        self._unconfirmed = deque((last, size, now) for last, size, _ in self._unconfirmed)
        self.throttle.excuse()


class Follower(Confirmations):
    """The passive as the active knows it: what was sent, what was confirmed, and whether it is in sync."""

    def __init__(
        self,
        limits: Limits,
        position: int,
        goal: int,
        chunks: Iterator[bytes] | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__(position, goal, throttle)
        self._limits = limits
        # True if the log no longer reaches back to `position`.
        self.lost = False
        self._chunks = chunks
        self._rest: Iterator[bytes] = iter(())
        self._chunk_index = 0
        self.credit = CREDIT

    def with_state(self, rest: Iterator[bytes]) -> Follower:
        """Set the body that END carries; it must be of the same moment as the image of the chunks."""
        self._rest = rest
        return self

    def pump(self, log: RecordLog, now: float) -> list[Frames]:
        """Return what to send now, as far as there is room."""
        out: list[Frames] = []
        if self._chunks is not None:
            out += self._pump_chunks()
        if self._chunks is None:
            out += self._pump_records(log, now)
        return out

    def _pump_chunks(self) -> list[Frames]:
        out: list[Frames] = []
        while self._chunks is not None and self.credit > 0:
            segment = next(self._chunks, None)
            if segment is None:
                if (body := next(self._rest)) is not NOT_YET:
                    out.append([END, body])
                    self._chunks = None
                break
            if segment is NOT_YET:
                break
            out.append([SYNC_CHUNK, encode(Sync(0, self._chunk_index), [segment])])
            self._chunk_index += 1
            self.credit -= 1
        return out

    def _pump_records(self, log: RecordLog, now: float) -> list[Frames]:
        room = self._limits.replica_bytes_max - self.under_way
        if room <= 0:
            return []
        records = log.after(self.position, room)
        if not records and not log.reaches(self.position):
            self.lost = True
            return []
        for record in records:
            if record.messages is None and self.in_sync:
                # The passive is so far behind that the messages of this record are no longer in memory.
                self.lost = True
                return []
            weight = record.weight
            # These lines do what `sent` does, without a call for each record.
            if not self.under_way and now >= self.throttle.probe_at:
                self.throttle.sent_alone(record.last, weight, now)
            self._unconfirmed.append((record.last, weight, now))
            self.under_way += weight
            self.position = record.last
        return [[RECORD, record.body, *([packed(record.messages)] if record.messages else [])] for record in records]

    def holds(self, now: float) -> bool:
        """Return True if the active takes no large sets, because enough is under way to a passive in sync."""
        return self.in_sync and self.throttle.holds(self.under_way, now)

    @property
    def pump_ready(self) -> bool:
        """True if chunks could be sent at once."""
        return self._chunks is not None and self.credit > 0


def whole_state(state: ReplicatedState, turn: CurrentTurn, limits: Limits) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return the segments of a state as it is now, and the body that ends it; both yield `NOT_YET` while they wait."""
    image = state.image("")
    segments = (segment.encode() for segment in image.chunks(limits, lambda: turn.now))
    scheduled = state.topics.schedule.segments(round(turn.wall_s * 1000))
    return chain(image.waiting(), segments, state.staging.segments(), scheduled), state.rest(turn.now)


def begins_snapshot(body: bytes) -> bool:
    """Return whether this chunk is the first of a snapshot; an earlier snapshot will then not be completed."""
    peeked = peek(body)
    return peeked is not None and isinstance(peeked[0], Sync) and peeked[0].chunk == 0


class Loader:
    """A state that is received in chunks; it is used only after END."""

    def __init__(self, limits: Limits) -> None:
        self.state = ReplicatedState(limits)
        self._next_index = 0

    def add(self, body: bytes, now: float) -> None:
        """Add the next chunk."""
        header, items = decode(body)
        if not isinstance(header, Sync) or header.chunk != self._next_index:
            raise BadFrame(f"snapshot chunk {self._next_index} was expected; the snapshot has to begin anew")
        self._next_index += 1
        for item in items:
            segment = segment_of(item)
            if segment.extras and columns.STAGE in segment.extras:
                self.state.staging.add(segment, now)
            elif segment.extras and columns.SCHEDULED in segment.extras:
                self.state.topics.schedule.apply(segment.extras)
            else:
                self.state.map.load(segment, now)

    def finish(self, body: bytes, now: float) -> ReplicatedState:
        """Take END, and return the whole state."""
        header, items = decode(body, WHOLE_STATE)
        if not isinstance(header, StateHead) or len(items) != 1:
            raise BadFrame(f"a {name_of(header)} came where the end of a snapshot was due; it has to begin anew")
        told = header.told
        # A snapshot in a journal of an older version has fewer of these values.
        if told != self.state.measure()[: len(told)]:
            raise BadFrame(f"chunks of the snapshot at {describe(header.number)} are missing; it has to begin anew")
        self.state.load_rest(items[0], now, header.ages)
        return self.state


def confirm(proof: Position) -> Frames:
    """Return the CONFIRM that a passive sends."""
    return [CONFIRM, packb(proof)]
