"""Messages, journal operations and facts as a transcript shows them: one short line each, or None for a quiet one.

Headers and segments describe themselves (`describe` in chp.headers and chp.batch). This module adds what the ports
carry beside bodies, and decides what stays quiet.
"""

from __future__ import annotations

from typing import Any

import msgpack

from chp.batch import decode, decode_segment, segment_of
from chp.headers import Batch, Greeting, Header, Heartbeat, Messages, Records, StateHead, header_of, state_name
from chp.numbers import describe, unpack
from chp.unpacking import WHOLE_STATE
from chp_server.core.updates.authorizer import VOUCHED
from chp_server.core.updates.turn import Append, DropAfter, Fill, Remember, Replace


def message(kind: str, way: str, frames: list[bytes], chatter: bool) -> str | None:
    """Return the line of a message."""
    if kind == "peer":
        return _peer(frames, chatter)
    if kind == "set":
        return _kvset(frames) if way == "up" else None
    if kind == "req" and way == "up":
        return _request(frames)
    if kind == "upd" and way == "up":
        return None
    if frames[0][:1] != b"\x02":
        return _plain(frames, chatter)
    return _body(frames, chatter)


def _peer(frames: list[bytes], chatter: bool) -> str | None:  # noqa: PLR0911  # one line a case
    name = frames[0].decode()
    if name == "STATE":
        if not chatter:
            return None
        said = msgpack.unpackb(frames[1], strict_map_key=False)
        in_sync = " in sync" if said["in_sync"] else ""
        return f"STATE {state_name(said['state'])} {describe(said['number'])}{in_sync}"
    if name == "BEAT":
        return f"BEAT {describe(msgpack.unpackb(frames[1])[3][1])}" if chatter else None
    if name == "RECORD":
        return "RECORD " + record(frames[1])
    if name == "HANDOVER":
        return f"{name} {describe(unpack(frames[1]))}"
    if name == "CONFIRM":
        return f"{name} {describe(msgpack.unpackb(frames[1])[1])}"
    if name == "WANT":
        return f"WANT from {describe(msgpack.unpackb(frames[1], strict_map_key=False)['at'][1])}"
    if name == "END":
        head, _ = decode(frames[1], WHOLE_STATE)
        assert isinstance(head, StateHead)
        return f"END {describe(head.number)}"
    if name == "SYNC":
        header, items = decode(frames[1])
        return header.describe(_segments(items))
    return name if name not in ("MORE", "SCRUB", "SCRUBBED") else None


def record(body: bytes) -> str:
    """Return the text of a BATCH or EPOCH body, from a journal or a peer."""
    return _record(*decode(body))


def _record(header: Header, items: list[Any]) -> str:
    return f"{header.span} {_segments(items)}".rstrip() if isinstance(header, Batch) else header.describe()


def _segments(items: list[Any]) -> str:
    return " ".join(filter(None, (segment_of(item).describe() for item in items)))


def session(thing: bytes) -> str:
    """Return the text of a simulated session: the client's name, and a mark for each restart and each new session."""
    name = thing[:8].rstrip(b".").decode("ascii", "replace")
    starts, reopened = int.from_bytes(thing[8:12], "big"), int.from_bytes(thing[12:], "big")
    return name + "'" * (starts - 1) + "+" * reopened


def _kvset(frames: list[bytes]) -> str:
    if frames[0] != b"\x02\x03":
        return f"KVSET {frames[0].decode(errors='replace')}={frames[4].decode(errors='replace')}"
    return f"KVSET {session(frames[2])}:{unpack(frames[1])} {decode_segment(frames[4]).describe()}".rstrip()


def _request(frames: list[bytes]) -> str | None:
    if len(frames) == 2:
        return f"ICANHAZ {frames[1].decode()}"
    if frames[0] == VOUCHED:
        frames = frames[2:]
    options = msgpack.unpackb(frames[2])
    if "more" in options:
        return None
    if frames[1][:1] == b"\x02":
        return f"ADMIN {frames[1][1:-1].decode()}"
    if "topic" in options:
        return f"ICANHAZ {options['topic']}/{options.get('group')}"
    return f"ICANHAZ '{frames[1].decode()}' from {describe(options['from'])}"


def _plain(frames: list[bytes], chatter: bool) -> str | None:
    key = frames[0].decode(errors="replace")
    if key == "HUGZ":
        return "HUGZ" if chatter else None
    if key == "KTHXBAI":
        return f"KTHXBAI {describe(unpack(frames[1]))}"
    return f"KVPUB #{describe(unpack(frames[1]))} {key}={frames[4].decode(errors='replace')}"


def _body(frames: list[bytes], chatter: bool) -> str | None:
    header, items = decode(frames[4])
    if isinstance(header, Heartbeat) and not chatter:
        return None
    if isinstance(header, Greeting):
        return header.describe("own channel" if frames[0][1:2] == b"@" else repr(frames[0][1:-1].decode()))
    if isinstance(header, Records):
        # A replica that confirms also gets, after each record, an item with its messages: rows of six fields, or none.
        records = [item for item in items if item and len(item[0]) != 6]
        return header.describe(" ".join(_record(header_of(head), segments) for head, *segments in records))
    return header.describe("" if isinstance(header, Messages) else _segments(items))


def journal(op: Any) -> str:
    """Return the line of a journal operation."""
    if isinstance(op, Append):
        return f"journal {record(op.body)}"
    if isinstance(op, Replace):
        return f"journal replaced by the state at {describe(op.number)}"
    if isinstance(op, DropAfter):
        return f"journal drops what follows {describe(op.number)}"
    if isinstance(op, Remember):
        return f"journal remembers {op.key}={op.value.hex()}"
    if isinstance(op, Fill):
        return "journal fills " + " ".join(f"topic {row.topic} {row.first}+{row.n}" for row in op.messages)
    return f"journal {op!r}"


def fact(event: str, fields: dict[str, Any]) -> str | None:
    """Return the line of a fact of a server's log."""
    if event == "state":
        return f"is now {fields['after'].upper()} ({fields['because']})"
    if event in ("peer", "catching_up", "passive", "active"):
        return None
    return f"says {event} " + " ".join(f"{k}={v}" for k, v in fields.items())
