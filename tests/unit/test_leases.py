"""Tests of the owner of a lease: in the state, in records, and for an operator.

covers: leases.py, `chp leases`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import msgpack
import pytest
from click.testing import Result

from chp.batch import Segment
from chp.columns import ANYBODY
from chp.errors import BadFrame
from chp.limits import DEFAULT
from chp_client import Clone
from chp_client.clone.base import internals
from chp_client.errors import Closed
from chp_server.core.state.leases import LeaseOwner, LeaseTable, listed
from chp_server.core.state.state import ReplicatedState
from chp_server.core.state.verdicts import Refusal
from chp_server.testing import TestServer

LEASE, ANOTHER = b"L" * 16, b"M" * 16
A, B = b"client of us", b"another one."


def opened() -> LeaseTable:
    leases = LeaseTable()
    leases.keep(LEASE, 5000, A, 0.0)
    return leases


def test_a_record_cannot_extend_the_lease_of_another_client() -> None:
    """A suffix may bring a lease whose name another client has by now."""
    leases = opened()
    leases.keep(LEASE, 60_000, B, 1.0)
    assert (leases[LEASE].owner, leases[LEASE].deadline) == (A, 5.0)
    leases.keep(LEASE, 60_000, A, 1.0)
    assert leases[LEASE].deadline == 61.0


def test_leases_are_bounded_per_client_and_in_total() -> None:
    leases, limits = opened(), replace(DEFAULT, leases_of_one_max=2)
    leases.most = 3
    leases.check({"lease": [ANOTHER, 5000]}, LeaseOwner(A), limits)
    leases.keep(ANOTHER, 5000, A, 0.0)
    with pytest.raises(Refusal, match="share"):
        leases.check({"lease": [b"N" * 16, 5000]}, LeaseOwner(A), limits)
    # A refresh opens no lease.
    leases.check({"lease": [LEASE, 5000]}, LeaseOwner(A), limits)
    leases.check({"lease": [b"N" * 16, 5000]}, LeaseOwner(B), limits)
    leases.keep(b"N" * 16, 5000, B, 0.0)
    with pytest.raises(Refusal, match="3 leases are open"):
        leases.check({"lease": [b"O" * 16, 5000]}, LeaseOwner(B), limits)
    leases.end(LEASE)
    leases.check({"lease": [b"O" * 16, 5000]}, LeaseOwner(A), limits)
    assert dict(leases.of_client) == {A: 1, B: 1}


def test_a_lease_with_an_owner_chosen_by_the_client_is_refused() -> None:
    with pytest.raises(BadFrame, match="owner"):
        opened().check({"lease": [LEASE, 5000, A]}, LeaseOwner(A), DEFAULT)


def test_all_sessions_of_a_user_may_use_a_shared_lease_without_keys() -> None:
    leases, mine, of_mine, other = LeaseTable(), LeaseOwner(A, "bob"), LeaseOwner(B, "bob"), LeaseOwner(B, "eve")
    leases.check({"lease": [LEASE, 5000, ANYBODY]}, mine, DEFAULT)
    leases.keep(LEASE, 5000, mine.shared, 0.0)
    for column in ({"refresh": LEASE}, {"unlease": LEASE}, {"lease": [LEASE, 9000, ANYBODY]}):
        leases.check(column, of_mine, DEFAULT)
        with pytest.raises(Refusal, match="another client's"):
            leases.check(column, other, DEFAULT)
    with pytest.raises(Refusal, match="another client's"):
        # The lease stays that of any client.
        leases.check({"lease": [LEASE, 9000]}, mine, DEFAULT)
    with pytest.raises(Refusal, match="has no keys"):
        leases.check({"l": LEASE}, mine, DEFAULT)
    with pytest.raises(Refusal, match="has no keys"):
        leases.check({"lease": [ANOTHER, 5000, ANYBODY], "l": ANOTHER}, mine, DEFAULT)
    assert leases[LEASE].facts(1.0)["owner"] == "anybody"
    assert LeaseTable().get(LEASE) is None and LeaseOwner(A).shared == LeaseOwner(B).shared == ANYBODY


def test_lease_owners_are_part_of_the_replicated_state() -> None:
    state, copy = ReplicatedState(DEFAULT), ReplicatedState(DEFAULT)
    state.apply(Segment(["/a"], [b"1"], {"lease": [LEASE, 5000, A], "l": LEASE}), 1, 0.0)
    copy.load_rest(msgpack.unpackb(list(state.rest(1.0))[-1], strict_map_key=False)[1], 1.0)
    assert copy.leases == state.leases and copy.leases[LEASE].owner == A
    assert copy.leases.of_client == state.leases.of_client and set(copy.leases[LEASE].keys) == {"/a"}


def test_leases_are_listed_by_name_in_pages_of_a_thousand() -> None:
    leases = LeaseTable()
    for i in range(1500):
        leases.keep(i.to_bytes(16), 5000, A, 0.0)
    first = listed(leases, b"", 1.0)
    assert first["total"] == 1500 and len(first["leases"]) == 1000
    assert first["leases"][0] == {
        "lease": "00" * 16, "owner": A.hex(), "ttl_ms": 5000, "remaining_ms": 4000, "keys": 0
    }  # fmt: skip
    after = bytes.fromhex(first["leases"][-1]["lease"])
    assert [int(x["lease"], 16) for x in listed(leases, after, 1.0)["leases"]] == list(range(1000, 1500))


def test_an_operator_sees_leases_and_ends_one(server: TestServer, run: Callable[..., Result]) -> None:
    assert run("leases").output == ""
    with Clone([server.address]) as clone, clone.lease(ttl=600) as lease, clone.lease(ttl=60) as other:
        lease.set_many({"/a": b"1", "/b": b"2"}).wait(30)
        other.set("/c", b"3").wait(30)
        found = [json.loads(line) for line in run("leases", "--json").output.splitlines()]
        assert {(x["lease"], x["ttl_ms"], x["keys"]) for x in found} == {
            (lease.id.hex(), 600_000, 2), (other.id.hex(), 60_000, 1)
        }  # fmt: skip
        shown = run("leases").output.splitlines()
        assert shown[0].split() == ["LEASE", "OWNER", "TTL", "LEFT", "KEYS"] and len(shown) == 3
        ended = run("leases", "--end", lease.id.hex())
        assert ended.exit_code == 0 and lease.id.hex() in ended.output
        clone.set("/after", b"").wait(30)
        assert sorted(clone) == ["/after", "/c"]


@pytest.mark.parametrize(
    ("name", "code", "said"), [("12", 2, "32 hexadecimal digits"), ("zz" * 16, 2, "32 hex"), ("ab" * 16, 4, "no lease")]
)
def test_chp_leases_end_refuses_a_bad_name(run: Callable[..., Result], name: str, code: int, said: str) -> None:
    result = run("leases", "--end", name)
    assert result.exit_code == code and said in result.stderr


def test_a_refresh_keeps_a_lease_and_does_not_open_one() -> None:
    leases = opened()
    leases.refresh(LEASE, 3.0)
    leases.refresh(ANOTHER, 3.0)
    assert leases[LEASE].deadline == 8.0 and ANOTHER not in leases
    leases.check({"refresh": LEASE}, LeaseOwner(A), DEFAULT)
    with pytest.raises(Refusal, match="expired"):
        leases.check({"refresh": ANOTHER}, LeaseOwner(A), DEFAULT)
    with pytest.raises(Refusal, match="another client's"):
        leases.check({"refresh": LEASE}, LeaseOwner(B), DEFAULT)


def test_a_holder_that_refreshes_too_late_is_told_of_the_lost_lease() -> None:
    """covers: Lease.lost and Lease.on_lost; the refresh comes too late here, as after a stop."""
    told = Event()
    with TestServer() as server, Clone([server.address]) as clone:
        clone.wait_until_synced(20)
        lease, kept = clone.lease(ttl=0.3), clone.lease(ttl=60)
        lease.set("/a", b"1").wait(20)
        kept.set("/b", b"1").wait(20)
        lease.on_lost(lambda lost: told.set() if lost is lease else None)
        # The agent stands still while the lock is held.
        with internals(clone).mailbox.lock:
            Event().wait(1.5)
        assert told.wait(20) and lease.lost and not kept.lost
        with pytest.raises(Closed, match="lost"):
            lease.set("/a", b"2")
        late = Event()
        lease.on_lost(lambda _: late.set())
        assert late.wait(20) and "/a" not in clone and clone["/b"] == b"1"
        clone.flush(20)
