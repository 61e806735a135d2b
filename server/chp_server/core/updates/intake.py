"""What is to be done with a KVSET, judged by what is known; nothing is changed by it (SPEC.md, sections 11 and 14).

    judge(frames, view, open_record, now) -> a verdict (verdicts.py)

The state has what the open record did already, and conditions look at that: sets of CHP/1 that still gather are put
into the record before a batch is judged. Whoever acts on a verdict does so before the next KVSET is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chp import columns
from chp.batch import COLUMNS, Segment, decode_segment, select
from chp.errors import BadFrame, BadInput
from chp.keys import CLIENT_BYTES, OLDEST_HELD, RESERVED_KEY, check_decoded
from chp.messages import parse_kvset
from chp.numbers import unpack
from chp.properties import ttl_ms_of
from chp.versions import COLUMN_SINCE, OLDEST, SKIPS_SINCE, VERSION

from ..state import leases
from ..state.leases import Whose
from ..state.staging import StagedCommit
from ..state.state import ReplicatedState
from ..state.verdicts import (
    KEY_IN_OPEN_RECORD,
    PARTED,
    UNHEARD,
    Accept,
    AcceptChp1,
    BatchId,
    Commit,
    Duplicate,
    Expected,
    Owners,
    Refusal,
    Refuse,
    Verdict,
)
from .committed import Committed
from .gate import check_batch, check_plain, claims, signer
from .openrecord import HEADER_BYTES_MAX, OpenRecord
from .room import Room
from .unwritten import Unwritten

SERVERS_OWN = frozenset(  # sparse columns that only a server may write
    {columns.REVISIONS, columns.UUIDS, columns.PROPERTIES, columns.DONE, columns.REFUSED, columns.ENDED,
     columns.PLACED, columns.TRIM, columns.ASSIGN, columns.SKIPPED}
)  # fmt: skip


@dataclass(slots=True)
class View:
    """What a batch is judged by."""

    committed: Committed
    room: Room
    unwritten: Unwritten
    small: int  # bytes of a batch that no limit minds
    version: int = VERSION  # of the pair: the lower one of its two
    suffix_due: float = 0.0  # until then another server may hand over what a session did there

    def last_no(self, session_id: bytes, open_record: OpenRecord) -> int:
        """The number of a session's last batch; 0 for one that nothing is known of."""
        no = open_record.origins.get(session_id)
        if no is None:
            session = self.committed.state.sessions.get(session_id)
            no = session.no if session else 0
        return max(no, self.unwritten.last(session_id)) if self.unwritten.kept else no


def judge(frames: list[bytes], view: View, open_record: OpenRecord, now: float) -> Verdict:
    """A KVSET, of CHP/2 `by_public_id` or of CHP/1; `BadInput` if it is none."""
    if frames[0] != RESERVED_KEY:
        return _judge_chp1(frames, view, open_record)
    no, session_id = unpack(frames[1]), frames[2]
    if no == 0:
        raise BadFrame("batch 0 of a session; the first has the number 1")
    last, state = view.last_no(session_id, open_record), view.committed.state
    if state.replaced(session_id):
        return Expected((session_id, no), "session", 1)
    if no <= last:
        return _judge_again((session_id, no), view)
    if no > last + 1 and now < view.suffix_due:
        return UNHEARD
    if no > last + 1 and not (frames[3] == OLDEST_HELD and view.version >= SKIPS_SINCE):
        return Expected((session_id, no), "session" if last == 0 else "expected", last + 1)
    return _judge_next((session_id, no), frames, view, open_record)


