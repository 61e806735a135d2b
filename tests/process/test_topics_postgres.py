"""covers: topics and groups in journals in PostgreSQL: after kills of both servers, readers and groups go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .postgres import Postgres, private

pytestmark = pytest.mark.slow
N = 600


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with private(Postgres) as made:
        yield made


def kept(database: Postgres, role: str) -> int:
    """Return the number of messages in a server's table."""
    return int(database.run(f"SELECT coalesce(sum(count), 0) FROM chp_{role}.messages")[0][0])


def test_messages_and_groups_in_postgresql_survive_kills_of_both_servers(tmp_path: Path, database: Postgres) -> None:
    pair = ProcessPair(tmp_path)
    for server in pair.both:
        server.environ["CHP_SERVER_STORE"] = database.url(f"chp_{server.role}")
    with pair, Clone(pair.servers, codec="json") as clone:
        orders, queue = clone.topic("orders"), clone.topic("queue")
        queue.create("acknowledged", timeout=WAIT_S)
        for first in range(0, N, 100):
            keys = [f"k{i % 7}" for i in range(first, first + 100)]
            orders.publish_many(list(range(first, first + 100)), keys).wait(WAIT_S)
        queue.publish_many(list(range(N))).wait(WAIT_S)
        done: list[int] = []
        with orders.consumer("billing") as consumer:
            batch = next(consumer)
            done += batch.values
            batch.commit({"/done": len(done)}, publish={"invoices": [f"of {n}" for n in done]}, timeout=WAIT_S)
        assert len(done) > 0
        until(lambda: {kept(database, s.role) for s in pair.both} == {2 * N + len(done)}, "both to have all of it")
        for server in pair.both:
            server.kill()
        for server in pair.both:
            server.start()
        pair.wait_in_sync()
        found = [(m.offset, m.key, m.value) for batch in orders.read(wait=False) for m in batch]
        assert found == [(i, f"k{i % 7}", i) for i in range(N)], "all of it, in order, with keys"
        assert clone.topic("invoices").facts()["next"] == clone["/done"] == len(done)
        orders.publish(N, key="k0").wait(WAIT_S)
        with orders.consumer("billing") as consumer:
            while len(done) <= N:
                batch = next(consumer)
                done += batch.values
                batch.commit({"/done": len(done)}, timeout=WAIT_S)
        assert sorted(done) == list(range(N + 1)), "the group went on where it was: each once"
        with queue.consumer("w") as consumer:
            taken: list[int] = []
            while len(taken) < N:
                taken += next(consumer).values
            assert taken == list(range(N))
            assert consumer.take(0.1) is None
        until(lambda: queue.facts()["first"] == N, "what is acknowledged to go")
        orders.remove(WAIT_S)
        left = clone.topic("invoices").facts()["next"]
        until(lambda: {kept(database, server.role) for server in pair.both} == {left}, "its rows to go")
