"""covers: the arbiter's set in the simulator. A server that goes on alone writes it first; an unnamed server waits."""

from collections.abc import Iterable

import pytest

from chp_server.core.pair.arbitration import Arbitration, Members
from tests.sim.oracle import Wrong
from tests.sim.world import World
from tests.unit.server_talk import forced

START = (
    "client c1 model all",
    "client c2 model all",
    "arbiter",
    "start P",
    "start B",
    "start c1",
    "start c2",
    "tick 3",
)
ALONE = ("set c1 /a", "tick 0.5", "cut P>B", "cut B>P", "cut c1>B", "tick 1.5", "set c1 /a", "tick 0.5", "crash P")
OTHERS = ("tick 4", "set c2 /a", "tick 1")
BACK = ("crash c1", "start P", "heal *", "settle 15")


def run(*parts: Iterable[str]) -> World:
    """Return a world after some commands, in which only `tick` takes time."""
    world = World()
    for part in parts:
        for command in part:
            world.do(command)
    return world


def test_a_server_outside_the_arbiters_set_waits_for_its_peer() -> None:
    world = run(START, ALONE, OTHERS)
    assert world.nodes["c1"].ops[-1].result[2] == 1, "the active alone has acknowledged"
    assert not world.nodes["B"].core.active, "and the other one does not serve without it"
    assert world.nodes["c2"].ops[-1].result is None
    for command in BACK:
        world.do(command)
    assert world.arbiter is not None and world.arbiter.members.names == {"primary", "backup"}


def test_an_active_that_goes_on_alone_before_the_arbiter_agrees_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = Arbitration.agreed

    def goes_on(self: Arbitration, confirmed: int | None, told: int, waiting: bool) -> bool:
        return confirmed is None or agreed(self, confirmed, told, waiting)

    monkeypatch.setattr(Arbitration, "agreed", goes_on)
    with pytest.raises(Wrong, match="is lost"):
        run(START, ALONE, OTHERS, BACK)


def test_a_server_that_ignores_the_arbiters_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arbitration, "excluded", lambda self, now, number: False)
    with pytest.raises(Wrong, match="is lost"):
        run(START, ALONE, OTHERS, BACK)


def test_the_active_acknowledges_nothing_while_the_arbiter_is_unreachable() -> None:
    world = run(START, ("cut P>B", "cut B>P", "doubt P", "tick 1.2", "set c1 /a", "tick 0.3"))
    assert world.nodes["c1"].ops[-1].result is None


def test_an_operator_can_force_a_server_outside_the_arbiters_set_to_serve() -> None:
    world = run(START, ALONE, OTHERS)
    core = world.nodes["B"].core
    assert "primary acknowledged above" in forced(core)
    for command in ("tick 1",):
        world.do(command)
    assert core.active and world.nodes["c2"].ops[-1].acked
    assert world.arbiter is not None and world.arbiter.members.names == {"backup"}


def test_an_earlier_wish_that_lands_late_does_not_confirm_the_present_wish() -> None:
    """An earlier wish that lands late does not count as the present wish."""
    a = Arbitration(True, "primary", 0.0)
    a.hear(9.0, Members(-1, frozenset(), 0))
    a.begin(1.0)
    first = a.wish
    assert first is not None and first.names == {"primary"} and first.base == -1
    assert not a.agreed(None, 5, True)
    a.hear(9.0, Members(0, frozenset({"primary"}), 0, first.serial))
    assert a.agreed(None, 5, True)
    assert not a.agreed(7, 5, False) and a.wish is not None and a.wish.names == {"primary", "backup"}
    both = a.wish
    assert both is not None
    assert not a.agreed(None, 7, True), "the passive is gone again, before that was confirmed"
    a.hear(9.0, Members(1, both.names, 5, both.serial))
    assert a.wish is not None and a.wish.base == 1, "the other write has landed: this one stands upon it"
    assert not a.agreed(None, 7, True)
    a.hear(9.0, Members(2, frozenset({"primary"}), 7, a.wish.serial))
    assert a.agreed(None, 7, True) and not a.both


def test_a_passive_that_lacks_acknowledged_updates_stays_out_of_the_set() -> None:
    a = Arbitration(True, "primary", 0.0)
    a.hear(9.0, Members(0, frozenset({"primary"}), 0))
    a.begin(1.0)
    assert not a.agreed(4, 5, True), "it has not got the 5th, which was acknowledged alone"
    assert a.wish is not None and a.wish.names == {"primary"}


def test_a_server_behind_the_number_of_the_set_may_not_be_active() -> None:
    a = Arbitration(True, "primary", 0.0)
    a.hear(9.0, Members(3, frozenset({"primary", "backup"}), 50))
    assert not a.holds(1.0, 49) and a.holds(1.0, 50)


def test_readers_of_topics_see_nothing_that_another_server_may_undo() -> None:
    """The passive is gone. Until the set names the active alone, the passive may take over without the new messages."""
    world = run(START, ("publish c1 t 1", "tick 0.5", "cut P>B", "cut B>P", "doubt P", "tick 0.9"))
    core = world.nodes["P"].core
    pair, held = core.pair, core.state.number
    world.do("publish c1 t 1")
    world.do("tick 0.1")
    assert core.active and pair.passive_has() is None and not pair.arbitration.alone
    assert core.state.topics.by_name["t"].next == 2, "it has taken the second message"
    bound = pair.safe_up_to(core.state.number)
    assert bound is not None and bound <= held, "and shows it to nobody"
    world.do("trust P")
    world.do("tick 1")
    assert core.active and pair.arbitration.alone and pair.safe_up_to(core.state.number) is None, (
        "until the set has this server alone"
    )
