"""The judgement of a KVSET: what is to be done with it; nothing is changed here (SPEC.md, sections 11 and 14).

    judge(frames, view, open_record, now) -> a verdict (verdicts.py)

The state has the effects of the open record already, and conditions are checked against the state. So the caller must
put gathered sets of CHP/1 into the record before it judges a batch. It must act on a verdict before it judges the next
KVSET.
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
from chp.topics import has_headers
from chp.versions import COLUMN_SINCE, DELIVERIES_SINCE, HEADERS_SINCE, OLDEST, SKIPS_SINCE, VERSION

from ..state import leases
from ..state.groups import check_positions, without_positions
from ..state.leases import LeaseOwner
from ..state.schedule import with_user
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
    Unrecorded,
    Verdict,
)
from .authorizer import check_batch, check_plain, new_owners, signer
from .committed import Committed
from .open_record import HEADER_BYTES_MAX, OpenRecord
from .refusals import UnloggedRefusals
from .resource_limits import ResourceLimits

# Sparse columns that only a server may write.
SERVERS_OWN = frozenset(
    {columns.REVISIONS, columns.UUIDS, columns.PROPERTIES, columns.DONE, columns.REFUSED, columns.ENDED,
     columns.PLACED, columns.TRIM, columns.ASSIGN, columns.FAILED, columns.ASIDE, columns.SKIPPED, columns.SCHEDULED,
     columns.FIRED, columns.IMAGES}
)  # fmt: skip
# The settings of a group that an older server does not know.
NEWER = frozenset({"max_deliveries", "retry_after_ms", "expire_after_s", "lag_alarm_s", "change"})


@dataclass(slots=True)
class StateView:
    """The state, the resource limits and the versions by which a batch is judged."""

    committed: Committed
    room: ResourceLimits
    unwritten: UnloggedRefusals
    # The size in bytes up to which a batch can't exceed a limit.
    small: int
    # The version of the pair: the lower one of its two.
    version: int = VERSION
    # Until this time another server may hand over batches that it has done for a session.
    suffix_due: float = 0.0

    def last_no(self, session_id: bytes, open_record: OpenRecord) -> int:
        """Return the number of a session's last batch; 0 if the session is not known."""
        no = open_record.origins.get(session_id)
        if no is None:
            session = self.committed.state.sessions.get(session_id)
            no = session.no if session else 0
        return max(no, self.unwritten.last(session_id)) if self.unwritten.kept else no


def judge(frames: list[bytes], view: StateView, open_record: OpenRecord, now: float) -> Verdict:
    """Return the verdict on a KVSET, of CHP/2 `by_public_id` or of CHP/1; raise `BadInput` if it is malformed."""
    if frames[0] != RESERVED_KEY:
        return _judge_chp1(frames, view, open_record)
    no, session_id = unpack(frames[1]), frames[2]
    if no == 0:
        raise BadFrame("a batch has the number 0; the first batch of a session has the number 1")
    last, state = view.last_no(session_id, open_record), view.committed.state
    if state.replaced(session_id):
        return Expected((session_id, no), "session", 1)
    if no <= last:
        return _judge_again((session_id, no), frames[4], view)
    if no > last + 1 and now < view.suffix_due:
        return UNHEARD
    if no > last + 1 and not (frames[3] == OLDEST_HELD and view.version >= SKIPS_SINCE):
        return Expected((session_id, no), "session" if last == 0 else "expected", last + 1)
    return _judge_next((session_id, no), frames, view, open_record)


def _judge_chp1(frames: list[bytes], view: StateView, open_record: OpenRecord) -> Verdict:
    """Judge a set of CHP/1: an empty value deletes, and a UUID that was applied before is a duplicate."""
    key, uuid, properties, value = parse_kvset(frames)
    ttl_ms, state, room = ttl_ms_of(properties), view.committed.state, view.room
    if open_record.origins and state.map_so_far.revisions.get(key) == state.number + 1:
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


def _judge_again(batch: BatchId, body: bytes, view: StateView) -> Verdict:
    session_id, no = batch
    state = view.committed.state
    refusal = state.refusals.get(session_id, no) or view.unwritten.get(session_id, no)
    if refusal is not None and refusal[0] == "full" and _changes_nothing(body):
        # The batch counts as refused only because it is between two refused batches. It needs no room itself.
        refusal = None
    session = state.sessions.get(session_id)
    known = session is not None and no <= session.no
    if refusal is None and not known and no <= view.unwritten.last(session_id):
        return Unrecorded(batch)
    if refusal is None and state.skipped(session_id, no):
        # The batch was not done here, and may have been refused elsewhere. Its client has an answer, and no longer has
        # the batch.
        return Unrecorded(batch) if _changes_nothing(body) else UNHEARD
    return Duplicate(batch, refusal, session.revision_of(no) if session and known else state.number + 1)


