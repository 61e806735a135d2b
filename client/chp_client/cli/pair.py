"""The status replies of a pair: a `ServerStatus` for each server, and one verdict on all of them. Pure.

A server's reply is a map (SPEC.md, section 17). A missing fact is shown as "-" and an unknown one is ignored, so that
this program and a server of another version still understand each other.

The verdicts are the exit codes of `chp status` too:

    0 healthy         one server is active, and in sync with a passive, or it has no peer by configuration
    1 degraded        one is active, but the other is away, starting, not in sync, or active too; or the only servers
                      that answer speak CHP/1, which can't tell a state
    2 nobody active   a server answers, but none is active
    3 no server       no server answers
    4 denied          the servers that answer do not let this user in, or do not tell this user their status
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from chp.facts import BY_PATH
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
    """The status of one server, as far as the server told it."""

    server: str
    # The reason why the server told no facts, or "".
    problem: str = ""
    # The server answers, but speaks only CHP/1 (RFC 12), which has no status.
    only_chp1: bool = False
    # The server answers with a refusal.
    denied: bool = False
    number: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reachable(self) -> bool:
        """True if the server has told its facts."""
        return not self.problem

    @property
    def state(self) -> str:
        """The state: ACTIVE, PASSIVE, STARTING, CHP/1, DENIED, or UNREACHABLE."""
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
    def is_replica(self) -> bool:
        """True for a replica, which serves readers of a pair and is not part of it."""
        return bool(self.fact("role") == "replica")

    @property
    def active(self) -> bool:
        """True for the active server of a pair. A replica that says ACTIVE serves readers only."""
        return self.state == "ACTIVE" and not self.is_replica

    @property
    def has_peer(self) -> bool:
        """True if the server was configured with a peer."""
        return self.fact("role") not in ("alone", "replica")

    @property
    def trouble(self) -> str:
        """The reason why the server rejects its peer, or waits; an empty text if all is well."""
        if text := self.fact("misfit.text"):
            return f"{self.server} does not take {self.fact('misfit.name') or 'its peer'} for its peer: {text}"
        waits = self.fact("waits_for")
        return f"{self.server} waits: {waits}" if waits else ""

    @property
    def epoch(self) -> int:
        return int(epoch_of(self.number) if (told := self.fact("epoch")) is None else told)

    @property
    def sequence(self) -> int:
        return int(sequence_of(self.number) if (told := self.fact("sequence")) is None else told)

    @property
    def position(self) -> int:
        """The epoch and the sequence as one number."""
        return self.epoch << EPOCH_SHIFT | self.sequence

    @property
    def in_sync(self) -> bool | None:
        """True if the server says that both servers hold the same contents; None if it says nothing."""
        said: bool | None = self.fact("in_sync")
        return said

    def fact(self, path: str) -> Any:
        """Return a fact by its path in `chp.facts`; None if it is missing or of another type."""
        return BY_PATH[path].of(self.facts)

    def counts(self) -> dict[str, float]:
        """Return everything that the server has counted since its start, by name."""
        return {str(k): float(v) for k, v in (self.fact("counts") or {}).items() if is_number(v)}

    def refusals(self) -> dict[str, int]:
        """Return the number of refused and unreadable messages, by kind."""
        counts = {k: int(n) for k, n in self.counts().items() if n and k.startswith(_REFUSALS)}
        return {k.removeprefix("refused_").replace("_", " on "): n for k, n in counts.items()}

    def subscribers(self) -> int | None:
        """Return the number of subscriptions that the server publishes to."""
        channels, plain = self.fact("channels"), self.fact("chp1_subscriptions")
        if channels is None:
            return None
        return sum(int(n) for n in (*channels.values(), plain) if is_number(n))

    def behind(self, others: list[ServerStatus]) -> int:
        """Return how many updates this server lacked, when asked, compared with the most advanced other server."""
        return max(0, *(v.sequence - self.sequence for v in others if v.reachable), 0)


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The verdict on a pair."""

    code: int
    word: str
    why: str


def is_number(thing: object) -> TypeGuard[float]:
    """Return True for an int or a float, but not for a bool."""
    return isinstance(thing, int | float) and not isinstance(thing, bool)


def view(server: str, answer: Answer) -> ServerStatus:
    """Return the status of a server from its answer, which may also be an error."""
    if isinstance(answer, AdminReply):
        return ServerStatus(server, number=answer.number, facts={str(k): v for k, v in answer.facts.items()})
    denied = isinstance(answer, Refused | AdminDenied)
    return ServerStatus(server, problem=answer.text, only_chp1=isinstance(answer, SpeaksOnlyChp1), denied=denied)


def views(answers: Mapping[str, Answer], named: bool) -> list[ServerStatus]:
    """Return the status of all servers.

    If the user named no servers, and a server without a peer answers at a default address, leave out the other address.
    """
    seen = [view(server, answer) for server, answer in answers.items()]
    alone = [v for v in seen if v.reachable and not v.has_peer and not v.is_replica]
    return alone if alone and not named and not any(v.reachable and v.has_peer for v in seen) else seen


def verdict(seen: list[ServerStatus]) -> PairVerdict:
    """Return one verdict on all servers."""
    replicas = [v for v in seen if v.is_replica]
    behind = [v for v in replicas if v.state != "ACTIVE"]
    others = [v for v in seen if not v.is_replica]
    if replicas and not any(v.reachable or v.only_chp1 for v in others):
        return _of_replicas([v for v in replicas if v.state == "ACTIVE"], behind, others)
    found = _verdict(others)
    if found.code == OK and behind:
        verbs = "does not hear the pair, or is" if len(behind) == 1 else "do not hear the pair, or are"
        why = f"{_names(behind)} {verbs} catching up; the pair itself is healthy"
        return PairVerdict(DEGRADED, "degraded", why)
    if found.code == OK and replicas:
        return PairVerdict(OK, found.word, f"{found.why}; {_follow(len(replicas))}")
    return found


