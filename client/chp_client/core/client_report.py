"""The report of a client to the server that it follows, for `chp clients`: after it joined, and then now and then.

It is sent to P, and gets no answer (SPEC.md, section 17.7). A client that makes only one question ends before its first
report. A server with more clients sends fewer heartbeats, and each client then reports less often. So a thousand
clients cost a server no more than twenty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from chp.batch import packb
from chp.keys import CLIENT_BYTES, ETX, STX
from chp.messages import ICANHAZ
from chp.versions import VERSION

from .choice import ServerChoice
from .copy.subscriptions import Subscriptions
from .events import Sink, State
from .freshness import Freshness
from .server_view import ServerView
from .session import Session
from .timing import NEVER

TELLS = STX + b"client" + ETX
FIRST_S = 0.5
EVERY_S = 5.0
# A client reports once in this many heartbeats of the followed server, if that is longer than EVERY_S.
BEATS = 20
EVERY_S_MAX = 60.0
COUNTED = ("holes", "mismatches", "failovers")


class ReportSource(Protocol):
    """The parts of a core that a report is made from."""

    stats: Counter[str]
    subscriptions: Subscriptions
    freshness: Freshness
    session: Session
    choice: ServerChoice
    out: Sink

    @property
    def state(self) -> State: ...
    @property
    def position(self) -> int: ...


class ClientReport:
    """The identity of this client, and the time of its next report. Without `who` it sends none."""

    def __init__(self, who: Mapping[str, Any] | None) -> None:
        self._who = who
        self.due = NEVER

    def follow(self, now: float) -> None:
        """Report soon, as another server is followed."""
        if self._who is not None:
            self.due = now + FIRST_S

    def on_timer(self, client: ReportSource, active: ServerView | None, now: float) -> None:
        """Send a report to the followed server if one is due."""
        if active is not None and now >= self.due:
            client.out.effects.request.append((active.index, self._message(client, active, now)))

    def _message(self, client: ReportSource, active: ServerView, now: float) -> list[bytes]:
        every_s = min(max(EVERY_S, BEATS * active.heartbeat_s), EVERY_S_MAX)
        self.due = now + every_s
        stats = client.stats
        said = {
            "chp": VERSION, "id": 0, **(self._who or {}), "every_ms": round(every_s * 1000),
            "state": client.state.value, "number": client.position, "keys": client.subscriptions.count,
            "lag_ms": round(client.freshness.lag_s * 1000), "batches": client.session.open_batches,
            "client": client.session.outbox.public[:CLIENT_BYTES].hex(), "bytes": client.session.outbox.size,
            **{name: stats[name] for name in COUNTED}, **client.choice.told(active),
        }  # fmt: skip
        return [ICANHAZ, TELLS, packb(said)]
