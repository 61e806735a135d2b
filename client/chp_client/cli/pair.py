"""What a pair's status replies mean: each server as a view, and one verdict on both. Pure.

A server's reply is a map (SPEC.md, section 17); what is missing is shown as "-", what is unknown is left alone,
so that this program and a server of another version still understand each other:

    name role state since_s uptime_s epoch sequence in_sync peer {...}
    keys sessions channels {subtree: subscribers} pending pending_bytes journal {...} counts {name: n since its start}

Verdicts, which are also exit codes of `chp status`:

    0 healthy         one is active, and in sync with a passive (or it is a server without a peer)
    1 degraded        one is active, but the other is away, starting, not in sync, or active too; or it speaks CHP/1
                      only, and so can't tell how it is
    2 nobody active   somebody answers, nobody serves
    3 no server       nobody answers
    4 denied          whoever answers does not tell this user, or does not let it in
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from chp.headers import State
from chp.numbers import EPOCH_SHIFT, epoch_of, sequence_of

from ..errors import Refused
from ..port.admin import AdminDenied, AdminReply, Answer, SpeaksOnlyChp1
from .faults import DEGRADED, NO_SERVER, NOBODY_ACTIVE, OK, REFUSED

STATES: dict[int, str] = {
    State.PRIMARY: "STARTING",
    State.BACKUP: "STARTING",
    State.ACTIVE: "ACTIVE",
    State.PASSIVE: "PASSIVE",
}
_REFUSALS = ("refused_", "garbage_", "defects")
_STATE_WORDS = {"PRIMARY": "STARTING", "BACKUP": "STARTING"}


@dataclass(slots=True)
class ServerStatus:
    """One server, as far as it told us."""

    server: str
    problem: str = ""  # why there is nothing to show
    only_chp1: bool = False  # it is there, but follows RFC 12 and no more
    denied: bool = False  # it is there, and said no
    number: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        return not self.problem

    @property
    def state(self) -> str:
        """ACTIVE, PASSIVE, STARTING, CHP/1, DENIED, or UNREACHABLE."""
        if self.only_chp1:
            return "CHP/1"
        if self.denied:
            return "DENIED"
        if not self.reachable:
            return "UNREACHABLE"
        said = self.facts.get("state")
        if isinstance(said, int):
            return STATES.get(said, str(said))
        return _STATE_WORDS.get(str(said).upper(), str(said).upper())

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def has_peer(self) -> bool:
        """Whether it was configured with another server."""
        return self.facts.get("role") != "alone"

    @property
    def trouble(self) -> str:
        """Why it can't be one of a pair with what it hears, or what it waits for; nothing if all is well."""
        misfit = self.facts.get("misfit")
        if isinstance(misfit, dict) and misfit.get("text"):
            return f"{self.server} does not take {misfit.get('name') or 'its peer'} for its peer: {misfit['text']}"
        waits = self.facts.get("waits_for")
        return f"{self.server} waits: {waits}" if waits else ""

    @property
    def epoch(self) -> int:
        return int(self.facts.get("epoch", epoch_of(self.number)))

    @property
    def sequence(self) -> int:
        return int(self.facts.get("sequence", sequence_of(self.number)))

    @property
    def position(self) -> int:
        """Epoch and sequence as one number."""
        return self.epoch << EPOCH_SHIFT | self.sequence

    @property
    def in_sync(self) -> bool | None:
        """Whether it says that both hold the same; None if it does not say."""
        said = self.facts.get("in_sync")
        return said if isinstance(said, bool) else None

    def counts(self) -> dict[str, float]:
        """Everything it counts, by name, since its start."""
        counts = self.facts.get("counts")
        return {str(k): float(v) for k, v in counts.items() if is_number(v)} if isinstance(counts, dict) else {}

    def refusals(self) -> dict[str, int]:
        """What it refused or could not read, by kind."""
        counts = {k: int(n) for k, n in self.counts().items() if n and k.startswith(_REFUSALS)}
        return {k.removeprefix("refused_").replace("_", " on "): n for k, n in counts.items()}

    def subscribers(self) -> int | None:
        """How many subscriptions it publishes to."""
        channels, plain = self.facts.get("channels"), self.facts.get("chp1_subscriptions")
        if not isinstance(channels, dict):
            return None
        return sum(int(n) for n in (*channels.values(), plain) if is_number(n))

    def behind(self, others: list[ServerStatus]) -> int:
        """Updates that another server was told of and this one was not, when they were asked."""
        return max(0, *(v.sequence - self.sequence for v in others if v.reachable), 0)


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """What to think of the pair."""

    code: int
    word: str
    why: str


