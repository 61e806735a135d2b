"""A test of linearizability: a search for an order of calls that one register would allow, after Wing and Gong.

A history has the sets, conditional sets and reads of one key, each with the times of its call and of its answer. It is
linearizable if some order of the calls has two properties. Each call has its effect at a moment between its two times,
and each sees the value that the call before left. The search tries each call that may come next, which is one that was
called before any open call was answered. It remembers the places where it has been (Lowe's improvement), so that it
goes no way twice.

A call of unknown outcome may have been done at any time after it was made, or not at all. It is in the order if another
call has seen its value, and then it comes before that call was answered. Otherwise it is left out, which changes
nothing for the others. A refused call was not done, so there is no order if another call sees its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SET, CAS, READ = "set", "cas", "read"
NEVER = float("inf")
# The search gives up beyond this number. A history of thousands of calls by four processes takes about as many
# configurations as calls.
CONFIGURATIONS_MAX = 3_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a process. Values are unique, and None stands for an absent key."""

    process: str
    kind: str
    # The value that was set or read.
    value: str | None
    called: float
    # The time of the answer to a call that was done, or `NEVER` if the outcome is unknown.
    answered: float = NEVER
    # The value that a conditional set expected.
    expected: str | None = None

    @property
    def sure(self) -> bool:
        """True if the call is known to have been done."""
        return self.answered < NEVER

    @property
    def sees(self) -> str | None:
        """The value that the call found, if it was done."""
        return {CAS: self.expected, READ: self.value, SET: None}[self.kind]

    def allowed(self, state: str | None) -> bool:
        """Return True if the call can be done while the key has this value."""
        return self.kind == SET or self.sees == state

    def __str__(self) -> str:
        what = f"{self.expected} -> {self.value}" if self.kind == CAS else f"{self.value}"
        until = f"{self.answered:.4f}" if self.sure else "?"
        return f"{self.process} {self.kind} {what} [{self.called:.4f} .. {until}]"


class Undecided(Exception):
    """An error: the search has more configurations than it may try."""


def wrong(calls: Iterable[Call]) -> str:
    """Return "" if the history of one key is linearizable, else where the longest order has to stop."""
    ops = sorted(_in_order(list(calls)), key=lambda call: call.called)
    best: tuple[int, str | None, list[Call]] = (-1, None, [])
    begin: tuple[int, frozenset[int], str | None] = (0, frozenset(), None)
    stack, seen = [begin], {begin}
    while stack:
        low, done, state = stack.pop()
        if low == len(ops):
            return ""
        nexts = _may_come_next(ops, low, done)
        if low + len(done) > best[0]:
            best = low + len(done), state, [ops[i] for i in nexts]
        for i in reversed(nexts):
            if ops[i].allowed(state):
                where = _after(i, low, done, state if ops[i].kind == READ else ops[i].value)
                if where not in seen:
                    seen.add(where)
                    stack.append(where)
        if len(seen) > CONFIGURATIONS_MAX:
            raise Undecided(f"{len(ops)} calls have more than {CONFIGURATIONS_MAX:,} ways")
    return f"after {best[0]} of {len(ops)} calls the value is {best[1]}, and next is one of: " + "; ".join(
        str(call) for call in best[2]
    )


def _in_order(calls: list[Call]) -> list[Call]:
    """Return the calls that were done: those with an answer, and those whose value another call saw."""
    by_value = {call.value: call for call in calls if call.kind != READ and not call.sure}
    found = [call for call in calls if call.sure]
    waiting, seen_by = list(found), dict[str, float]()
    while waiting:
        call = waiting.pop()
        value = call.sees
        if value is not None and value in by_value:
            known = seen_by.get(value)
            seen_by[value] = min(call.answered, NEVER if known is None else known)
            if known is None:
                waiting.append(by_value[value])
    return found + [replace(by_value[value], answered=until) for value, until in seen_by.items()]


def _may_come_next(ops: list[Call], low: int, done: frozenset[int]) -> list[int]:
    """Return the calls that may come next: each was called before the earliest answer of the calls that are left."""
    nexts, first = [], NEVER
    for i in range(low, len(ops)):
        if i in done:
            continue
        if ops[i].called > first:
            break
        nexts.append(i)
        first = min(first, ops[i].answered)
    return [i for i in nexts if ops[i].called <= first]


def _after(i: int, low: int, done: frozenset[int], state: str | None) -> tuple[int, frozenset[int], str | None]:
    """Return the configuration after one more call. All calls below `low` are done, and those in `done`."""
    done = done | {i}
    while low in done:
        done -= {low}
        low += 1
    return low, done, state
