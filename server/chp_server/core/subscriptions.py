"""What P+1 says: who subscribes to what, who cancels, and which connection has ended (SPEC.md, section 15).

A subscription of a subtree's channel, or of a session's own, is greeted; one for which there is no room is refused on
the topic itself, where only who asked for it listens.
"""

from __future__ import annotations

from collections.abc import Callable

from chp import headers
from chp.batch import encode
from chp.errors import BadFrame
from chp.keys import STX, topic_subtree

from .updates.channels import greeting, is_session_topic
from .updates.committed import Committed
from .updates.turn import Frames

NO_ROOM = "too many channels, of this connection or of all; subscribe to fewer"


def begins(frames: list[bytes]) -> bool:
    """Return True if a connection subscribes: what is open has to be a record first."""
    return len(frames) > 1 and frames[1][:1] == b"\x01"


def hear(frames: list[bytes], committed: Committed, now: float, greet: Callable[[], bytes]) -> list[Frames]:
    """Take the name of a connection, and its XPUB event, 1 or 0 and the topic; return what is to be published.

    Without an event, the connection has ended. libzmq cancels what an ended connection had, in nobody's name: of that,
    its end has told already.
    """
    who, *events = frames
    listeners, topic = committed.channels.listeners, events[0][1:] if events else b""
    if not events:
        listeners.gone(who, now)
    elif events[0][:1] == b"\x01":
        return _subscribe(committed, topic, who, now, greet)
    elif events[0][:1] == b"\x00":
        listeners.leave(who, topic, now)
    else:
        raise BadFrame("a subscription begins with byte 0 or 1")
    return []


def _subscribe(committed: Committed, topic: bytes, who: bytes, now: float, greet: Callable[[], bytes]) -> list[Frames]:
    channels, state = committed.channels, committed.state
    if topic[:1] != STX:
        channels.subscribe_chp1(topic, who)
    elif is_session_topic(topic) or channels.subscribe(topic, state, who, now) is not None:
        return [greeting(topic, state.number, greet())]
    elif topic_subtree(topic) is not None:
        channels.listeners.refuse(who, topic)
        return [_refused(topic, state.number)]
    return []


def say_again(committed: Committed) -> list[Frames]:
    """Return what tells subscribers again that there is no room for a topic, unless others listen to it by now."""
    channels, number = committed.channels, committed.state.number
    return [_refused(topic, number) for topic in channels.listeners.refused_again() if topic not in channels.by_topic]


def _refused(topic: bytes, number: int) -> Frames:
    return greeting(topic, number, encode(headers.Refused(0, "busy", NO_ROOM)))
