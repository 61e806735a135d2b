"""The Clones by which a process stages: one for each pair of servers, and none of another's concern."""

from pathlib import Path

import pytest

from chp.errors import BadInput
from chp_client.clientfile import ClientFile
from chp_client.spark import staging
from chp_server.testing import TestServer
from tests.wire import keys


def test_a_failed_commit_closes_only_the_clone_of_its_servers(server: TestServer) -> None:
    good, nobody = staging.clone_of([server.address]), ["tcp://127.0.0.1:9"]
    for _ in range(2):
        lost = staging.clone_of(nobody)
        with pytest.raises(staging.StagingFailed, match="the servers gave no answer"):
            staging.commit(nobody, bytes(16), "", 0, [("part", 1)], None, 0.1)
        assert lost.closed and not good.closed and staging.clone_of([server.address]) is good
    staging.close_clones()
    assert good.closed


def test_a_failed_commit_closes_the_clone_of_its_client_file(tmp_path: Path) -> None:
    alice = keys.new_pair()
    nobody = ClientFile.read(keys.client_file(tmp_path / "alice.toml", alice, {"tcp://127.0.0.1:9": alice.public}))
    lost = staging.clone_of(nobody)
    with pytest.raises(staging.StagingFailed, match="the servers gave no answer"):
        staging.commit(nobody, bytes(16), "", 0, [("part", 1)], None, 0.1)
    assert lost.closed, "what it has not sent goes with it"


def test_a_job_with_an_unknown_key_fails_without_waiting(tmp_path: Path) -> None:
    (folder, _), mallory = keys.pair_of_directories(tmp_path, ("alice", keys.new_pair())), keys.new_pair()
    with TestServer(keys=str(folder)) as server:
        known = {server.address: keys.public_of(folder)}
        stranger = ClientFile.read(keys.client_file(tmp_path / "mallory.toml", mallory, known))
        clone = staging.clone_of(stranger)
        with pytest.raises(staging.StagingFailed, match=r"does not know this client's key.*put its NAME.pub") as failed:
            staging.commit(stranger, bytes(16), "", 0, [("part", 1)], None, 600)
        assert "gave no answer" not in str(failed.value)
        assert clone.closed, "what it has not sent goes with it"


def test_a_server_that_cannot_be_connected_to_is_named() -> None:
    with pytest.raises(BadInput, match=r"'tcp://-1:5556' can't be connected to .*; give tcp://host:port"):
        staging.clone_of(["tcp://-1:5556"])
