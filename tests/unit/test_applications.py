"""covers: core/state/staging.py: which applications are remembered when there are more than may be."""

from __future__ import annotations

from dataclasses import replace

from chp.limits import DEFAULT
from chp_server.core.state.staging import Staging

LIMITS = replace(DEFAULT, applications_max=10)


def test_who_has_most_loses_what_it_used_longest_ago() -> None:
    staging = Staging(LIMITS)

    def whose(name: str) -> str:
        return name.partition(".")[0]

    staging.record_done("alice.job", 7, 1, whose)
    for i in range(50):
        staging.record_done(f"bob.{i}", 1, 2 + i, whose)
    assert staging.done("alice.job", 7) == 1
    assert list(staging.versions)[1:] == [f"bob.{i}" for i in range(41, 50)]
    assert staging.crowding(whose) == "bob"


def test_of_nobody_s_the_one_goes_that_was_used_longest_ago() -> None:
    staging = Staging(LIMITS)
    for i in range(10):
        staging.record_done(f"{i}", 1, i, lambda _: "")
    staging.record_done("0", 2, 11, lambda _: "")
    staging.record_done("new", 1, 12, lambda _: "")
    assert "1" not in staging.versions and staging.done("0", 2) == 11
