"""Rules of access in the log: both servers have them at a number, after a failover, a restart and a split.

covers: core/state/access_state.py, questions/access_changes.py; ACCESS records in journals, snapshots and suffixes
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp.batch import Segment, decode, packb, unpackb
from chp.headers import Refused, Reply
from chp.keys import ETX, RESERVED_KEY, STX
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_server.core.core import ServerCore
from chp_server.core.performing import admit, recover
from chp_server.core.snapshots import Snapshotter
from chp_server.core.updates.authorizer import Signed
from chp_server.core.updates.turn import Append
from chp_server.store.store_url import open_journal
from chp_server.testing import Cores

RULES: dict[str, Any] = {
    "roles": {},
    "users": {
        "alice": {"read": ["/pub/"], "write": ["/pub/"]},
        "root": {"admin": ["access"], "read": [""], "write": [""]},
    },
}
ALICE, ROOT = b"a" * 16, b"r" * 16


def ask(core: ServerCore, user: str, command: str = "access", **options: Any) -> None:
    """Send an admin request of a user."""
    body = packb({"chp": 4, "id": 7, **options})
    core.request(Signed([b"them", ICANHAZ, STX + command.encode() + ETX, body], user))


def answers(cores: Cores, name: str = "P") -> list[Any]:
    """Return the headers of a server's answers on P."""
    out: list[Any] = []
    for turn in cores.turns[name]:
        out += [decode(frames[4])[0] for _, messages in (*turn.promises, *turn.replies) for frames in messages]
    return out


def put(cores: Cores, user: str, session: bytes, no: int, key: str, **extras: Any) -> None:
    body = Segment([key], [b"v"], extras or None).encode()
    cores.p.collect(Signed([RESERVED_KEY, pack(no), session, b"", body], user))


def ruled(rules: dict[str, Any] = RULES) -> Cores:
    """Return a pair whose rules root has given."""
    cores = Cores(keyed=True)
    ask(cores.p, "root", rules=rules, on=0)
    cores.run(1.0)
    return cores


def test_a_rules_change_is_answered_once_both_servers_have_the_rules() -> None:
    cores = Cores(keyed=True)
    cores.late("P")
    cores.linked = False
    ask(cores.p, "root", rules=RULES, on=0)
    cores.run(0.05)
    assert cores.p.state.access.rules is not None and not answers(cores), "the passive has not confirmed"
    cores.linked = True
    cores.run(5.0)
    (told,) = answers(cores)
    assert isinstance(told, Reply) and told.facts["rules"]["users"]["alice"] == RULES["users"]["alice"]
    for core in (cores.p, cores.b):
        assert core.state.access.changed == told.facts["number"]
        assert core.state.access.rules is not None and core.state.access.rules.may("alice", "read", "/pub/")
    assert cores.p.state.proof() == cores.b.state.proof()


def test_a_refusal_names_the_key_and_the_user_to_ask() -> None:
    cores = ruled()
    put(cores, "alice", ALICE, 1, "/pub/a")
    put(cores, "alice", ALICE, 2, "/secret/a")
    put(cores, "alice", ALICE, 3, "/pub/b")
    put(cores, "bob", b"b" * 16, 1, "/pub/b")
    put(cores, "root", ROOT, 1, "/secret/a")
    cores.run(1.0)
    done, after, denied = cores.answers(ALICE)
    assert done[:2] == (1, "ack") and after[:2] == (3, "ack")
    assert denied[:2] == (2, "access") and "'/secret/a'" in denied[2] and "ask root" in denied[2]
    assert cores.answers(b"b" * 16)[0][1] == "access"
    assert set(cores.b.state.map.values) == {"/pub/a", "/pub/b", "/secret/a"}


def test_new_rules_apply_to_a_snapshot_request_in_their_turn() -> None:
    """New rules and a question may come in one turn, and the rules must be those of the asking user (seed 40382)."""
    cores = ruled()
    changed = cores.p.state.access.changed
    cores.p.request(Signed([b"alice", ICANHAZ, b"/pub/", packb({"chp": 4, "id": 9, "from": 0, "credit": 8})], "alice"))
    rules = {"roles": {}, "users": {"alice": {"write": ["/pub/"]}, "root": RULES["users"]["root"]}}
    ask(cores.p, "root", rules=rules, on=changed)
    cores.turns["P"].clear()
    cores.run(1.0)
    told = [
        decode(frames[4])[0]
        for turn in cores.turns["P"]
        for who, part in turn.replies
        for frames in part
        if who == b"alice"
    ]
    assert [(type(one), one.number, one.code) for one in told if isinstance(one, Refused)] == [(Refused, 9, "access")]
    assert len(told) == 1


