"""Tests of callers of a gateway of several pairs: each pair has rules and tokens of its own, which hold for its mount.

covers: MountedCallers and MountedCaller of chp_client/gateway/access; gateway/shared/positions.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from chp.access import token_hash
from chp.errors import BadInput
from chp.numbers import Revision
from chp_client.gateway.access.caller import MountedCaller
from chp_client.gateway.access.callers import AuthMethods, MountedCallers
from chp_client.gateway.problems import Problem
from chp_client.gateway.shared import positions
from chp_client.mount_table import Mounts
from chp_client.port.admin import AdminReply

TABLE = Mounts({"/": ["a:1"], "/rates/": ["c:9"], "/stock/": ["d:13"]}, {"ticks": "/rates/"})
TOKENS = {name: f"chp_test-{name}" for name in ("alice", "bob")}


def learn(callers: MountedCallers, mount: str, number: int, **users: dict[str, Any]) -> None:
    """Have a pair tell the rules of these users."""
    facts = {"serving": True, "number": number, "rules": {"users": users, "roles": {}}, "secret": mount.encode()}
    callers.of_pair(mount).learn({"tcp://x:1": AdminReply("tcp://x:1", 1, facts)})


def user(name: str, **rights: list[str]) -> dict[str, Any]:
    """Return a user with rights and a token."""
    return {**rights, "tokens": [token_hash(TOKENS[name])]}


@pytest.fixture
def callers() -> MountedCallers:
    """Return the callers of two mounts: alice is known to both pairs, and bob to that of /rates/ only."""
    found = MountedCallers(AuthMethods(keyed=True), TABLE, ["/", "/rates/"])
    learn(found, "/", 1, alice=user("alice", read=[""], admin=["status"]))
    learn(found, "/rates/", 1, alice=user("alice", read=["/rates/EUR/"], write=[""]), bob=user("bob", write=[""]))
    return found


def of(callers: MountedCallers, name: str) -> MountedCaller:
    """Return the caller with the token of a user."""
    found = callers.of([(b"authorization", f"Bearer {TOKENS[name]}".encode())])
    assert isinstance(found, MountedCaller)
    return found


def test_the_rules_of_a_pair_hold_for_its_mount(callers: MountedCallers) -> None:
    alice = of(callers, "alice")
    assert alice.user == "alice" and alice.hashed == token_hash(TOKENS["alice"]) and not callers.why
    alice.read("/config/a")
    alice.read_all("/config/")
    alice.read_all("/rates/EUR/")
    alice.write(["/rates/x", "/rates/y"], ())
    alice.write_anything()
    alice.topic("write", "ticks")
    alice.command("status")
    assert alice.may_read("/rates/EUR/x") and not alice.may_read("/rates/x") and not alice.sees_topic("ticks")
    assert alice.sees_topic("orders")
    acts: tuple[Callable[[], object], ...] = (
        lambda: alice.read_all(""), lambda: alice.read_all("/rates/"), lambda: alice.write(["/a"], ()),
        lambda: alice.topic("write", "orders"), lambda: alice.command("switch"),
        lambda: alice.group("ticks", "g", loses=False), lambda: alice.at("/stock/"),
    )  # fmt: skip
    for denied in acts:
        with pytest.raises(Problem) as found:
            denied()
        assert found.value.status == 403
    assert callers.plain(f"Bearer {TOKENS['alice']}".encode()).may_read("/config/a")  # type: ignore[union-attr]


def test_a_token_that_one_pair_knows_opens_its_mount_only(callers: MountedCallers) -> None:
    bob = of(callers, "bob")
    bob.write(["/rates/x"], ())
    several: list[Callable[[], None]] = [
        partial(bob.read, "/a"),
        partial(bob.write, ["/a"], ()),
        partial(bob.read_all, ""),
    ]
    for denied in several:
        with pytest.raises(Problem, match="the pair of the mount '/' does not know the token; ask for one that it"):
            denied()
    assert not bob.may_read("/a") and callers.plain(f"Bearer {TOKENS['bob']}".encode()) is None
    with pytest.raises(Problem) as found:
        callers.of([(b"authorization", b"Bearer chp_nobody")])
    assert found.value.status == 401
    with pytest.raises(Problem) as found:
        callers.of([(b"authorization", b"x"), (b"authorization", b"x")])
    assert found.value.status == 400


def test_a_pair_without_rules_yet_admits_no_caller_to_its_mount() -> None:
    callers = MountedCallers(AuthMethods(keyed=True), TABLE, ["/", "/rates/"])
    with pytest.raises(Problem) as found:
        of(callers, "alice")
    assert found.value.status == 503
    learn(callers, "/rates/", 1, alice=user("alice", read=[""]))
    assert callers.why == "mount /: the gateway has not been told the rules yet"
    alice = of(callers, "alice")
    alice.read("/rates/x")
    with pytest.raises(Problem) as found:
        alice.read("/a")
    assert found.value.status == 503


def test_a_caller_follows_the_rules_of_each_pair(callers: MountedCallers) -> None:
    alice, bob, version = of(callers, "alice"), of(callers, "bob"), callers.version
    assert callers.still(alice) is alice
    learn(callers, "/rates/", 2, alice=user("alice", read=["/rates/"]))
    assert callers.version > version and callers.of_pair("/rates/").secret == b"/rates/"
    now = callers.still(alice)
    now.read_all("")
    with pytest.raises(Problem) as found:
        callers.still(bob)
    assert found.value.status == 401
    learn(callers, "/rates/", 3)
    with pytest.raises(Problem, match="the pair of the mount '/rates/' does not know the token"):
        callers.still(now).read("/rates/x")


def test_positions_are_numbers_by_mount() -> None:
    one, two = Revision("1.42"), Revision("2.7")
    assert positions.text_of([("", one)]) == "1.42" and positions.read("1.42", [""]) == {"": one}
    said = positions.text_of([("/", one), ("/a b=/", two)])
    assert said == "/=1.42 /a%20b%3D/=2.7" and positions.read(said, ["/a b=/", "/"]) == {"/": one, "/a b=/": two}
    assert positions.read(said, ["/"]) is None and positions.read("2.7", ["/rates/"]) == {"/rates/": two}
    for bad, prefixes in (("x", [""]), ("/=1.2", [""]), ("/=x", ["/"]), ("1.2", ["/", "/rates/"])):
        with pytest.raises(BadInput):
            positions.read(bad, prefixes)
