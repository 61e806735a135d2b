"""Tests of a kill right after the active acknowledged new rules: both servers have the rules, also on their disks.

covers: ACCESS records through journals, failover and return, by real processes with keys.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from chp_client import Clone, Refused
from chp_client.clientfile import ClientFile
from chp_client.port.admin import Admin, AdminError
from chp_server.testing import free_port
from tests.process.cluster import ServerProcess
from tests.talk import WAIT_S, until
from tests.wire import keys

pytestmark = pytest.mark.slow
ROOT, ALICE = keys.new_pair(), keys.new_pair()
ADMIN = {"admin": ["access", "status"], "read": [""], "write": [""]}


def rules(prefix: str) -> dict[str, object]:
    """Return rules by which alice may read and write below a prefix."""
    return {"roles": {}, "users": {"root": ADMIN, "alice": {"read": [prefix], "write": [prefix]}}}


class Keyed:
    """Two processes with keys and journals."""

    def __init__(self, base: Path) -> None:
        folders = keys.pair_of_directories(base, ("root", ROOT), ("alice", ALICE))
        at = [f"tcp://127.0.0.1:{port}" for port in (free_port(), free_port())]
        times = "--heartbeat-s", "0.1", "--peer-timeout-s", "1"
        self.servers = [
            ServerProcess(base, role, at[i], at[1 - i], "--keys", str(folders[i]), *times)
            for i, role in enumerate(("primary", "backup"))
        ]
        there = dict(zip(at, map(keys.public_of, folders), strict=True))
        self.files = {
            name: ClientFile.read(keys.client_file(base / f"{name}.toml", pair, there))
            for name, pair in (("root", ROOT), ("alice", ALICE))
        }

    def ask(self, what: str) -> dict[str, dict[str, object]]:
        """Return the answers of the servers that run, by address."""
        said = {}
        with Admin(self.files["root"], 2.0) as admin:
            for server in self.servers:
                if server.process is not None:
                    with suppress(AdminError):
                        said[server.address] = admin.ask(server.address, what).facts
        return said

    def told(self) -> dict[str, dict[str, object]]:
        """Return what each server reports of its rules, by address."""
        return self.ask("access")

    def active(self) -> ServerProcess | None:
        """Return the active server, or None."""
        told = self.told()
        return next((s for s in self.servers if told.get(s.address, {}).get("serving")), None)

    def in_sync(self) -> bool:
        """Return True if both servers answer and are in sync."""
        said = self.ask("status").values()
        return len(said) == 2 and all(facts["in_sync"] for facts in said)


def test_both_servers_keep_acknowledged_rules_if_the_active_is_killed(tmp_path: Path) -> None:
    pair = Keyed(tmp_path)
    try:
        for server in pair.servers:
            server.start()
        until(pair.in_sync, "the pair to be in sync")
        for no in range(4):
            active = pair.active()
            assert active is not None
            wanted = rules(f"/of/{no}/")
            with Admin(pair.files["root"], WAIT_S) as admin:
                now = admin.ask(active.address, "access").facts["number"]
                number = admin.ask(active.address, "access", rules=wanted, on=now).facts["number"]
                # The server dies right after its answer.
                active.kill()
            assert number > now
            other = next(server for server in pair.servers if server is not active)
            _serves(pair, other, no)
            assert pair.told()[other.address]["rules"] == wanted and pair.told()[other.address]["number"] == number
            active.start()
            until(pair.in_sync, "it to be back")
            assert [told["rules"] for told in pair.told().values()] == [wanted, wanted]
        _alone_from_their_disks(pair, rules("/of/3/"))
    finally:
        for server in pair.servers:
            server.kill()


def _serves(pair: Keyed, server: ServerProcess, no: int) -> None:
    """Check that alice has the rights of the last rules, and not those of the rules before."""
    with Clone(pair.files["alice"], subtree=None) as alice:
        alice.set(f"/of/{no}/a", b"1").wait(WAIT_S)
        with pytest.raises(Refused) as refused:
            alice.set(f"/of/{no - 1}/a", b"1").wait(WAIT_S)
        assert refused.value.code == "access"
    assert pair.active() is server


def _alone_from_their_disks(pair: Keyed, wanted: dict[str, object]) -> None:
    """Check that each server, started alone, has the rules from its own journal."""
    for one, other in (pair.servers, pair.servers[::-1]):
        one.kill()
        other.kill()
        one.start()
        tells = partial(_tells, pair, one, wanted)
        until(tells, f"the {one.role} to tell the rules out of its journal")


def _tells(pair: Keyed, server: ServerProcess, wanted: dict[str, object]) -> bool:
    return pair.told().get(server.address, {}).get("rules") == wanted