def test_a_conditional_set_needs_the_right_to_read_its_key() -> None:
    rules = {"roles": {}, "users": {**RULES["users"], "w": {"write": ["/secret/"]}}}
    cores = ruled(rules)
    put(cores, "root", ROOT, 1, "/secret/a")
    put(cores, "w", b"w" * 16, 1, "/secret/a", c=[[0], [1]])
    put(cores, "w", b"w" * 16, 2, "/secret/a", n=[[0], [1]])
    put(cores, "w", b"w" * 16, 3, "/secret/a")
    cores.run(1.0)
    assert [answer[1] for answer in cores.answers(b"w" * 16)] == ["access", "access", "ack"]


def test_a_topic_needs_the_rights_of_its_subtree() -> None:
    rules = {"roles": {}, "users": {**RULES["users"], "pub": {"write": ["/.chp/topics/news/"], "read": ["/pub/"]}}}
    cores, session = ruled(rules), b"p" * 16
    for no, topic in enumerate(("news", "secret"), 1):
        body = Segment([], [], {"topic": [topic, {}]}).encode()
        cores.p.collect(Signed([RESERVED_KEY, pack(no), session, b"", body], "pub"))
    cores.run(1.0)
    assert [answer[1] for answer in cores.answers(session)] == ["ack", "access"]
    for name in ("news", "secret"):
        body = packb({"chp": 4, "id": 9, "topic": name, "facts": True})
        cores.p.request(Signed([b"them", ICANHAZ, b"", body], "pub"))
    cores.run(1.0)
    assert [told.code for told in answers(cores) if isinstance(told, Refused)] == ["access", "access"]


TOPICS = "/.chp/topics/"
GROUPED: dict[str, Any] = {
    **RULES["users"],
    "worker": {"consume": [f"{TOPICS}t/"]},
    "one": {"consume": [f"{TOPICS}t/own/"]},
    "reader": {"read": [f"{TOPICS}t/"]},
    "writer": {"read": [f"{TOPICS}t/"], "write": [f"{TOPICS}t/"]},
}
BY_READ = {name: {what: at for what, at in entry.items() if what != "consume"} for name, entry in GROUPED.items()}
ACK = [["t", "g", b"l" * 16, [[b"\xff" * 32, 0, 1]]]]
# (columns, users that may by rules with consume / by rules without it)
OF_GROUPS: list[tuple[dict[str, Any], str]] = [
    ({"group": ["t", "own", {}]}, "worker one / reader writer"),
    ({"group": ["t", "g", {}]}, "worker / reader writer"),
    ({"group": ["t", "g", {"again": True}]}, "worker / writer"),
    ({"group": ["t", "g", None]}, "worker / writer"),
    ({"join": ["t", "g", b"l" * 16, "me"]}, "worker / reader writer"),
    ({"ack": ACK}, "worker / reader writer"),
]


@pytest.mark.parametrize("regime", [0, 1])
@pytest.mark.parametrize(("extras", "may"), OF_GROUPS)
def test_group_commands_need_consume_only_if_the_rules_name_consume(
    extras: dict[str, Any], may: str, regime: int
) -> None:
    cores = ruled({"roles": {}, "users": (GROUPED, BY_READ)[regime]})
    allowed = may.split("/")[regime].split()
    for user in ("worker", "one", "reader", "writer"):
        session = user.encode().ljust(16, b".")
        cores.p.collect(Signed([RESERVED_KEY, pack(1), session, b"", Segment([], [], extras).encode()], user))
        cores.run(1.0)
        ((_, code, *_),) = cores.answers(session)
        assert (code != "access") is (user in allowed), (user, code)


