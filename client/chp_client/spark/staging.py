"""Updates that become visible together: staged by tasks, committed by the driver (SPEC.md, section 20).

    task     StagedPart(servers, commit_id, name)    add(segment) ... finish()  travels to the driver as [name, batches]
    driver   commit(servers, commit_id, application, version, parts, replace)               or abort(servers, commit_id)

All parts together are one staged commit. A part is what one attempt of one task stages, and its name has a random end.
So the commit never names the parts of a failed attempt, or of an earlier run that died: the servers drop such parts. A
`Clone` that only writes sends the parts: it numbers and resends them, and survives a failover. Each process keeps its
Clone, because making a Clone takes longer than a small batch. An idle Clone costs a thread that sleeps.
"""

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from chp import columns
from chp.batch import Segment
from chp.errors import ChpError

from ..agent.tickets import Ticket
from ..agent.writer import Writer
from ..clientfile import ClientFile
from ..clone.base import internals
from ..clone.clone import Clone
from ..core.events import Ack
from ..errors import Refused
from ..mount_table import Mounts, one
from .pairs import WHAT

if TYPE_CHECKING:
    from .values.pack import PackedRows

log = logging.getLogger(__name__)
ABORT_S = 10.0
# A job that has waited this long for an answer logs what it waits for.
SILENCE_S = 10.0
# A job that has waited this long for an answer checks whether all servers refuse its key.
ADMISSION_S = 2.0
# The key of a Clone below: the id of the process, and the servers.
Where = tuple[int, tuple[str, ...]]
_clones: dict[Where, Clone] = {}
_lock = threading.Lock()


class StagingFailed(ChpError):
    """The error for a batch that the servers did not take. Its text has the reason and the remedy.

    If a commit got no answer in time, the servers may still do it.
    """


def clone_of(servers: Sequence[str]) -> Clone:
    """Return this process's Clone that writes to these servers."""
    where = _here(servers)
    with _lock:
        clone = _clones.get(where)
        if clone is None or clone.closed:
            _forget_parents()
            clone = _clones[where] = Clone(servers, subtree=None, name=f"spark-{where[0]}")
        return clone


def _here(servers: Sequence[str]) -> Where:
    return os.getpid(), servers if isinstance(servers, ClientFile) else tuple(servers)


def writer_of(servers: Sequence[str]) -> Writer:
    """Return the writer of this process's Clone for these servers."""
    return internals(clone_of(servers)).writer


def _forget_parents() -> None:
    """Forget the Clones of the process from which this one was forked: they are of no use here."""
    for where in [where for where in _clones if where[0] != os.getpid()]:
        del _clones[where]


def close_clones(servers: Sequence[str] | None = None) -> None:
    """Close this process's Clones, or the one for these servers; the next use makes a new one."""
    with _lock:
        meant = [each for each in _clones if each[0] == os.getpid()] if servers is None else [_here(servers)]
        mine = [_clones.pop(each) for each in meant if each in _clones]
    for clone in mine:
        clone.close(timeout=0)


atexit.register(close_clones)


class StagedPart:
    """The part of a staged commit that one attempt of a task sends. With mounts, its first key decides the pair."""

    def __init__(self, servers: Sequence[str] | Mounts, commit_id: bytes, name: str, timeout_s: float) -> None:
        self.name = f"{name}.{secrets.token_hex(4)}"
        self.batches = 0
        # The mount of all rows, and one of their keys.
        self.mount = self.key = ""
        self._mounts = servers if isinstance(servers, Mounts) else None
        self._servers: Sequence[str] = () if isinstance(servers, Mounts) else servers
        self._writer = None if isinstance(servers, Mounts) else writer_of(servers)
        self._commit_id = commit_id
        self._timeout_s = timeout_s
        self._tickets: list[Ticket] = []
        # The highest number that the servers gave a batch of the part, as far as they have answered.
        self.revision = 0

    def add(self, rows: "PackedRows") -> None:
        """Stage rows that fit one batch. Raise `BadInput` unless all keys of the part are of one mount."""
        writer = self._writer if self._mounts is None else self._writer_of(self._mounts, rows.keys)
        assert writer is not None, "without mounts there is one from the beginning"
        body = rows.encode(**{columns.STAGE: [self._commit_id, self.name]})
        with _failures(self._servers, self._timeout_s):
            self._tickets.append(writer.put_encoded(body, self._timeout_s))
        self.batches += 1
        if self._tickets[0].done:
            self._settle([ticket for ticket in self._tickets if ticket.done])
            self._tickets = [ticket for ticket in self._tickets if not ticket.done]

    def _writer_of(self, mounts: Mounts, keys: list[str]) -> Writer:
        mount = mounts.of_keys(WHAT, keys)
        if self._writer is None:
            self.mount, self.key, self._servers = mount, keys[0], mounts.servers[mount]
            self._writer = writer_of(self._servers)
        one(WHAT, ((self.mount, self.key), (mount, keys[0])))
        return self._writer

    def finish(self) -> None:
        """Wait until the servers have the whole part."""
        self._settle(self._tickets)

    def _settle(self, tickets: list[Ticket]) -> None:
        with _failures(self._servers, self._timeout_s):
            for ticket in tickets:
                self.revision = max(self.revision, _answer(self._servers, ticket, self._timeout_s).revision)


