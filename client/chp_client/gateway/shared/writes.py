"""Writes of all requests on their way to the pair. A key belongs to one write at a time.

    no condition, no Idempotency-Key  --> writes that come while two batches are under way travel as the next batch
    any other write, or a large one   --> a batch of its own: all of it is done, or nothing
    a key that is under way           --> the next write of the key waits until the write under way is answered

So no two writes of one key get the same revision. Two PUTs of one key in one record would get the same ETag, and with
that ETag the first writer could overwrite the value of the second writer.

A write with an Idempotency-Key also sets a marker, a key that belongs to the gateways. The marker is set in the same
record, on condition that it is absent. If the same request comes again, to any gateway and after any failover, the pair
refuses it if it was done. The marker has the revision of the write, so the first answer can be given again. A refused
write leaves no marker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from starlette.requests import Request

from chp.numbers import Revision

from ...agent.aioparts import call_soon
from ...agent.tickets import Ticket
from ...clone.aio import AsyncClone
from ...clone.base import Internals
from ...core.events import Ack
from ...errors import Conflict, Full
from ..problems import Problem
from ..slices import SLICE_BYTES
from .rows import RESERVED, BatchRows

log = logging.getLogger("chp_client")
# A write waits at most this many seconds for its answer. A failover takes about a second, or several on a busy machine.
ACK_S = 10.0
# While this many batches are under way, further writes are gathered. One batch travels while the servers do the other.
UNDER_WAY = 2
# A write of more bytes than this is a batch of its own, as other writes would wait for it.
TOGETHER_BYTES = 1 << 20
MARKERS = RESERVED + "once/"
# A marker is remembered for a day. A client that repeats a request does so within a day.
REMEMBERED_MS = 86_400_000
IDEMPOTENCY_KEY_MAX = 255
# If the pair refused a write because of its marker, the gateway waits this many seconds until its copy has the marker.
SHOWN_S = 5.0


class WriteResult(NamedTuple):
    """The result of a write. If the write was done before, `again` is True and `durability` is ""."""

    revision: Revision
    durability: str
    again: bool = False


Answered = Callable[[WriteResult | Exception], None]


class Marker(NamedTuple):
    """The key that remembers a request, and the digest of the request."""

    key: str
    digest: bytes


class _Batch:
    """The rows that travel together, the keys to release with the answer, and the callbacks of the writers."""

    def __init__(self, rows: BatchRows) -> None:
        self.rows = rows
        self.keys: list[str] = []
        self.answered: list[Answered] = []


class Writes:
    """The writes of one Clone. Only the event loop of the Clone may use this object."""

    def __init__(
        self,
        clone: AsyncClone,
        inside: Internals,
        noted: Callable[[int], None],
        most: Callable[[], int] | None = None,
    ) -> None:
        """Tell `noted` the revision of each set. `most` returns how many writes may wait for the pair."""
        self._most = most
        # The writes that wait for the pair.
        self._pending = 0
        self._clone = clone
        self._writer, self._waits, self._noted = inside.writer, inside.waits, noted
        self._loop = asyncio.get_running_loop()
        # The keys under way, and the writes that wait for each of them.
        self._held: dict[str, deque[asyncio.Future[None]] | None] = {}
        self._next: _Batch | None = None
        self._under_way = 0
        # The batches that are sent, and when each is overdue.
        self._alarms: dict[Ticket, asyncio.TimerHandle] = {}
        # The batches that wait for room.
        self._waiting: set[asyncio.Task[None]] = set()

    def begin(self, key: str, value: bytes, answered: Answered) -> bool:
        """Begin a plain set; return False if another write has the key, the set is large, or too many writes wait."""
        size = len(key) + len(value)
        if key in self._held or size > TOGETHER_BYTES or self._is_full():
            return False
        self._pending += 1
        self._held[key] = None
        batch = self._gathering(1, size)
        rows = batch.rows
        rows.keys.append(key)
        rows.values.append(value)
        rows.bytes += size
        batch.keys.append(key)
        batch.answered.append(answered)
        return True

    async def write(self, rows: BatchRows, marker: Marker | None = None) -> WriteResult:
        """Write all rows or none, and only once for each marker; raise the errors of `AsyncClone.set`."""
        if marker is not None:
            rows.append(marker.key, marker.digest, REMEMBERED_MS, 0)
        try:
            with self.waiting():
                return await self._written(rows)
        except Conflict as conflict:
            if marker is None or not (revision := conflict.revisions.get(marker.key)):
                raise
            await self._check_same(marker)
            return WriteResult(revision, "", again=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one more write that waits for the pair; raise `Problem` if there are too many."""
        if self._is_full():
            text = (
                f"{self._pending} writes wait for the pair of this mount, which is slow or away; ask again in a moment"
            )
            raise Problem(429, "busy", text, retry_s=1)
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1

    def _is_full(self) -> bool:
        return self._most is not None and self._pending >= self._most()

    async def _written(self, rows: BatchRows) -> WriteResult:
        keys = rows.keys
        if self._held.keys().isdisjoint(keys):
            self._held.update(dict.fromkeys(keys))
        else:
            await self._wait_for(sorted(set(keys)))
        answer: asyncio.Future[WriteResult] = self._loop.create_future()
        try:
            if rows.extras or rows.conditions[0] or rows.bytes > TOGETHER_BYTES:
                batch = _Batch(rows)
                batch.answered.append(partial(_resolve, answer))
                self._send(batch)
            else:
                batch = self._gathering(len(rows.keys), rows.bytes)
                batch.rows.extend(rows)
                batch.answered.append(partial(_resolve, answer))
            return await answer
        finally:
            self._release(keys if len(keys) == 1 else set(keys))

    async def _check_same(self, marker: Marker) -> None:
        """Raise `Problem` if the marker in the copy was set by another request."""
        until = self._loop.time() + SHOWN_S
        while (found := self._clone.get(marker.key)) is None:
            if self._loop.time() > until:
                raise Problem(503, "unacknowledged", "it was done, but this copy does not have it yet", retry_s=1)
            await asyncio.sleep(0.01)
        if found != marker.digest:
            text = "another request had this Idempotency-Key, and was done; use a new key for a new request"
            raise Problem(422, "idempotency-key", text)

    # -- one write at a time for each key

    async def _wait_for(self, keys: list[str]) -> None:
        try:
            async with asyncio.timeout(ACK_S):
                await self._take(keys)
        except TimeoutError:
            text = f"others have written {keys[0]!r:.120} for {ACK_S:g} s, and this was not done; ask again"
            raise Problem(503, "busy", text, retry_s=1) from None

    async def _take(self, keys: list[str]) -> None:
        """Take the keys one by one in their order, so that no two writes wait for each other."""
        taken: list[str] = []
        turn: asyncio.Future[None] | None = None
        try:
            for key in keys:
                if key not in self._held:
                    self._held[key] = None
                else:
                    waiting = self._held[key] = self._held[key] or deque()
                    turn = self._loop.create_future()
                    waiting.append(turn)
                    # The write that has the key hands it over.
                    await turn
                    turn = None
                taken.append(key)
        except BaseException:
            if turn is not None and turn.done() and not turn.cancelled():
                taken.append(keys[len(taken)])
            self._release(taken)
            raise

    def _release(self, keys: Iterable[str]) -> None:
        for key in keys:
            waiting = self._held.pop(key)
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    self._held[key] = waiting
                    turn.set_result(None)
                    break

    # -- batches

    def _gathering(self, keys: int, size: int) -> _Batch:
        """Return the next batch, which has room for this many more keys with `size` bytes in all."""
        if self._next is not None and not self._next.rows.room_for(keys, size):
            self._flush()
        if self._next is None:
            self._next = _Batch(BatchRows(()))
            if self._under_way < UNDER_WAY:
                self._loop.call_soon(self._flush)
        return self._next

    def _flush(self) -> None:
        """Send the next batch, if there is one."""
        if (batch := self._next) is not None:
            self._next = None
            self._under_way += 1
            batch.answered.append(self._arrived)
            self._send(batch)

    def _arrived(self, _: WriteResult | Exception) -> None:
        self._under_way -= 1
        if self._next is not None and self._under_way < UNDER_WAY:
            self._flush()

    def _send(self, batch: _Batch) -> None:
        rows = batch.rows
        try:
            ticket = self._writer.put_columns(
                rows.keys, rows.values, rows.deletes, rows.ttls, rows.conditions, extras=rows.extras
            )
        except Full:
            waiting = self._loop.create_task(self._send_later(batch))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        except Exception as error:
            self._tell(batch, error)
        else:
            settle = partial(self._settle, batch)
            self._alarms[ticket] = self._loop.call_later(ACK_S, settle, ticket)
            ticket.on_settled(partial(call_soon, self._loop, settle))

    async def _send_later(self, batch: _Batch) -> None:
        """Send a batch once the Clone has room for it."""
        rows = batch.rows
        done: Ack | Exception = TimeoutError("this gateway ends")
        try:
            put = self._writer.put_columns
            act = partial(put, rows.keys, rows.values, rows.deletes, rows.ttls, rows.conditions, extras=rows.extras)
            done = await self._waits(ACK_S).done(act)
        except Exception as error:
            done = error
        finally:
            self._tell(batch, done)

    def _settle(self, batch: _Batch, ticket: Ticket) -> None:
        """Tell the writers the answer of a ticket, or that the answer is overdue."""
        alarm = self._alarms.pop(ticket, None)
        if alarm is None:
            return
        alarm.cancel()
        done: Ack | Exception
        try:
            done = ticket.wait(0) if ticket.done else ticket.overdue(ACK_S)
        except Exception as error:
            done = error
        self._tell(batch, done)

    def _tell(self, batch: _Batch, done: Ack | Exception) -> None:
        """Tell each writer the answer; a callback that fails does not stop the others."""
        # The sets of `begin` are no longer pending, and their keys are free. `write` does this for its own rows.
        self._pending -= len(batch.keys)
        self._release(batch.keys)
        result: WriteResult | Exception
        if isinstance(done, Exception):
            result = done
        else:
            result = WriteResult(done.revision, done.durability)
            if len(batch.rows.keys) > len(batch.rows.deletes):
                self._noted(result.revision)
        for answered in batch.answered:
            try:
                answered(result)
            except Exception:
                log.exception("an answer to a write")


