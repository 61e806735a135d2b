"""Are acknowledged sets, conditional sets and reads of one key linearizable? The history of records is the witness.

A history of calls is linearizable if there is an order of them that a single register would allow, and that agrees with
real time: a call that was answered before another began comes first. The surviving records are such an order, or
nothing is. So each key's writes are taken in the order of their records, and then:

- an acknowledged write is there, once;
- a write answered before another call began comes before it; reads have a place too: the number they were answered at;
- a conditional set stands directly after the write whose revision it named;
- a refused set is not there (unless a history was parted with: who refused it may have had a past nobody remembers).
"""

from __future__ import annotations

from collections.abc import Collection

from .clients import Op
from .oracle import Oracle, Wrong


def check(oracle: Oracle, end: int, ops: list[Op], promised: int, replayed: Collection[bytes] = ()) -> int:
    """Check every call whose key begins with `/lin/`; acknowledgements below `promised` count as no answer.

    What was `replayed` out of a history that was parted with stands where it was set again, without its condition.
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
    """Where a call stands in the history, or None if nothing was promised about it."""
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
    """A call answered before another was made stands before it."""
    latest: tuple[int, Op] | None = None  # of the calls answered so far, the last place
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
