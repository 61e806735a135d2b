"""Tests of a silent cut between a server and the database that keeps its journal."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_server.exits import Exit
from tests.process.faults import ended, equal
from tests.process.postgres import SERVER, Postgres, private
from tests.talk import WAIT_S, until

from .cutting import Net, NetPair
from .test_cuts import put

pytestmark = pytest.mark.slow


class FarPostgres(Postgres):
    """A database on host z. It is queried from there, so that a test can look at it during a cut."""

    def __init__(self, net: Net, directory: Path) -> None:
        super().__init__(directory, net.address("z"), net.prefix("z"))
        self._net = net
        with (directory / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.213.0.0/16 trust\n")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement on host z."""
        ask = super().run
        return self._net.on("z", lambda: ask(sql))

    def sessions(self) -> int:
        """Return the number of CHP servers that the database counts as connected."""
        return len(self.run(f"SELECT pid FROM pg_stat_activity WHERE {SERVER}"))


@pytest.fixture
def database(net: Net) -> Iterator[FarPostgres]:
    net.heal()
    with private(partial(FarPostgres, net)) as made:
        yield made


def test_a_server_ends_if_it_is_cut_off_from_its_database(net: Net, database: FarPostgres, tmp_path: Path) -> None:
    pair = NetPair(net, tmp_path)
    store = database.url("chp") + "&silent_s=6&connect_timeout=2"
    pair.primary.environ["CHP_SERVER_STORE"] = store
    with pair, net.on("c", lambda: Clone(pair.servers, silence_s=1.0)) as clone:
        clone.wait_until_synced(WAIT_S)
        put(clone, "/before", b"1")
        net.cut_both("a", "z")
        for i in range(20):
            put(clone, f"/during/{i}", b"1")
        assert ended(pair.primary) == Exit.DATA_NOT_WRITABLE
        assert "no answer from the database" in pair.primary.log.read_text().splitlines()[-1]
        until(lambda: database.sessions() == 0, "the database to miss the server")
        pair.primary.start()
        assert ended(pair.primary) == Exit.DATA_NOT_WRITABLE
        net.heal()
        pair.primary.start()
        pair.wait_in_sync()
        equal(pair.both)
        put(clone, "/after", b"1")
        with net.on("d", lambda: Clone(pair.servers)) as fresh:
            fresh.wait_until_synced(WAIT_S)
            assert len(fresh) == 22 and dict(fresh) == dict(clone)
