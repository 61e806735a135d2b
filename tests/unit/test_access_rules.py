"""Users, roles and their rules: what one may, and what is no rule.

covers: chp/access.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from chp import access
from chp.access import Rules, lines, token_hash
from chp.errors import BadInput

RULES = Rules.of(
    {
        "roles": {"reader": {"read": ["/pub/", "/ref/"], "deny-read": ["/pub/secret/"]}},
        "users": {
            "alice": {"roles": ["reader"], "write": ["/pub/"], "deny-write": ["/pub/a/"], "admin": ["status"]},
            "root": {"read": [""], "write": [""], "admin": ["access", "status"]},
        },
    }
)


@pytest.mark.parametrize(
    ("user", "verb", "where", "may"),
    [
        ("alice", "read", "/pub/x", True),
        # A role denies this key.
        ("alice", "read", "/pub/secret/x", False),
        # A part of this subtree is denied.
        ("alice", "read", "/pub/", False),
        ("alice", "read", "/ref/", True),
        # /reference begins with this prefix too.
        ("alice", "read", "/ref", False),
        ("alice", "read", "", False),
        ("alice", "write", "/ref/x", False),
        ("alice", "write", "/pub/x", True),
        ("alice", "write", "/pub/a/x", False),
        # This key does not lie in a denied subtree.
        ("alice", "write", "/pub/a", True),
        ("alice", "admin", "status", True),
        ("alice", "admin", "access", False),
        ("root", "read", "", True),
        ("root", "write", "/pub/secret/x", True),
        # A client that may hear only HUGZ would get this key.
        ("root", "write", "HUGZ of mine", False),
        ("eve", "read", "/ref/x", False),
        ("", "admin", "status", False),
    ],
)
def test_rules_tell_whether_a_user_has_a_right(user: str, verb: str, where: str, may: bool) -> None:
    assert RULES.may(user, verb, where) is may


def test_first_not_finds_the_first_key_without_the_right() -> None:
    write = RULES.rights("alice").write
    keys = ["/pub/a", "/pub/a/x", "/pub/b", "/pub/z", "/q", "/", "/pub/"]
    for n in range(1 << len(keys)):
        some = [key for i, key in enumerate(keys) if n >> i & 1]
        wrong = [key for key in some if not write.has(key)]
        assert write.first_not(some) == (wrong[0] if wrong else None), some


OLD = {"reader": {"read": ["/.chp/topics/t/"]}, "writer": {"read": [""], "write": ["/.chp/topics/t/"]}}
NEW = {
    **OLD,
    "worker": {"consume": ["/.chp/topics/t/g/"]},
    "all": {"consume": [""], "deny-consume": ["/.chp/topics/x/"]},
}


@pytest.mark.parametrize(
    ("users", "user", "uses", "loses"),
    [
        # No rule names consume, so the rights are those from before it existed.
        (OLD, "reader", "", "write topic 't'"),
        (OLD, "writer", "", ""),
        (OLD, "eve", "read topic 't'", "write topic 't'"),
        (NEW, "reader", "consume by group 'g' of topic 't'", "consume by group 'g' of topic 't'"),
        (NEW, "writer", "consume by group 'g' of topic 't'", "consume by group 'g' of topic 't'"),
        (NEW, "worker", "", ""),
        (NEW, "all", "", ""),
        ({**NEW, "all": {"consume": [""], "deny-consume": ["/.chp/topics/t/g/"]}}, "all", *["consume by group"] * 2),
        ({**NEW, "all": {"consume": [""], "deny-read": ["/.chp/topics/t/"]}}, "all", *["consume by group"] * 2),
    ],
)
def test_unconsumed_names_the_right_that_a_group_user_lacks(users: Any, user: str, uses: str, loses: str) -> None:
    rules = Rules.of({"users": users})
    for wanted, found in (
        (uses, rules.unconsumed(user, "t", "g")),
        (loses, rules.unconsumed(user, "t", "g", loses=True)),
    ):
        assert found.startswith(wanted) and bool(found) is bool(wanted), found
    assert rules.may(user, "consume", "/.chp/topics/t/g/") is (uses == "")


def test_a_role_can_grant_consume_for_one_group_of_a_topic() -> None:
    rules = Rules.of(
        {"roles": {"r": {"consume": ["/.chp/topics/t/g/"]}}, "users": {"a": {"roles": ["r"], "read": [""]}}}
    )
    assert rules.names_consume and not Rules.of({"users": OLD}).names_consume
    assert rules.may("a", "consume", "/.chp/topics/t/g/") and not rules.may("a", "consume", "/.chp/topics/t/")
    assert rules.unconsumed("a", "t", "g2") and not Rules.of({"users": {"a": {"consume": []}}}).names_consume
    old = Rules.of({"users": {"a": {"read": ["/.chp/topics/"]}}})
    assert old.may("a", "consume", "/.chp/topics/") and not old.may("a", "consume", "")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "a table"),
        ({"user": {}}, "nothing else"),
        ({"users": {"a b": {}}}, "'a b'"),
        ({"users": {"bob": {"raed": ["/"]}}}, "raed"),
        ({"users": {"bob": {"read": "/pub/"}}}, "a list"),
        ({"users": {"bob": {"read": ["/pub"]}}}, "'/pub/'"),
        ({"users": {"bob": {"read": ["/pub/*/"], "roles": ["none"]}}}, "'none'"),
        ({"roles": {"r": {"roles": ["r"]}}}, "roles"),
        ({"users": {"bob": {"admin": ["Switch now"]}}}, "Switch now"),
        ({"users": {f"u{n}": {"read": [f"/{n:0900}/"]} for n in range(40)}}, "32768 bytes"),
    ],
)
def test_invalid_rules_are_refused_with_the_reason(document: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says.replace("(", r"\(")):
        Rules.of(document)


def test_granting_and_revoking_edit_a_copy() -> None:
    before = RULES.document
    more = access.granted(before, "users", "alice", "read", ["/more/"])
    assert Rules.of(more).may("alice", "read", "/more/") and not RULES.may("alice", "read", "/more/")
    assert access.revoked(more, "users", "alice", "read", ["/more/"]) == before
    with pytest.raises(BadInput, match="'/ref/'"):
        # The right belongs to the user's role.
        access.revoked(before, "users", "alice", "read", ["/ref/"])
    assert "alice" not in access.without(before, "users", "alice")["users"]
    assert access.lines(before)[0] == "role reader deny-read /pub/secret/"


def test_to_ask_names_the_users_with_the_right_to_change_rules() -> None:
    assert RULES.to_ask() == "root"
    assert Rules.of({"users": {f"u{n}": {"admin": ["access"]} for n in range(5)}}).to_ask() == "u0, u1, u2 and 2 others"


def test_a_token_belongs_to_a_user_by_its_whole_hash() -> None:
    hashed, other = token_hash("chp_one"), token_hash("chp_two")
    rules = Rules.of({"users": {"ann": {"tokens": [hashed, other]}, "bob": {}}})
    assert rules.user_of(hashed) == rules.user_of(other) == "ann" and rules.user_of(token_hash("")) == ""
    assert rules.user_of(hashed[:16] + other[16:]) == "", "only the beginning is looked up"
    assert lines(rules.document)[0] == f"user ann tokens {min(hashed, other)}"


@pytest.mark.parametrize(
    ("users", "why"),
    [
        ({"ann": {"tokens": ["x"]}}, "64 hexadecimal"),
        ({"ann": {"tokens": [7]}}, "64 hexadecimal"),
        ({"ann": {"tokens": [token_hash("a").upper()]}}, "64 hexadecimal"),
        ({"ann": {"tokens": token_hash("a")}}, "a list"),
        ({"ann": {"tokens": [token_hash(str(n)) for n in range(17)]}}, "at most 16 tokens"),
        ({"ann": {"tokens": [token_hash("a")]}, "bob": {"tokens": [token_hash("a")]}}, "two users"),
    ],
)
def test_invalid_tokens_are_refused(users: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Rules.of({"users": users})
    with pytest.raises(BadInput):
        Rules.of({"roles": {"reader": {"tokens": [token_hash("a")]}}})
