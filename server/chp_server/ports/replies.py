"""Answers that wait for the readers of the snapshot port, bounded for each reader and for all together.

    send     sends to a reader; a message without room is held, and `retry` sends it as soon as there is room
    look     cuts off, now and then, the readers that have taken nothing for long, and drops what waited for them

libzmq bounds what waits only by the number of messages, and 1,000 messages may be chunks with a value of 16 MiB. So
this module counts bytes, and watches about one frame for each `WATCHED_BYTES`. libzmq tells when it has given a watched
frame to the kernel, or has dropped the frame because its reader left.

A reader may have at most as many bytes on their way as are still free of the total. So if many readers take nothing,
each further reader gets less, and the sum stays below the total. As much stays free for the next reader as each of
these readers has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import Socket as Backend

from chp.limits import Limits

from .. import logs
from ..core.updates.turn import Frames
from . import connections

if TYPE_CHECKING:
    from ..core.questions.requests import Requests

log = logs.get_log(__name__)
WATCHED_BYTES = 64 << 10
# A frame takes this many bytes in libzmq, beside its content.
FRAME_BYTES = 80
_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_send_frame: Any = Backend.send


@dataclass(slots=True)
class ReplyReader:
    """A connection to the snapshot port, and the messages that wait for it in libzmq and here."""

    fd: int | None
    place: connections.Place | None
    # The time when the reader last took something.
    since: float
    # The key that the reader has shown, and its user.
    who: tuple[str, str] = ("", "")
    watched: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    # An upper bound of the bytes that wait in libzmq for the reader.
    sent: int = 0
    # The part of `sent` that was sent after the last watched frame.
    loose: int = 0
    outgoing: deque[Frames] = field(default_factory=deque)
    outgoing_bytes: int = 0

    @property
    def waits(self) -> int:
        """The bytes that wait for the reader, at most."""
        return self.sent + self.outgoing_bytes


class Replies:
    """The answers of the snapshot port."""

    def __init__(self, socket: zmq.Socket[bytes], limits: Limits, requests: Requests) -> None:
        self._socket, self._limits, self._requests = socket, limits, requests
        self._readers: dict[bytes, ReplyReader] = {}
        # The bytes that wait for all readers.
        self._waits = 0
        # The readers for which answers wait in `outgoing`.
        self._waiting: set[bytes] = set()
        self.given_up = 0
        requests.clients.address_of = self.address_of

    @property
    def has_waiting(self) -> bool:
        """True while a message waits here for room."""
        return bool(self._waiting or self._requests.blocked)

    @property
    def waits(self) -> int:
        """The bytes that wait for all readers, at most."""
        return self._waits

    @property
    def largest(self) -> int:
        """The most bytes that wait for one reader."""
        return max((reader.waits for reader in list(self._readers.values())), default=0)

    # -- readers

    def came(self, identity: bytes, fd: int | None, now: float, who: tuple[str, str] = ("", "")) -> None:
        """Note that a request came by a connection; `who` is the key that it has shown, and its user."""
        reader = self._readers.get(identity)
        if reader is None or reader.fd != fd:
            place = None if fd is None else connections.place_of(fd)
            if reader is None:
                reader = self._readers[identity] = ReplyReader(fd, place, now)
            else:
                reader.fd, reader.place = fd, place
            reader.who = who

    def address_of(self, identity: bytes) -> str:
        """Return the place to which a connection leads, for people; "" if it is not known."""
        reader = self._readers.get(identity)
        return "" if reader is None or reader.place is None else connections.described(reader.place)

    # -- answers

    def send(self, identity: bytes, messages: list[Frames], now: float) -> None:
        """Answer a reader; messages for which there is no room wait for a while."""
        reader = self._readers.get(identity)
        if reader is None:
            reader = self._readers[identity] = ReplyReader(None, None, now)
        for i, frames in enumerate(messages):
            if reader.outgoing or not self._try(identity, reader, frames, now):
                if identity in self._readers:
                    self._hold(identity, reader, messages[i:])
                break
        self._requests.room = self._room

    def _hold(self, identity: bytes, reader: ReplyReader, messages: list[Frames]) -> None:
        again = bool(reader.outgoing)
        reader.outgoing.extend(messages)
        self._count(reader, outgoing=sum(map(_weight, messages)))
        self._waiting.add(identity)
        if again and len(reader.outgoing) > self._limits.router_queue_max:
            self._give_up(identity, reader, "it asks, and takes nothing")

    def _try(self, identity: bytes, reader: ReplyReader, frames: Frames, now: float) -> bool:
        if self._over(reader, now):
            self._requests.blocked.add(identity)
            return False
        try:
            self._push(identity, reader, frames, now)
        except zmq.Again:
            self._requests.blocked.add(identity)
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(identity)
            return False
        if self._over(reader, now):
            self._requests.blocked.add(identity)
        return True

    def _push(self, identity: bytes, reader: ReplyReader, frames: Frames, now: float) -> None:
        size = _weight(frames)
        watch = reader.loose + size >= WATCHED_BYTES
        for frame in (identity, *frames[:-1]):
            _send_frame(self._socket, frame, _MORE)
        tracker: Any = _send_frame(self._socket, frames[-1], _NOBLOCK, not watch, watch)
        if not reader.sent:
            reader.since = now
        self._count(reader, sent=size)
        reader.loose += size
        if watch:
            reader.watched.append((tracker, reader.loose))
            reader.loose = 0

    @property
    def _room(self) -> int:
        return max(0, self._limits.readers_bytes_max - self._waits)

    def _over(self, reader: ReplyReader, now: float) -> bool:
        """Return True if more is on its way to a reader than it may have."""
        if reader.sent <= min(self._limits.reader_bytes_max, self._room):
            return False
        self._settle(reader, now)
        return reader.sent - reader.loose > min(self._limits.reader_bytes_max, self._room)

    def _settle(self, reader: ReplyReader, now: float) -> None:
        """Count off the frames that libzmq has given to the kernel."""
        while reader.watched and reader.watched[0][0].done:
            self._count(reader, sent=-reader.watched.popleft()[1])
            reader.since = now

    def _count(self, reader: ReplyReader, *, sent: int = 0, outgoing: int = 0) -> None:
        reader.sent += sent
        reader.outgoing_bytes += outgoing
        self._waits += sent + outgoing

    # -- now and then

    def retry(self, now: float) -> None:
        """Send what waits here to the readers that have room by now."""
        for identity in list(self._waiting | self._requests.blocked):
            reader = self._readers.get(identity)
            if reader is None:
                self._requests.blocked.discard(identity)
                self._waiting.discard(identity)
                continue
            self._requests.blocked.discard(identity)
            while reader.outgoing and self._try(identity, reader, reader.outgoing[0], now):
                self._count(reader, outgoing=-_weight(reader.outgoing.popleft()))
            if identity not in self._readers:
                # The reader has left.
                continue
            if not reader.outgoing:
                self._waiting.discard(identity)
                if self._over(reader, now):
                    self._requests.blocked.add(identity)
        self._requests.room = self._room

    def look(self, now: float) -> None:
        """Cut off readers that take nothing, and forget those for which nothing waits."""
        pressed = self._waits > self._limits.readers_bytes_max // 2
        idle_s = self._limits.reader_pressed_s_max if pressed else self._limits.sync_idle_s_max
        for identity, reader in list(self._readers.items()):
            self._settle(reader, now)
            if not reader.watched and not reader.outgoing:
                if not self._requests.serves(identity) or self._has_left(identity, reader):
                    self._forget(identity)
            elif now - reader.since > idle_s:
                self._give_up(identity, reader, f"it has taken nothing for {idle_s:.0f} s")
        self._requests.room = self._room

    def _has_left(self, identity: bytes, reader: ReplyReader) -> bool:
        """Return True if a client has gone whose questions this replica passes to the active."""
        if identity not in self._requests.passed or reader.fd is None:
            return False
        return reader.place is None or connections.place_of(reader.fd) != reader.place

    def cut_removed(self, admits: Callable[[str, str], bool]) -> None:
        """Cut off readers whose keys were removed; otherwise the answers to their earlier requests would go on."""
        for identity, reader in list(self._readers.items()):
            if not admits(*reader.who):
                self._give_up(identity, reader, "its key was removed")

    def _give_up(self, identity: bytes, reader: ReplyReader, why: str) -> None:
        self.given_up += 1
        if reader.fd is not None and reader.place is not None and connections.cut(reader.fd, reader.place):
            place = ":".join(map(str, reader.place[:2]))
            log.limited("a reader is cut off", why=f"{reader.waits >> 20} MiB wait for it, and {why}", place=place)
            # Asking for events lets libzmq notice the cut connection now.
            self._socket.get(zmq.EVENTS)
        self._forget(identity)

    def _forget(self, identity: bytes) -> None:
        reader = self._readers.pop(identity)
        self._waits -= reader.waits
        self._waiting.discard(identity)
        self._requests.gone(identity)


def _weight(frames: Frames) -> int:
    """Return about how many bytes a message takes in libzmq."""
    return sum(map(len, frames)) + FRAME_BYTES * len(frames)