def stream(cores: Cores, user: str, member: bytes, **more: Any) -> list[str]:
    """Ask as a user for the messages of a member; the codes of what is refused meanwhile."""
    before = len(answers(cores))
    asked = {"topic": "t", "group": "g", "member": member, "credit": 8, **more}
    body = packb({"chp": 4, "id": 9, **asked})
    cores.p.request(Signed([user.encode(), ICANHAZ, b"", body], user))
    cores.run(0.3)
    return [told.code for told in answers(cores)[before:] if isinstance(told, Refused)]


@pytest.mark.parametrize("users", [GROUPED, BY_READ | {"worker": GROUPED["reader"]}])
@pytest.mark.parametrize("opened", [[], [b"anybody:"]])
def test_other_users_cannot_read_the_messages_of_a_member(opened: list[bytes], users: dict[str, Any]) -> None:
    lease, users = b"l" * 16, {**users, "other": users["worker"]}
    cores = ruled({"roles": {}, "users": users})
    steps: tuple[dict[str, Any], ...] = (
        {"group": ["t", "g", {"start": 0}]},
        {"lease": [lease, 60_000, *opened], "join": ["t", "g", lease, "m"]},
    )
    for no, extras in enumerate(steps, 1):
        cores.p.collect(Signed([RESERVED_KEY, pack(no), b"w" * 16, b"", Segment([], [], extras).encode()], "worker"))
        cores.run(1.0)
    assert stream(cores, "worker", lease) == []
    for user in ("other", "one", "reader", "writer", "eve"):
        for more in ({}, {"facts": False}, {"groups": 7}):
            assert stream(cores, user, lease, **more) == ["access"], (user, more)
    assert [name for name, *_ in cores.p.requests.readers.coordinator._streams] == [b"worker"], "it goes on"


def test_the_secret_of_the_pair_survives_new_rules_and_a_failover() -> None:
    cores = ruled()
    secret = cores.p.state.access.secret
    assert len(secret) == 32 and cores.b.state.access.secret == secret
    ask(cores.p, "root", rules=RULES | {"roles": {"r": {}}}, on=cores.p.state.access.changed)
    cores.run(1.0)
    cores.stopped = "P"
    cores.run(3.0)
    cores.vote("B")
    cores.run(1.0)
    ask(cores.b, "root")
    cores.run(1.0)
    ask(cores.b, "alice")
    cores.run(1.0)
    told, denied = answers(cores, "B")
    assert told.facts["secret"] == secret and isinstance(denied, Refused)


def test_a_pair_without_a_secret_makes_one_when_a_gateway_asks() -> None:
    cores = ruled()
    for core in cores.cores.values():
        core.state.access.secret = b""
    ask(cores.p, "root")
    cores.run(1.0)
    assert answers(cores)[-1].facts["secret"] == cores.b.state.access.secret != b""
    assert cores.p.state.proof() == cores.b.state.proof()


def test_a_commit_checks_staged_batches_against_the_rules_again() -> None:
    cores, transaction = ruled(), b"t" * 16
    put(cores, "alice", ALICE, 1, "/pub/a", stage=[transaction, "0"])
    without = {"roles": {}, "users": {"root": RULES["users"]["root"], "alice": {"read": ["/pub/"]}}}
    ask(cores.p, "root", rules=without, on=cores.p.state.access.changed)
    put(cores, "alice", ALICE, 2, "/pub/b")
    body = Segment([], [], {"commit": [transaction, "app", 1, [["0", 1]], None]}).encode()
    cores.p.collect(Signed([RESERVED_KEY, pack(3), ALICE, b"", body], "alice"))
    cores.run(1.0)
    assert [answer[1] for answer in cores.answers(ALICE)] == ["ack", "access", "access"]
    assert not cores.b.state.map.values


def test_a_commit_that_replaces_a_subtree_needs_the_right_to_write_it() -> None:
    cores, transaction = ruled(), b"t" * 16
    put(cores, "root", ROOT, 1, "/secret/a")
    put(cores, "alice", ALICE, 1, "/pub/a", stage=[transaction, "0"])
    body = Segment([], [], {"commit": [transaction, "app", 1, [["0", 1]], "/"]}).encode()
    cores.p.collect(Signed([RESERVED_KEY, pack(2), ALICE, b"", body], "alice"))
    cores.run(1.0)
    assert [answer[1] for answer in cores.answers(ALICE)] == ["ack", "access"]
    assert set(cores.p.state.map.values) == {"/secret/a"}


