"""Slices: large bodies are read a slice at a time, so that other requests can go on between two slices.

    lines       NDJSON: blocks of whole lines, each of which is parsed at once
    document    one JSON text, whose objects and arrays are nested to a known depth only
    Slices      the order: one slice of one body in each turn of the loop

A reader is a generator. It yields where other requests may go on, and returns its result. A thread would not help:
JSON is parsed with Python's lock held, so the loop would wait just as long for the thread.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Generator, Iterator
from json import decoder
from typing import Any, TypeVar

# A slice has at most this many bytes. JSON of this size is parsed in 3 ms, whatever it holds.
SLICE_BYTES = 65_536
# A reader yields after this many rows. Checking them one by one takes 2 ms.
SLICE_ROWS = 256
# An object that ends within this many bytes is parsed at once.
SMALL = 4096
# The first piece of a JSON string has this many bytes. Each further piece is four times as long, up to SLICE_BYTES.
TEXT_PIECE = 256
# Two escapes that make one character, a pair of surrogates, have this many bytes.
ESCAPE_MAX = 12
# A number has at most SCALAR_MAX bytes, and at most SPACE_MAX blanks lie between two values.
SCALAR_MAX = 64
SPACE_MAX = 1000
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
# The C function of the json module that reads one JSON string. It takes the place behind the opening quote, and returns
# the string and the place behind the closing quote. The type stubs of the standard library lack this function.
scanstring: Callable[[str, int], tuple[str, int]] = decoder.scanstring  # type: ignore[attr-defined]
_SPACE = re.compile(rb"[ \t\n\r]{0,%d}" % SPACE_MAX)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")


class Slices:
    """The order in which the large bodies of one gateway are read."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, size: int, steps: Steps[Result]) -> Result:
        """Return the result of `steps` for a body of `size` bytes; take one step a turn of the loop if it is large."""
        if size <= SLICE_BYTES:
            return _all_of(steps)
        async with self._turn:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    found: Result = end.value
                    return found
                await asyncio.sleep(0)


def _all_of(steps: Steps[Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Result = end.value
            return found


def blocks(body: bytes) -> Iterator[bytes]:
    """Yield blocks of whole lines, of at most SLICE_BYTES, without the line end between two blocks.

    A longer line is a block by itself.
    """
    at = 0
    while len(body) - at > SLICE_BYTES:
        end = body.rfind(b"\n", at, at + SLICE_BYTES)
        if end < 0 and (end := body.find(b"\n", at)) < 0:
            break
        yield body[at:end]
        at = end + 1
    yield body[at:]


def document(body: bytes, depth: int, things: int) -> Steps[Any]:
    """Read one JSON text; raise `ValueError` if it is bad.

    A text of more than SLICE_BYTES is also bad if it is nested deeper than `depth` or has more than `things` values.
    """
    if len(body) <= SLICE_BYTES:
        return json.loads(body)
    reader = _SliceReader(body, things)
    found = yield from reader.value(depth)
    reader.space()
    if reader.at != len(body):
        raise ValueError(f"there is more behind the JSON text, at byte {reader.at}")
    return found


class _SliceReader:
    """The reader of one large JSON text; `at` is the byte that it reads next."""

    def __init__(self, body: bytes, things: int) -> None:
        self._body, self.at = body, 0
        self._things = self._left = things

    def space(self) -> bytes:
        """Pass over blanks, and return the next byte."""
        found = _SPACE.match(self._body, self.at)
        self.at = self.at if found is None else found.end()
        return self._body[self.at : self.at + 1]

    def value(self, depth: int) -> Steps[Any]:
        """Read a value that is nested at most `depth` deep."""
        first = self.space()
        if depth == 1 and first == b"{" and (row := self._small_row()) is not None:
            return row
        self._count(1)
        if self._left % SLICE_ROWS == 0:
            yield
        if first == b'"':
            self.at += 1
            return (yield from self._string())
        if first not in (b"{", b"["):
            return self._scalar()
        if not depth:
            raise ValueError(f"a value is a text or a number, not what begins at byte {self.at}")
        self.at += 1
        return (yield from (self._object(depth - 1) if first == b"{" else self._array(depth - 1)))

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            raise ValueError(f"the JSON text holds more than {self._things} things")

    def _small_row(self) -> Any:
        """Read a small object that ends at the next closing brace; return None if there is no such object."""
        end = self._body.find(b"}", self.at, self.at + SMALL) + 1
        try:
            row = json.loads(self._body[self.at : end])
        except (ValueError, RecursionError):
            return None
        self.at = end
        self._count(1 + len(row))
        return row

    def _object(self, depth: int) -> Steps[dict[str, Any]]:
        found: dict[str, Any] = {}
        if self.space() == b"}":
            self.at += 1
            return found
        while True:
            self._expect(b'"')
            name = yield from self._string()
            self._expect(b":")
            found[name] = yield from self.value(depth)
            if self._expect(b",}") == b"}":
                return found

    def _array(self, depth: int) -> Steps[list[Any]]:
        found: list[Any] = []
        if self.space() == b"]":
            self.at += 1
            return found
        while True:
            found.append((yield from self.value(depth)))
            if len(found) % SLICE_ROWS == 0:
                yield
            if self._expect(b",]") == b"]":
                return found

    def _expect(self, which: bytes) -> bytes:
        found = self.space()
        if not found or found not in which:
            raise ValueError(f"{' or '.join(which.decode())} is missing at byte {self.at}")
        self.at += 1
        return found

    def _scalar(self) -> Any:
        found = _SCALAR.match(self._body, self.at, self.at + SCALAR_MAX + 1)
        if found is None or len(found[0]) > SCALAR_MAX:
            raise ValueError(f"no value is at byte {self.at}")
        self.at = found.end()
        return json.loads(found[0])

    def _string(self) -> Steps[str]:
        """Read the rest of a text, in pieces that `scanstring` reads as texts of their own."""
        pieces: list[str] = []
        size = TEXT_PIECE
        while not self._piece(pieces, size):
            if size == SLICE_BYTES:
                yield
            size = min(4 * size, SLICE_BYTES)
        whole = "".join(pieces)
        if len(whole) > SLICE_BYTES:
            # The next use of the text takes as long again.
            yield
        return whole

    def _piece(self, pieces: list[str], size: int) -> bool:
        """Add a piece; return True if it is the last one. No piece ends within an escape or a pair of surrogates."""
        begin = self.at
        most = min(begin + size, len(self._body))
        for cut in range(most, max(most - ESCAPE_MAX, begin), -1):
            try:
                piece = self._body[begin:cut].decode()
                found, end = scanstring(piece + '"', 0)
            except ValueError:
                continue
            ends = end <= len(piece)
            if ends or not "\ud800" <= found[-1:] <= "\udbff":
                pieces.append(found)
                self.at = begin + len(piece[:end].encode()) if ends else cut
                return ends
        raise ValueError(f"the text at byte {begin} does not end, or has a character or an escape that is none")
