"""The passive's pending list: sets that clients sent to both servers, and that no record has shown yet.

If the active dies with a set under way, its successor applies the set, in the order of arrival, and publishes it.
Entries are known by their UUID (CHP/1) or by session and batch number (CHP/2). The list is bounded in number, bytes and
age; what is dropped is counted. A CHP/1 set without a UUID can't be recognised when it is published. So it is not kept:
to apply it again might undo something newer.

The active may have refused a set by the rules of access without a record (refusals.py). So when rules end, the list
drops the sets that they deny. Otherwise the next rules might allow a set that its client was told is not done.

A successor has about a second's worth of all clients' sets to apply. It applies a slice a turn, so
that the oldest sets, whose clients have waited since the active died, are answered at once. What
clients send meanwhile queues up behind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chp.batch import decode_segment
from chp.errors import BadFrame, BadInput
from chp.keys import CLIENT_BYTES, RESERVED_KEY, public_session
from chp.limits import Limits
from chp.messages import parse_kvset
from chp.numbers import unpack

from ..state.state import ReplicatedState
from ..updates.authorizer import check_batch, check_plain, signer

Frames = list[bytes]


# The identity of a CHP/2 batch is its session and number, of this many bytes; a CHP/1 UUID has 16 bytes.
BATCH_IDENTITY_BYTES = 24


@dataclass(slots=True)
class PendingSet:
    """A message from the collector, and when it came."""

    frames: Frames
    bytes: int
    since: float


class PendingList:
    """The messages that no record has shown yet, by identity, oldest first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: OrderedDict[bytes, PendingSet] = OrderedDict()
        self._sessions: dict[bytes, deque[bytes]] = {}  # session -> its batches, in order
        # Messages that a successor is to apply, in this order.
        self.taken: deque[Frames] = deque()
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, frames: Frames, state: ReplicatedState, now: float) -> bool:
        """Keep a KVSET that is not part of the state; return False if it has no UUID."""
        if frames[0] == RESERVED_KEY:
            if not state.did(frames[2], unpack(frames[1])):
                self.add(batch_identity(frames[2], frames[1]), frames, now)
            return True
        _, uuid, _, _ = parse_kvset(frames)
        if uuid and uuid not in state.uuids:
            self.add(uuid, frames, now)
        return bool(uuid)

    def queues(self, frames: Frames, state: ReplicatedState) -> bool:
        """Return whether a KVSET has to wait behind the `taken` messages.

        A batch that is done and comes again need not wait, because only its answer was lost.
        """
        if not self.taken:
            return False
        return frames[0] != RESERVED_KEY or not state.did(frames[2], unpack(frames[1]))

    def add(self, identity: bytes, frames: Frames, now: float) -> None:
        """Keep a message; one that is in the list already stays in its place."""
        if identity in self._entries:
            return
        self._put(identity, PendingSet(frames, sum(map(len, frames)), now))
        while len(self._entries) > self._limits.pending_batches_max or self.bytes > self._limits.pending_bytes_max:
            self._drop_oldest()

    def _put(self, identity: bytes, entry: PendingSet) -> None:
        self._entries[identity] = entry
        if len(identity) == BATCH_IDENTITY_BYTES:
            self._sessions.setdefault(identity[:16], deque()).append(identity)
        self.bytes += entry.bytes

    def _drop_oldest(self) -> None:
        identity, entry = self._entries.popitem(last=False)
        self.bytes -= entry.bytes
        waiting = self._sessions.get(identity[:16]) if len(identity) == BATCH_IDENTITY_BYTES else None
        if waiting and waiting[0] == identity:
            waiting.popleft()
            if not waiting:
                del self._sessions[identity[:16]]
        self.dropped += 1

    def seen(self, identity: bytes) -> None:
        """Drop a message, because it was published."""
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self.bytes -= entry.bytes

    def seen_up_to(self, session: bytes, no: int) -> None:
        """Drop all batches of a session up to `no`, because they were published."""
        waiting = self._sessions.get(session)
        while waiting and int.from_bytes(waiting[0][16:]) <= no:
            self.seen(waiting.popleft())
        if waiting is not None and not waiting:
            del self._sessions[session]

    def published(self, origins: Sequence[Sequence[Any]], uuids: Iterable[bytes]) -> None:
        """Drop the sets that a record has done."""
        for session, no in origins:
            self.seen_up_to(session, no)
        for uuid in uuids:
            self.seen(uuid)

    def end_rules(self, state: ReplicatedState) -> None:
        """Drop what the present rules deny, before other rules replace them."""
        if state.access.rules is not None:
            self._keep(lambda identity, frames: not _denied(frames, state))

    def skip_rules(self, before: ReplicatedState, after: ReplicatedState) -> None:
        """Drop sets that may have been refused between two states, if the new state has other rules of access.

        Only sets of sessions that the new state knows stay, because the new state has their refusals.
        """
        if before.access.changed != after.access.changed:
            self._keep(lambda identity, frames: identity[:16] in after.sessions)

    def _keep(self, stays: Callable[[bytes, Frames], bool]) -> None:
        """Drop the entries that do not stay, and the later batches of their sessions; the clients send these again."""
        entries, gone = list(self._entries.items()), set()
        self._clear()
        for identity, entry in entries:
            if identity[:16] in gone or not stays(identity, entry.frames):
                gone.add(identity[:16])
            else:
                self._put(identity, entry)

    def _clear(self) -> None:
        self._entries.clear()
        self._sessions.clear()
        self.bytes = 0

    def expire(self, now: float) -> None:
        """Drop what is too old to be under way still."""
        while self._entries and now - next(iter(self._entries.values())).since > self._limits.pending_age_s_max:
            self._drop_oldest()

    def take(self, now: float) -> int:
        """Move all messages to `taken`, in the order of arrival; return how many that are.

        Sessions that their clients have replaced are left out.
        """
        self.expire(now)
        newest = {session[:CLIENT_BYTES]: session for session in sorted(self._sessions)}
        replaced = {session for session in self._sessions if newest[session[:CLIENT_BYTES]] != session}
        before = len(self.taken)
        self.taken += (entry.frames for identity, entry in self._entries.items() if identity[:16] not in replaced)
        self._clear()
        return len(self.taken) - before

    def slice(self) -> Iterator[Frames]:
        """Yield the `taken` messages that are to be applied this turn."""
        size = 0
        while self.taken and size < self._limits.pending_slice_bytes:
            size += sum(map(len, self.taken[0]))
            yield self.taken.popleft()


def _denied(frames: Frames, state: ReplicatedState) -> bool:
    granted, user = state.access, signer(frames)
    try:
        if frames[0] != RESERVED_KEY:
            return bool(check_plain(granted, user, parse_kvset(frames)[0]))
        return bool(check_batch(granted, user, frames[2], decode_segment(frames[4]), state.staging))
    # The set is malformed, so no other rules would allow it later: it may stay.
    except BadInput:
        return False


def batch_identity(session: bytes, no_frame: bytes) -> bytes:
    """Return the identity of a CHP/2 batch: 24 bytes, so it never equals a UUID of 16."""
    return session + no_frame


def by_public_id(frames: list[bytes]) -> list[bytes]:
    """Return a CHP/2 KVSET with its session's public id: a reader of what is kept or sent on can't use the session."""
    if len(frames) != 5 or len(frames[2]) != 16:
        raise BadFrame("a CHP/2 KVSET has five frames, and a session of 16 bytes in the third")
    key, number, session, properties, body = frames
    return [key, number, public_session(session), properties, body]
