"""covers: core/state/staging.py: the applications that are remembered when there are too many, and their owners."""

from __future__ import annotations

from dataclasses import replace

from chp.batch import Segment, packb, split
from chp.limits import DEFAULT
from chp_server.core.pair.follow import Loader
from chp_server.core.state.incremental_free import SLICES
from chp_server.core.state.staging import Staging
from chp_server.core.state.state import ReplicatedState
from chp_server.cores import Cores

LIMITS = replace(DEFAULT, applications_max=10)


def test_the_user_with_most_applications_loses_the_least_recent_ones() -> None:
    staging = Staging(LIMITS)
    staging.record_done("alice.job", 7, 1, 0.0)
    staging.own("alice.job", "alice")
    for i in range(50):
        staging.record_done(f"bob.{i}", 1, 2 + i, 0.0)
        staging.own(f"bob.{i}", "bob")
    assert staging.done("alice.job", 7) == 1 and staging.owner_of("alice.job") == "alice"
    assert list(staging.versions)[1:] == [f"bob.{i}" for i in range(41, 50)]
    assert staging.versions.crowding() == "bob"
    assert staging.owner_of("bob.0") is None, "with its version it is forgotten whose it was"


def test_without_users_the_least_recent_application_is_forgotten() -> None:
    staging = Staging(LIMITS)
    for i in range(10):
        staging.record_done(f"{i}", 1, i, 0.0)
    staging.record_done("0", 2, 11, 0.0)
    staging.record_done("new", 1, 12, 0.0)
    assert "1" not in staging.versions and staging.done("0", 2) == 11


def test_an_application_belongs_to_its_first_user_for_good() -> None:
    staging = Staging(LIMITS)
    staging.own("job", "bob")
    assert staging.owner_of("job") is None, "of what is not remembered nobody is the owner"
    staging.record_done("job", 1, 1, 0.0)
    for user in ("alice", "bob"):
        staging.own("job", user)
    assert staging.owner_of("job") == "alice" and staging.owned() == [("job", "alice")]


def committed(cores: Cores, name: str, no: int, version: int = 1) -> None:
    """Stage a key and commit it as a version of an application, as the batches `no` and `no + 1`."""
    transaction = f"{name}{version}".encode().ljust(16, b".")
    cores.put("PB", b"s" * 16, no, {f"/{name}": b"1"}, stage=[transaction, "0"])
    cores.put("PB", b"s" * 16, no + 1, {}, commit=[transaction, name, version, [["0", 1]], None])
    cores.run(0.2)


def codes(cores: Cores) -> list[str]:
    """Return the answers to commits, one after the other."""
    return [code for no, code, *_ in cores.answers(b"s" * 16) if no % 2 == 0]


def test_a_new_application_is_refused_until_an_idle_one_is_forgotten() -> None:
    cores = Cores(replace(DEFAULT, applications_max=2, application_idle_s_max=60.0))
    for i, name in enumerate(("a", "b", "c")):
        committed(cores, name, 1 + 2 * i)
    assert codes(cores) == ["ack", "ack", "busy"] and "/c" not in cores.p.state.map.values
    cores.run(30.0)
    committed(cores, "b", 7, version=2)
    committed(cores, "", 9)
    assert codes(cores)[3:] == ["ack", "ack"]
    cores.run(31.0)
    assert [list(core.state.staging.versions) for core in (cores.p, cores.b)] == [["b"], ["b"]]
    assert cores.p.committer.counts["forgotten_applications"] == 1
    committed(cores, "c", 11, version=2)
    assert codes(cores)[-1] == "ack" and "/c" in cores.p.state.map.values


def test_a_state_tells_when_each_application_did_its_last_version() -> None:
    sent = ReplicatedState(DEFAULT)
    sent.staging.record_done("old", 1, 1, 0.0)
    sent.staging.record_done("new", 2, 2, 50.0)
    body = [*sent.rest(100.0)][-1]
    got = Loader(DEFAULT).finish(body, 7.0)
    assert {name: last.touched for name, last in got.staging.versions.items()} == {"old": -93.0, "new": -43.0}
    header, items = split(body)
    of_an_older_server = Loader(DEFAULT).finish(packb([header[:-1], items]), 7.0)
    assert {last.touched for last in of_an_older_server.staging.versions.values()} == {7.0}
    assert len(split([*ReplicatedState(DEFAULT).rest(0.0)][-1])[0]) == len(header) - 1


def test_staged_updates_are_freed_in_slices_after_their_commit() -> None:
    state, transaction = ReplicatedState(DEFAULT), b"t" * 16
    for i in range(2 * SLICES):
        state.apply(Segment([f"/{i}"], [b""], {"stage": [transaction, "0"]}), 1, 0.0)
    state.apply(Segment([], [], {"done": ["job", 1, transaction]}), 1, 0.0)
    assert not state.staging.transactions and not state.staging.bytes
    assert [len(each) for each in state.leaving.lists] == [2 * SLICES] and state.busy
    while state.busy:
        state.go_on()
