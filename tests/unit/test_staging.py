"""covers: core/state/staging.py: the applications that are remembered when there are too many, and their owners."""

from __future__ import annotations

from dataclasses import replace

from chp.limits import DEFAULT
from chp_server.core.state.staging import Staging

LIMITS = replace(DEFAULT, applications_max=10)


def test_who_has_most_loses_what_it_used_longest_ago() -> None:
    staging = Staging(LIMITS)
    staging.record_done("alice.job", 7, 1)
    staging.own("alice.job", "alice")
    for i in range(50):
        staging.record_done(f"bob.{i}", 1, 2 + i)
        staging.own(f"bob.{i}", "bob")
    assert staging.done("alice.job", 7) == 1 and staging.owner_of("alice.job") == "alice"
    assert list(staging.versions)[1:] == [f"bob.{i}" for i in range(41, 50)]
    assert staging.versions.crowding() == "bob"
    assert staging.owner_of("bob.0") is None, "with its version it is forgotten whose it was"


def test_of_nobody_s_the_one_goes_that_was_used_longest_ago() -> None:
    staging = Staging(LIMITS)
    for i in range(10):
        staging.record_done(f"{i}", 1, i)
    staging.record_done("0", 2, 11)
    staging.record_done("new", 1, 12)
    assert "1" not in staging.versions and staging.done("0", 2) == 11


def test_an_application_is_the_first_users_for_good() -> None:
    staging = Staging(LIMITS)
    staging.own("job", "bob")
    assert staging.owner_of("job") is None, "of what is not remembered nobody is the owner"
    staging.record_done("job", 1, 1)
    for user in ("alice", "bob"):
        staging.own("job", user)
    assert staging.owner_of("job") == "alice" and staging.owned() == [("job", "alice")]