def _changes_nothing(body: bytes) -> bool:
    segment = decode_segment(body)
    return not (segment.keys or segment.extras)


def _judge_next(batch: BatchId, frames: list[bytes], view: StateView, open_record: OpenRecord) -> Verdict:
    body, state, older, owners = frames[4], view.committed.state, 0, None
    ending: list[Segment] = []
    size = len(body)
    try:
        segment = decode_segment(body)
        check_decoded(segment.keys)
        if size > view.small:
            _check_size(segment, size, view)
        if state.access.rules is not None:
            owners = _check_access(batch[0], segment, signer(frames), state)
        if not (segment.keys or segment.extras) and view.room.read_only:
            return Unrecorded(batch)
        view.room.check(segment, size, state)
        extras = segment.extras
        if extras and columns.ONCE in extras and _was_done(extras, signer(frames), state):
            segment, extras = Segment([], []), None
            body = segment.encode()
        if extras:
            user = signer(frames)
            whose = LeaseOwner(batch[0][:CLIENT_BYTES], user, user if state.access.rules is not None else "")
            ending = _check(segment, extras, size, whose, view)
            recorded, older = _recorded(segment, extras, whose, state)
            if recorded is not segment:
                segment, body = recorded, recorded.encode()
            if columns.COMMIT in extras:
                return Commit(batch, _staged(extras[columns.COMMIT], user, state), owners)
    except Refusal as error:
        return Refuse(batch, error.code, error.detail, size)
    except BadInput as error:
        return Refuse(batch, "bad", str(error))
    if open_record.origins and open_record.crowds(batch[0], segment, state):
        return KEY_IN_OPEN_RECORD
    return Accept(batch, segment, body, older, owners, ending)


def _recorded(
    segment: Segment, extras: dict[str, Any], whose: LeaseOwner, state: ReplicatedState
) -> tuple[Segment, int]:
    """Return a client's segment as its record has it, and the number of items left out because they are too old."""
    older = 0
    if columns.LEASE in extras:
        segment = leases.with_owner(segment, whose)
    if columns.SCHEDULE in extras:
        # The commit turns delays into times (`timed`).
        segment = with_user(segment, whose.user)
    if columns.ACK in extras and any(len(each) > 4 for each in extras[columns.ACK]):
        acks = without_positions(extras[columns.ACK])
        segment = Segment(segment.keys, segment.values, {**(segment.extras or {}), columns.ACK: acks})
    # The items of a staged batch are compared when it is committed.
    if columns.UNLESS_NEWER in extras and columns.STAGE not in extras:
        segment, older = newer(segment, state)
    return segment, older


# -- checks of a segment


def _check_access(session_id: bytes, segment: Segment, user: str, state: ReplicatedState) -> Owners:
    """Check a batch by the rules. Return the names that the user owns from now on, such as the session's client."""
    if why := check_batch(state.access, user, session_id, segment, state.staging):
        raise Refusal("access", why)
    return new_owners(state.access, user, session_id, segment.extras or {}, state.staging)


def _check_size(segment: Segment, size: int, view: StateView) -> None:
    limits = view.committed.limits
    values_max, body_max = limits.value_bytes_max, limits.frame_bytes_max - HEADER_BYTES_MAX
    if size > body_max:
        raise Refusal("size", f"a batch has at most {body_max} bytes as it is sent, not {size}; split it")
    if size > values_max and max(map(len, segment.values), default=0) > values_max:
        raise Refusal("size", f"a value has at most {values_max} bytes")


def _check(segment: Segment, extras: dict[str, Any], size: int, whose: LeaseOwner, view: StateView) -> list[Segment]:
    """Refuse a segment that may not be done; return the segments that must be done first to make room for it."""
    state, ending = view.committed.state, list[Segment]()
    if not SERVERS_OWN.isdisjoint(extras):
        raise BadFrame(f"the columns {sorted(SERVERS_OWN & extras.keys())} are the server's to write; leave them out")
    _check_columns(extras, view.version)
    if columns.CONDITIONS in extras:
        _check_conditions(segment, extras, state)
    if columns.EXPECT in extras:
        _check_expected(extras, state)
    if not leases.COLUMNS.isdisjoint(extras):
        gone = state.leases.check(extras, whose, view.committed.limits)
        ending += (Segment([], [], {columns.UNLEASE: lease_id}) for lease_id in gone)
    if not columns.OF_TOPICS.isdisjoint(extras):
        state.topics.check(extras, state.leases, whose)
    if columns.ACK in extras:
        check_positions(extras[columns.ACK], state.is_of_others)
    if columns.STAGE in extras:
        room = state.staging.room(extras[columns.STAGE][0], size, whose.client, whose.share, state.access.owners)
        if room.why:
            raise Refusal("busy", room.why)
        ending += (Segment([], [], {columns.ABORT: transaction_id}) for transaction_id in room.makes_room)
    return ending