def test_a_session_belongs_to_one_user_on_both_servers() -> None:
    cores = ruled()
    put(cores, "alice", ALICE, 1, "/pub/a")
    cores.run(1.0)
    put(cores, "root", ALICE, 2, "/pub/a")
    cores.run(1.0)
    assert [answer[1] for answer in cores.answers(ALICE)] == ["ack", "access"]
    topic = next(frames[0] for _, frames in cores.said)
    for core in (cores.p, cores.b):
        assert admit(core, "alice", topic) == "" and "another user's" in admit(core, "root", topic)
        assert admit(core, "bob", topic[:10]) and admit(core, "bob", topic[:-1])


def test_the_rules_apply_to_pending_sets_after_a_failover() -> None:
    cores = ruled()
    cores.stopped = "P"
    body = Segment(["/secret/a"], [b"v"]).encode()
    cores.b.collect(Signed([RESERVED_KEY, pack(1), ALICE, b"", body], "alice"))
    cores.run(3.0)
    cores.vote("B")
    cores.run(1.0)
    assert cores.b.active and [answer[1] for answer in cores.answers(ALICE)] == ["access"]
    assert not cores.b.state.map.values


def test_the_passive_drops_a_denied_set_and_later_sets_of_the_session() -> None:
    """The active may have refused such a set and died before it could tell; a CHP/1 client is never told."""
    cores = ruled()
    for no, key in enumerate(("/pub/a", "/secret/a", "/pub/b"), 1):
        body = Segment([key], [b"v"]).encode()
        cores.b.collect(Signed([RESERVED_KEY, pack(no), ALICE, b"", body], "alice"))
    for key in ("/pub/c", "/secret/c"):
        cores.b.collect(Signed([key.encode(), bytes(8), key.encode().ljust(16), b"", b"v"], "alice"))
    opened = {"roles": {}, "users": {**RULES["users"], "alice": {"write": [""]}}}
    ask(cores.p, "root", rules=opened, on=cores.p.state.access.changed)
    cores.run(1.0)
    assert cores.b.state.access.changed == cores.p.state.access.changed and len(cores.b.link.pending) == 2
    cores.stopped = "P"
    cores.run(2.0)
    cores.vote("B")
    cores.run(1.0)
    assert set(cores.b.state.map.values) == {"/pub/a", "/pub/c"}


def test_a_whole_state_with_other_rules_drops_pending_sets_of_unknown_sessions() -> None:
    cores = ruled()
    put(cores, "alice", ALICE, 1, "/pub/a")
    cores.run(1.0)
    for session, no in ((ALICE, 2), (b"n" * 16, 1)):
        body = Segment(["/pub/b"], [session[:1]]).encode()
        cores.b.collect(Signed([RESERVED_KEY, pack(no), session, b"", body], "alice"))
    cores.linked = False
    cores.late("B")
    ask(cores.p, "root", rules=RULES, on=cores.p.state.access.changed)
    cores.run(0.1)
    # The record of the rules is not sent any more.
    cores.p.committer.committed.log.clear()
    put(cores, "root", ROOT, 1, "/secret/a")
    cores.linked = True
    cores.run(3.0)
    assert cores.b.state.access.changed == cores.p.state.access.changed and cores.b.pair.in_sync()
    cores.b.link.pending.take(cores.now)
    assert [frames[1] for frames in cores.b.link.pending.taken] == [pack(2)]


def test_a_server_recovers_rules_from_journal_rows_and_from_a_snapshot(tmp_path: Path) -> None:
    cores = ruled()
    put(cores, "alice", ALICE, 1, "/pub/a")
    cores.run(1.0)
    state = cores.p.state
    rows, snapshot = (open_journal(f"sqlite:{tmp_path / name}") for name in ("rows", "snapshot"))
    for journal in (rows, snapshot):
        journal.load()
    rows.append([op.row() for turn in cores.turns["P"] for op in turn.journal if isinstance(op, Append)])
    rows.sync()
    Snapshotter(snapshot, DEFAULT).replace(cores.p)
    for journal in (rows, snapshot):
        core = ServerCore(replace(cores.p.pair.config), b"x" * 16, 1.0)
        recover(core, journal, 1.0, 1.0)
        journal.close()
        assert core.state.access.rules is not None and core.state.access.rules.document == state.access.rules.document  # type: ignore[union-attr]
        assert (core.state.access.changed, core.state.access.owners) == (state.access.changed, state.access.owners)
        assert core.state.access.secret == state.access.secret != b""
        assert core.state.proof() == state.proof()


