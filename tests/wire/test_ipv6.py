"""Servers, peers and clients at IPv6 addresses, with keys and without; and both kinds at one listener.

covers: tcp://[ADDRESS]:P in servers, peers, clients and `chp`
"""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from chp_client import ClientFile, Clone
from chp_client.port.admin import Admin
from chp_client.port.admin import AdminReply as Answered
from chp_client.port.ask import QuestionPort
from chp_client.port.feed import Feed
from chp_server.testing import Pair, TestServer, free_port
from tests.wire import keys

LONG_S = 30.0


def _there() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


pytestmark = pytest.mark.skipif(not _there(), reason="this host has no IPv6")


@pytest.mark.parametrize("keyed", [False, True])
def test_a_pair_and_its_clients_meet_at_ipv6_addresses(tmp_path: Path, keyed: bool) -> None:
    alice = keys.new_pair()
    a, b = keys.pair_of_directories(tmp_path, ("alice", alice))
    pair, at = Pair(), [f"tcp://[::1]:{free_port()}" for _ in range(2)]
    pair.primary.config = replace(pair.primary.config, bind=at[0], peer=at[1], keys=str(a) if keyed else None)
    pair.backup.config = replace(pair.backup.config, bind=at[1], peer=at[0], keys=str(b) if keyed else None)
    there = dict(zip(at, map(keys.public_of, (a, b)), strict=True))
    servers = ClientFile.read(keys.client_file(tmp_path / "c.toml", alice, there)) if keyed else tuple(at)
    with pair:
        with Clone(servers) as clone:
            assert clone.set("/a", b"1").wait(LONG_S).durability == "replicated"
        with Admin(servers, LONG_S) as admin:
            assert all(isinstance(answer, Answered) for answer in admin.ask_all("status").values())
        with Feed(servers) as feed:
            assert feed.facts(LONG_S).newest
        with QuestionPort(servers, LONG_S) as port:
            assert port.ask("", image=0, prefix="", count=True)["keys"] == 1


def test_one_listener_accepts_ipv4_and_ipv6_clients() -> None:
    port = free_port()
    with TestServer(bind=f"tcp://*:{port}"):
        for host in ("127.0.0.1", "[::1]"):
            with Clone(f"tcp://{host}:{port}") as clone:
                clone.set("/a", host.encode()).wait(LONG_S)
