"""What is remembered of clients by their sessions, and whose each is (SPEC.md, sections 14 and 38).

A session is its client's, and a client is the user's who wrote with it first under rules. When there are too many
sessions, the one that goes is the one heard longest ago of the user who has most: a user who opens very many pushes out
none of the others'. A client's user is remembered as long as a session of the client is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from chp.fair import FairTable
from chp.keys import CLIENT_BYTES

FORGOTTEN = 1  # the revision of a key whose own is not known (docs/decisions/0006)


@dataclass(slots=True)
class SessionRecord:
    """What is remembered of one client: its last batch, when it was here, and which revisions its batches got."""

    no: int
    seen: float
    _runs: list[tuple[int, int, int]] = field(default_factory=list)  # a deque takes a kilobyte for a session's only one
    _forgotten: int = 0  # of these, the first
    skipped: tuple[tuple[int, int], ...] = ()  # first and last of batches that were not done here

    @property
    def runs(self) -> Sequence[tuple[int, int, int]]:
        """First batch, last batch, revision."""
        return self._runs[self._forgotten :] if self._forgotten else self._runs

    def revision_of(self, no: int) -> int:
        """The revision of a batch; 1, which no record has, if that is forgotten."""
        return next((revision for first, last, revision in reversed(self.runs) if first <= no <= last), FORGOTTEN)

    def record(self, no: int, revision: int, now: float) -> None:
        """All batches up to one are done."""
        self._runs.append((self.no + 1, no, revision))
        self.no, self.seen = no, now

    def skip(self, first: int, last: int, most: int) -> None:
        """Count batches as the session's last that were not done here; the oldest such run goes beyond `most`."""
        self.skipped = (*self.skipped, (first, last))[-most:]
        self.no = max(self.no, last)

    def skips(self, no: int) -> bool:
        """Return True if a batch was skipped, and was not handed over since."""
        return any(first <= no <= last for first, last in self.skipped)

    def fill(self, no: int) -> None:
        """Note that a batch that was skipped is done: it came with what another server did alone."""
        runs = [[(first, min(last, no - 1)), (max(first, no + 1), last)] for first, last in self.skipped]
        self.skipped = tuple((first, last) for both in runs for first, last in dict.fromkeys(both) if first <= last)

    def keep_run(self, run: tuple[int, int, int]) -> None:
        """What another server remembers of it."""
        self._runs.append(run)

    def forget_run(self) -> None:
        """The oldest, if there is one; they leave the list together, as each that does moves all that stay."""
        self._forgotten += self._forgotten < len(self._runs)
        if 2 * self._forgotten >= len(self._runs):
            del self._runs[: self._forgotten]
            self._forgotten = 0


class Sessions(FairTable[bytes, SessionRecord]):
    """All sessions by their public ids, the longest unheard first."""

    def __init__(self, most: int, owners: dict[bytes, str]) -> None:
        super().__init__(most)
        self._owners = owners  # the user of each client that has one
        self._of_client: dict[bytes, list[bytes]] = {}  # each client's sessions, in their order

    def heard(self, session_id: bytes, now: float) -> SessionRecord:
        """Return a session as the one that was heard last, opened if it was not there."""
        session = self.get(session_id)
        if session is not None:
            self.use(session_id)
            return session
        session = SessionRecord(0, now)
        self.keep(session_id, session)
        if len(self) > self.most:
            del self[self.loser()]
        return session

    def keep(self, session_id: bytes, session: SessionRecord) -> None:
        """Keep a session that was not there as the one that was heard last."""
        client = session_id[:CLIENT_BYTES]
        insort(self._of_client.setdefault(client, []), session_id)
        self.put(session_id, session, self._owners.get(client, ""))

    def has_client(self, client: bytes) -> bool:
        """Whether a session of this client is remembered."""
        return client in self._of_client

    def own(self, client: bytes, user: str) -> None:
        """Note that a client, of which there is a session, is a user's, unless it is somebody's already."""
        if client not in self._owners:
            self._owners[client] = user
            for session_id in self._of_client[client]:
                self.give(session_id, user)

    def forget_owners(self) -> dict[bytes, str]:
        """Forget the owners of what is no client with a session; returns them."""
        return {name: self._owners.pop(name) for name in list(self._owners) if name not in self._of_client}

    def newest_of(self, client: bytes) -> bytes:
        """Return the session that a client opened last, of those that are remembered; b"" if there is none."""
        of_client = self._of_client.get(client)
        return of_client[-1] if of_client else b""

    def __delitem__(self, session_id: bytes) -> None:
        """Forget a session."""
        super().__delitem__(session_id)
        client = session_id[:CLIENT_BYTES]
        of_client = self._of_client[client]
        del of_client[bisect_left(of_client, session_id)]
        if not of_client:
            del self._of_client[client]
            self._owners.pop(client, None)
