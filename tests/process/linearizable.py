"""Is a history of calls linearizable? A search for an order that one register would allow, as Wing and Gong do it.

A history is one key's: sets, conditional sets and reads, each with the times of its call and of its answer. It is
linearizable if there is an order of the calls in which each has its effect at one moment between the two, and each sees
what the one before it left. The search takes one after the other of those that may come next (called before any open
one was answered), and remembers where it has been (Lowe's improvement), so that no way is gone twice.

What is not known to have been done may have been done at any time after its call, or not at all. It is in the order if
somebody has seen its value, and then before who saw it was answered; else it is left out, which changes nothing for the
others. A call that was refused was not done: if anybody sees its value, no order is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SET, CAS, READ = "set", "cas", "read"
NEVER = float("inf")
CONFIGURATIONS_MAX = 3_000_000  # a history of thousands of calls by four processes takes about as many


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a process; values are unique, None is a key that is not there."""

    process: str
    kind: str
    value: str | None  # set, or read
    called: float
    answered: float = NEVER  # and it was done: `NEVER` if that is not known
    expected: str | None = None  # cas: what the key was to have

    @property
    def sure(self) -> bool:
        """Whether it is known to have been done."""
        return self.answered < NEVER

    @property
    def sees(self) -> str | None:
        """The value that it found, if it was done."""
        return {CAS: self.expected, READ: self.value, SET: None}[self.kind]

    def allowed(self, state: str | None) -> bool:
        """Whether it can be done when the key has this value."""
        return self.kind == SET or self.sees == state

    def __str__(self) -> str:
        what = f"{self.expected} -> {self.value}" if self.kind == CAS else f"{self.value}"
        until = f"{self.answered:.4f}" if self.sure else "?"
        return f"{self.process} {self.kind} {what} [{self.called:.4f} .. {until}]"


class Undecided(Exception):
    """There were more ways than the search may go."""


def wrong(calls: Iterable[Call]) -> str:
    """Empty if one key's history is linearizable; else where the longest order found has to stop."""
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
    """The calls that were done: those that are known to be, and those whose value somebody saw."""
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
    """Those that were called before any that is still to come was answered."""
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
    """Where one more call leads: all below `low` are done, and those in `done`."""
    done = done | {i}
    while low in done:
        done -= {low}
        low += 1
    return low, done, state
