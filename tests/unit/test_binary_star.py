"""Binary Star: each line of the table, and that two servers that hear each other never both stay active."""

from itertools import product

import pytest

from chp.headers import State
from chp_server.core.pair.binary_star import TABLE, PairEvent, diagram, peer_event, step

WAITING = (State.PRIMARY, State.BACKUP)


def hear(mine: tuple[State, int, int, bool], theirs: tuple[State, int, int, bool]) -> State:
    state, number, epoch, primary = mine
    peer_state, peer_number, peer_epoch, _ = theirs
    event = peer_event(
        peer_state=peer_state,
        peer_number=peer_number,
        peer_epoch=peer_epoch,
        number=number,
        epoch=epoch,
        primary=primary,
    )
    return step(state, event)


@pytest.mark.parametrize("state", State)
def test_an_event_outside_the_table_keeps_the_state(state: State) -> None:
    for event in PairEvent:
        assert step(state, event) is TABLE.get((state, event), state)


@pytest.mark.parametrize(("one", "two"), list(product(WAITING, repeat=2)))
@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (5, 5), (4, 5), (5, 4)])
def test_exactly_one_of_two_waiting_servers_becomes_active(one: State, two: State, ours: int, theirs: int) -> None:
    primary = hear((one, ours, 0, True), (two, theirs, 0, False))
    backup = hear((two, theirs, 0, False), (one, ours, 0, True))
    assert [primary, backup].count(State.ACTIVE) == 1
    assert (primary is State.ACTIVE) == (ours >= theirs), "the one ahead, or else the primary"


@pytest.mark.parametrize(("one", "two"), [(1, 2), (2, 1), (3, 2)])
def test_the_active_with_the_higher_epoch_stays_active(one: int, two: int) -> None:
    primary = hear((State.ACTIVE, 9, one, True), (State.ACTIVE, 9, two, False))
    backup = hear((State.ACTIVE, 9, two, False), (State.ACTIVE, 9, one, True))
    assert (primary is State.ACTIVE, backup is State.ACTIVE) == (one > two, two > one)


@pytest.mark.parametrize("state", WAITING)
def test_a_server_that_meets_an_active_follows_it(state: State) -> None:
    assert hear((state, 100, 3, True), (State.ACTIVE, 1, 2, False)) is State.PASSIVE


def test_a_vote_counts_only_while_the_peer_is_silent() -> None:
    assert step(State.PASSIVE, PairEvent.VOTE_PEER_ALIVE) is State.PASSIVE
    assert step(State.PASSIVE, PairEvent.VOTE_PEER_SILENT) is State.ACTIVE
    for state in WAITING:
        assert step(state, PairEvent.VOTE_PEER_SILENT) is state


def test_the_diagram_has_a_line_for_each_entry_of_the_table() -> None:
    assert len(diagram().splitlines()) == len(TABLE)
