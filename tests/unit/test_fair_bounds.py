"""Tests that at each bound the user with most makes room, and one below a quarter never does (SPEC.md, section 38).

covers: leases.py, staging.py and groups.py by users; images, requests and readers on P; the equality of both servers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import Segment, decode, decode_segment, packb, unpackb
from chp.headers import Kthxbai, Refused, Reply
from chp.keys import CLIENT_BYTES, RESERVED_KEY, public_session
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.authorizer import Signed
from chp_server.cores import Cores
from tests.unit.test_access_state import ask

MOST = 8
ALL = {"read": [""], "write": [""]}
RULES: dict[str, Any] = {"roles": {}, "users": {"alice": ALL, "bob": ALL, "root": {**ALL, "admin": ["access"]}}}
ALICE, BOB = b"a" * 16, b"b" * 16


def ruled(**limits: int) -> Cores:
    cores = Cores(replace(DEFAULT, **limits), keyed=True)
    ask(cores.p, "root", rules=RULES, on=0)
    cores.run(1.0)
    return cores


class Writer:
    """A session of a user."""

    def __init__(self, cores: Cores, user: str, session: bytes) -> None:
        self.cores, self.user, self.session, self.no = cores, user, session, 0

    def does(self, *, to: str = "P", keys: tuple[str, ...] = (), **extras: Any) -> str:
        """Send one batch; return what became of it."""
        self.no += 1
        body = Segment(list(keys), [b"v" * 100] * len(keys), extras).encode()
        self.cores.cores[to].collect(Signed([RESERVED_KEY, pack(self.no), self.session, b"", body], self.user))
        self.cores.run(0.2)
        return next(str(code) for no, code, *_ in self.cores.answers(self.session) if no == self.no)


def name(user: str, i: int) -> bytes:
    return f"{user}{i}".encode().ljust(16, b"-")


def test_a_user_alone_may_have_all_leases_and_makes_room_for_another() -> None:
    cores = ruled(leases_max=MOST)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    codes = [alice.does(lease=[name("alice", i), 600_000]) for i in range(MOST + 1)]
    assert codes == ["ack"] * MOST + ["busy"]
    assert alice.does(refresh=name("alice", 0)) == "ack"
    assert alice.does(keys=("/a",), l=name("alice", 1)) == "ack"
    assert [bob.does(lease=[name("bob", i), 600_000]) for i in range(MOST // 2)] == ["ack"] * (MOST // 2)
    assert bob.does(lease=[name("bob", 9), 600_000]) == "busy", "nobody has more than bob by now"
    for core in (cores.p, cores.b):
        mine = {lease for lease in core.state.leases if lease.startswith(b"alice")}
        assert mine == {name("alice", i) for i in (0, 5, 6, 7)}, "those went that were refreshed longest ago"
        assert "/a" not in core.state.map.values, "with what they held"
    assert list(cores.p.state.leases) == list(cores.b.state.leases)


def test_leases_from_before_the_rules_count_for_the_clients_user() -> None:
    cores = Cores(replace(DEFAULT, leases_max=MOST), keyed=True)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    for i in range(MOST):
        assert alice.does(lease=[name("alice", i), 600_000]) == "ack"
    ask(cores.p, "root", rules=RULES, on=0)
    cores.run(1.0)
    assert alice.does(refresh=name("alice", 0)) == "ack"
    assert bob.does(lease=[name("bob", 0), 600_000]) == "ack"
    assert name("alice", 1) not in cores.p.state.leases and cores.p.state.leases.user_of(name("alice", 2)) == "alice"


def test_refusals_from_before_the_rules_count_for_the_clients_user() -> None:
    """A flooder's refusals once counted with those of other clients from before the rules (seed 2230)."""
    cores = Cores(replace(DEFAULT, refusals_max=MOST), keyed=True)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    if_absent: dict[str, Any] = {"c": [[0], [0]]}
    for writer in (alice, bob):
        assert [writer.does(keys=("/k",)), writer.does(keys=("/k",), **if_absent)] == ["ack", "revision"]
    ask(cores.p, "root", rules=RULES, on=0)
    cores.run(1.0)
    assert [writer.does(keys=("/k",)) for writer in (alice, bob)] == ["ack", "ack"]
    assert [alice.does(keys=("/k",), **if_absent) for _ in range(MOST)] == ["revision"] * MOST
    for core in (cores.p, cores.b):
        refusals = core.state.refusals
        assert refusals.get(public_session(BOB), 2) and not refusals.get(public_session(ALICE), 2)
    assert cores.p.state.refusals.to_list() == cores.b.state.refusals.to_list()
    assert len(cores.p.state.refusals) == MOST


def test_all_clients_count_as_one_user_without_rules() -> None:
    cores = Cores(replace(DEFAULT, leases_max=MOST, staged_commits_max=MOST))
    alice, bob = Writer(cores, "", ALICE), Writer(cores, "", BOB)
    for i in range(MOST):
        assert alice.does(lease=[name("alice", i), 600_000]) == "ack"
        assert alice.does(keys=("/k",), stage=[name("alice", i), "0"]) == "ack"
    assert bob.does(lease=[name("bob", 0), 600_000]) == "busy"
    assert bob.does(keys=("/k",), stage=[name("bob", 0), "0"]) == "busy"


