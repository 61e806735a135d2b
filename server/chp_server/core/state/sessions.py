"""The sessions of clients that a server remembers, and the user of each (SPEC.md, sections 14 and 38).

A session belongs to its client. A client belongs to the user that wrote with it first under rules. If there are too
many sessions, the user that has most of them loses the session that was heard longest ago. So a user that opens very
many sessions pushes out no session of another user. A client's user is remembered as long as a session of the client.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from chp.fair import FairTable
from chp.keys import CLIENT_BYTES

from .runs import NO_RUN, Run, RunTable

# This revision is told for a batch whose revision is no longer known (docs/decisions/0006).
FORGOTTEN = 1


@dataclass(slots=True)
class SessionRecord:
    """A session as it is remembered: its last batch, when it was heard last, and the revisions of its batches."""

    no: int
    seen: float
    # The table of all sessions' runs, and the place of the latest run of this session.
    _runs: RunTable
    latest: int = NO_RUN
    # The runs of batches that were not done here, each as its first and its last number.
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> list[Run]:
        """Runs of batches: the first batch, the last batch, and their revision."""
        return self._runs.of(self.latest)

    def revision_of(self, no: int) -> int:
        """Return the revision of a batch; if that is forgotten, return 1, which is the revision of no record."""
        found = self._runs.revision_of(self.latest, no)
        return FORGOTTEN if found is None else found

    def record(self, no: int, revision: int, now: float) -> None:
        """Note that all batches up to `no` are done. The batches after the session's last one have this revision."""
        self.latest = self._runs.add(self.latest, self.no + 1, no, revision)
        self.no, self.seen = no, now

    def skip(self, first: int, last: int, most: int) -> None:
        """Skip a run of batches: the next batch is expected after `last`. Only the latest `most` runs are kept."""
        self.skipped = (*self.skipped, (first, last))[-most:]
        self.no = max(self.no, last)

    def skips(self, no: int) -> bool:
        """Return True if a batch was skipped, and was not handed over since."""
        return any(first <= no <= last for first, last in self.skipped)

    def fill(self, no: int, most: int) -> None:
        """Note that a skipped batch is done now, because the suffix of another server brought it.

        This may split a skipped run in two.
        """
        runs = [[(first, min(last, no - 1)), (max(first, no + 1), last)] for first, last in self.skipped]
        left = [(first, last) for both in runs for first, last in dict.fromkeys(both) if first <= last]
        self.skipped = tuple(left[-most:])

    def keep_run(self, run: Run) -> None:
        """Add a run that another server remembers."""
        self.latest = self._runs.add(self.latest, *run)


class Sessions(FairTable[bytes, SessionRecord]):
    """All sessions by their public ids, in the order in which they were heard last."""

    def __init__(self, most: int, owners: dict[bytes, str], runs_max: int) -> None:
        super().__init__(most)
        self.runs = RunTable(runs_max)
        self._owners = owners  # the user of each client that has one
        self._of_client: dict[bytes, list[bytes]] = {}  # the sessions of each client, in order

    def heard(self, session_id: bytes, now: float) -> SessionRecord:
        """Return a session and make it the latest in the order; open it if it is new."""
        session = self.get(session_id)
        if session is not None:
            self.use(session_id)
            return session
        session = self.keep(session_id, 0, now)
        if len(self) > self.most:
            del self[self.loser()]
        return session

    def keep(self, session_id: bytes, no: int, seen: float) -> SessionRecord:
        """Add a session that is new, with its last batch, as the latest in the order."""
        client, session = session_id[:CLIENT_BYTES], SessionRecord(no, seen, self.runs)
        insort(self._of_client.setdefault(client, []), session_id)
        self.put(session_id, session, self._owners.get(client, ""))
        return session

    def has_client(self, client: bytes) -> bool:
        """Return whether a session of this client is remembered."""
        return client in self._of_client

    def own(self, client: bytes, user: str) -> None:
        """Note the user of a client that has a session, unless its user is known already."""
        if client not in self._owners:
            self._owners[client] = user
            for session_id in self._of_client[client]:
                self.give(session_id, user)

    def forget_owners(self) -> dict[bytes, str]:
        """Forget the owners of names that are not clients with a session; return them."""
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
