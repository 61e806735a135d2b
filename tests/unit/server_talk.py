"""A lone server's core, as its clients meet it: the server's half of `client_frames`.

talk = Talk(limits)
talk.set(ONE, 1, {"/a": b"1", "/b": None}, c=[[0], [0]])     a KVSET into the turn under way; None deletes
talk.send(ONE, 2, body)                                      a KVSET with any body
talk.turn()                                                  a second passes, and the turn is performed: `Turn`
talk.do(Segment(...), seen=ResourceUsage(...))               ONE's next batches in a turn of their own, after a
                                                             measurement; returns ONE's answers
talk.acks(ONE)                                               [(batch, revision)] since the last call
talk.refusals(ONE)                                           [(batch, code, detail)] since the last call
talk.told(ONE)                                               the headers of both, in order, since the last call
talk.map                                                     the contents of the server
forced(core)                                                 the answer to `chp switch --force`, as text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from chp.batch import ACK, REFUSED, Segment, decode, split
from chp.headers import Refused, Reply
from chp.keys import ETX, RESERVED_KEY, STX, public_session, session_topic
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp.versions import VERSION
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.updates.resource_limits import ResourceUsage
from chp_server.core.updates.turn import Frames, Turn

ONE, TWO = b"1" * 16, b"2" * 16  # sessions


def kvset(session: bytes, no: int, items: Mapping[str, bytes | None], **extras: Any) -> Frames:
    """Return a KVSET of CHP/2."""
    gone = [i for i, value in enumerate(items.values()) if value is None]
    columns = {**extras, "d": gone} if gone else extras
    body = Segment(list(items), [value or b"" for value in items.values()], columns or None).encode()
    return [RESERVED_KEY, pack(no), session, b"", body]


def forced(core: ServerCore) -> str:
    """Let an operator do `chp switch --force`; return what the server answers."""
    asked = msgpack.packb({"chp": VERSION, "id": 1, "force": True})
    core.request([b"operator", ICANHAZ, STX + b"switch" + ETX, asked])
    identity, [frames] = core.turn.effects.replies.pop()
    header, _ = decode(frames[-1])
    assert identity == b"operator" and isinstance(header, Reply | Refused)
    return str(header.facts if isinstance(header, Reply) else header.detail)


class Talk:
    """The core, its clock, and what it told."""

    def __init__(self, limits: Limits = DEFAULT, **config: Any) -> None:
        self.core = ServerCore(CoreConfig(**config), b"s" * 16, 0.0, limits)
        self.now = 0.0
        self._told: list[Frames] = []
        # The number of ONE's last batch by `do`.
        self._no = 0
        self.core.begin_turn(self.now, self.now)
        self.turn()

    @property
    def map(self) -> dict[str, bytes]:
        """The contents of the server."""
        return self.core.state.map.values

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each key."""
        return self.core.state.map.revisions

    def set(self, session: bytes, no: int, items: Mapping[str, bytes | None], **extras: Any) -> None:
        """Send a batch of a session."""
        self.core.collect(kvset(session, no, items, **extras))

    def send(self, session: bytes, no: int, body: bytes) -> None:
        """Send a batch of a session with any body."""
        self.core.collect([RESERVED_KEY, pack(no), session, b"", body])

    def do(self, *segments: Segment, seen: ResourceUsage | None = None) -> list[list[Any]]:
        """Take a turn with batches of ONE after a measurement, and return the answers to ONE."""
        if seen is not None:
            self.core.measured(seen)
        for segment in segments:
            self._no += 1
            self.send(ONE, self._no, segment.encode())
        self.turn()
        return self.told(ONE)

    def set_chp1(self, key: str, value: bytes, uuid: bytes = b"u" * 16) -> None:
        """Send a KVSET of CHP/1 (RFC 12)."""
        self.core.collect([key.encode(), bytes(8), uuid, b"", value])

    def turn(self, seconds: float = 1.0) -> Turn:
        """End the turn under way, and begin the next."""
        turn = self.core.end_turn()
        self._told += turn.acks
        self.now += seconds
        self.core.begin_turn(self.now, self.now)
        return turn

    def told(self, session: bytes, *kinds: int) -> list[list[Any]]:
        """Return the headers of a session's messages since the last call, of some kinds or all."""
        topic = session_topic(public_session(session))
        heard, rest = [], []
        for frames in self._told:
            header = split(frames[4])[0] if frames[0] == topic else [None]
            if frames[0] == topic and header[0] in (kinds or (header[0],)):
                heard.append(header)
            else:
                rest.append(frames)
        self._told = rest
        return heard

    def acks(self, session: bytes) -> list[tuple[int, int]]:
        """Return each acknowledged batch with its revision."""
        runs = [run for header in self.told(session, ACK) for run in header[1]]
        return [(no, revision) for first, last, revision in runs for no in range(first, last + 1)]

    def refusals(self, session: bytes) -> list[tuple[int, str, Any]]:
        """Return each refused batch with its code and detail."""
        return [(header[1], header[2], header[3]) for header in self.told(session, REFUSED)]
