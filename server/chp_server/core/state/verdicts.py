"""Verdicts: the values that say what becomes of a KVSET.

    Accept               a batch that is done, in the open record
    AcceptChp1           a set of CHP/1 that is done, in the open record
    Commit               a batch that commits staged updates, which become a record of their own
    Refuse               a batch that will never be done
    Duplicate            a batch that was done, or refused, before
    Expected             a batch that is not the next one of its session
    Unrecorded           a batch that changes nothing, while the server may write nothing
    KEY_IN_OPEN_RECORD   the open record has to be committed first
    UNHEARD              a batch that gets no answer: its client sends it again, or no longer has it

intake.py returns them, and commit.py acts on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chp.batch import Segment

from .staging import StagedCommit

# The code of a refused batch that another history has done, maybe in part, and this history has not.
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
    # With rules: the clients, applications and groups that get an owner with this batch, and that user.
    owners: Owners | None = None
    # Segments that must be done first: they end leases or transactions of the user that has the most, to make room.
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
    """A batch that is not the next one of its session. `code` and `wanted` are the answer. The client may resend."""

    batch: BatchId
    code: str
    wanted: int


@dataclass(slots=True)
class Unrecorded:
    """A session's next batch, which changes nothing. The server may write nothing now, so it makes no record of it.

    A client sends such a batch to learn how far the active is (`Clone.sync`).
    """

    batch: BatchId


class Other(Enum):
    """Verdicts that carry no values."""

    KEY_IN_OPEN_RECORD = "another client has written one of these keys in the open record"
    UNHEARD = "it may follow on a suffix that another server is about to hand over, or it was skipped"


# The reason for KEY_IN_OPEN_RECORD: if two clients wrote a key in one record, both would get the same revision. Then
# the first client could overwrite the second's value without having seen it: a set on the condition that the key still
# has this revision would succeed.
KEY_IN_OPEN_RECORD: Final = Other.KEY_IN_OPEN_RECORD
UNHEARD: Final = Other.UNHEARD
Verdict = Accept | AcceptChp1 | Commit | Refuse | Duplicate | Expected | Unrecorded | Other


class Refusal(Exception):
    """The refusal of a batch. The code and the detail go to the client."""

    def __init__(self, code: str, detail: object) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
