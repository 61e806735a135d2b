"""Messages, journal operations and facts as a transcript shows them: one short line each, None for what stays quiet."""

from __future__ import annotations

from typing import Any

import msgpack

from chp.batch import Segment
from chp.numbers import describe, unpack
from chp_server.turn import Append, DropAfter, Replace

STATES = {1: "PRIMARY", 2: "BACKUP", 3: "ACTIVE", 4: "PASSIVE"}
DURABILITY = ("applied", "journaled", "replicated")


def message(kind: str, way: str, frames: list[bytes], chatter: bool) -> str | None:
    """What a message says."""
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
        return f"STATE {STATES[said['state']]} {describe(said['number'])}{' in sync' if said['in_sync'] else ''}"
    if name == "RECORD":
        return "RECORD " + record(frames[1])
    if name == "HANDOVER":
        return f"{name} {describe(unpack(frames[1]))}"
    if name == "CONFIRM":
        return f"{name} {describe(msgpack.unpackb(frames[1])[1])}"
    if name == "WANT":
        return f"WANT from {describe(msgpack.unpackb(frames[1], strict_map_key=False)['at'][1])}"
    if name == "END":
        return f"END {describe(msgpack.unpackb(frames[1], strict_map_key=False)[0][1])}"
    if name == "SYNC":
        return "SYNC " + segments(msgpack.unpackb(frames[1], strict_map_key=False)[1:])
    return name if name not in ("MORE", "SCRUB", "SCRUBBED") else None


def record(body: bytes) -> str:
    """A BATCH or EPOCH body."""
    header, *items = msgpack.unpackb(body, strict_map_key=False)
    if header[0] == 9:
        return f"EPOCH #{describe(header[2])}"
    span = describe(header[2]) if header[2] == header[3] else f"{describe(header[2])}..{header[3] & 0xFFFFFFFFFFFF}"
    return f"#{span} {segments(items)}".rstrip()


def segments(items: list[Any]) -> str:
    """Segments in one line."""
    return " ".join(filter(None, (segment(item) for item in items)))


def segment(item: Any) -> str:
    """One segment."""
    keys, values, extras = item
    text = Segment(keys, values, extras).describe()
    for name, column in (extras or {}).items():
        if name == "t":
            text += f" ttl={column if isinstance(column, int) else column[1]}"
        elif name == "c":
            text += " if=" + ",".join(describe(n) for n in column[1])
        elif name == "l":
            text += f" leased={_id(column)}"
        elif name == "lease":
            text += f" lease={_id(column[0])}:{column[1]}ms"
        elif name == "unlease":
            text += f" unlease={_id(column)}"
    return text.strip()


def _id(thing: bytes) -> str:
    return thing.rstrip(b".\0").decode("ascii", "replace")


def session(thing: bytes) -> str:
    """A session of a simulated client: its name, and how often it was started or reopened."""
    name = thing[:8].rstrip(b".").decode("ascii", "replace")
    starts, reopened = int.from_bytes(thing[8:12], "big"), int.from_bytes(thing[12:], "big")
    return name + "'" * (starts - 1) + "+" * reopened


def _kvset(frames: list[bytes]) -> str:
    if frames[0] != b"\x02\x03":
        return f"KVSET {frames[0].decode(errors='replace')}={frames[4].decode(errors='replace')}"
    return f"KVSET {session(frames[2])}:{unpack(frames[1])} {segment(msgpack.unpackb(frames[4]))}".rstrip()


def _request(frames: list[bytes]) -> str | None:
    if len(frames) == 2:
        return f"ICANHAZ {frames[1].decode()}"
    options = msgpack.unpackb(frames[2])
    if "more" in options:
        return None
    if frames[1][:1] == b"\x02":
        return f"ADMIN {frames[1][1:-1].decode()}"
    return f"ICANHAZ '{frames[1].decode()}' from {describe(options['from'])}"


def _plain(frames: list[bytes], chatter: bool) -> str | None:
    key = frames[0].decode(errors="replace")
    if key == "HUGZ":
        return "HUGZ" if chatter else None
    if key == "KTHXBAI":
        return f"KTHXBAI {describe(unpack(frames[1]))}"
    return f"KVPUB #{describe(unpack(frames[1]))} {key}={frames[4].decode(errors='replace')}"


def _body(frames: list[bytes], chatter: bool) -> str | None:  # noqa: PLR0911  # one line a case
    header, *items = msgpack.unpackb(frames[4], strict_map_key=False)
    kind = header[0]
    if kind == 0:
        where = "own channel" if frames[0][1:2] == b"@" else repr(frames[0][1:-1].decode())
        return f"GREETING {where} {STATES[header[2]]} {describe(header[3])}"
    if kind == 1:
        return f"BATCH {record(frames[4])} (after {describe(header[1])})"
    if kind == 2:
        return f"HEARTBEAT {describe(header[2])} channel {describe(header[3])}" if chatter else None
    if kind == 3:
        return "SYNC " + segments(items)
    if kind == 4:
        return "RECORDS " + " ".join(record(msgpack.packb(item)) for item in items)
    if kind == 5:
        return f"KTHXBAI {describe(header[2])}{' resumed' if header[6] else ''}"
    if kind == 6:
        runs = " ".join(f"{a}..{b}" if a != b else str(a) for a, b, _ in header[1])
        return f"ACK {runs} {DURABILITY[header[2]]}"
    if kind == 7:
        detail = header[3]
        if isinstance(detail, dict):
            detail = {key: describe(n) for key, n in detail.items()}
        elif header[2] == "passive":
            detail = STATES[detail]
        return f"REFUSED {header[1] if header[1] < 1 << 30 else ''} {header[2]} {detail}".replace("  ", " ")
    return f"REPLY {header[2]}" if kind == 8 else f"kind {kind}"


def journal(op: Any) -> str:
    """A journal operation."""
    if isinstance(op, Append):
        return f"journal {record(op.body)}"
    if isinstance(op, Replace):
        return f"journal replaced by the state at {describe(op.number)}"
    if isinstance(op, DropAfter):
        return f"journal drops what follows {describe(op.number)}"
    return f"journal {op!r}"


def fact(event: str, fields: dict[str, Any]) -> str | None:
    """A fact of a server's log."""
    if event == "state":
        return f"is now {fields['after'].upper()} ({fields['because']})"
    if event in ("peer", "catching_up", "passive", "active"):
        return None
    return f"says {event} " + " ".join(f"{k}={v}" for k, v in fields.items())
