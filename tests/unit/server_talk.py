"""A lone server's core, as its clients meet it: the server's half of `client_frames`.

talk = Talk(limits)
talk.set(ONE, 1, {"/a": b"1", "/b": None}, c=[[0], [0]])     a KVSET into the turn under way; None deletes
talk.turn()                                                  a second passes, and the turn is performed: `Turn`
talk.acks(ONE)                                               [(batch, revision)], of what was told since it was asked
talk.refusals(ONE)                                           [(batch, code, detail)], likewise
talk.map                                                     what the server holds
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chp.batch import ACK, REFUSED, Segment, split
from chp.keys import RESERVED_KEY, public_session, session_topic
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.turn import Frames, Turn

ONE, TWO = b"1" * 16, b"2" * 16  # sessions


def kvset(session: bytes, no: int, items: Mapping[str, bytes | None], **extras: Any) -> Frames:
    """A KVSET of CHP/2."""
    gone = [i for i, value in enumerate(items.values()) if value is None]
    columns = {**extras, "d": gone} if gone else extras
    body = Segment(list(items), [value or b"" for value in items.values()], columns or None).encode()
    return [RESERVED_KEY, pack(no), session, b"", body]


class Talk:
    """The core, its clock, and what it told."""

    def __init__(self, limits: Limits = DEFAULT, **config: Any) -> None:
        self.core = ServerCore(CoreConfig(**config), b"s" * 16, 0.0, limits)
        self.now = 0.0
        self._told: list[Frames] = []
        self.core.begin_turn(self.now, self.now)
        self.turn()

    @property
    def map(self) -> dict[str, bytes]:
        """What it holds."""
        return self.core.state.map.values

    @property
    def revisions(self) -> dict[str, int]:
        """The revision of each key."""
        return self.core.state.map.revisions

    def set(self, session: bytes, no: int, items: Mapping[str, bytes | None], **extras: Any) -> None:
        """A batch of a session's."""
        self.core.collect(kvset(session, no, items, **extras))

    def set_chp1(self, key: str, value: bytes, uuid: bytes = b"u" * 16) -> None:
        """A KVSET as RFC 12 has it."""
        self.core.collect([key.encode(), bytes(8), uuid, b"", value])

    def turn(self, seconds: float = 1.0) -> Turn:
        """End the turn under way, and begin the next."""
        turn = self.core.end_turn()
        self._told += turn.acks
        self.now += seconds
        self.core.begin_turn(self.now, self.now)
        return turn

    def _answers(self, session: bytes, kind: int) -> list[list[Any]]:
        topic = session_topic(public_session(session))
        found = [(frames, split(frames[4])[0]) for frames in self._told if frames[0] == topic]
        heard = [(frames, header) for frames, header in found if header[0] == kind]
        self._told = [frames for frames in self._told if all(frames is not each for each, _ in heard)]
        return [header for _, header in heard]

    def acks(self, session: bytes) -> list[tuple[int, int]]:
        """Each batch that was acknowledged, and its revision."""
        runs = [run for header in self._answers(session, ACK) for run in header[1]]
        return [(no, revision) for first, last, revision in runs for no in range(first, last + 1)]

    def refusals(self, session: bytes) -> list[tuple[int, str, Any]]:
        """Each batch that was refused, and why."""
        return [(header[1], header[2], header[3]) for header in self._answers(session, REFUSED)]
