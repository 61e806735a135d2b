"""Tests that a flood of one user takes no application and no idle session of another one (SPEC.md, section 38).

covers: core/state/sessions.py; owners in staging.py and access_state.py: on both servers, after a failover, recovered
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp.batch import Segment, packb, unpackb
from chp.keys import CLIENT_BYTES, RESERVED_KEY, public_session
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import ServerCore
from chp_server.core.performing import recover
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.authorizer import Signed
from chp_server.core.updates.turn import Append
from chp_server.cores import Cores
from chp_server.store.store_url import open_journal
from tests.unit.test_access_state import ask

SESSIONS_MAX, APPLICATIONS_MAX = 200, 40
LIMITS = replace(DEFAULT, sessions_max=SESSIONS_MAX, applications_max=APPLICATIONS_MAX)
ALL = {"read": [""], "write": [""]}
RULES: dict[str, Any] = {"roles": {}, "users": {"alice": ALL, "bob": ALL, "root": {**ALL, "admin": ["access"]}}}
BOB = b"b" * 16


def ruled() -> Cores:
    cores = Cores(LIMITS, keyed=True)
    ask(cores.p, "root", rules=RULES, on=0)
    cores.run(1.0)
    return cores


def put(cores: Cores, user: str, session: bytes, no: int = 1, *, to: str = "P", **extras: Any) -> None:
    body = Segment(["/k"], [b"v"], extras or None).encode()
    for name in to:
        cores.cores[name].collect(Signed([RESERVED_KEY, pack(no), session, b"", body], user))


def flood(cores: Cores, user: str, sessions: int, *, to: str = "P") -> None:
    """Open so many sessions, each of another client."""
    for i in range(sessions):
        put(cores, user, b"%012d" % i + bytes(4), to=to)
        if i % 50 == 49:
            cores.run(0.05)
    cores.run(1.0)


@pytest.fixture
def cores() -> Cores:
    """Return a pair where bob has an application and an idle session, and alice opens too many sessions."""
    made = ruled()
    put(made, "bob", BOB, once=["job", 1, True])
    made.run(1.0)
    flood(made, "alice", 2 * SESSIONS_MAX)
    return made


def test_a_user_keeps_an_application_after_a_flood_of_another_user(cores: Cores) -> None:
    put(cores, "alice", b"a" * 16, once=["job", 1000, False])
    cores.run(1.0)
    assert [(no, code) for no, code, *_ in cores.answers(b"a" * 16)] == [(1, "access")]
    put(cores, "bob", BOB, 2, once=["job", 2, True])
    cores.run(1.0)
    assert [answer[:2] for answer in cores.answers(BOB)] == [(1, "ack"), (2, "ack")]


def test_a_users_idle_session_is_remembered_on_both_servers(cores: Cores) -> None:
    for core in (cores.p, cores.b):
        assert public_session(BOB) in core.state.sessions and len(core.state.sessions) == SESSIONS_MAX
    assert list(cores.p.state.sessions) == list(cores.b.state.sessions)
    assert cores.p.state.access.owners == cores.b.state.access.owners


def test_a_new_active_knows_the_owners(cores: Cores) -> None:
    cores.stopped = "P"
    cores.run(5.0)
    cores.vote("B")
    assert cores.b.active
    put(cores, "alice", b"a" * 16, to="B", once=["job", 1000, False])
    put(cores, "bob", BOB, 2, to="B", once=["job", 2, True])
    cores.run(5.0)
    assert [answer[:2] for answer in cores.answers(b"a" * 16)] == [(1, "access")]
    assert cores.answers(BOB)[-1][:2] == (2, "ack")


def test_the_first_staged_commit_sets_the_owner_of_an_application() -> None:
    """Another user could take it before the second commit, and count its versions up (seed 11255)."""
    cores = ruled()
    put(cores, "bob", BOB, stage=[b"t" * 16, "0"])
    commit = Segment([], [], {"commit": [b"t" * 16, "job", 1, [["0", 1]], None]})
    cores.p.collect(Signed([RESERVED_KEY, pack(2), BOB, b"", commit.encode()], "bob"))
    cores.run(1.0)
    assert [answer[:2] for answer in cores.answers(BOB)] == [(1, "ack"), (2, "ack")]
    for core in (cores.p, cores.b):
        assert core.state.staging.owned() == [("job", "bob")]
    put(cores, "alice", b"a" * 16, once=["job", 1000, False])
    cores.run(1.0)
    assert [(no, code) for no, code, *_ in cores.answers(b"a" * 16)] == [(1, "access")]


def test_applications_of_one_user_do_not_push_out_applications_of_another(cores: Cores) -> None:
    for i in range(2 * APPLICATIONS_MAX):
        put(cores, "alice", b"a" * 16, 1 + i, once=[f"a{i}", 1, True])
        cores.run(0.05)
    codes = [code for _, code, *_ in cores.answers(b"a" * 16)]
    assert codes.count("ack") == APPLICATIONS_MAX - 1 and codes[-1] == "busy", "all that is left, and no more"
    put(cores, "bob", BOB, 2, once=["second", 1, True])
    cores.run(1.0)
    assert cores.answers(BOB)[-1][:2] == (2, "ack")
    for core in (cores.p, cores.b):
        assert {"job", "second"} <= core.state.staging.versions.keys()
        assert "a0" not in core.state.staging.versions, "who has most lost the one that it used longest ago"
    assert list(cores.p.state.staging.versions) == list(cores.b.state.staging.versions)


def test_a_session_in_regular_use_is_not_forgotten() -> None:
    """The idle sessions of a lone user go first, by last use."""
    cores = ruled()
    for no in range(1, 9):
        put(cores, "alice", b"a" * 16, no)
        flood_from = no * 50
        for i in range(flood_from, flood_from + 50):
            put(cores, "alice", b"%012d" % i + bytes(4))
        cores.run(0.1)
    assert public_session(b"a" * 16) in cores.p.state.sessions
    assert cores.p.state.access.owner_of(public_session(b"a" * 16)) == "alice"
    assert len(cores.p.state.access.owners) <= SESSIONS_MAX


def test_rows_and_a_snapshot_restore_owners_and_sessions_in_order(cores: Cores, tmp_path: Path) -> None:
    state = cores.p.state
    rows, snapshot = (open_journal(f"sqlite:{tmp_path / name}") for name in ("rows", "snapshot"))
    for journal in (rows, snapshot):
        journal.load()
    rows.append([op.row() for turn in cores.turns["P"] for op in turn.journal if isinstance(op, Append)])
    rows.sync()
    Snapshotter(snapshot, LIMITS).replace(cores.p)
    for journal in (rows, snapshot):
        core = ServerCore(cores.p.pair.config, b"x" * 16, 1.0, LIMITS)
        recover(core, journal, 1.0, 1.0)
        journal.close()
        found = core.state
        assert found.access.owners == state.access.owners
        assert found.staging.owned() == state.staging.owned() == [("job", "bob")]
        assert list(found.sessions) == list(state.sessions)
        for user in ("", "alice", "bob", "root"):
            assert found.sessions.of_user(user) == state.sessions.of_user(user)


def test_owners_of_forgotten_clients_in_an_older_servers_state_are_dropped() -> None:
    """An older server kept the owners of clients and applications in one table, oldest first."""
    old = ruled().p.state
    (*_, body) = old.rest(1.0)
    _, (*rest, rules, _) = unpackb(body, "state")
    owners = [[b"f" * CLIENT_BYTES, "alice"], [b"=job", "bob"], [b"=gone", "bob"]]
    copy = ReplicatedState(LIMITS)
    copy.load_rest([*rest[:5], [["job", 3, 1]], *rest[6:], [*rules[:2], owners]], 1.0)
    assert copy.access.owners == {} and copy.staging.owned() == [("job", "bob")]
    assert packb(copy.access.rules.document if copy.access.rules else None) == packb(rules[1])