def _resolve(answer: asyncio.Future[WriteResult], done: WriteResult | Exception) -> None:
    if answer.done():
        return
    if isinstance(done, Exception):
        answer.set_exception(done)
    else:
        answer.set_result(done)


async def marker_of(request: Request, user: str, body: bytes) -> Marker | None:
    """Return the marker of a request; None if it has no Idempotency-Key."""
    name = request.headers.get("idempotency-key")
    if name is None:
        return None
    if not 1 <= len(name) <= IDEMPOTENCY_KEY_MAX:
        text = f"an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX} characters; use a UUID"
        raise Problem(400, "bad-idempotency-key", text)
    about = sha256()
    headers = [request.headers.get(each, "") for each in ("if-match", "if-none-match", "content-type")]
    path = request.scope.get("raw_path", b"").partition(b"?")[0]
    headers += [f"{name}:{value}" for name, value in request.headers.items() if name.startswith("chp-header-")]
    for part in (request.method.encode(), path, request.scope["query_string"], *(h.encode() for h in headers)):
        about.update(len(part).to_bytes(8, "big") + part)
    about.update(len(body).to_bytes(8, "big"))
    if len(body) <= SLICE_BYTES:
        about.update(body)
    else:
        # The hash of 16 MiB takes 50 ms. A thread computes the hash without Python's lock, so the loop goes on.
        await asyncio.to_thread(about.update, body)
    # The user is part of the marker's name, so two users may use the same Idempotency-Key. The length tells where the
    # user's name ends, as both may have spaces.
    owned = f"{len(user)} {user}{name}"
    return Marker(MARKERS + sha256(owned.encode()).hexdigest(), about.hexdigest().encode())