@pytest.mark.parametrize("new_active", [False, True])
def test_the_user_with_most_transactions_loses_the_least_recently_used_one(new_active: bool) -> None:
    cores = ruled(staged_commits_max=MOST)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    assert bob.does(keys=("/b",), stage=[name("bob", 0), "0"]) == "ack"
    for i in range(MOST - 1):
        assert alice.does(keys=("/a",), stage=[name("alice", i), "0"]) == "ack"
    to = "P"
    if new_active:
        cores.stopped = "P"
        cores.run(5.0)
        cores.vote("B")
        to = "B"
    assert alice.does(to=to, keys=("/a",), stage=[name("alice", 9), "0"]) == "busy"
    assert alice.does(to=to, keys=("/a",), stage=[name("alice", 0), "0"]) == "ack", "what is open may go on"
    assert bob.does(to=to, keys=("/b",), stage=[name("bob", 1), "0"]) == "ack"
    core = cores.cores[to]
    assert name("alice", 1) not in core.state.staging.transactions
    assert {name("bob", 0), name("bob", 1), name("alice", 0)} <= core.state.staging.transactions.keys()
    assert bob.does(to=to, commit=[name("bob", 0), "", 1, [["0", 1]], None]) == "ack"


def test_the_user_with_most_staged_bytes_makes_room() -> None:
    cores = ruled(staged_bytes_max=2000)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    codes = [alice.does(keys=("/a", "/b"), stage=[name("alice", i), "0"]) for i in range(10)]
    assert codes[0] == "ack" and codes[-1] == "busy"
    assert bob.does(keys=("/c", "/d", "/e", "/f"), stage=[name("bob", 0), "0"]) == "ack"
    staging = cores.p.state.staging
    assert staging.bytes <= 2000 and name("bob", 0) in staging.transactions
    assert name("alice", 0) not in staging.transactions and name("alice", 1) not in staging.transactions
    assert staging.measure() == cores.b.state.staging.measure()


def test_a_whole_state_tells_the_opener_of_each_transaction() -> None:
    cores = ruled(staged_commits_max=MOST)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    assert bob.does(keys=("/b",), stage=[name("bob", 0), "0"]) == "ack"
    assert alice.does(keys=("/a",), stage=[name("alice", 0), "0"]) == "ack"
    (*_, body) = cores.p.state.rest(1.0)
    _, rest = unpackb(body, "state")
    copy = ReplicatedState(cores.limits)
    for segment in cores.p.state.staging.segments():
        copy.staging.add(decode_segment(segment), 1.0)
    copy.load_rest(rest, 1.0)
    assert copy.staging.openers() == cores.p.state.staging.openers()
    assert [copy.staging.opener_of(name(user, 0)) for user in ("alice", "bob")] == [
        public_session(session)[:CLIENT_BYTES] for session in (ALICE, BOB)
    ]


# -- what readers hold on P


def request(cores: Cores, user: str, **options: Any) -> None:
    body = packb({"chp": 4, "id": 1, "from": 0, "credit": 1, **options})
    cores.p.request(Signed([user.encode() + b"%d" % options.get("id", 1), ICANHAZ, b"", body], user))


def refused(cores: Cores, user: str) -> set[int]:
    """Return the requests of a user that were refused as `busy`."""
    told = [
        decode(frames[4])[0]
        for turn in cores.turns["P"]
        for who, messages in turn.replies
        for frames in messages
        if who.startswith(user.encode())
    ]
    return {header.number for header in told if isinstance(header, Refused) and header.code == "busy"}


def told(cores: Cores, user: str, request_id: int) -> list[Any]:
    """Return the headers of the answers to a question."""
    who = user.encode() + b"%d" % request_id
    return [
        decode(frames[4])[0]
        for turn in cores.turns["P"]
        for identity, messages in (*turn.promises, *turn.replies)
        for frames in messages
        if identity == who
    ]


def planned(cores: Cores, user: str, request_id: int) -> dict[str, Any]:
    """Plan a read; return the options of the question for its one part."""
    request(cores, user, id=request_id, image=0)
    cores.run(0.2)
    (reply,) = told(cores, user, request_id)
    assert isinstance(reply, Reply), reply
    return {"image": reply.facts["number"], "proof": [reply.facts["store"], reply.facts["opener"]], "part": 0}