def _judge_chp1(frames: list[bytes], view: View, open_record: OpenRecord) -> Verdict:
    """An empty value deletes, and a UUID that was applied before is a duplicate."""
    key, uuid, properties, value = parse_kvset(frames)
    ttl_ms, state, room = ttl_ms_of(properties), view.committed.state, view.room
    if open_record.origins and state.map.revisions.get(key) == state.number + 1:
        return KEY_IN_OPEN_RECORD
    if state.access.rules is not None and (why := check_plain(state.access, signer(frames), key)):
        return Refuse(None, "access", why)
    if uuid and (uuid in open_record.chp1 or uuid in state.uuids):
        return Duplicate(None)
    if value or room.read_only:
        size = len(key) + len(value)
        if why := room.why_no_set(key, size, state):
            return Refuse(None, "full", why, size)
    return AcceptChp1(key, value, uuid, properties, ttl_ms)


def _judge_again(batch: BatchId, view: View) -> Duplicate:
    session_id, no = batch
    state = view.committed.state
    refusal = state.refusals.get(batch) or view.unwritten.get(session_id, no)
    session = state.sessions.get(session_id)
    known = session is not None and no <= session.no
    return Duplicate(batch, refusal, session.revision_of(no) if session and known else state.number + 1)


def _judge_next(batch: BatchId, frames: list[bytes], view: View, open_record: OpenRecord) -> Verdict:
    body, state, older, owners = frames[4], view.committed.state, 0, None
    size = len(body)
    try:
        segment = decode_segment(body)
        check_decoded(segment.keys)
        if size > view.small:
            _check_size(segment, size, view)
        if state.access.rules is not None:
            owners = _check_access(batch[0], segment, signer(frames), state)
        view.room.check(segment, size, state)
        if (extras := segment.extras) and columns.ONCE in extras and _was_done(extras, signer(frames), state):
            segment, extras = Segment([], []), None
            body = segment.encode()
        if extras:
            whose = Whose(batch[0][:CLIENT_BYTES], signer(frames))
            _check(segment, extras, size, whose, view)
            if columns.LEASE in extras:
                segment = leases.with_owner(segment, whose)
                body = segment.encode()
            if columns.UNLESS_NEWER in extras and columns.STAGE not in extras:  # staged: when it is committed
                segment, older = newer(segment, state)
                body = segment.encode()
            if columns.COMMIT in extras:
                return Commit(batch, _staged(extras[columns.COMMIT], state), owners)
    except Refusal as error:
        return Refuse(batch, error.code, error.detail, size)
    except BadInput as error:
        return Refuse(batch, "bad", str(error))
    if open_record.origins and open_record.crowds(batch[0], segment, state):
        return KEY_IN_OPEN_RECORD
    return Accept(batch, segment, body, older, owners)


# -- what a segment may say


def _check_access(session_id: bytes, segment: Segment, user: str, state: ReplicatedState) -> Owners:
    """By the rules; returns what was nobody's and is the user's from now on: the session, an application."""
    if why := check_batch(state.access, user, session_id, segment, state.staging):
        raise Refusal("access", why)
    named = [session_id[:CLIENT_BYTES], *claims(segment.extras or {})]
    return {each: user for each in named if each not in state.access.owners}


def _check_size(segment: Segment, size: int, view: View) -> None:
    limits = view.committed.limits
    values_max, body_max = limits.value_bytes_max, limits.frame_bytes_max - HEADER_BYTES_MAX
    if size > body_max:
        raise Refusal("size", f"a batch has at most {body_max} bytes as it is sent, not {size}; split it")
    if size > values_max and max(map(len, segment.values), default=0) > values_max:
        raise Refusal("size", f"a value has at most {values_max} bytes")


def _check(segment: Segment, extras: dict[str, Any], size: int, whose: Whose, view: View) -> None:
    state = view.committed.state
    if not SERVERS_OWN.isdisjoint(extras):
        raise BadFrame(f"the columns {sorted(SERVERS_OWN & extras.keys())} are the server's to write; leave them out")
    _check_columns(extras, view.version)
    if columns.CONDITIONS in extras:
        _check_conditions(segment, extras, state)
    if columns.EXPECT in extras:
        _check_expected(extras, state)
    if not leases.COLUMNS.isdisjoint(extras):
        state.leases.check(extras, whose, view.committed.limits)
    if not columns.OF_TOPICS.isdisjoint(extras):
        state.topics.check(extras, state.leases, whose)
    if columns.STAGE in extras and (full := state.staging.full(extras[columns.STAGE][0], size, whose.client)):
        raise Refusal("busy", full)