def is_number(thing: object) -> TypeGuard[float]:
    """Whether it counts as a number here: no booleans."""
    return isinstance(thing, int | float) and not isinstance(thing, bool)


def view(server: str, answer: Answer) -> ServerStatus:
    """An answer, or the lack of one, as a view."""
    if isinstance(answer, AdminReply):
        return ServerStatus(server, number=answer.number, facts={str(k): v for k, v in answer.facts.items()})
    denied = isinstance(answer, Refused | AdminDenied)
    return ServerStatus(server, problem=answer.text, only_chp1=isinstance(answer, SpeaksOnlyChp1), denied=denied)


def views(answers: Mapping[str, Answer], named: bool) -> list[ServerStatus]:
    """All servers; where the user named none, a lone server hides the default address nobody uses."""
    seen = [view(server, answer) for server, answer in answers.items()]
    alone = [v for v in seen if v.reachable and not v.has_peer]
    return alone if alone and not named and not any(v.reachable and v.has_peer for v in seen) else seen


def verdict(seen: list[ServerStatus]) -> PairVerdict:
    """One verdict on all servers."""
    active = [v for v in seen if v.active]
    away = [v for v in seen if not v.reachable]
    if len(away) == len(seen):
        only_chp1 = [v for v in seen if v.only_chp1]
        return PairVerdict(DEGRADED, "degraded", _why_away(only_chp1)) if only_chp1 else _nobody(away)
    if not active:
        found = ", ".join(f"{v.server} is {v.state}" for v in seen if v.reachable)
        trouble = next((v.trouble for v in seen if v.trouble), "")
        return PairVerdict(NOBODY_ACTIVE, "nobody active", f"{found}; {trouble or _remedy(seen)}")
    if len(active) > 1:
        why = active[0].trouble or active[1].trouble
        return PairVerdict(DEGRADED, "degraded", why or "both are active: the link between them (P+3) is cut; mend it")
    if active[0].trouble:
        return PairVerdict(DEGRADED, "degraded", active[0].trouble)
    return _of_the_rest(active[0], [v for v in seen if not v.active])


def _remedy(seen: list[ServerStatus]) -> str:
    """What to do when nobody of those asked is active: the one that is may not have been asked."""
    peers = [v.facts.get("peer") for v in seen if v.reachable]
    active = [
        p.get("name", "?") for p in peers if isinstance(p, dict) and p.get("alive") and p.get("state") == "active"
    ]
    if not active and any(v.state == "PASSIVE" for v in seen):
        return "it takes over when a client asks for it, or start its peer"
    if not active:
        return "give it a moment, or start its peer"
    told = f"it hears an active {active[0]}"
    return f"{told}: name that one too" if len(seen) == 1 else f"{told}, which does not answer here"


def _nobody(away: list[ServerStatus]) -> PairVerdict:
    if any(v.denied for v in away):
        return PairVerdict(REFUSED, "denied", _why_away([v for v in away if v.denied]))
    return PairVerdict(NO_SERVER, "no server", _why_away(away))


def _why_away(away: list[ServerStatus]) -> str:
    problems = {v.problem: "" for v in away}
    for v in away:
        problems[v.problem] += (", " if problems[v.problem] else "") + v.server
    return "; ".join(f"{servers}: {problem}" for problem, servers in problems.items())


def _of_the_rest(active: ServerStatus, others: list[ServerStatus]) -> PairVerdict:
    for other in others:
        if not other.reachable:
            if other.denied:
                return PairVerdict(DEGRADED, "degraded", f"{other.server} does not tell: {other.problem}")
            return PairVerdict(DEGRADED, "degraded", f"{other.server} is away; {active.server} serves alone")
        if other.state != "PASSIVE":
            return PairVerdict(DEGRADED, "degraded", f"{other.server} is {other.state}")
    if active.has_peer and active.in_sync is False:
        return PairVerdict(DEGRADED, "degraded", f"{active.server} serves alone: its passive is away or catching up")
    for view in (active, *others):
        room = view.facts.get("room")
        if isinstance(room, dict) and (room.get("read_only") or room.get("full")):
            return PairVerdict(DEGRADED, "degraded", f"{view.server}: {room.get('why') or 'it is full'}")
    why = "one active, one passive, in sync" if others else f"{active.server} serves" + _alone(active)
    return PairVerdict(OK, "healthy", why)


def _alone(active: ServerStatus) -> str:
    return "" if active.has_peer else ", alone as configured"