def test_a_user_with_all_kept_numbers_makes_room_for_another() -> None:
    cores = ruled(image_numbers_max=MOST)
    put = Writer(cores, "root", b"r" * 16)
    alices = []
    for i in range(MOST):
        assert put.does(keys=("/k",)) == "ack"
        alices.append(planned(cores, "alice", i))
    assert put.does(keys=("/k",)) == "ack"
    request(cores, "alice", id=MOST, image=0)
    cores.run(0.2)
    assert refused(cores, "alice") == {MOST} and len(cores.p.state.undo.numbers) == MOST
    for i in range(MOST // 2 + 1):
        assert put.does(keys=("/k",)) == "ack"
        request(cores, "bob", id=i, image=0)
        cores.run(0.2)
    assert refused(cores, "bob") == {MOST // 2}, "nobody has more than bob by now"
    request(cores, "alice", id=100, **alices[0])
    request(cores, "alice", id=101, credit=9, **alices[-1])
    cores.run(0.2)
    assert [header.code for header in told(cores, "alice", 100)] == ["image"], "those went that were used longest ago"
    assert isinstance(told(cores, "alice", 101)[-1], Kthxbai)


def test_an_idle_kept_number_of_a_user_below_a_quarter_stays() -> None:
    cores = ruled(image_numbers_max=MOST)
    put = Writer(cores, "root", b"r" * 16)
    bobs = planned(cores, "bob", 1)
    cores.run(60.0 - 20.0)
    for i in range(MOST):
        assert put.does(keys=("/k",)) == "ack"
        request(cores, "alice", id=i, image=0)
        cores.run(0.2)
    assert refused(cores, "alice") == {MOST - 1}
    request(cores, "bob", id=7, credit=9, **bobs)
    cores.run(0.2)
    assert isinstance(told(cores, "bob", 7)[-1], Kthxbai)


def test_a_user_with_all_requests_under_way_makes_room_for_another() -> None:
    cores = ruled(syncs_max=MOST)
    put = Writer(cores, "root", b"r" * 16)
    assert put.does(keys=tuple(f"/{i}" for i in range(100))) == "ack"
    for i in range(MOST + 1):
        request(cores, "alice", id=i, feed=True)
    assert refused_now(cores, "alice") == {MOST}
    request(cores, "bob", id=0, feed=True)
    assert refused_now(cores, "bob") == set() and refused_now(cores, "alice") == {MOST, 0}


def refused_now(cores: Cores, user: str) -> set[int]:
    """Return the requests of a user that the present turn refuses as `busy`."""
    told = [
        decode(frames[4])[0]
        for who, messages in cores.p.turn.effects.replies
        for frames in messages
        if who.startswith(user.encode())
    ]
    return {header.number for header in told if isinstance(header, Refused) and header.code == "busy"}


@pytest.mark.parametrize("of_a_group", [False, True])
def test_a_user_with_all_readers_of_topics_makes_room_for_another(of_a_group: bool) -> None:
    cores = ruled(readings_max=MOST)
    writer = Writer(cores, "root", b"r" * 16)
    assert writer.does(publish=[["t", 1, packb([None, [b"m"]])]]) == "ack"
    assert writer.does(group=["t", "g", {"start": 0}]) == "ack"
    options: dict[str, Any] = {"topic": "t", "after": 0}
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", b"b" * 16)
    for i in range(MOST + 2):
        owner = alice if i <= MOST else bob
        assert owner.does(lease=[name("m", i), 600_000], join=["t", "g", name("m", i), "m"]) == "ack"

    def ask_for(user: str, i: int) -> None:
        more = {"group": "g", "member": name("m", i)} if of_a_group else {}
        request(cores, user, id=i, **options, **more)

    for i in range(MOST + 1):
        ask_for("alice", i)
    assert refused_now(cores, "alice") == {MOST}
    ask_for("bob", MOST + 1)
    assert refused_now(cores, "bob") == set() and refused_now(cores, "alice") == {MOST, 0}


def test_a_user_with_all_groups_of_a_topic_does_not_exclude_others() -> None:
    cores = ruled(groups_max=MOST)
    alice, bob = Writer(cores, "alice", ALICE), Writer(cores, "bob", BOB)
    codes = [alice.does(group=["t", f"a{i}", {}]) for i in range(MOST + 1)]
    assert codes == ["ack"] * MOST + ["full"]
    assert [bob.does(group=["t", f"b{i}", {}]) for i in range(3)] == ["ack", "ack", "full"], "a quarter of it"
    for core in (cores.p, cores.b):
        groups = core.state.topics.by_name["t"].groups
        assert len(groups) == MOST + 2, "no group was pushed out"
        assert {group.user for name, group in groups.items() if name.startswith("a")} == {"alice"}
    (*_, body) = cores.b.state.rest(1.0)
    copy = ReplicatedState(cores.limits)
    copy.load_rest(unpackb(body, "state")[1], 1.0)
    assert list(copy.topics.groups.owned()) == list(cores.p.state.topics.groups.owned())


def test_groups_that_are_made_in_one_turn_are_counted() -> None:
    cores = ruled(groups_max=MOST)
    for no in range(1, 2 * MOST + 1):
        body = Segment([], [], {"group": ["t", f"a{no}", {}]}).encode()
        cores.p.collect(Signed([RESERVED_KEY, pack(no), ALICE, b"", body], "alice"))
    cores.run(0.2)
    assert len(cores.p.state.topics.by_name["t"].groups) == MOST
