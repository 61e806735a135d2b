"""What P+1 says: who subscribes to what, who cancels, and which connection has ended (SPEC.md, section 15).

A subscription of a subtree's channel, or of a session's own, is greeted; one for which there is no room is refused on
the topic itself, where only who asked for it listens.
"""

from __future__ import annotations

from chp import headers
from chp.batch import encode
from chp.errors import BadFrame
from chp.keys import STX, topic_subtree

from .context import ServerContext
from .updates.channels import greeting, is_session_topic

NO_ROOM = "too many channels, of this connection or of all; subscribe to fewer"


def hear(ctx: ServerContext, frames: list[bytes]) -> None:
    """The name of a connection, and its XPUB event, 1 or 0 and the topic; without one, the connection has ended.

    libzmq cancels what an ended connection had, in nobody's name: of that, its end has told already.
    """
    who, *events = frames
    listeners, topic = ctx.commits.channels.listeners, events[0][1:] if events else b""
    if not events:
        listeners.gone(who, ctx.now)
    elif events[0][:1] == b"\x01":
        _subscribe(ctx, topic, who)
    elif events[0][:1] == b"\x00":
        listeners.leave(who, topic, ctx.now)
    else:
        raise BadFrame("a subscription begins with byte 0 or 1")


def _subscribe(ctx: ServerContext, topic: bytes, who: bytes) -> None:
    ctx.commit()
    channels, number = ctx.commits.channels, ctx.state.number
    if topic[:1] != STX:
        channels.subscribe_chp1(topic, who)
    elif is_session_topic(topic) or channels.subscribe(topic, ctx.state, who, ctx.now) is not None:
        ctx.turn.publish.append(greeting(topic, number, ctx.greeting()))
    elif topic_subtree(topic) is not None:
        channels.listeners.refuse(who, topic)
        _say_refused(ctx, topic)


def say_again(ctx: ServerContext) -> None:
    """Tell subscribers again that there is no room for some of their topics; not where others listen by now."""
    channels = ctx.commits.channels
    for topic in channels.listeners.refused_again():
        if topic not in channels.by_topic:
            _say_refused(ctx, topic)


def _say_refused(ctx: ServerContext, topic: bytes) -> None:
    body = encode(headers.Refused(0, "busy", NO_ROOM))
    ctx.turn.publish.append(greeting(topic, ctx.state.number, body))
