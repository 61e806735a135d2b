"""Verdicts: the values that say what becomes of a KVSET.

    Accept               it is done, in the open record
    AcceptChp1           a set of CHP/1: it is done, in the open record
    Commit               it commits staged updates, which become a record of their own
    Refuse               it is not done, for good
    Duplicate            it was done, or refused, before
    Expected             it is not the next batch of its session
    Unrecorded           it changes nothing, and the server may write nothing
    KEY_IN_OPEN_RECORD   the open record has to be committed first
    UNHEARD              it gets no answer: its client sends it again, or holds it no more

intake.py returns them, and commit.py acts on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chp.batch import Segment

from .staging import StagedCommit

# The code of a batch that another history has done, maybe in part, and this one has not.
PARTED = "parted"
PARTED_TEXT = (
    "done in part: two servers were active; a key written on both has the other server's value; read it before a retry"
)

Owners = dict[bytes, str]
BatchId = tuple[bytes, int]  # a session's public id, and its batch's number


@dataclass(slots=True)
class Accept:
    """A session's next batch, as it stands in a record."""

    batch: BatchId
    segment: Segment
    body: bytes
    # The number of its items that were left out, as their keys have a later revision.
    older: int = 0
    # The users that the session's client and an application get with this batch, if there are rules.
    owners: Owners | None = None
    # Segments that must be done first: they end leases or transactions of the user that has most of them.
    makes_room: Sequence[Segment] = ()


@dataclass(slots=True)
class AcceptChp1:
    """A set of CHP/1 that is done."""

    key: str
    value: bytes
    uuid: bytes
    properties: bytes
    ttl_ms: int | None


@dataclass(slots=True)
class Commit:
    """A session's next batch, which commits staged updates; they become a record of their own."""

    batch: BatchId
    staged: StagedCommit
    owners: Owners | None = None


@dataclass(slots=True)
class Refuse:
    """A session's next batch, which is not done; or a set of CHP/1, whose client gets no answer."""

    batch: BatchId | None
    code: str
    detail: Any
    # The bytes for which there was no room.
    size: int = 0


@dataclass(slots=True)
class Duplicate:
    """A batch that was done, with its revision, or refused before. A CHP/1 client gets no answer."""

    batch: BatchId | None
    refusal: tuple[str, Any] | None = None
    revision: int = 0


@dataclass(slots=True)
class Expected:
    """A batch that is not the next one of its session: the code and detail of the answer. It may be sent again."""

    batch: BatchId
    code: str
    wanted: int


@dataclass(slots=True)
class Unrecorded:
    """A session's next batch, which changes nothing, while the server may write nothing: it is done without a record.

    A client sends one to learn how far the active is (`Clone.sync`).
    """

    batch: BatchId


class Other(Enum):
    """Verdicts that carry no values."""

    KEY_IN_OPEN_RECORD = "another client has written one of these keys in the open record"
    UNHEARD = "it may follow on a suffix that another server is about to hand over, or it was skipped"


# Why such a batch needs a record of its own: in one record, both clients would be told the same revision. Then the
# first could overwrite a value that it never saw, on the condition that the key still has its revision.
KEY_IN_OPEN_RECORD: Final = Other.KEY_IN_OPEN_RECORD
UNHEARD: Final = Other.UNHEARD
Verdict = Accept | AcceptChp1 | Commit | Refuse | Duplicate | Expected | Unrecorded | Other


class Refusal(Exception):
    """A batch that is understood and not done: its code and detail go to the client."""

    def __init__(self, code: str, detail: object) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
