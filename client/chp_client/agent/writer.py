"""Writes for a Clone: sets are shown at once and queued; a `Ticket` tells when the pair has them.

    set ----> open batch --+
    set_many, delete_many -+--> the queue --> the agent numbers, sends, and settles the tickets
    put, put_encoded       |    (a batch of its own: a lease's, a recording's, a staged one)
    if_revision -----------+

Everything is checked here, before anything is shown or queued. `set` has a short way for what is plain: a key that was
checked before, bytes, and nothing asked beside. It is a few steps under the lock, and the agent does the rest.

A Writer knows no Clone. As long as somebody has it, be it only by a bound `set`, its agent runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from chp import columns
from chp.errors import BadInput
from chp.keys import check_column

from .. import checks
from ..codecs import Codec
from ..core.leases import Handle
from ..renamed import NeverGiven, unknown_argument
from .mailbox import Mailbox
from .open_batch import OPEN_ITEMS, PendingBatch
from .tickets import Ticket

SMALL = 1024  # a value the open batch takes without counting bytes
KNOWN_MAX = 65_536  # keys that a Clone which holds nothing remembers to be well-formed
Items = Mapping[str, Any] | tuple[Sequence[str], Sequence[Any]]


class Writer:
    """Sets, deletes, conditions; what each may be given and raises is told at `Clone`'s method of the same name."""

    def __init__(self, mailbox: Mailbox, subtrees: tuple[str, ...], codec: Codec | None) -> None:
        self.subtrees = subtrees
        self._mailbox = mailbox
        self._batch = mailbox.batch
        self._codec = codec
        self._holds = bool(subtrees)  # whether own sets are shown
        self._shown = mailbox.core.shown
        # keys that need no more checks: those that are held; none with a codec, whose values do need it
        self._known: dict[str, bytes] = self._shown if self._holds and codec is None else {}

    def set(  # noqa: PLR0917 (a call with keywords alone is slower)
        self,
        key: str,
        value: Any,
        ttl: checks.Ttl | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
        ex: NeverGiven = bytes,
        nx: NeverGiven = None,
    ) -> Ticket:
        """Set a key; the ticket is settled when the pair has taken it.

        `ex` and `nx` are Redis's words, which are refused with ours. Two defaults cost less than a `**` for all words,
        and one of them is compared with the value's type, which spares a check.
        """
        known = self._known
        if (
            key in known
            and ttl is None
            and if_revision is None
            and type(value) is ex
            and len(value) <= SMALL
            and nx is None
        ):
            batch = self._batch
            with batch.lock:
                keys = batch.keys
                if len(keys) < batch.room:
                    try:
                        keys.append(key)
                        batch.values.append(value)
                    except BaseException:  # Ctrl-C
                        self._interrupted(key, value)
                        raise
                    if self._holds:
                        known[key] = value
                    ticket = batch.ticket
                    if batch.sleeping:
                        batch.wake()
                    return ticket
        if ex is not bytes or nx is not None:
            raise unknown_argument("set", "nx" if ex is bytes else "ex")
        return self._set(key, value, ttl, if_revision, timeout)

    def _interrupted(self, key: str, value: bytes) -> None:
        """Locked: the set was made wholly or not at all."""
        batch = self._batch
        batch.trim_interrupted()
        if self._holds and batch.keys and batch.keys[-1] is key:
            self._shown[key] = value

    def _set(
        self, key: str, value: Any, ttl: checks.Ttl | None, if_revision: int | str | None, timeout: float | None
    ) -> Ticket:
        if timeout is not None:
            checks.wait_s(timeout)
        if self._codec is not None:
            value = self._codec.encode(value)
        data = checks.value_bytes(value)
        checks.held_key(key, self.subtrees)
        ms = checks.ttl_in_ms(ttl)
        if if_revision is not None:
            if_revision = checks.revision("if_revision", if_revision)
        batch = self._batch
        with batch.lock:
            if len(batch.keys) >= batch.room or len(data) > SMALL or if_revision is not None:
                self._mailbox.make_room(timeout)
            if if_revision is not None:
                return self._conditional(key, data, ms, if_revision)
            draft = batch.draft
            ttl_at, ttl_of = draft.ttls
            at = [len(draft.keys)]
            # not append: an interrupt may come after a call, and then one column would be longer than the other
            draft.keys += (key,)
            draft.values += (data,)
            if ms is not None:
                ttl_at += at
                ttl_of += (ms,)
            if self._holds:
                self._shown[key] = data
            elif self._codec is None and len(self._known) < KNOWN_MAX:
                self._known[key] = b""
            if len(data) > SMALL:
                batch.seal()
            if batch.sleeping:
                batch.wake()
            return draft.ticket

    def _conditional(self, key: str, data: bytes | None, ms: int | None, if_revision: int) -> Ticket:
        batch = self._batch
        batch.seal()
        draft = batch.new()
        draft.keys, draft.values, draft.shown = [key], [data or b""], False
        draft.deletes = [0] if data is None else []
        draft.extras = {columns.CONDITIONS: [[0], [int(if_revision)]]}
        if ms is not None:
            draft.extras[columns.TTLS] = ms
        batch.push(draft)
        return draft.ticket

    def touch(
        self, key: str, ttl: checks.Ttl | None, held: bytes, revision: int, timeout: float | None = None
    ) -> Ticket:
        """Give a key another time to live, by a set of the value held on condition of its revision."""
        ms = checks.ttl_in_ms(ttl)
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._conditional(key, held, ms, revision)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key, whether it is there or not."""
        checks.held_key(key, self.subtrees)
        if timeout is not None:
            checks.wait_s(timeout)
        if if_revision is not None:
            if_revision = checks.revision("if_revision", if_revision)
        batch = self._batch
        with batch.lock:
            if len(batch.keys) >= batch.room or if_revision is not None:
                self._mailbox.make_room(timeout)
            if if_revision is not None:
                return self._conditional(key, None, None, if_revision)
            draft = batch.draft
            at = [len(draft.keys)]
            draft.keys += (key,)
            draft.values += (b"",)
            draft.deletes += at
            self._shown.pop(key, None)
            if batch.sleeping:
                batch.wake()
            return draft.ticket

    def set_many(self, items: Items, ttl: checks.Ttl | None = None, timeout: float | None = None) -> Ticket:
        """Set many keys, given as a mapping or as (keys, values); a later item of the same key wins."""
        keys, values, longest = self.columns(items, self._shown)
        # what is large, and what has a ticket of its own to wait for, does not go into the open batch
        alone = len(keys) > OPEN_ITEMS // 4 or longest > SMALL or ttl is not None or not keys
        return self._put_many(keys, values, checks.ttl_in_ms(ttl), timeout, alone=alone)

    def columns(self, items: Items, known: dict[str, bytes]) -> tuple[list[str], list[bytes], int]:
        """Keys, and values encoded, all checked (but `known` keys); the length of the longest value."""
        keys, values = checks.items_of(items)
        if self._codec is not None:
            values = list(map(self._codec.encode, values))
        data, longest = checks.value_column(values)
        check_column(keys, known)
        checks.held_column(keys, self.subtrees)
        return keys, data, longest

    def _put_many(
        self, keys: list[str], values: list[bytes], ms: int | None, timeout: float | None, *, alone: bool
    ) -> Ticket:
        if timeout is not None:
            checks.wait_s(timeout)
        batch = self._batch
        n, own = len(keys), self._shown
        pairs = zip(keys, values, strict=True) if self._holds else ()
        with batch.lock:
            if alone or len(batch.keys) + n > batch.room:
                self._mailbox.make_room(timeout, n)
            if alone:
                batch.seal()
                draft = batch.new()
                draft.keys, draft.values = keys, values
                if ms is not None:
                    draft.extras = {columns.TTLS: ms}
                batch.push(draft, pairs)
            else:
                draft = batch.draft
                draft.keys += keys
                draft.values += values
                own |= pairs  # not update, after which an interrupt may come, as after any call
            if batch.sleeping:
                batch.wake()
            return draft.ticket

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys together, whether they are there or not."""
        keys = checks.keys_of(keys)
        check_column(keys, self._shown)
        checks.held_column(keys, self.subtrees)
        batch = self._batch
        with batch.lock:
            self._mailbox.make_room(timeout, len(keys))
            batch.seal()
            draft = batch.new()
            draft.keys, draft.values, draft.deletes = keys, [b""] * len(keys), list(range(len(keys)))
            hide: Callable[[], object] = partial(deque, map(self._shown.pop, keys, repeat(None)), 0)
            try:
                batch.push(draft)
            finally:  # if Ctrl-C comes when it is in the queue, it is visible too: one C-level call
                if draft.ticket in batch.outstanding:
                    hide()
            return draft.ticket

    # -- for the parts of this package: columns that are checked, under names of their own

    def put(self, keys: list[str], values: list[bytes], extras: dict[str, Any], timeout: float | None) -> Ticket:
        """Sets with `extras`, such as those of a lease; they join what waits for the agent with the same."""
        pairs = zip(keys, values, strict=True) if self._holds else ()
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._batch.join(keys, values, extras, pairs).ticket

    def put_columns(
        self,
        keys: list[str],
        values: list[bytes],
        deletes: list[int],
        ttls_ms: tuple[list[int], list[int]],
        conditions: tuple[list[int], list[int]] = ([], []),
        *,
        extras: dict[str, Any] | None = None,
    ) -> Ticket:
        """Sets and deletes in their order, as one batch, so that they are seen together; none of them is shown.

        `conditions`: places, and the revision that the key there must have; if one does not hold, nothing is done.
        `extras`: further columns, of topics and leases.
        """
        check_column(keys, {})
        with self._batch.lock:
            self._mailbox.make_room(None, len(keys))
            draft = self._batch.new()
            draft.keys, draft.values, draft.deletes, draft.ttls = keys, values, deletes, ttls_ms
            draft.shown, draft.extras = False, dict(extras or {})
            if conditions[0]:
                draft.extras[columns.CONDITIONS] = list(conditions)
            return self._alone(draft)

    def encoded(self, value: Any) -> bytes:
        """A value as it travels."""
        return checks.value_bytes(value if self._codec is None else self._codec.encode(value))

    @property
    def decode(self) -> Callable[[bytes], Any] | None:
        """The other way; None if values are bytes."""
        return None if self._codec is None else self._codec.decode

    def publish(self, topic: str, key: str, data: bytes, timeout: float | None) -> Ticket:
        """A message for a topic, in the order of what is set."""
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            if self._mailbox.core.chp1.following:
                raise BadInput("a server of CHP/1 has no topics; use a pair of CHP/2")
            return self._batch.publish(topic, key, data).ticket

    def sync(self, timeout: float | None = None) -> Ticket:
        """A batch of no keys: what is acknowledged of it comes behind all that was acknowledged before."""
        if not self._holds:
            raise BadInput("this Clone only writes, and has nothing to read; sync one that holds the subtree")
        if self._mailbox.core.chp1.following:
            raise BadInput("a server of CHP/1 acknowledges nothing, so nothing can be synced; use a pair of CHP/2")
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._alone(self._batch.new())

    def put_encoded(self, body: bytes, timeout: float | None) -> Ticket:
        """A segment that is encoded already, as a batch of its own; nothing of it is shown."""
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._alone(self._batch.encoded(body))

    def _alone(self, draft: PendingBatch) -> Ticket:
        self._batch.seal()
        self._batch.push(draft)
        return draft.ticket

    # -- for leases

    @property
    def closed(self) -> bool:
        """Whether nothing can be set any more."""
        return self._mailbox.closed

    def new_ticket(self) -> Ticket:
        """For what the agent sends by itself."""
        return self._mailbox.new_ticket()

    def call(self, callback: Callable[[], object]) -> None:
        """Call something of the application's, on the thread of its listeners."""
        self._mailbox.call(callback)

    def keep_lease(self, lease: bytes, ttl_ms: int, handle: Handle) -> None:
        """Refresh a lease from now on; what `handle` makes is told how that was answered."""
        hold = self._mailbox.core.leases.hold
        self._mailbox.command(lambda now: hold(lease, ttl_ms, now, handle))

    def drop_lease(self, lease: bytes) -> None:
        """Refresh it no more."""
        drop = self._mailbox.core.leases.drop
        self._mailbox.command(lambda now: drop(lease))

    def end_lease(self, lease: bytes) -> Ticket:
        """Refresh it no more, and have the servers end it; waits for no room, as there are no more than were made."""
        self.drop_lease(lease)
        with self._batch.lock:
            self._mailbox.check_open()
            draft = self._batch.new()
            draft.extras = {columns.UNLEASE: lease}
            return self._alone(draft)

    def lease_lost(self, lease: bytes) -> None:
        """The same by the agent, which must not wait: the servers have ended it."""
        drop = self._mailbox.core.leases.drop
        self._mailbox.commands.append(lambda now: drop(lease))
