"""A replica of a pair with keys and rules: each client is judged by its own user, and a revocation holds there too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone, Refused
from chp_client.clientfile import ClientFile
from chp_client.port.admin import Admin
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until
from tests.wire import keys

ROOT, BOB, OWN = keys.new_pair(), keys.new_pair(), keys.new_pair()
READER = {"read": ["/pub/"], "write": ["/pub/"]}
OPERATOR = {"admin": ["access", "status", "leases"], "read": [""], "write": [""]}
RULES: dict[str, Any] = {"roles": {}, "users": {"root": OPERATOR, "bob": READER, "r1": {"admin": ["vouch"]}}}


class Keyed:
    """A pair with rules, its replica, and what its users do."""

    def __init__(self, base: Path, pair: Pair, rules: dict[str, Any]) -> None:
        self.base, self.pair, known = base, pair, keys.known(pair)
        folder = keys.of_replica(base / "r", OWN, pair, ("root", ROOT), ("bob", BOB))
        self.replica = TestServer(replica=True, upstream=",".join(pair.servers), keys=str(folder), name="R1")
        at = {self.replica.address: OWN.public}
        self.files = {
            name: keys.client_file(base / f"{name}.toml", key, at) for name, key in (("root", ROOT), ("bob", BOB))
        }
        self.direct = keys.client_file(base / "direct.toml", ROOT, known)
        self.give(rules, self.direct, pair.primary.address)

    def give(self, rules: dict[str, Any], file: Path, address: str) -> None:
        """Let root give new rules by a server."""
        with Admin(ClientFile.read(file), WAIT_S) as admin:
            now = admin.ask(address, "access").facts["number"]
            admin.ask(address, "access", rules=rules, on=now)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with keys.pair_with_keys(tmp_path, ("root", ROOT), ("bob", BOB), ("r1", OWN)) as made:
        yield made


def test_clients_of_a_replica_have_the_rights_of_their_own_user(tmp_path: Path, pair: Pair) -> None:
    keyed = Keyed(tmp_path, pair, RULES)
    with (
        keyed.replica,
        Clone(client_file=keyed.files["root"]) as root,
        Clone(subtree="/pub/", client_file=keyed.files["bob"]) as bob,
    ):
        root.set("/secret/a", b"1").wait(WAIT_S)
        bob.set("/pub/a", b"2").wait(WAIT_S)
        denied = pytest.raises(Refused, match="may not write '/secret/b'")
        with Clone(subtree=None, client_file=keyed.files["bob"]) as writer, denied:
            writer.set("/secret/b", b"3").wait(WAIT_S)
        until(lambda: root.get("/pub/a") == b"2")
        with Clone(subtree="/secret/", client_file=keyed.files["bob"]) as unheard, pytest.raises(Refused):
            unheard.wait_until_synced(WAIT_S)
        users = {"root": OPERATOR, "r1": {"admin": ["vouch"]}}
        keyed.give({"roles": {}, "users": users}, keyed.files["root"], keyed.replica.address)
        with pytest.raises(Refused, match="bob"):
            bob.set("/pub/b", b"4").wait(WAIT_S)
        root.set("/pub/c", b"5").wait(WAIT_S)
        until(lambda: bob.state != "SYNCED", lambda: f"the replica cuts a reader whose right is gone: {bob!r}")
        assert "/pub/c" not in bob


# The replica's thread ends with an exception, which has the reason.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_replica_without_the_right_to_vouch_does_not_serve(tmp_path: Path, pair: Pair) -> None:
    keyed = Keyed(tmp_path, pair, {"roles": {}, "users": {"root": OPERATOR, "r1": {"admin": ["status"]}}})
    with keyed.replica as replica:
        assert replica.server is not None
        core = replica.server.core
        until(lambda: "vouch" in core.link.ends, lambda: f"it ends with a reason: {core.link.ends!r}")
        assert not core.active and not core.state.map.values