def test_no_reader_is_sent_the_rules() -> None:
    cores = Cores(keyed=True)
    cores.p.subscription([b"1", b"\x01" + STX + ETX])
    cores.p.subscription([b"2", b"\x01"])
    ask(cores.p, "root", rules=RULES, on=0)
    put(cores, "root", ROOT, 1, "/pub/a")
    cores.run(1.0)
    body = packb({"chp": 4, "id": 9, "from": 1 << 40 | 1, "feed": True, "credit": 8})
    cores.p.request(Signed([b"them", ICANHAZ, b"", body], "root"))
    cores.run(1.0)
    sent = [frame for turn in cores.turns["P"] for frames in turn.publish for frame in frames]
    sent += [
        f
        for turn in cores.turns["P"]
        for _, ms in (*turn.promises, *turn.replies)
        for frames in ms
        for f in frames
        if b"rules" not in f
    ]
    assert any(b"/pub/a" in frame for frame in sent) and not any(b"alice" in frame for frame in sent)


def test_a_change_of_rules_is_refused_with_the_reason() -> None:
    for cores, says in [
        (Cores(), "need keys"),
        (Cores(keyed=True), "changed since"),
        (Cores(keyed=True), "version 4"),
        (Cores(keyed=True), "no user could change"),
    ]:
        rules, on = RULES, 0
        if says == "version 4":
            cores.p.committer.view.version = 3
        elif says == "changed since":
            on = 5
        elif says.startswith("no user"):
            rules = {"users": {"alice": {"read": [""]}}}
        ask(cores.p, "root", rules=rules, on=on)
        cores.turn("P")
        told = answers(cores)[-1]
        assert isinstance(told, Refused) and says in told.detail, told
        assert cores.p.state.access.rules is None


def test_a_server_whose_peer_was_never_heard_takes_no_rules() -> None:
    cores = Cores(keyed=True)
    cores.p.pair.peer = None
    ask(cores.p, "root", rules=RULES, on=0)
    cores.linked = False
    cores.turn("P")
    assert "start it first" in answers(cores)[-1].detail


def test_a_server_with_rules_rejects_an_older_peer_as_incompatible() -> None:
    cores = ruled()
    said = next(unpackb(m[1], "STATE") for turn in cores.turns["B"] for m in turn.to_peer if m[0] == b"STATE")
    cores.p.peer_message([b"STATE", packb({**said, "version": 3})])
    assert cores.p.link.incompatible is not None and "knows no rules" in cores.p.link.incompatible.text


def split(both: bool) -> Cores:
    """Return a pair of which both were active at once. P has new rules, and so has B if `both`."""
    cores = ruled()
    cores.linked = False
    cores.run(3.0)
    cores.vote("B")
    cores.run(1.0)
    assert cores.p.active and cores.b.active
    more = {**RULES, "users": {**RULES["users"], "carol": {"read": ["/ref/"]}}}
    ask(cores.p, "root", rules=more, on=cores.p.state.access.changed)
    if both:
        none = {"roles": {}, "users": {"root": RULES["users"]["root"]}}
        ask(cores.b, "root", rules=none, on=cores.b.state.access.changed)
    cores.run(3.0)
    cores.linked = True
    cores.run(20.0)
    assert cores.p.state.proof() == cores.b.state.proof()
    return cores


def test_new_rules_of_the_server_that_steps_down_are_replayed() -> None:
    cores = split(both=False)
    for core in cores.cores.values():
        assert core.state.access.rules is not None and core.state.access.rules.may("carol", "read", "/ref/")
    assert cores.outcomes()[""] == "replayed"


def test_rules_conflict_if_both_servers_got_new_rules_during_a_split() -> None:
    cores = split(both=True)
    for core in cores.cores.values():
        assert core.state.access.rules is not None
        assert not core.state.access.rules.may("carol", "read", "/ref/")
        assert not core.state.access.rules.may("alice", "read", "/pub/")
    assert cores.outcomes()[""] == "conflict"
    assert b"carol" in next(u.value for save in cores.saves for u in save.updates if not u.key)  # type: ignore[operator]
