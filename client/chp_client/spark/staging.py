"""Updates that become visible together: staged by tasks, committed by the driver (SPEC.md, section 20).

    task     StagedPart(servers, commit_id, name)    add(segment) ... finish()  travels to the driver as [name, batches]
    driver   commit(servers, commit_id, application, version, parts, replace)               or abort(servers, commit_id)

All of it is one staged commit. A part is one attempt of one task, and its name has a random end. So the commit does not
name what ran before in the same staged commit, a failed attempt or a whole run that died; it drops that. A `Clone` that
only writes sends the parts: it numbers, resends and survives a failover. One is kept for each process, as making one
takes longer than a small batch; it costs a thread that sleeps.
"""

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chp import columns
from chp.batch import Segment
from chp.errors import ChpError

from ..agent.tickets import Ticket
from ..clientfile import ClientFile
from ..clone.clone import Clone
from ..core.events import Ack
from ..errors import Refused

if TYPE_CHECKING:
    from .values.pack import PackedRows

log = logging.getLogger(__name__)
ABORT_S = 10.0
SILENCE_S = 10.0  # after which a job says what it waits for
_clones: dict[tuple[int, tuple[str, ...]], Clone] = {}
_lock = threading.Lock()


class StagingFailed(ChpError):
    """The servers did not take a batch; nothing of it is visible. The text says why and what to do."""


def clone_of(servers: Sequence[str]) -> Clone:
    """This process's writing Clone for these servers."""
    where = os.getpid(), servers if isinstance(servers, ClientFile) else tuple(servers)
    with _lock:
        clone = _clones.get(where)
        if clone is None or clone.closed:
            _forget_parents()
            clone = _clones[where] = Clone(servers, subtree=None, name=f"spark-{where[0]}")
        return clone


def _forget_parents() -> None:
    """A worker is forked: the Clones of the process it came from are of no use here."""
    for where in [where for where in _clones if where[0] != os.getpid()]:
        del _clones[where]


def close_clones(servers: list[str] | None = None) -> None:
    """Close this process's Clones, or the one of these servers; they are made anew when they are needed."""
    with _lock:
        meant = [where for where in _clones if where[0] == os.getpid() and servers in (None, list(where[1]))]
        mine = [_clones.pop(where) for where in meant]
    for clone in mine:
        clone.close(timeout=0)


atexit.register(close_clones)


class StagedPart:
    """One attempt's share of a staged commit."""

    def __init__(self, servers: list[str], commit_id: bytes, name: str, timeout_s: float) -> None:
        self.name = f"{name}.{secrets.token_hex(4)}"
        self.batches = 0
        self._servers = servers
        self._clone = clone_of(servers)
        self._commit_id = commit_id
        self._timeout_s = timeout_s
        self._tickets: list[Ticket] = []

    def add(self, rows: "PackedRows") -> None:
        """Stage what fits a batch."""
        body = rows.encode(**{columns.STAGE: [self._commit_id, self.name]})
        with _failures(self._servers, self._timeout_s):
            self._tickets.append(self._clone.writer.put_encoded(body, self._timeout_s))
        self.batches += 1
        if self._tickets[0].done:
            self._settle([ticket for ticket in self._tickets if ticket.done])
            self._tickets = [ticket for ticket in self._tickets if not ticket.done]

    def finish(self) -> None:
        """Return when the servers have all of it."""
        self._settle(self._tickets)

    def _settle(self, tickets: list[Ticket]) -> None:
        with _failures(self._servers, self._timeout_s):
            for ticket in tickets:
                _answer(ticket, self._timeout_s)


def _answer(ticket: Ticket, timeout_s: float) -> Ack:
    """Wait; if that takes long, the log says for what, as the error may be minutes away."""
    if timeout_s > SILENCE_S:
        try:
            return ticket.wait(SILENCE_S)
        except TimeoutError as silence:
            timeout_s -= SILENCE_S
            log.warning("%s; giving up in %g s (option timeout)", silence, timeout_s)
    return ticket.wait(timeout_s)


def commit(  # noqa: PLR0917 (what a commit is made of, in its order on the wire)
    servers: list[str],
    commit_id: bytes,
    application: str,
    version: int,
    parts: list[tuple[str, int]],
    replace: str | None,
    timeout_s: float,
) -> Ack:
    """Make the named parts visible, all at once; an (application, version) committed before is only answered."""
    named = [[name, batches] for name, batches in parts if batches]
    extras = {columns.COMMIT: [commit_id, application, version, named, replace]}
    with _failures(servers, timeout_s):
        return _answer(clone_of(servers).writer.put_encoded(Segment([], [], extras).encode(), timeout_s), timeout_s)


def abort(servers: list[str], commit_id: bytes, timeout_s: float) -> None:
    """Forget a staged commit. If that can't be said now, the servers forget it after an hour: the job has failed for
    another reason, which is the one to be raised."""
    timeout_s = min(timeout_s, ABORT_S)
    try:
        with _failures(servers, timeout_s):
            body = Segment([], [], {columns.ABORT: commit_id}).encode()
            clone_of(servers).writer.put_encoded(body, timeout_s).wait(timeout_s)
    except StagingFailed as error:
        log.warning("the servers were not told that a write is off: %s", error)


@contextmanager
def _failures(servers: list[str], timeout_s: float) -> Iterator[None]:
    """Says in a job's words what a Clone says in its own."""
    try:
        yield
    except TimeoutError as error:
        close_clones(servers)  # with what it still wanted to send; not those of another query's
        raise StagingFailed(f"the servers gave no answer for {timeout_s:g} s (option timeout): {error}") from error
    except Refused as error:
        raise StagingFailed(_REFUSALS.get(error.code, "{0}").format(error)) from error


_REFUSALS = {
    "staged": "the servers do not hold all that was staged ({0}): one was lost before the other had it, or more than an"
    " hour has passed; run the batch again",
    "busy": "the servers have no room for more staged updates ({0}). What is written at once has to fit: write in"
    " several commits, such as a day each, or wait until other jobs have committed",
}
