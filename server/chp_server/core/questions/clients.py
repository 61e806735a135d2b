"""The connected clients, as each reports about itself on port P.

    ICANHAZ? STX client ETX {id, name, program, ...}    a client's report, when it joins and then regularly; no answer
    ICANHAZ? STX clients ETX {id, after}                an operator's question for the clients after a place

The reports are for people. No decision uses them, so only their form is checked. Long texts are cut. The reports are
kept in this server's memory alone. A client is forgotten if it sends no report for three times its own interval. The
server adds the address and the user, which it knows itself.

Pure: `now` is an argument, and the shell sets `address_of`, which returns the address of a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from chp.errors import BadFrame
from chp.keys import ETX, STX

TELLS = STX + b"client" + ETX
# At most this many clients are remembered. Each of them takes some 2 KiB.
CLIENTS_MAX = 10_000
# At most this many clients are in one answer, which then has about a MiB.
LISTED_MAX = 500
# A text of a report is cut to this many characters.
TEXT_MAX = 200
# The subtrees of a client are listed only up to this many characters together.
SUBTREES_TEXT_MAX = 1024
TEXTS = ("name", "program", "host", "version", "state", "client")
NUMBERS = ("pid", "number", "keys", "lag_ms", "batches", "bytes", "holes", "mismatches", "failovers")
# The longest interval of reports that a client may announce.
EVERY_MS_MAX = 120_000
# A client is gone after this many intervals without a report.
MISSED = 3
LOOK_S = 5.0


@dataclass(slots=True)
class Client:
    """A connection and its last report."""

    # The place in the order of arrival.
    place: int
    since: float
    heard: float
    every_s: float
    user: str
    address: str
    facts: dict[str, Any]
    # How many other servers a replica may send this client to.
    moves: int = 0


class Clients:
    """The clients whose reports still come."""

    def __init__(self) -> None:
        self.address_of: Callable[[bytes], str] = lambda identity: ""
        self._known: dict[bytes, Client] = {}
        self._places = 0
        self._looked = float("-inf")

    def __len__(self) -> int:
        return len(self._known)

    def told(self, identity: bytes, said: dict[str, Any], user: str, now: float) -> None:
        """Take a client's report; raise `BadFrame` if its form is wrong."""
        facts, every_s = _facts(said)
        known = self._known.get(identity)
        if known is None:
            self._make_room(now)
            self._places += 1
            known = self._known[identity] = Client(self._places, now, now, every_s, user, "", facts)
        known.address = self.address_of(identity) or known.address
        known.heard, known.every_s, known.user, known.facts = now, every_s, user, facts
        known.moves = moves if type(moves := said.get("moves", 0)) is int else 0

    def clear(self) -> None:
        """Forget all clients: this server no longer serves, and they report to the other one."""
        self._known.clear()

    def forget(self, now: float) -> None:
        """Forget the clients whose reports have stopped; look at most every `LOOK_S`."""
        if now - self._looked >= LOOK_S:
            self._looked = now
            late = [name for name, each in self._known.items() if now - each.heard > MISSED * each.every_s]
            for name in late:
                del self._known[name]

    def movable(self) -> list[str]:
        """Return the public names of the clients that can go to another replica, the newest first."""
        newest = sorted(self._known.values(), key=lambda each: -each.place)
        return [each.facts["client"] for each in newest if each.moves > 0]

    def listed(self, after: object, now: float) -> dict[str, Any]:
        """Return at most `LISTED_MAX` clients after a place; raise `BadFrame` if `after` is no place."""
        if type(after) is not int:
            raise BadFrame("'after' is a number: the 'place' of the last client that was listed, 0 for the first")
        self.forget(now)
        behind = (each for each in self._known.values() if each.place > after)
        found = [
            {**each.facts, "place": each.place, "user": each.user, "address": each.address,
             "since_s": round(now - each.since, 3), "heard_s": round(now - each.heard, 3)}
            for each in islice(behind, LISTED_MAX)
        ]  # fmt: skip
        return {"clients": found, "count": len(self._known)}

    def _make_room(self, now: float) -> None:
        if len(self._known) >= CLIENTS_MAX:
            self.forget(now)
        while len(self._known) >= CLIENTS_MAX:
            del self._known[min(self._known, key=lambda name: self._known[name].heard)]


def _facts(said: dict[str, Any]) -> tuple[dict[str, Any], float]:
    facts: dict[str, Any] = {}
    for name in TEXTS:
        if type(text := said.get(name, "")) is not str:
            raise BadFrame(f"the {name!r} of a client is text")
        facts[name] = text[:TEXT_MAX]
    for name in NUMBERS:
        if type(value := said.get(name, 0)) is not int or not 0 <= value < 1 << 63:
            raise BadFrame(f"the {name!r} of a client is a number from 0 to 2^63 - 1")
        facts[name] = value
    facts["subtrees"] = _subtrees(said.get("subtrees", []))
    every_ms = said.get("every_ms", 5000)
    if type(every_ms) is not int or not 0 < every_ms <= EVERY_MS_MAX:
        raise BadFrame(f"the 'every_ms' of a client is a number from 1 to {EVERY_MS_MAX}")
    return facts, every_ms / 1000


def _subtrees(said: object) -> list[str]:
    if not isinstance(said, list) or not all(type(each) is str for each in said):
        raise BadFrame("the 'subtrees' of a client are a list of texts")
    found: list[str] = []
    room = SUBTREES_TEXT_MAX
    for each in said[:64]:
        room -= len(each)
        if room < 0:
            break
        found.append(each)
    return found
