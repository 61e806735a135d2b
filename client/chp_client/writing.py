"""The writing half of a Clone: sets are shown at once and queued; a `Ticket` tells when the pair has them.

    set ----> open batch --+
    set_many, delete_many -+--> the hub's queue --> the agent numbers, sends, and settles the tickets
    if_revision -----------+    (a batch of its own)

Everything is checked here, before anything is shown or queued. `set` has a short way for what is plain: a key that was
checked before, bytes, and nothing asked beside. It is a few steps under the lock, and the agent does the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import repeat
from time import monotonic
from typing import Any

from chp import columns
from chp.errors import BadInput
from chp.keys import check_column

from . import checks, taking
from .errors import Conflict
from .hub import OPEN_ITEMS
from .reading import Reading
from .taking import NOTHING
from .tickets import Ticket

SMALL = 1024  # a value the open batch takes without counting bytes
KNOWN_MAX = 65_536  # keys that a Clone which holds nothing remembers to be well-formed


class Writing(Reading, MutableMapping[str, Any]):
    """Sets, deletes, conditions."""

    _holds: bool  # whether own sets are shown
    _known: dict[str, bytes]  # keys that need no more checks
    _some: list[str]  # keys that `popitem` has not looked at yet

    def set(
        self,
        key: str,
        value: Any,
        ttl: float | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Set a key; the ticket is settled when the pair has taken it.

        ttl          seconds after which the servers delete it: above 0, at most ten years; None for no end
        if_revision  only if the key's revision is this one, a number or text such as 1.42 (0: if it is absent); shown
                     once it is acknowledged
        timeout      seconds to wait for room in the window (`TimeoutError`); None waits as long as it takes

        Raises `BadKey` (also for a key outside what is held), `BadValue`, `BadTtl`, `BadInput`, `Full` (with
        on_full="raise"), `Closed`, `Forked`. What the servers say of it, `Refused` or `Conflict`, the ticket raises.
        """
        if key in self._known and ttl is None and if_revision is None and type(value) is bytes and len(value) <= SMALL:
            hub = self._hub
            with hub.lock:
                keys = hub.keys
                if len(keys) < hub.room:
                    try:
                        keys.append(key)
                        hub.values.append(value)
                    except BaseException:  # Ctrl-C
                        self._interrupted(key, value)
                        raise
                    if self._holds:
                        self._shown[key] = value
                    ticket = hub.ticket
                    if hub.sleeping:
                        hub.wake()
                    return ticket
        return self._set(key, value, ttl, if_revision, timeout)

    def _interrupted(self, key: str, value: bytes) -> None:
        """Locked: the set was made wholly or not at all."""
        hub = self._hub
        hub.even()
        if self._holds and hub.keys and hub.keys[-1] is key:
            self._shown[key] = value

    def _set(
        self, key: str, value: Any, ttl: float | None, if_revision: int | str | None, timeout: float | None
    ) -> Ticket:
        if self._codec is not None:
            value = self._codec.encode(value)
        data = checks.value_bytes(value)
        checks.held_key(key, self.subtrees)
        ms = checks.ttl_in_ms(ttl)
        if if_revision is not None:
            if_revision = checks.revision("if_revision", if_revision)
        hub = self._hub
        with hub.lock:
            if len(hub.keys) >= hub.room or len(data) > SMALL or if_revision is not None:
                hub.make_room(timeout)
            if if_revision is not None:
                return self._conditional(key, data, ms, if_revision)
            draft = hub.open
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
                hub.seal()
            if hub.sleeping:
                hub.wake()
            return draft.ticket

    def _conditional(self, key: str, data: bytes | None, ms: int | None, if_revision: int) -> Ticket:
        hub = self._hub
        hub.seal()
        draft = hub.draft()
        draft.keys, draft.values, draft.shown = [key], [data or b""], False
        draft.deletes = [0] if data is None else []
        draft.extras = {columns.CONDITIONS: [[0], [int(if_revision)]]}
        if ms is not None:
            draft.extras[columns.TTLS] = ms
        hub.push(draft)
        return draft.ticket

    def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ticket:
        """Delete a key, whether it is there or not; `if_revision`, the timeout and what is raised as of `set`."""
        checks.held_key(key, self.subtrees)
        if if_revision is not None:
            if_revision = checks.revision("if_revision", if_revision)
        hub = self._hub
        with hub.lock:
            if len(hub.keys) >= hub.room or if_revision is not None:
                hub.make_room(timeout)
            if if_revision is not None:
                return self._conditional(key, None, None, if_revision)
            draft = hub.open
            at = [len(draft.keys)]
            draft.keys += (key,)
            draft.values += (b"",)
            draft.deletes += at
            self._shown.pop(key, None)
            if hub.sleeping:
                hub.wake()
            return draft.ticket

    def set_many(
        self,
        items: Mapping[str, Any] | tuple[Sequence[str], Sequence[Any]],
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Set many keys, given as a mapping or as (keys, values); a later item of the same key wins.

        They are in other Clones' maps together, in one step, if they fit one batch (65,536 items, 16 MiB); of more,
        each part is. `ttl`, `timeout` and errors as of `set`.
        """
        keys, values, longest = self.columns(items)
        check_column(keys, self._shown)
        checks.held_column(keys, self.subtrees)
        # what is large, and what has a ticket of its own to wait for, does not go into the open batch
        alone = len(keys) > OPEN_ITEMS // 4 or longest > SMALL or ttl is not None or not keys
        return self._put(keys, values, checks.ttl_in_ms(ttl), timeout, alone=alone)

    def columns(
        self, items: Mapping[str, Any] | tuple[Sequence[str], Sequence[Any]]
    ) -> tuple[list[str], list[bytes], int]:
        """Keys, and values encoded and checked; the length of the longest value."""
        keys, values = checks.items_of(items)
        if self._codec is not None:
            values = list(map(self._codec.encode, values))
        return keys, *checks.value_column(values)

    def _put(
        self, keys: list[str], values: list[bytes], ms: int | None, timeout: float | None, *, alone: bool
    ) -> Ticket:
        hub = self._hub
        n, own = len(keys), self._shown
        pairs = zip(keys, values, strict=True) if self._holds else ()
        with hub.lock:
            if alone or len(hub.keys) + n > hub.room:
                self._room_for(n, timeout)
            if alone:
                hub.seal()
                draft = hub.draft()
                draft.keys, draft.values = keys, values
                if ms is not None:
                    draft.extras = {columns.TTLS: ms}
                hub.push(draft, pairs)
            else:
                draft = hub.open
                draft.keys += keys
                draft.values += values
                own |= pairs  # not update, after which an interrupt may come, as after any call
            if hub.sleeping:
                hub.wake()
            return draft.ticket

    def _room_for(self, n: int, timeout: float | None) -> None:
        hub = self._hub
        if hub.room >= 0 and len(hub.keys) + n > OPEN_ITEMS:
            hub.seal()
        hub.make_room(timeout)

    def delete_many(self, keys: Iterable[str], timeout: float | None = None) -> Ticket:
        """Delete many keys together, whether they are there or not; raises as `set` does."""
        keys = checks.keys_of(keys)
        check_column(keys, self._shown)
        checks.held_column(keys, self.subtrees)
        hub = self._hub
        with hub.lock:
            self._room_for(len(keys), timeout)
            hub.seal()
            draft = hub.draft()
            draft.keys, draft.values, draft.deletes = keys, [b""] * len(keys), list(range(len(keys)))
            hide: Callable[[], object] = partial(deque, map(self._shown.pop, keys, repeat(None)), 0)
            try:
                hub.push(draft)
            finally:  # if Ctrl-C comes when it is in the queue, it is visible too: one C-level call
                if draft.ticket in hub.outstanding:
                    hide()
            return draft.ticket

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self._shown:
            raise KeyError(key)
        self.delete(key)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As of a dict, in one batch."""
        # a mapping's items, not the mapping: another Clone's keys may go before their values are asked for
        items = dict(other.items() if isinstance(other, Mapping) else other, **more)
        if items:
            self.set_many(items)

    def clear(self) -> None:
        """Delete every key that is held here, for everybody."""
        keys = list(self._shown)
        if keys:
            self.delete_many(keys)

    def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; `default`, or KeyError, if there is none.

        Of all programs that take a key one gets it: the servers delete it if it is as this one saw it, and this waits
        until they have. Raises what `set` and its ticket do; after a `TimeoutError` it may be done, now or later.
        """
        return self._do(taking.pop(self, key, default), timeout)

    def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key and return it with its value, as `pop` does; KeyError if there is none."""
        item: tuple[str, Any] = self._do(taking.popitem(self), timeout)
        return item

    def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """The value of a key; if there is none it is set to `default`, unless another program is faster; as `pop`."""
        if not self._holds:
            raise BadInput("this Clone only writes, and can't tell what is there; use set(key, value, if_revision=0)")
        return self._do(taking.setdefault(self, key, default), timeout)

    def _do(self, steps: taking.Steps, timeout: float | None) -> Any:
        limit = checks.wait_s(timeout)
        until = None if limit is None else monotonic() + limit
        try:
            step = next(steps)
            while True:
                left = None if until is None else max(0.0, until - monotonic())
                try:
                    if isinstance(step, str):
                        self._hub.confirmed(step, left)
                    else:
                        step().wait(left)
                except Conflict as conflict:
                    step = steps.throw(conflict)
                else:
                    step = next(steps)
        except StopIteration as end:
            return end.value

    def some_key(self) -> str | None:
        """A key that is held, another one each time it is asked as long as there are some; None if there is none."""
        try:
            return self._some.pop()
        except IndexError:  # looked at and taken in one step, as several threads may ask
            self._some = keys = list(self._shown)
            return keys.pop() if keys else None

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged; else `TimeoutError`, or the first error of them.

        That includes sets which were refused (or lost, as the Clone was closed) before, if nobody was told: neither
        by their ticket's `wait` or `error`, nor by an earlier flush.
        """
        timeout, waiting = checks.wait_s(timeout), self.unsettled()
        deadline = None if timeout is None else monotonic() + timeout
        refused: Exception | None = None
        for ticket in waiting:
            try:
                ticket.wait(None if deadline is None else max(0.0, deadline - monotonic()))
            except TimeoutError:
                raise self.not_flushed(waiting, timeout) from refused
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused

    # -- for the parts of this package

    def unsettled(self) -> list[Ticket]:
        """What a flush waits for: sets on their way, and those that were refused and nobody was told of."""
        hub = self._hub
        with hub.lock:
            if hub.forked:
                raise hub.why_not()
            if hub.room >= 0:
                hub.seal()
            # lists first, each by one C-level call: the agent adds and takes away without the lock
            waiting = [ticket for ticket in list(hub.refused) if not ticket.told]
            waiting += [ticket for ticket in list(hub.outstanding) if not ticket.done]
            hub.refused.clear()
        return waiting

    def not_flushed(self, waiting: list[Ticket], timeout: float | None) -> TimeoutError:
        """The error of a flush that ran out."""
        left = f"{sum(not ticket.done for ticket in waiting)} batches unacknowledged after {timeout} s"
        return TimeoutError(f"flush: {left}; {self._hub.describe()}")
