"""A checker that sets, conditional sets and reads of one key are linearizable, with the records as the witness.

A history of calls is linearizable if some order of them fits a single register and agrees with real time. Real time
means that a call that was answered before another began comes first. The order of the surviving records must be such an
order. The rules for the writes of each key, in the order of their records, are:

- An acknowledged write is there, once.
- A write that was answered before another call began comes before that call. The place of a read is its number.
- A conditional set stands directly after the write whose revision it named.
- A refused set is not there, unless a suffix was discarded. Then a discarded record may have been the reason.
"""

from __future__ import annotations

from collections.abc import Collection

from .clients import Op
from .oracle import Oracle, Wrong


def check(oracle: Oracle, end: int, ops: list[Op], promised: int, replayed: Collection[bytes] = ()) -> int:
    """Check each call whose key begins with `/lin/`. An acknowledgement below `promised` counts as no answer.

    A value that was `replayed` from a suffix has no condition, and stands where it was set again.
    """
    placed = {}
    before: dict[str, int] = {}
    for node in oracle.path(end):
        for key, value in node.writes:
            if value is not None:
                placed[value] = (node.first, before.get(key, 0))
            before[key] = 0 if value is None else node.revision
    calls: dict[str, list[tuple[Op, int]]] = {}
    for op in ops:
        for key in op.keys:
            if key.startswith("/lin/"):
                place = _place(op, placed, promised, replayed)
                if place is not None:
                    calls.setdefault(key, []).append((op, place))
    for key, placed_calls in calls.items():
        _real_time(key, placed_calls)
    return sum(map(len, calls.values()))


def _place(op: Op, placed: dict[bytes, tuple[int, int]], promised: int, replayed: Collection[bytes]) -> int | None:
    """Return the place of a call in the history, or None if nothing was promised about it."""
    if op.kind == "read":
        if promised > 1 or op.result is None or op.result[0] != "read":
            return None
        return int(op.result[3])
    here = placed.get(op.value)
    if op.value in replayed:
        return None
    if here is not None and op.expected is not None and here[1] != op.expected[op.keys[0]]:
        raise Wrong(f"{op.name} was to be set only at revision {op.expected[op.keys[0]]}, and was at {here[1]}")
    if promised < 2 and op.result is not None and op.result[0] == "refused" and here is not None:
        raise Wrong(f"{op.name} was refused ({op.result[1]}), and is in the history")
    if op.acked and op.result is not None and op.result[2] >= promised:
        if here is None:
            raise Wrong(f"{op.name} was acknowledged, and is not in the history")
        return here[0]
    return None


def _real_time(key: str, calls: list[tuple[Op, int]]) -> None:
    """Check that a call that was answered before another was made stands before it."""
    # The last place of the calls that were answered so far.
    latest: tuple[int, Op] | None = None
    answered = sorted(calls, key=lambda c: c[0].answered or 0.0)
    made = sorted(calls, key=lambda c: c[0].called)
    i = 0
    for op, place in made:
        while i < len(answered) and (answered[i][0].answered or 0.0) < op.called:
            if latest is None or answered[i][1] > latest[0]:
                latest = (answered[i][1], answered[i][0])
            i += 1
        if latest is not None and place < latest[0]:
            raise Wrong(f"{key}: {op.name} was called after {latest[1].name} was answered, and stands before it")
