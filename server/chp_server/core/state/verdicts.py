"""What a KVSET comes to: the values that intake.py judges by, and commit.py acts on.

Accept       it is done, in the open record          AcceptChp1   the same of a set of CHP/1
Commit       staged updates become a record          Refuse      it is not done, for good
Duplicate    it was done, or refused, before         Expected    it is not its session's next
Unrecorded   it changes nothing, and nothing may be written
KEY_IN_OPEN_RECORD  the open record has to be made first    UNHEARD     nothing is said of it: its client sends it again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chp.batch import Segment

from .staging import StagedCommit

PARTED = "parted"  # the code of a batch that another history has done, in part or maybe, and this one not
PARTED_TEXT = (
    "done in part: two servers were active, and keys written on both sides keep the other's value; read them first"
)

Owners = dict[bytes, str]
BatchId = tuple[bytes, int]  # a session's public id, and its batch's number


@dataclass(slots=True)
class Accept:
    """A session's next batch, as it stands in a record."""

    batch: BatchId
    segment: Segment
    body: bytes
    older: int = 0  # how many of its items were left out, as their keys have a later revision
    owners: Owners | None = None  # whose the session and an application are from now on, if there are rules
    makes_room: Sequence[Segment] = ()  # what ends before it: leases and transactions of a user who has most of them


@dataclass(slots=True)
class AcceptChp1:
    """A set of CHP/1."""

    key: str
    value: bytes
    uuid: bytes
    properties: bytes
    ttl_ms: int | None


@dataclass(slots=True)
class Commit:
    """A session's next batch, which commits staged updates: they are a record of their own."""

    batch: BatchId
    staged: StagedCommit
    owners: Owners | None = None


@dataclass(slots=True)
class Refuse:
    """A session's next batch, which is not done; or a set of CHP/1, whose client can't be told."""

    batch: BatchId | None
    code: str
    detail: Any
    size: int = 0  # what there was no room for


@dataclass(slots=True)
class Duplicate:
    """It was refused, or got this revision; of CHP/1 neither is known, and nothing is said."""

    batch: BatchId | None
    refusal: tuple[str, Any] | None = None
    revision: int = 0


@dataclass(slots=True)
class Expected:
    """A batch that is not its session's next: code and detail of the answer, which refuses nothing for good."""

    batch: BatchId
    code: str
    wanted: int


@dataclass(slots=True)
class Unrecorded:
    """A session's next batch, which changes nothing, while nothing may be written: it is done without a record.

    A client sends one to learn how far the active is (`Clone.sync`).
    """

    batch: BatchId


class Other(Enum):
    """Verdicts that say nothing more."""

    KEY_IN_OPEN_RECORD = "another client has written one of these keys in the open record"
    UNHEARD = "another server is about to hand over what it did alone, and this batch may follow on that"


# Were such a batch done in the open record, both clients would be told the same revision, and the first could set
# the key on the condition that it still has it, over a value that it never saw.
KEY_IN_OPEN_RECORD: Final = Other.KEY_IN_OPEN_RECORD
UNHEARD: Final = Other.UNHEARD
Verdict = Accept | AcceptChp1 | Commit | Refuse | Duplicate | Expected | Unrecorded | Other


class Refusal(Exception):
    """A batch that is understood and not done: its code and detail go to the client."""

    def __init__(self, code: str, detail: object) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
