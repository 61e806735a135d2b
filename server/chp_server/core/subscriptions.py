"""The events of P+1: subscriptions, cancellations, and connections that have ended (SPEC.md, section 15).

A subscription to a subtree's channel, or to a session's own, is answered with a GREETING. If there is no room for a
channel, the server publishes a refusal on its topic. Only the clients that asked for this channel listen there.
"""

from __future__ import annotations

from collections.abc import Callable

from chp import headers
from chp.batch import encode
from chp.errors import BadFrame
from chp.keys import STX, topic_subtree

from .updates.channels import greeting, is_session_topic
from .updates.committed import Committed
from .updates.turn import CurrentTurn, Frames

NO_ROOM = "too many channels, of this connection or of all; subscribe to fewer"


def begins(frames: list[bytes]) -> bool:
    """Return True if an event is a subscription. The caller must first commit the open updates as a record."""
    return len(frames) > 1 and frames[1][:1] == b"\x01"


def hear(frames: list[bytes], committed: Committed, turn: CurrentTurn, greet: Callable[[], bytes]) -> list[Frames]:
    """Take the name of a connection and its XPUB event, which is 1 or 0 and a topic; return what to publish.

    Without an event, the connection has ended. libzmq also cancels the subscriptions of an ended connection, without
    its name. These cancellations change nothing, because the server already knows that the connection has ended.
    """
    who, *events = frames
    listeners, topic, now = committed.channels.listeners, events[0][1:] if events else b"", turn.now
    if not events:
        listeners.gone(who, now)
    elif events[0][:1] == b"\x01":
        return _subscribe(committed, topic, who, turn, greet)
    elif events[0][:1] == b"\x00":
        listeners.leave(who, topic, now)
    else:
        raise BadFrame("a subscription begins with byte 0 or 1")
    return []


def _subscribe(
    committed: Committed, topic: bytes, who: bytes, turn: CurrentTurn, greet: Callable[[], bytes]
) -> list[Frames]:
    channels, state = committed.channels, committed.state
    if topic[:1] != STX:
        channels.subscribe_chp1(topic, who)
    elif is_session_topic(topic) or channels.subscribe(topic, state, who, turn.now) is not None:
        return [greeting(topic, state.number, greet())] if turn.greets(topic) else []
    elif topic_subtree(topic) is not None:
        channels.listeners.refuse(who, topic)
        return [_refused(topic, state.number)]
    return []


def say_again(committed: Committed) -> list[Frames]:
    """Return the refusals again, for topics that still have no channel."""
    channels, number = committed.channels, committed.state.number
    return [_refused(topic, number) for topic in channels.listeners.refused_again() if topic not in channels.by_topic]


def _refused(topic: bytes, number: int) -> Frames:
    return greeting(topic, number, encode(headers.Refused(0, "busy", NO_ROOM)))
