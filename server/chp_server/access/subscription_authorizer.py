"""The authorizer of subscriptions to P+1, for servers with keys: it decides on each before libzmq adds it.

The publishing socket is then in ZeroMQ's manual mode: it reports a subscription, and adds the subscription to the pipe
that it has just reported only when it is told to. So each subscription is decided when it is taken, and not in the
core's order of a turn.

A denied connection gets a refusal that no other client hears. The authorizer subscribes the connection's pipe to the
denied topic with 8 random bytes after it, and sends the refusal to that topic. XPUB_MANUAL_LAST_VALUE, set for this one
message, keeps it from admitted clients, which listen to all topics with that beginning. The denied client filters by
prefix, so it hears the message. If the pipe has ended, no message is sent. If the pipe ends during the sending,
admitted clients hear the refusal, and subscribe again. After the message libzmq does not know any more which pipe was
the last. So the random topic is removed when the connection sends again, or ends.

A frame that is no subscription, as an XSUB can send, takes the pipe of the next subscription out of libzmq's queue.
From then until the queue is empty, the pipe of a subscription is not known. So libzmq is told nothing until then. The
sender of the frame is cut off, and so is each client that subscribed or cancelled right behind it; such a client
connects again by itself and subscribes to what it had.

When rules change, a connection with a topic that it may not have any more is cut off. It connects again by itself,
subscribes to what it had, and gets what it still may. When a key is removed, its connections are cut off too.
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
# This is ZMQ_TOPICS_COUNT: how many topics are subscribed to; pyzmq 26 has no name for it.
_TOPICS_COUNT = 116
_SUBSCRIBES, _CANCELS = b"\x01", b"\x00"
STRAY = "it sent on P+1 what is no subscription"
BEHIND_STRAY = "it subscribed right behind what is no subscription; it subscribes again"


@dataclass(slots=True)
class ConnectionTopics:
    """The topics to which a connection was admitted, with its user and key."""

    user: str
    key: str = ""
    topics: set[bytes] = field(default_factory=set)


def user_of(frame: zmq.Frame) -> str:
    """Return the user of a frame, by the key of its connection; "" without a key."""
    return _property(frame, "User-Id")


def signed(frames: Frames, frame: zmq.Frame) -> Signed:
    """Return a message with its user. Any frame of the message tells the user of the connection."""
    return Signed(frames, user_of(frame))


def signed_from(frames: Frames, frame: zmq.Frame) -> Signed:
    """Return a message with its user, key and address, which takes twice as long as `signed`."""
    return Signed(frames, user_of(frame), origin_of(frame))


def origin_of(frame: zmq.Frame) -> Origin:
    """Return the key that the connection of a frame has shown, and its address."""
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
    """The authorizer of one publisher's subscriptions."""

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
        # The topics of refusals that are still to be removed, one for each connection.
        self._left: dict[bytes, bytes] = {}
        self._rules = self._removals = 0
        # True while the pipe that libzmq took from last is that of the message that was taken last.
        self._in_step = True
        # The connections to cut off, with the reasons; the code that reads the messages cuts them off.
        self.to_cut: dict[int, str] = {}

    def emptied(self) -> None:
        """Note that no message is left: from here on, libzmq's last pipe is again that of the last message."""
        self._in_step = True

    def decides(self, fd: int, frame: zmq.Frame) -> bool:
        """Decide on a subscription or cancel that was just taken; return True if the core is to know of it."""
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
        # The held topics may be those of an earlier connection with this descriptor.
        if held is None or (held.user, held.key) != (user, key):
            held = self._held[fd] = ConnectionTopics(user, key)
        held.topics.add(topic)
        self._socket.set(zmq.SUBSCRIBE, topic)
        return True

    def _tell(self, refusal: Frames) -> bytes:
        """Send a refusal only to the pipe that was taken from last, if the pipe has not ended; return its topic."""
        topic = refusal[0] + self._chance(NONCE_BYTES)
        # This read lets libzmq notice connections that have ended.
        self._socket.get(zmq.EVENTS)
        before = self._socket.get(_TOPICS_COUNT)
        self._socket.set(zmq.SUBSCRIBE, topic)
        # The pipe has ended: libzmq would send the refusal to all clients that may hear its topic.
        if self._socket.get(_TOPICS_COUNT) == before:
            return topic
        self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 1)
        try:
            self._socket.send_multipart([topic, *refusal[1:]], _NOBLOCK)
        except zmq.Again:
            # The client asks again.
            pass
        finally:
            self._socket.set(zmq.XPUB_MANUAL_LAST_VALUE, 0)
            # The line before has ended the manual mode.
            self._socket.set(zmq.XPUB_MANUAL, 1)
        return topic

    def ended(self, fd: bytes) -> None:
        """Forget a connection that has ended."""
        self._held.pop(fd, None)
        self._left.pop(fd, None)

    def look(self, rules: int, removals: int, cut_off: Callable[[int, str], None]) -> None:
        """If rules changed or keys were removed, cut off the connections that they concern.

        Such a connection has shown a removed key, or has a topic that its user may not have any more.
        """
        if rules == self._rules and removals == self._removals:
            return
        self._rules, self._removals = rules, removals
        for fd, held in list(self._held.items()):
            if not self._admits(held.key, held.user):
                cut_off(int(fd), f"the key of user {held.user} was removed")
            elif any(self._admit(held.user, topic) for topic in held.topics):
                cut_off(int(fd), f"user {held.user} may not hear any more what it subscribed to")
