"""Who may hear what on P+1, where there are keys: each subscription is asked about before libzmq knows of it.

The publisher is in ZeroMQ's manual mode then: it tells of a subscription and waits to be told to add it, to the pipe
that it has just told of. So each is decided when it is taken, and not in the core's order of a turn. One that is denied
gets an answer that nobody else does: its pipe is subscribed to its topic with 8 random bytes behind it, and is sent a
message there, the pipe that was taken from last alone (XPUB_MANUAL_LAST_VALUE for this one message: who is admitted to
the topic listens to all that begins so). The client's own filter is by prefix, so it hears that. If the pipe has ended,
nothing is sent. If it ends just then, admitted clients hear the refusal, and subscribe again. libzmq then forgets which
pipe was the last, so what is left subscribed is taken off when that connection says something again, or ends.

A frame that is no subscription, as an XSUB can send, takes the pipe of the next one out of libzmq's queue: from there
until the queue is empty, nobody knows which pipe is meant. Nothing is told libzmq then; who sent the frame is cut off,
and so is who subscribed or cancelled right behind it, who connects again by itself and subscribes to what it had.

When rules change, whoever holds what it may not have any more is cut off. It connects again by itself, subscribes to
what it had, and gets what it still may. When a key is removed, the connections that have shown it are cut off, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from chp.access import NONCE_BYTES

from ..core.updates.authorizer import Origin, Signed
from .zap import KEY_PROPERTY, NONE

Frames = list[bytes]
_NOBLOCK = int(zmq.NOBLOCK)
_TOPICS_COUNT = 116  # ZMQ_TOPICS_COUNT: how many topics are subscribed to; pyzmq 26 has no name for it
_SUBSCRIBES, _CANCELS = b"\x01", b"\x00"
STRAY = "it sent on P+1 what is no subscription"
BEHIND_STRAY = "it subscribed right behind what is no subscription; it subscribes again"


@dataclass(slots=True)
class ConnectionTopics:
    """What a connection was admitted to, and as whom."""

    user: str
    key: str = ""
    topics: set[bytes] = field(default_factory=set)


def user_of(frame: zmq.Frame) -> str:
    """Who sent a frame, by the key of its connection; "" if it has none."""
    return _property(frame, "User-Id")


def signed(frames: Frames, frame: zmq.Frame) -> Signed:
    """A message with its user, by any frame of it."""
    return Signed(frames, user_of(frame))


def signed_from(frames: Frames, frame: zmq.Frame) -> Signed:
    """The same with where it came from, which takes as long again."""
    return Signed(frames, user_of(frame), origin_of(frame))


def origin_of(frame: zmq.Frame) -> Origin:
    """The key that the connection of a frame has shown, and its address."""
    key = key_of(frame)
    return "" if key == NONE.decode() else key, _property(frame, "Peer-Address").removeprefix("::ffff:")


def key_of(frame: zmq.Frame) -> str:
    """Return the text of the key that the connection of a frame has shown."""
    return _property(frame, KEY_PROPERTY)


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


class SubscriptionAuthorizer:
    """The subscriptions of one publisher."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        admit: Callable[[str, bytes], str],
        refusal: Callable[[str, bytes, str, Origin], Frames],
        admits: Callable[[str, str], bool],
        chance: Callable[[int], bytes] = os.urandom,
    ) -> None:
        socket.set(zmq.XPUB_MANUAL, 1)
        self._socket, self._admit, self._refusal, self._admits, self._chance = socket, admit, refusal, admits, chance
        self._held: dict[bytes, ConnectionTopics] = {}
        self._left: dict[bytes, bytes] = {}  # topics of refusals that are to be taken off, one a connection
        self._rules = self._removals = 0
        self._in_step = True  # the pipe that libzmq took from last is the one of the message that was taken last
        self.to_cut: dict[int, str] = {}  # connections, and why; for whoever takes the messages

    def emptied(self) -> None:
        """Nothing is left to take: from here on, libzmq's pipes are those of its messages again."""
        self._in_step = True

    def decides(self, fd: int, frame: zmq.Frame) -> bool:
        """Whether a subscription that was just taken holds; a cancel does, as long as it is known whose it is."""
        if frame.bytes[:1] not in (_SUBSCRIBES, _CANCELS):
            self._in_step = False
            self.to_cut[fd] = f"{STRAY} (user {user_of(frame)})"
            return False
        if not self._in_step:
            self.to_cut.setdefault(fd, BEHIND_STRAY)
            return False
        return self._decides(b"%d" % fd, frame)

    def _decides(self, fd: bytes, frame: zmq.Frame) -> bool:
        if (left := self._left.pop(fd, None)) is not None:
            self._socket.set(zmq.UNSUBSCRIBE, left)
        event, user = frame.bytes, user_of(frame)
        topic, held = event[1:], self._held.get(fd)
        if event[:1] == _CANCELS:
            if held is not None and topic in held.topics:
                held.topics.remove(topic)
                self._socket.set(zmq.UNSUBSCRIBE, topic)
            return True
        if why := self._admit(user, topic):
            self._left[fd] = self._tell(self._refusal(user, topic, why, origin_of(frame)))
            return False
        key = key_of(frame)
        if held is None or (held.user, held.key) != (user, key):  # of an earlier connection with this descriptor
            held = self._held[fd] = ConnectionTopics(user, key)
        held.topics.add(topic)
        self._socket.set(zmq.SUBSCRIBE, topic)
        return True

    def _tell(self, refusal: Frames) -> bytes:
        """To the pipe that was taken from last, alone, if it has not ended; its topic."""
        topic = refusal[0] + self._chance(NONCE_BYTES)
        self._socket.get(zmq.EVENTS)  # lets libzmq see what has ended
        before = self._socket.get(_TOPICS_COUNT)
        self._socket.set(zmq.SUBSCRIBE, topic)
        if self._socket.get(_TOPICS_COUNT) == before:  # there is no pipe: libzmq would send it to all who may hear it
            return topic
        self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 1)
        try:
            self._socket.send_multipart([topic, *refusal[1:]], _NOBLOCK)
        except zmq.Again:
            pass  # it asks again
        finally:
            self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 0)
            self._socket.set(zmq.XPUB_MANUAL, 1)  # which the line before has ended
        return topic

    def ended(self, fd: bytes) -> None:
        """A connection has ended."""
        self._held.pop(fd, None)
        self._left.pop(fd, None)

    def look(self, rules: int, removals: int, cut_off: Callable[[int, str], None]) -> None:
        """If rules have changed, or keys were removed: cut off who holds what it may not have any more."""
        if rules == self._rules and removals == self._removals:
            return
        self._rules, self._removals = rules, removals
        for fd, held in list(self._held.items()):
            if not self._admits(held.key, held.user):
                cut_off(int(fd), f"the key of user {held.user} was removed")
            elif any(self._admit(held.user, topic) for topic in held.topics):
                cut_off(int(fd), f"user {held.user} may not hear any more what it subscribed to")
