"""covers: ipc:// addresses, ports/connections.py: Clones and commands that reach servers by files, or fail to."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from chp.addresses import beside
from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp_client import AsyncClone, Clone
from chp_client.port.admin import Admin
from chp_server.exits import CannotStart
from chp_server.ports import connections
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until


@pytest.fixture
def directory() -> Iterator[Path]:
    """Make a directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="chp-") as made:
        yield Path(made)


def files_of(server: TestServer) -> list[Path]:
    place = server.config.ipc_address.removeprefix("ipc://")
    return [Path(place).with_name(str(int(Path(place).name) + i)) for i in range(3)]


def test_clones_over_ipc_and_over_tcp_hold_equal_contents(directory: Path) -> None:
    with TestServer(ipc=str(directory / "new")) as server:
        with Clone(server.config.ipc_address) as near, Clone(server.address) as far:
            near.wait_until_synced(WAIT_S)
            far.wait_until_synced(WAIT_S)
            near.set("/near", b"1").wait(WAIT_S)
            far.set("/far", b"2" * (1 << 20)).wait(WAIT_S)
            until(lambda: near.snapshot() == far.snapshot() == {"/near": b"1", "/far": b"2" * (1 << 20)})
        with Admin([server.config.ipc_address]) as admin:
            assert admin.ask(server.config.ipc_address, "status").facts["state"] == "active"


def test_only_the_owner_can_access_the_socket_files_and_directory(directory: Path) -> None:
    with TestServer(ipc=str(directory / "new")) as server:
        assert stat.S_IMODE((directory / "new").stat().st_mode) == 0o700
        assert [stat.S_IMODE(file.stat().st_mode) for file in files_of(server)] == [0o700] * 3
        assert all(stat.S_ISSOCK(file.stat().st_mode) for file in files_of(server))
    assert not any(file.exists() for file in files_of(server))


def test_a_directory_where_others_may_write_is_refused(directory: Path) -> None:
    directory.chmod(0o777)
    with pytest.raises(CannotStart, match="others may write there"):
        TestServer(ipc=str(directory)).__enter__()


def test_a_server_does_not_take_socket_files_in_use_by_another_server(directory: Path) -> None:
    with TestServer(ipc=str(directory)) as server:
        port = server.config.bind.rpartition(":")[2]
        with pytest.raises(CannotStart, match="another server listens on"):
            TestServer(bind=f"tcp://127.0.0.2:{port}", ipc=str(directory)).__enter__()
        with Clone(server.config.ipc_address) as clone:
            clone.set("/a", b"1").wait(WAIT_S)


def test_a_server_takes_socket_files_left_by_a_killed_server(directory: Path) -> None:
    with TestServer(ipc=str(directory)) as server:
        old, bind = files_of(server), server.config.bind
    for file in old:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(file))
    with TestServer(bind=bind, ipc=str(directory)) as server, Clone(server.config.ipc_address) as clone:
        clone.set("/a", b"1").wait(WAIT_S)


def test_a_clone_fails_over_between_ipc_addresses(directory: Path) -> None:
    async def use(addresses: list[str]) -> None:
        async with AsyncClone(addresses) as clone:
            await clone.wait_until_synced(WAIT_S)
            await clone.set("/a", b"1")
            pair.primary.kill()
            await clone.set("/b", b"2", timeout=WAIT_S)
            assert clone.snapshot() == {"/a": b"1", "/b": b"2"}

    with Pair(ipc=str(directory)) as pair:
        asyncio.run(use([server.config.ipc_address for server in (pair.primary, pair.backup)]))


def test_unread_data_on_an_ipc_connection_is_detected(directory: Path) -> None:
    file = str(directory / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as theirs:
        listener.bind(file)
        listener.listen()
        theirs.connect(file)
        ours, _ = listener.accept()
        with ours:
            ours.setblocking(False)
            place = connections.place_of(ours.fileno())
            assert place == ("process", os.getpid())
            assert connections.taken(ours.fileno(), place) == (0, False)
            with pytest.raises(BlockingIOError):
                while True:
                    ours.send(b"x" * 4096)
            assert connections.taken(ours.fileno(), place) == (0, True)
            assert connections.cut(ours.fileno(), place)
            assert connections.taken(ours.fileno(), ("process", -1)) is None


def test_an_ipc_reader_that_takes_large_values_is_not_cut_off(directory: Path) -> None:
    limits = replace(DEFAULT, subscriber_bytes_max=8 << 20)
    with TestServer(limits, ipc=str(directory)) as server, Clone(server.config.ipc_address) as clone:
        clone.wait_until_synced(WAIT_S)
        for i in range(12):
            clone.set("/large", bytes([i]) * (4 << 20)).wait(WAIT_S)
        assert server.server is not None and server.server.sockets.subscribers.cut == 0


def test_only_an_ipc_reader_that_takes_nothing_is_cut_off(directory: Path) -> None:
    limits = replace(DEFAULT, subscriber_bytes_max=8 << 20)
    with TestServer(limits, ipc=str(directory)) as server, zmq.Context() as context, context.socket(zmq.SUB) as deaf:
        deaf.linger, deaf.rcvhwm = 0, 1
        deaf.connect(beside(server.config.ipc_address, 1))
        deaf.subscribe(channel_topic(""))
        assert deaf.poll(int(WAIT_S * 1000))
        with Clone(server.config.ipc_address) as clone:
            clone.wait_until_synced(WAIT_S)
            for i in range(40):
                clone.set("/large", bytes([i]) * (1 << 20)).wait(WAIT_S)
            until(lambda: server.server is not None and server.server.core.committer.counts["subscribers_cut"] == 1)
            assert clone.stats.get("holes", 0) == 0 and clone["/large"] == bytes([39]) * (1 << 20)
