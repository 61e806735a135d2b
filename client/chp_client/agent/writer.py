"""The writes of a Clone: sets are shown at once and queued. A `Ticket` tells when the pair has them.

    set ----> open batch --+
    set_many, delete_many -+--> the queue --> the agent numbers and sends them, and settles the tickets
    put, put_encoded       |    (a batch of its own: for a lease, a recording or a staged commit)
    if_revision -----------+

Everything is checked here, before anything is shown or queued. `set` has a fast path for a key that was checked before,
a value of bytes, and no further arguments. It takes a few steps under the lock, and the agent does the rest.

A Writer knows no Clone. Its agent runs as long as the application holds the Writer, even if only by a bound `set`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chp import columns
from chp.errors import BadInput
from chp.keys import check_column
from chp.topics import NO_HEADERS, Headers, check_headers

from .. import checks
from ..codecs import Codec
from ..core.copy.shown import removal, showing
from ..core.leases import Handle
from ..renamed import NeverGiven, unknown_argument
from .mailbox import Mailbox
from .measured import Tracing
from .open_batch import OPEN_ITEMS, PendingBatch
from .tickets import Ticket

# The open batch takes values of at most this many bytes, without counting bytes. A larger value ends the batch.
SMALL = 1024
# A write-only Clone remembers this many keys as well-formed.
KNOWN_MAX = 65_536
Items = Mapping[str, Any] | tuple[Sequence[str], Sequence[Any]]


class Writer:
    """The sets, deletes and conditional sets of a Clone. `Clone`'s methods of the same names document them."""

    def __init__(self, mailbox: Mailbox, subtrees: tuple[str, ...], codec: Codec | None) -> None:
        self.subtrees = subtrees
        self._mailbox = mailbox
        self._batch = mailbox.batch
        self._codec = codec
        # The application's object that puts traces into the headers of messages, if it has one.
        self.tracing: Tracing | None = None
        # True if own sets are shown.
        self._holds = bool(subtrees)
        self._shown = mailbox.core.shown
        # The keys of the fast path, which need no more checks. With a codec there are none, as it must see each value.
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
        """Set a key. The ticket is settled when the pair has taken it.

        `ex` and `nx` are Redis's argument names. They are refused with an error that gives our names. Two default
        arguments cost less than a `**` for all such names. The default of `ex` is `bytes`: to compare it with the
        value's type checks both arguments at once.
        """
        known = self._known
        if (
            key in known
            and ttl is None
            and if_revision is None
            and timeout is None
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
                    except BaseException:
                        # Ctrl-C may interrupt this.
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
        """Finish an interrupted set or undo it, so that it is made wholly or not at all (locked)."""
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
            pending = batch.pending
            ttl_at, ttl_of = pending.ttls
            at = [len(pending.keys)]
            # Ctrl-C may come after a call of `append`, and one column would be longer then. `+=` is no call.
            pending.keys += (key,)
            pending.values += (data,)
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
            return pending.ticket

    def _conditional(self, key: str, data: bytes | None, ms: int | None, if_revision: int) -> Ticket:
        batch = self._batch
        batch.seal()
        pending = batch.new()
        pending.keys, pending.values, pending.shown = [key], [data or b""], False
        pending.deletes = [0] if data is None else []
        pending.extras = {columns.CONDITIONS: [[0], [int(if_revision)]]}
        if ms is not None:
            pending.extras[columns.TTLS] = ms
        batch.push(pending)
        return pending.ticket

    def touch(
        self, key: str, ttl: checks.Ttl | None, held: bytes, revision: int, timeout: float | None = None
    ) -> Ticket:
        """Give a key another time to live: set the held value again, on condition of its revision."""
        ms = checks.ttl_in_ms(ttl)
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._conditional(key, held, ms, revision)

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key, whether it exists or not."""
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
            pending = batch.pending
            at = [len(pending.keys)]
            pending.keys += (key,)
            pending.values += (b"",)
            pending.deletes += at
            self._shown.pop(key, None)
            if batch.sleeping:
                batch.wake()
            return pending.ticket

    def set_many(self, items: Items, ttl: checks.Ttl | None = None, timeout: float | None = None) -> Ticket:
        """Set many keys, given as a mapping or as (keys, values). A later item of the same key wins."""
        keys, values, longest = self.columns(items, self._shown)
        # Large sets, and sets with a ttl, do not go into the open batch.
        alone = len(keys) > OPEN_ITEMS // 4 or longest > SMALL or ttl is not None or not keys
        return self._put_many(keys, values, checks.ttl_in_ms(ttl), timeout, alone=alone)

    def columns(self, items: Items, known: dict[str, bytes]) -> tuple[list[str], list[bytes], int]:
        """Return the keys, the encoded values, and the length of the longest value.

        All keys and values are checked, except for `known` keys.
        """
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
        n = len(keys)
        show = showing(self._shown, zip(keys, values, strict=True)) if self._holds else ()
        with batch.lock:
            if alone or len(batch.keys) + n > batch.room:
                self._mailbox.make_room(timeout, n)
            if alone:
                batch.seal()
                pending = batch.new()
                pending.keys, pending.values = keys, values
                if ms is not None:
                    pending.extras = {columns.TTLS: ms}
                batch.push(pending, show)
            else:
                pending = batch.pending
                pending.keys += keys
                pending.values += values
                # Ctrl-C may interrupt after a call. Unpacking the steps is not a call.
                _ = [*show]
            if batch.sleeping:
                batch.wake()
            return pending.ticket

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys together, whether they exist or not."""
        keys = checks.keys_of(keys)
        check_column(keys, self._shown)
        checks.held_column(keys, self.subtrees)
        batch = self._batch
        with batch.lock:
            self._mailbox.make_room(timeout, len(keys))
            batch.seal()
            pending = batch.new()
            pending.keys, pending.values, pending.deletes = keys, [b""] * len(keys), list(range(len(keys)))
            hide = removal(self._shown, keys)
            try:
                batch.push(pending)
            finally:
                # If Ctrl-C comes when the batch is queued already, the deletes are shown too, in one step.
                if pending.ticket in batch.outstanding:
                    hide()
            return pending.ticket

    # -- for the parts of this package: columns that are checked, under names of their own

    def put(self, keys: list[str], values: list[bytes], extras: dict[str, Any], timeout: float | None) -> Ticket:
        """Queue sets with `extras`, such as those of a lease. They may join a queued batch with the same extras."""
        show = showing(self._shown, zip(keys, values, strict=True)) if self._holds else ()
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._batch.join(keys, values, extras, show).ticket

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
        """Queue sets and deletes in their order as one batch, so readers see them together.

        The batch is not shown before it is confirmed. `conditions` are places, and the revisions that the keys there
        must have. If one does not hold, nothing is done. `extras` are further columns, for topics and leases.
        """
        check_column(keys, {})
        with self._batch.lock:
            self._mailbox.make_room(None, len(keys))
            pending = self._batch.new()
            pending.keys, pending.values, pending.deletes, pending.ttls = keys, values, deletes, ttls_ms
            pending.shown, pending.extras = False, dict(extras or {})
            if conditions[0]:
                pending.extras[columns.CONDITIONS] = list(conditions)
            return self._alone(pending)

    def encoded(self, value: Any) -> bytes:
        """Return a value as it is sent."""
        return checks.value_bytes(value if self._codec is None else self._codec.encode(value))

    @property
    def decode(self) -> Callable[[bytes], Any] | None:
        """The function that decodes a value, or None if values are bytes."""
        return None if self._codec is None else self._codec.decode

    def carried(self, headers: Headers | None) -> Headers:
        """Return the checked headers of a message, with the current trace if the application traces messages."""
        checked = check_headers(headers) if headers else NO_HEADERS
        return checked if self.tracing is None else check_headers({**self.tracing.carried(), **checked})

    def publish(
        self, topic: str, key: str, data: bytes, timeout: float | None, headers: Headers | None = None
    ) -> Ticket:
        """Queue a message for a topic, in order with the sets."""
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            if self._mailbox.core.chp1.following:
                raise BadInput("a server of CHP/1 has no topics; use a pair of CHP/2")
            return self._batch.publish(topic, key, data, headers).ticket

    def sync(self, timeout: float | None = None) -> Ticket:
        """Queue a batch without keys. It is acknowledged after everything that was acknowledged before."""
        if not self._holds:
            raise BadInput("this Clone only writes, and has nothing to read; sync one that holds the subtree")
        if self._mailbox.core.chp1.following:
            raise BadInput("a server of CHP/1 acknowledges nothing, so nothing can be synced; use a pair of CHP/2")
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._alone(self._batch.new())

    def put_encoded(self, body: bytes, timeout: float | None) -> Ticket:
        """Queue an encoded segment as a batch of its own. It is not shown."""
        with self._batch.lock:
            self._mailbox.make_room(timeout)
            return self._alone(self._batch.encoded(body))

    def _alone(self, pending: PendingBatch) -> Ticket:
        if self._batch.keys:
            self._batch.seal()
        self._batch.push(pending)
        return pending.ticket

    # -- for leases

    @property
    def closed(self) -> bool:
        """True if nothing can be set any more."""
        return self._mailbox.closed

    def new_ticket(self) -> Ticket:
        """Make a ticket for a batch that the agent sends by itself."""
        return self._mailbox.new_ticket()

    def call(self, callback: Callable[[], object]) -> None:
        """Call a callback of the application on the thread of its listeners."""
        self._mailbox.call(callback)

    def keep_lease(self, lease: bytes, ttl_ms: int, handle: Handle) -> None:
        """Refresh a lease from now on. `handle` makes the object that is told the answer."""
        hold = self._mailbox.core.leases.hold
        self._mailbox.command(lambda now: hold(lease, ttl_ms, now, handle))

    def drop_lease(self, lease: bytes) -> None:
        """Stop refreshing a lease."""
        drop = self._mailbox.core.leases.drop
        self._mailbox.command(lambda now: drop(lease))

    def end_lease(self, lease: bytes) -> Ticket:
        """Stop refreshing a lease, and let the servers end it.

        It does not wait for room, as there are no more ends than leases.
        """
        self.drop_lease(lease)
        with self._batch.lock:
            self._mailbox.check_open()
            pending = self._batch.new()
            pending.extras = {columns.UNLEASE: lease}
            return self._alone(pending)

    def forget_lease(self, lease: bytes) -> None:
        """Let the agent end a lease. It takes no lock, so a finalizer may call it."""
        self._mailbox.forget_lease(lease)

    def lease_lost(self, lease: bytes) -> None:
        """Stop refreshing a lease that the servers ended. The agent calls this, so it must not wait."""
        drop = self._mailbox.core.leases.drop
        self._mailbox.commands.append(lambda now: drop(lease))