def _answer(servers: Sequence[str], ticket: Ticket, timeout_s: float) -> Ack:
    """Return the answer to a ticket. If it takes long, log what the job waits for: the error may come minutes later.

    Raises `Refused` if each server refuses the key of this job: waiting does not change that.
    """
    if timeout_s > ADMISSION_S:
        with suppress(TimeoutError):
            return ticket.wait(ADMISSION_S)
        timeout_s -= ADMISSION_S
        _check_admitted(servers)
    if timeout_s > SILENCE_S:
        try:
            return ticket.wait(SILENCE_S)
        except TimeoutError as silence:
            timeout_s -= SILENCE_S
            log.warning("%s; giving up in %g s (option timeout)", silence, timeout_s)
    return ticket.wait(timeout_s)


def _check_admitted(servers: Sequence[str]) -> None:
    """Raise `Refused` if all these servers refuse this process's key. First close the Clone, and drop its batches."""
    try:
        clone_of(servers).wait_until_synced(timeout=0)
    except TimeoutError:
        pass
    except Refused as refused:
        if refused.code == "key" and len(refused.detail) == len(servers):
            close_clones(servers)
            raise


def commit(  # noqa: PLR0917 (the order on the wire)
    servers: Sequence[str],
    commit_id: bytes,
    application: str,
    version: int,
    parts: list[tuple[str, int]],
    replace: str | None,
    timeout_s: float,
) -> Ack:
    """Make the named parts visible, all at once. For a repeated (application, version) the servers only answer."""
    named = [[name, batches] for name, batches in parts if batches]
    extras = {columns.COMMIT: [commit_id, application, version, named, replace]}
    with _failures(servers, timeout_s, _REFUSALS | {"busy": "the servers can't remember another application ({0})"}):
        return _answer(servers, writer_of(servers).put_encoded(Segment([], [], extras).encode(), timeout_s), timeout_s)


def abort(servers: Sequence[str], commit_id: bytes, timeout_s: float) -> None:
    """Have the servers forget a staged commit; they do so by themselves after an hour.

    A failure is only logged: the job has failed for another reason, which is the one to raise.
    """
    timeout_s = min(timeout_s, ABORT_S)
    try:
        with _failures(servers, timeout_s):
            body = Segment([], [], {columns.ABORT: commit_id}).encode()
            writer_of(servers).put_encoded(body, timeout_s).wait(timeout_s)
    except StagingFailed as error:
        log.warning("the servers were not told that a write is off: %s", error)


@contextmanager
def _failures(servers: Sequence[str], timeout_s: float, words: Mapping[str, str] | None = None) -> Iterator[None]:
    """Raise `StagingFailed` for errors of a Clone, in the words of a job. `words` has texts for codes of refusals."""
    try:
        yield
    except TimeoutError as error:
        # The Clone drops its unsent batches when it closes. The Clones of other servers stay open.
        close_clones(servers)
        raise StagingFailed(f"the servers gave no answer for {timeout_s:g} s (option timeout): {error}") from error
    except Refused as error:
        raise StagingFailed((words or _REFUSALS).get(error.code, "{0}").format(error)) from error


_REFUSALS = {
    "staged": "the servers do not hold all that was staged ({0}): one was lost before the other had it, or more than an"
    " hour has passed; run the batch again",
    "busy": "the servers have no room for more staged updates ({0}). What is written at once has to fit: write in"
    " several commits, such as a day each, or wait until other jobs have committed",
}
