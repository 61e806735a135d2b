"""covers: chp/fair.py: the user that makes room in a table that users share."""

from __future__ import annotations

import pytest

from chp.fair import FairTable, crowding


@pytest.mark.parametrize(
    ("counts", "asker", "found"),
    [
        ({}, None, None),
        ({"a": 100}, None, "a"),
        ({"a": 100}, "b", "a"),
        ({"a": 60, "b": 40}, "b", "a"),
        # The user that asks for more has most.
        ({"a": 50, "b": 50}, "b", "b"),
        # The other server decides the same.
        ({"a": 50, "b": 50}, None, "a"),
        ({"a": 25, "b": 25, "c": 25, "d": 25}, "e", "a"),
        # No user has a quarter.
        ({"a": 24, "b": 24, "c": 24, "d": 24}, "e", None),
        ({"a": 76, "b": 24}, "b", "a"),
    ],
)
def test_the_user_with_most_entries_makes_room(counts: dict[str, int], asker: str | None, found: str | None) -> None:
    assert crowding(counts, 100, asker) == found


def table(most: int, **entries: int) -> FairTable[str, int]:
    made = FairTable[str, int](most)
    for user, count in entries.items():
        for i in range(count):
            made.put(f"{user}{i}", i, user)
    return made


def test_a_lone_user_may_fill_the_table() -> None:
    made = table(8, a=8)
    assert made.full and made.refuses("a") and not made.refuses("b")


def test_the_user_with_most_entries_loses_the_least_recently_used_one() -> None:
    made = table(8, a=2, b=6)
    made.use("b0")
    assert made.loser("a") == "b1"
    del made["b1"]
    assert list(made) == ["a0", "a1", "b2", "b3", "b4", "b5", "b0"] and made.of_user("b")[0] == "b2"
    assert not made.full


def test_the_least_recently_used_entry_goes_if_no_user_has_a_quarter() -> None:
    made = table(8, a=1, b=1, c=1, d=1, e=1, f=1, g=1, h=1)
    made.use("a0")
    assert made.crowding() is None and made.loser() == "b0"
    assert made.refuses("a") and made.refuses("i"), "where nothing is forgotten, there is no room"


def test_an_entry_given_to_another_user_counts_for_that_user() -> None:
    made = table(4, a=3)
    made.give("a1", "b")
    assert made.user_of("a1") == "b" and made.of_user("a") == ["a0", "a2"] and list(made)[-1] == "a1"
    for key in list(made):
        del made[key]
    assert not made and made.crowding() is None and made.user_of("a1") == ""
