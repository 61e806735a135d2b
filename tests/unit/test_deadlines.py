"""covers: deadlines.py: what is due is taken out once, and nothing else is called."""

from chp_server.core.deadlines import NEVER, Deadlines


def test_nothing_is_due_before_its_time() -> None:
    deadlines = Deadlines()
    assert deadlines.first == NEVER
    deadlines.set("a", 2.0)
    deadlines.set("b", 1.0)
    assert deadlines.first == 1.0
    assert deadlines.due(0.9) == frozenset()


def test_a_due_deadline_is_taken_out_once() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("b", 1.0)
    deadlines.set("c", 2.0)
    assert deadlines.due(1.0) == {"a", "b"}
    assert deadlines.due(1.0) == frozenset()
    assert deadlines.first == 2.0


def test_a_later_time_replaces_the_earlier_one() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("b", 3.0)
    deadlines.set("a", 2.0)
    assert deadlines.first == 2.0
    assert deadlines.due(1.5) == frozenset()
    assert deadlines.due(2.0) == {"a"}


def test_a_cleared_deadline_is_not_due() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.clear("a")
    deadlines.clear("never set")
    assert deadlines.due(1.0) == frozenset()
    assert deadlines.first == NEVER


def test_a_deadline_may_be_set_again_for_the_present_time() -> None:
    """A part that has something more to do sets the time of the turn: it is due in the next one."""
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    assert deadlines.due(1.0) == {"a"}
    deadlines.set("a", 1.0)
    assert deadlines.first == 1.0
    assert deadlines.due(1.0) == {"a"}