def _check_columns(extras: dict[str, Any], version: int) -> None:
    """Nobody acknowledges what it does not understand, or what the other server of the pair would not."""
    if not extras.keys() <= COLUMNS:
        unknown = ", ".join(sorted(map(repr, extras.keys() - COLUMNS)))
        raise BadFrame(f"version {VERSION} knows no column {unknown:.200}; leave it out, or upgrade the servers")
    if later := sorted(name for name in extras if COLUMN_SINCE.get(name, OLDEST) > version):
        raise BadFrame(f"the column {later[0]!r} needs version {COLUMN_SINCE[later[0]]} on both servers, and the "
                       f"pair works at {version}; upgrade the other one")  # fmt: skip


def _check_conditions(segment: Segment, extras: dict[str, Any], state: ReplicatedState) -> None:
    get = state.map.revisions.get
    places, wanted = extras[columns.CONDITIONS]
    failed = {segment.keys[i]: get(segment.keys[i], 0) for i in places}
    if any(failed[segment.keys[i]] != revision for i, revision in zip(places, wanted, strict=True)):
        raise Refusal(PARTED if any(map(state.unseen, wanted)) else "revision", failed)


def _check_expected(extras: dict[str, Any], state: ReplicatedState) -> None:
    """Conditions on keys that the batch does not write."""
    if {columns.STAGE, columns.COMMIT} & extras.keys():
        raise BadFrame("'expect' does not go with what is staged")
    get, expected = state.map.revisions.get, extras[columns.EXPECT]
    failed = {key: get(key, 0) for key, revision in expected if get(key, 0) != revision}
    if failed:
        unseen = any(state.unseen(revision) for _, revision in expected)
        raise Refusal(PARTED if unseen else "revision", failed)


def _was_done(extras: dict[str, Any], user: str, state: ReplicatedState) -> bool:
    """Whether an application has done this version, or a later one: then nothing of the batch is done again."""
    if {columns.STAGE, columns.COMMIT} & extras.keys():
        raise BadFrame("'once' does not go with what is staged; a commit names its application and version itself")
    application, version, strict = extras[columns.ONCE]
    versions = state.staging.versions
    last = versions[application][0] if application in versions else 0
    if application in versions and version <= last:
        return True
    if strict and version != last + 1:
        raise Refusal("count", last)
    full = application not in versions and len(versions) >= state.limits.applications_max
    if full and (state.access.rules is None or state.staging.crowding(state.access.whose) in ("", user)):
        many = f"the versions of {len(versions):,} applications are remembered, as many as there may be"
        raise Refusal("busy", f"{many}; use a name again, not a new one each time")
    return False


def _staged(commit: list[Any], state: ReplicatedState) -> StagedCommit:
    transaction_id, application, version, parts, replace = commit
    done = state.staging.done(application, version)
    if done is None and (missing := state.staging.missing(transaction_id, parts)):
        raise Refusal("staged", missing)
    if done is None:
        state.topics.check_room(state.staging.messages(transaction_id, parts))
    return StagedCommit(transaction_id, application, version, parts, replace, done)


def newer(segment: Segment, state: ReplicatedState) -> tuple[Segment, int]:
    """Without the items whose key has a later revision than the one they name; and how many these were."""
    get = state.map.revisions.get
    mask = [True] * len(segment.keys)
    extras = segment.extras or {}
    for i, revision in zip(*extras[columns.UNLESS_NEWER], strict=True):
        mask[i] = get(segment.keys[i], 0) <= revision
    kept = select(segment, mask) or Segment([], [], columns.without(extras, columns.OF_ITEMS))
    kept.extras = columns.without(kept.extras or {}, {columns.UNLESS_NEWER}) or None
    return kept, mask.count(False)