def _check_columns(extras: dict[str, Any], version: int) -> None:
    """Refuse columns that this server does not understand, or that the peer's version does not."""
    if not extras.keys() <= COLUMNS:
        unknown = ", ".join(sorted(map(repr, extras.keys() - COLUMNS)))
        raise BadFrame(f"version {VERSION} knows no column {unknown:.200}; leave it out, or upgrade the servers")
    if later := sorted(name for name in extras if COLUMN_SINCE.get(name, OLDEST) > version):
        raise BadFrame(f"the column {later[0]!r} needs version {COLUMN_SINCE[later[0]]} on both servers, and the "
                       f"pair works at {version}; upgrade the other one")  # fmt: skip
    if version < HEADERS_SINCE and any(has_headers(body) for _, _, body in extras.get(columns.PUBLISH, ())):
        raise BadFrame(f"headers of messages need version {HEADERS_SINCE} on both servers, and the pair works at "
                       f"{version}; upgrade the other one")  # fmt: skip
    settings = extras[columns.GROUP][2] if version < DELIVERIES_SINCE and columns.GROUP in extras else None
    if settings and not NEWER.isdisjoint(settings):
        named = "max_deliveries, expire_after_s, lag_alarm_s and changes of a group"
        raise BadFrame(f"{named} need version {DELIVERIES_SINCE} on both servers, and the pair works at {version}; "
                       "upgrade the other one")  # fmt: skip


def _check_conditions(segment: Segment, extras: dict[str, Any], state: ReplicatedState) -> None:
    get = state.revisions()
    places, wanted = extras[columns.CONDITIONS]
    failed = {segment.keys[i]: get(segment.keys[i], 0) for i in places}
    if any(failed[segment.keys[i]] != revision for i, revision in zip(places, wanted, strict=True)):
        raise Refusal(PARTED if any(map(state.unseen, wanted)) else "revision", failed)


def _check_expected(extras: dict[str, Any], state: ReplicatedState) -> None:
    """Check conditions on keys that the batch does not write."""
    if {columns.STAGE, columns.COMMIT} & extras.keys():
        raise BadFrame("'expect' can't be used with 'stage' or 'commit'")
    get, expected = state.revisions(), extras[columns.EXPECT]
    failed = {key: get(key, 0) for key, revision in expected if get(key, 0) != revision}
    if failed:
        unseen = any(state.unseen(revision) for _, revision in expected)
        raise Refusal(PARTED if unseen else "revision", failed)


def _was_done(extras: dict[str, Any], user: str, state: ReplicatedState) -> bool:
    """Return whether an application has done this version or a later one. If so, the caller does nothing of the batch.

    Raise `Refusal` if the version is out of turn, or can't be remembered.
    """
    if {columns.STAGE, columns.COMMIT} & extras.keys():
        raise BadFrame(
            "'once' can't be used with 'stage' or 'commit'; a commit names its application and version itself"
        )
    application, version, strict = extras[columns.ONCE]
    versions = state.staging.versions
    last = versions[application].version if application in versions else 0
    if application in versions and version <= last:
        return True
    if strict and version != last + 1:
        raise Refusal("count", last)
    _check_remembered(application, user, state)
    return False


def _check_remembered(application: str, user: str, state: ReplicatedState) -> None:
    """Refuse an application whose version can't be remembered."""
    if why := state.staging.why_not_remembered(application, user if state.access.rules is not None else ""):
        raise Refusal("busy", why)


def _staged(commit: list[Any], user: str, state: ReplicatedState) -> StagedCommit:
    transaction_id, application, version, parts, replace = commit
    done = state.staging.done(application, version)
    if done is None and (missing := state.staging.missing(transaction_id, parts)):
        raise Refusal("staged", missing)
    if done is None:
        _check_remembered(application, user, state)
        state.topics.check_room(state.staging.messages(transaction_id, parts))
    return StagedCommit(transaction_id, application, version, parts, replace, done)


def newer(segment: Segment, state: ReplicatedState) -> tuple[Segment, int]:
    """Return a segment without the items whose keys have a later revision than the item names.

    Also return the number of items that were left out.
    """
    get = state.revisions()
    mask = [True] * len(segment.keys)
    extras = segment.extras or {}
    for i, revision in zip(*extras[columns.UNLESS_NEWER], strict=True):
        mask[i] = get(segment.keys[i], 0) <= revision
    kept = select(segment, mask) or Segment([], [], columns.without(extras, columns.OF_ITEMS))
    kept.extras = columns.without(kept.extras or {}, {columns.UNLESS_NEWER}) or None
    return kept, mask.count(False)
