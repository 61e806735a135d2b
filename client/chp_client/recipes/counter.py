"""A number that many programs raise: each addition is a set on condition, and counts once.

The value is a number in the Clone's codec, or decimal text if the codec is "raw" or "text". With many writers an
addition may have to be tried again. If you need no exact sum at each moment, let each program count in a key of its
own, and let the reader add the keys up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chp.errors import BadInput, BadValue
from chp_client.agent.waiting import Waiter, at_once
from chp_client.clone.aio import AsyncClone
from chp_client.clone.base import internals
from chp_client.clone.clone import Clone
from chp_client.codecs import Codec, Text
from chp_client.errors import Conflict

from .places import of_kind


def _as_value(codec: Codec | None) -> Callable[[int], Any]:
    if codec is None:
        return lambda n: b"%d" % n
    return str if isinstance(codec, Text) else int


class _Counter:
    _kind: type[Any] = Clone

    def __init__(self, clone: Any, key: str, *, encode: Callable[[int], Any] | None = None) -> None:
        self._clone, self._key = of_kind(clone, self._kind, key), key
        self._encode = encode or _as_value(clone.codec)

    @property
    def value(self) -> int:
        """The number in this copy; 0 if there is no value yet."""
        return self._number(self._clone.get(self._key, 0))

    def _number(self, value: Any) -> int:
        try:
            number = int(value)
            if isinstance(value, bool) or (isinstance(value, float) and number != value):
                # The value is not a whole number.
                raise ValueError
            return number
        except (TypeError, ValueError, OverflowError):
            remedy = "set it to a whole number, or count in another key"
            raise BadValue(f"{self._key!r} is no counter: it holds {value!r:.60}; {remedy}") from None

    async def _add(self, n: int, waits: Waiter) -> int:
        if type(n) is not int:
            raise BadInput(f"a counter counts whole numbers, not {n!r:.60}")
        while True:
            entry = self._clone.entry(self._key)
            total = self._number(0 if entry is None else entry.value) + n
            revision = 0 if entry is None else entry.revision
            try:
                await waits.done(
                    partial(internals(self._clone).writer.set, self._key, self._encode(total), None, revision)
                )
            except Conflict:
                continue
            return total


class Counter(_Counter):
    """A counter: `Counter(clone, "/visits").add()`. For your own codec, `encode` turns a number into a value."""

    def add(self, n: int = 1, timeout: float | None = None) -> int:
        """Add `n` and return the new sum. After a TimeoutError the addition may still take effect."""
        return at_once(self._add(n, internals(self._clone).waits(timeout)))


class AsyncCounter(_Counter):
    """`Counter` for an AsyncClone."""

    _kind = AsyncClone

    async def add(self, n: int = 1, timeout: float | None = None) -> int:
        """Add `n`, and return the sum that this addition made; see `Counter.add`."""
        return await self._add(n, internals(self._clone).waits(timeout))