def _of_replicas(serve: list[ServerStatus], behind: list[ServerStatus], away: list[ServerStatus]) -> PairVerdict:
    """Return the verdict if only replicas answer, and no server of their pair does."""
    if len(behind) > 1:
        lost = f"{_names(behind)} are PASSIVE: replicas that hear no active, or are catching up"
    else:
        lost = f"{_names(behind)} is PASSIVE: a replica that hears no active, or is catching up"
    problems = [*([lost] if behind else ()), *([why_away(away)] if away else ())]
    if not serve:
        remedy = "look at the pair's servers, and at its --upstream"
        return PairVerdict(NOBODY_ACTIVE, "nobody active", "; ".join([*problems, remedy]))
    reads = f"{_names(serve)} serve{'s' if len(serve) == 1 else ''} readers"
    if problems:
        return PairVerdict(DEGRADED, "degraded", "; ".join([reads, *problems]))
    return PairVerdict(OK, "healthy", f"{reads}; name the pair's servers to see the pair")


def _follow(replicas: int) -> str:
    return "1 replica follows" if replicas == 1 else f"{replicas} replicas follow"


def _names(seen: list[ServerStatus]) -> str:
    return ", ".join(v.server for v in seen)


def _of_two_pairs(active: list[ServerStatus]) -> str:
    """Return the reason why these active servers belong to two pairs, or ""."""
    stores = {v.fact("store"): v.server for v in active if v.fact("store")}
    if len(stores) < 2:
        return ""
    return f"{' and '.join(stores.values())} hold different stores, so they are of two pairs: name the servers of one"


def _verdict(seen: list[ServerStatus]) -> PairVerdict:
    active = [v for v in seen if v.active]
    away = [v for v in seen if not v.reachable]
    if len(away) == len(seen):
        only_chp1 = [v for v in seen if v.only_chp1]
        return PairVerdict(DEGRADED, "degraded", why_away(only_chp1)) if only_chp1 else _nobody(away)
    if not active:
        found = ", ".join(f"{v.server} is {v.state}" for v in seen if v.reachable)
        trouble = next((v.trouble for v in seen if v.trouble), "")
        return PairVerdict(NOBODY_ACTIVE, "nobody active", f"{found}; {trouble or _remedy(seen)}")
    if len(active) > 1:
        why = active[0].trouble or active[1].trouble or _of_two_pairs(active)
        return PairVerdict(DEGRADED, "degraded", why or "both are active: the link between them (P+3) is cut; mend it")
    if active[0].trouble:
        return PairVerdict(DEGRADED, "degraded", active[0].trouble)
    return _of_the_rest(active[0], [v for v in seen if not v.active])


def _remedy(seen: list[ServerStatus]) -> str:
    """Return the remedy if no server asked is active. A server that was not asked may be active."""
    here = [v for v in seen if v.reachable]
    active = [v.fact("peer.name") or "?" for v in here if v.fact("peer.alive") and v.fact("peer.state") == "active"]
    if not active and any(v.state == "PASSIVE" for v in seen):
        return "it takes over when a client asks for it, or start its peer"
    if not active:
        return "give it a moment, or start its peer"
    told = f"it hears an active {active[0]}"
    return f"{told}: name that one too" if len(seen) == 1 else f"{told}, which does not answer here"


def _nobody(away: list[ServerStatus]) -> PairVerdict:
    if any(v.denied for v in away):
        return PairVerdict(REFUSED, "denied", why_away([v for v in away if v.denied]))
    return PairVerdict(NO_SERVER, "no server", why_away(away))


def why_away(away: list[ServerStatus]) -> str:
    """Return the reasons why servers do not answer; servers with the same problem are listed together."""
    problems = {v.problem: "" for v in away}
    for v in away:
        problems[v.problem] += (", " if problems[v.problem] else "") + v.server
    return "; ".join(f"{servers}: {problem}" for problem, servers in problems.items())


def _of_the_rest(active: ServerStatus, others: list[ServerStatus]) -> PairVerdict:
    for other in others:
        if not other.reachable:
            return PairVerdict(DEGRADED, "degraded", _away(active, other, others))
        if other.state != "PASSIVE":
            return PairVerdict(DEGRADED, "degraded", f"{other.server} is {other.state}")
    if active.has_peer and active.in_sync is False:
        return PairVerdict(DEGRADED, "degraded", f"{active.server} serves alone: its passive is away or catching up")
    for view in (active, *others):
        if view.fact("room.read_only") or view.fact("room.full"):
            return PairVerdict(DEGRADED, "degraded", f"{view.server}: {view.fact('room.why') or 'it is full'}")
    wanted, there = active.fact("copies.wanted"), active.fact("copies.in_sync")
    if wanted is not None and there is not None and there < wanted:
        why = f"{there} copies of {wanted} are in sync at {active.server}, so acknowledgements say journaled"
        return PairVerdict(DEGRADED, "degraded", why)
    why = "one active, one passive, in sync" if others else f"{active.server} serves" + _alone(active)
    return PairVerdict(OK, "healthy", why)


def _away(active: ServerStatus, other: ServerStatus, others: list[ServerStatus]) -> str:
    if other.denied:
        return f"{other.server} does not tell: {other.problem}"
    if active.in_sync and any(v.state == "PASSIVE" for v in others):
        return f"{other.server} is away: a replica? The pair itself is in sync"
    return f"{other.server} is away; {active.server} serves alone"


def _alone(active: ServerStatus) -> str:
    return "" if active.has_peer else ", alone as configured"
