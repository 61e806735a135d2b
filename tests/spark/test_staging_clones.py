"""The Clones by which a process stages: one for each pair of servers, and none of another's concern."""

import pytest

from chp_client.spark import staging
from chp_server.testing import TestServer


def test_a_job_that_gives_up_its_servers_leaves_those_of_others_alone(server: TestServer) -> None:
    good, nobody = staging.clone_of([server.address]), ["tcp://127.0.0.1:9"]
    for _ in range(2):
        lost = staging.clone_of(nobody)
        with pytest.raises(staging.StagingFailed, match="the servers gave no answer"):
            staging.commit(nobody, bytes(16), "", 0, [("part", 1)], None, 0.1)
        assert lost.closed and not good.closed and staging.clone_of([server.address]) is good
    staging.close_clones()
    assert good.closed
