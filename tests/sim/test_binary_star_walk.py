"""Every state that two servers can reach by the Binary Star table, with a client's votes, loss, crashes and silence.

Each of two servers is in one of the four states or down. It has an epoch and a mark of how much history it has. A STATE
may be lost, so what a server has heard of the other counts only while it is fresh. The walk takes each step that the
table allows from each state reached, up to a bound on epochs. It checks three rules:

- Two servers are never active in the same epoch.
- If the STATEs of two actives reach each other, only the one of the higher epoch stays active.
- Once both servers run and every message arrives, exactly one becomes active and the other passive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from chp.headers import State
from chp.numbers import next_epoch
from chp_server.core.pair import binary_star
from chp_server.core.pair.binary_star import PairEvent, peer_event, step

EPOCH_BOUND = 5
AGE_BOUND = 2


class Server(NamedTuple):
    """A server. `state` is None while it is down, and `fresh` is True if it has heard its peer lately."""

    primary: bool
    state: State | None
    epoch: int = 0
    age: int = 0
    seen: int = 0
    fresh: bool = False

    def number(self) -> tuple[int, int]:
        """Return the number, which orders by epoch and then by sequence."""
        return self.epoch, self.age


Pair = tuple[Server, Server]


def moved(server: Server, event: PairEvent) -> Server:
    """Return a server after an event. A server that becomes active opens an epoch above all it has seen."""
    assert server.state is not None
    after = step(server.state, event)
    if after is State.ACTIVE and server.state is not State.ACTIVE:
        epoch = next_epoch(max(server.seen, server.epoch), odd=server.primary)
        return server._replace(state=after, epoch=epoch, seen=epoch, age=min(server.age + 1, AGE_BOUND))
    return server._replace(state=after)


def hears(server: Server, other: Server) -> Server:
    """Return a server after a STATE of its peer."""
    assert other.state is not None
    seen = max(server.seen, other.epoch)
    server = server._replace(fresh=True, seen=seen)
    (number, peer_number) = (2, 1) if server.number() > other.number() else (1, 2)
    if server.number() == other.number():
        number = peer_number
    event = peer_event(
        peer_state=other.state, peer_number=peer_number, peer_epoch=other.epoch, number=number, epoch=server.epoch,
        primary=server.primary,
    )  # fmt: skip
    server = moved(server, event)
    if other.state is not State.ACTIVE and server.state is State.ACTIVE and other.epoch > server.epoch:
        # The epoch must be above all that the peer has seen.
        epoch = next_epoch(max(server.seen, server.epoch), odd=server.primary)
        server = server._replace(epoch=epoch, seen=epoch)
    return server


def catches_up(server: Server, other: Server) -> Server:
    """Return a passive after it has taken over the active's history."""
    return server._replace(epoch=other.epoch, age=other.age)


def steps(pair: Pair) -> Iterator[Pair]:
    """Yield the pairs that may come next. A lost message is a step that is not taken."""
    for i in (0, 1):
        me, other = pair[i], pair[1 - i]
        for after in changes(me, other):
            yield (after, other) if i == 0 else (other, after)


def changes(me: Server, other: Server) -> Iterator[Server]:
    """Yield the states that one server may have next."""
    start = State.PRIMARY if me.primary else State.BACKUP
    if me.state is None:
        yield me._replace(state=start, fresh=False, seen=0)
        return
    # The server dies, and its journal stays.
    yield me._replace(state=None)
    if other.state is not None:
        yield hears(me, other)
        if me.state is State.PASSIVE and other.state is State.ACTIVE:
            yield catches_up(me, other)
            if me.number() == other.number():
                yield moved(me, PairEvent.HANDOVER)
    if me.fresh:
        # The peer falls silent, because the peer or its link is dead.
        yield me._replace(fresh=False)
    yield moved(me, PairEvent.VOTE_PEER_ALIVE if me.fresh else PairEvent.VOTE_PEER_SILENT)
    if not me.fresh:
        yield moved(me, PairEvent.ALONE)
    if me.state is State.ACTIVE:
        # The server commits.
        yield me._replace(age=min(me.age + 1, AGE_BOUND))


def start() -> Pair:
    """Return two servers that are down and have no history."""
    return Server(True, None), Server(False, None)


def reachable() -> Iterator[Pair]:
    """Yield each state that the walk reaches, once."""
    seen, todo = {start()}, deque([start()])
    while todo:
        pair = todo.popleft()
        yield pair
        for after in steps(pair):
            if after not in seen and max(after[0].epoch, after[1].epoch) <= EPOCH_BOUND:
                seen.add(after)
                todo.append(after)


def healed(pair: Pair) -> Pair:
    """Return a pair after both run and their STATEs have arrived in turn, until nothing changes."""
    a, b = (s if s.state is not None else next(changes(s, s)) for s in pair)
    for _ in range(12):
        a = hears(a, b)
        b = hears(b, a)
        if a.state is State.PASSIVE and b.state is State.ACTIVE:
            a = catches_up(a, b)
        if b.state is State.PASSIVE and a.state is State.ACTIVE:
            b = catches_up(b, a)
    return a, b


def violations(states: Iterable[Pair]) -> Iterator[str]:
    """Yield a text for each rule that does not hold."""
    for a, b in states:
        if a.state is State.ACTIVE and b.state is State.ACTIVE:
            if a.epoch == b.epoch:
                yield f"two actives in epoch {a.epoch}: {a} {b}"
            stays, goes = (a, b) if a.epoch > b.epoch else (b, a)
            if hears(goes, stays).state is not State.PASSIVE or hears(stays, goes).state is not State.ACTIVE:
                yield f"two actives stay: {a} {b}"
        last = healed((a, b))
        if {s.state for s in last} != {State.ACTIVE, State.PASSIVE}:
            yield f"no active and passive from {a} {b}, but {last}"


def test_every_reachable_state_is_sound() -> None:
    states = list(reachable())
    assert len(states) > 1000
    assert any({s.state for s in pair} == {State.ACTIVE} for pair in states), "the walk reaches two actives"
    assert next(violations(states), None) is None


@pytest.mark.parametrize(
    ("key", "after"),
    [
        ((State.ACTIVE, PairEvent.PEER_ACTIVE_HIGHER), State.ACTIVE),
        ((State.ACTIVE, PairEvent.PEER_ACTIVE_LOWER), State.PASSIVE),
        ((State.PRIMARY, PairEvent.PEER_BEHIND), State.PRIMARY),
        ((State.PASSIVE, PairEvent.PEER_BEHIND), State.PASSIVE),
        ((State.BACKUP, PairEvent.PEER_ACTIVE_HIGHER), State.BACKUP),
    ],
)
def test_a_wrong_table_is_found(monkeypatch: pytest.MonkeyPatch, key: tuple[State, PairEvent], after: State) -> None:
    monkeypatch.setitem(binary_star.TABLE, key, after)
    assert next(violations(reachable()))


def test_the_walk_finds_epochs_that_ignore_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "next_epoch", lambda seen, odd: seen + 1)
    assert any("two actives in epoch" in text for text in violations(reachable()))
