"""covers: groups in the simulator: each message is done once and in order; a planted bug is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chp_server.core.questions import group_coordinator, workload
from chp_server.core.questions.group_coordinator import GroupCoordinator
from chp_server.core.questions.workload import Workload
from chp_server.core.state.groups import Group
from chp_server.core.state.member import Member

from . import consumers
from .clients import Op
from .run import run_plan
from .schedule import TEMPERS, plan, with_consumers, with_deaths, with_refused_groups, with_uneven_members

# In seeds 21 and 24, groups once passed over messages that only the other server had, and got stuck.
SEEDS = (
    0,
    1,
    2,
    3,
    5,
    6,
    7,
    8,
    21,
    24,
)
TRIED = 100
# Seeds in which full disks refuse the acknowledgements of a member.
REFUSED_SEEDS = (0, 6, 12, 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_with_consumers_run_clean(seed: int) -> None:
    assert run_plan(with_consumers(plan(seed))).error == ""


@pytest.mark.parametrize("seed", REFUSED_SEEDS)
def test_seeds_whose_full_disks_refuse_acknowledgements_run_clean(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, code = list[str](), consumers._code

    def counted(op: Op) -> str:
        refused.append(code(op))
        return refused[-1]

    monkeypatch.setattr(consumers, "_code", counted)
    assert run_plan(with_refused_groups(plan(seed))).error == ""
    assert "full" in refused, "the seed is of use"


def test_some_ordinary_seeds_have_consumers_in_every_temper() -> None:
    having = [made for made in map(plan, range(300)) if any(each.startswith("consume ") for each in made.commands)]
    # Some seeds have consumers by their own draw, and some get them with a burst.
    assert 20 < len(having) < 100
    assert {made.temper for made in having} == set(TEMPERS)
    assert all(with_consumers(made) is made for made in having), "once"


def acknowledged_by_anybody(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: an acknowledgement counts from any member and at any place of its slots."""
    mp.setattr(Group, "stands", lambda self, member, move: True)


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged_by_anybody(monkeypatch)
    said = []
    for seed in range(TRIED):
        said.append(run_plan(with_consumers(plan(seed))).error)
        if "twice" in said[-1] or "more than once" in said[-1]:
            return
    raise AssertionError(f"it was not found in {TRIED} seeds, which said {set(said)}")


def refusals_unheeded(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a member ignores the refusal of its acknowledgement."""
    code = consumers._code
    mp.setattr(consumers, "_code", lambda op: "" if code(op) in ("full", "fenced") else code(op))


def test_a_member_that_ignores_refused_acknowledgements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals_unheeded(monkeypatch)
    said = [run_plan(with_refused_groups(plan(seed))).error for seed in REFUSED_SEEDS]
    assert any("group g of t is at" in each or "group h of t is at" in each for each in said), said


# Seeds in which members die of messages, with faults of several kinds.
DEATHS_SEEDS = (6, 9, 26, 45, 55)


@pytest.mark.parametrize("seed", DEATHS_SEEDS)
def test_only_messages_that_kill_members_are_put_aside(seed: int) -> None:
    assert run_plan(with_deaths(plan(seed))).error == ""


def given_together(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a message that failed is given with others."""
    mp.setattr(GroupCoordinator, "_alone", lambda *_, **__: b"")


def put_nowhere(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a message that failed too often is acknowledged without a letter."""
    mp.setattr(GroupCoordinator, "_letters", lambda *_: [])


def never_put_aside(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a message that failed too often waits for ever."""
    mp.setattr(GroupCoordinator, "_put_aside", lambda *_: True)


def closing_counts(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: all that is not acknowledged fails when a member leaves, for whatever reason."""
    leave = Group.leave

    def counting(self: Group, member: bytes) -> None:
        for offset, slots in list(self.places.get(member, {}).items()):
            self.fail(slots, offset + 1, "left")
        leave(self, member)

    mp.setattr(Group, "leave", counting)


@pytest.mark.parametrize(
    ("plant", "word", "seeds"),
    [
        (given_together, "is good, and was put aside", (0, 5, 22)),
        (put_nowhere, "never put", (0, 14, 15)),
        (never_put_aside, "group p of t is at", (14, 15)),
        (closing_counts, "is good, and was put aside", (0, 2, 20)),
    ],
)
def test_a_planted_bug_of_dead_letters_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], word: str, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    said = []
    for seed in seeds:
        said.append(run_plan(with_deaths(plan(seed))).error)
        if word in said[-1]:
            return
    raise AssertionError(f"{word!r} was not found: {set(said)}")


# Seeds in which slots move by work, with faults of several kinds.
UNEVEN_SEEDS = (9, 14, 15, 17, 21, 22)


def move_early(mp: pytest.MonkeyPatch) -> list[int]:
    """Let slots move by little work; the list that is returned gets the number of slots of each move."""
    found, moves = list[int](), workload.moves

    def counted(members: list[Workload]) -> list[tuple[int, bytes, bytes]]:
        moved = moves(members)
        found.append(len(moved))
        return moved

    mp.setattr(group_coordinator, "moves", counted)
    mp.setattr(group_coordinator, "WORK_EVERY_S", 0.3)
    for module in (group_coordinator, workload):
        mp.setattr(module, "WORK_S_MIN", 0.2)
    return found


@pytest.mark.parametrize("seed", UNEVEN_SEEDS)
def test_slots_move_by_work_without_giving_a_message_to_two_members(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = move_early(monkeypatch)
    assert run_plan(with_uneven_members(plan(seed))).error == ""
    assert sum(moved) > 0, "the seed is of use"


def moved_with_messages_in_hand(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a slot that was chosen for its work moves while its member has messages of it in hand."""
    in_hand = Member.in_hand
    mp.setattr(Member, "in_hand", lambda self, places: 0 if self.behind else in_hand(self, places))


def test_a_slot_that_moves_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    move_early(monkeypatch)
    moved_with_messages_in_hand(monkeypatch)
    said = [run_plan(with_uneven_members(plan(seed))).error for seed in (17, 22, 9)]
    assert any("is in two members' hands" in each for each in said), said
