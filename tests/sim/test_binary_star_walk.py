"""Every state that two servers can reach by the Binary Star table, with a client's votes, loss, crashes and silence.

Two servers, each in one of the four states or down, each with an epoch and a mark of how much history it has; what one
has last heard of the other counts only while it is fresh, because a STATE may be lost. The walk takes every step that
the table allows from every state reached, up to a bound on epochs, and holds:

- never are two servers active in the same epoch;
- two actives whose STATEs reach each other end as one, the higher epoch;
- from every state, once both run and every message arrives, exactly one becomes active and the other passive.
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
    """One server; `state` None while it is down. `fresh`: it has heard its peer lately."""

    primary: bool
    state: State | None
    epoch: int = 0
    age: int = 0
    seen: int = 0
    fresh: bool = False

    def number(self) -> tuple[int, int]:
        """Ordered as numbers are: epoch, then sequence."""
        return self.epoch, self.age


Pair = tuple[Server, Server]


def moved(server: Server, event: PairEvent) -> Server:
    """After an event; a server that becomes active opens an epoch above all it has seen."""
    assert server.state is not None
    after = step(server.state, event)
    if after is State.ACTIVE and server.state is not State.ACTIVE:
        epoch = next_epoch(max(server.seen, server.epoch), odd=server.primary)
        return server._replace(state=after, epoch=epoch, seen=epoch, age=min(server.age + 1, AGE_BOUND))
    return server._replace(state=after)


def hears(server: Server, other: Server) -> Server:
    """The peer's STATE arrives."""
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
        epoch = next_epoch(max(server.seen, server.epoch), odd=server.primary)  # rise above what the peer has seen
        server = server._replace(epoch=epoch, seen=epoch)
    return server


def catches_up(server: Server, other: Server) -> Server:
    """A passive takes over the active's history."""
    return server._replace(epoch=other.epoch, age=other.age)


def steps(pair: Pair) -> Iterator[Pair]:
    """Everything that may happen next; what is lost simply does not happen."""
    for i in (0, 1):
        me, other = pair[i], pair[1 - i]
        for after in changes(me, other):
            yield (after, other) if i == 0 else (other, after)


def changes(me: Server, other: Server) -> Iterator[Server]:
    """What may happen to one of them."""
    start = State.PRIMARY if me.primary else State.BACKUP
    if me.state is None:
        yield me._replace(state=start, fresh=False, seen=0)
        return
    yield me._replace(state=None)  # it dies; its journal stays
    if other.state is not None:
        yield hears(me, other)
        if me.state is State.PASSIVE and other.state is State.ACTIVE:
            yield catches_up(me, other)
            if me.number() == other.number():
                yield moved(me, PairEvent.HANDOVER)
    if me.fresh:
        yield me._replace(fresh=False)  # the peer falls silent, whether it is dead or its link is
    yield moved(me, PairEvent.VOTE_PEER_ALIVE if me.fresh else PairEvent.VOTE_PEER_SILENT)
    if not me.fresh:
        yield moved(me, PairEvent.ALONE)
    if me.state is State.ACTIVE:
        yield me._replace(age=min(me.age + 1, AGE_BOUND))  # it commits


def start() -> Pair:
    """Both down, with nothing."""
    return Server(True, None), Server(False, None)


def reachable() -> Iterator[Pair]:
    """All states the walk reaches, each once."""
    seen, todo = {start()}, deque([start()])
    while todo:
        pair = todo.popleft()
        yield pair
        for after in steps(pair):
            if after not in seen and max(after[0].epoch, after[1].epoch) <= EPOCH_BOUND:
                seen.add(after)
                todo.append(after)


def healed(pair: Pair) -> Pair:
    """Both run and every STATE arrives, one after the other, until nothing changes."""
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
    """What does not hold, in words."""
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


def test_epochs_of_one_parity_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "next_epoch", lambda seen, odd: seen + 1)
    assert any("two actives in epoch" in text for text in violations(reachable()))
