"""covers: the scrub of a real pair: it finds and heals a difference, and status and metrics show that."""

from __future__ import annotations

import time

from chp_client import Clone
from chp_client.port.admin import Admin, AdminReply
from chp_server.shell.metrics import MetricsServer
from chp_server.testing import Pair, free_port
from tests.talk import WAIT_S


def test_a_value_that_differs_on_the_passive_is_found_and_healed() -> None:
    with Pair(scrub_s=0.5) as pair, Clone(pair.servers) as clone:
        clone.wait_until_synced(WAIT_S)
        while clone.set_many({f"/k/{i}": b"%d" % i for i in range(500)}).wait(WAIT_S).durability != "replicated":
            time.sleep(0.05)
        cores = [server.server.core for server in (pair.primary, pair.backup) if server.server is not None]
        active, passive = sorted(cores, key=lambda core: not core.active)
        passive.state.map.values["/k/7"] = b"x"
        end = time.monotonic() + WAIT_S
        while passive.state.map.values.get("/k/7") != b"7" or not active.pair.in_sync():
            assert time.monotonic() < end, "healed"
            time.sleep(0.02)
        assert clone.set("/k/8", b"after").wait(WAIT_S).durability == "replicated"
        with Admin(pair.servers, WAIT_S) as admin:
            for answer in admin.ask_all("status").values():
                assert isinstance(answer, AdminReply) and answer.facts["counts"]["scrub_differences"] == 1
        metrics = MetricsServer(f"127.0.0.1:{free_port()}")
        metrics.status = active.status()
        found = {family.name: family.samples[0].value for family in metrics.collect()}
        metrics.close()
        assert found["chp_scrub_passes"] >= 1 and "chp_scrub_differences" in found
