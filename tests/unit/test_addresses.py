"""covers: addresses.py, and what the client and the server say of addresses that are none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chp.addresses import LOCAL_PAIR, Url, beside, full, parse, parse_url
from chp.errors import BadInput
from chp_client import AsyncClone, ClientFile, Clone
from chp_client.checks import endpoints_of
from chp_client.cli.settings import read_servers
from chp_client.clone.base import internals
from chp_client.port.admin import Admin
from chp_client.port.feed import Feed
from chp_server.settings.sources import ConfigError, load
from tests.wire import keys


@pytest.mark.parametrize(
    ("address", "after"),
    [
        ("tcp://a:5556", "tcp://a:5557"),
        ("tcp://127.0.0.1:99", "tcp://127.0.0.1:100"),
        ("ipc:///run/chp/5556", "ipc:///run/chp/5557"),
        ("ipc:///run/chp/9/5566", "ipc:///run/chp/9/5567"),
    ],
)
def test_the_other_addresses_of_a_server_follow_from_its_first_one(address: str, after: str) -> None:
    assert beside(address, 1) == after
    assert endpoints_of(address)[0][:2] == (address, after)
    assert read_servers(address) == (address,)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ipc://run/chp/5556", "is not tcp://host:port or ipc:///directory/port"),
        ("ipc:///run/chp/", "not tcp"),
        ("ipc:///run/chp:5556", "not tcp"),
        ("ipc:///run/my chp/5556", "not tcp"),
        ("ipc:///run/chp/0", "has a port that is not one of 1"),
        ("tcp://a:65534", "has a port that is not one of 1"),
        ("tcp://::1:5556", "not tcp"),
        (f"ipc:///{'x' * 103}/5556", "longer than the 107 bytes"),
        ("udp://a:5556", "not tcp"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(address)
    with pytest.raises(BadInput, match=why):
        endpoints_of([address])


@pytest.mark.parametrize("given", ["a:5556,b:5566", ["a:5556", "tcp://b:5566"], " a:5556 , b:5566"])
def test_endpoints_of_adds_a_missing_tcp_prefix(given: Any) -> None:
    assert [first for first, _, _ in endpoints_of(given)] == ["tcp://a:5556", "tcp://b:5566"]
    with pytest.raises(BadInput, match="twice"):
        endpoints_of(["a:5556", "tcp://a:5556"])


def test_feeds_and_spark_options_add_a_missing_tcp_prefix() -> None:
    with Feed("127.0.0.1:9") as feed, pytest.raises(TimeoutError, match=r"tcp://127\.0\.0\.1:9"):
        feed.facts(0.0)
    options = pytest.importorskip("chp_client.spark.options")
    assert options.parse({"servers": "a:5556,b:5566"})["servers"] == ["tcp://a:5556", "tcp://b:5566"]


@pytest.mark.parametrize("directory", ["run/chp", "/run/my chp", "/run,chp", f"/{'x' * 103}"])
def test_a_server_refuses_an_ipc_directory_that_addresses_cannot_name(directory: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(["--ipc", directory], {})
    assert error.value.problems[0].startswith(f"ipc = {directory}")


def test_the_ipc_file_of_a_server_is_named_after_its_port(tmp_path: Path) -> None:
    config = load(["--backup", "--peer", "tcp://127.0.0.1:5556", "--ipc", "/run/chp/"], {}).config
    assert config.ipc_address == "ipc:///run/chp/5566" and config.describe()["ipc"] == config.ipc_address


@pytest.mark.parametrize(
    ("text", "servers", "subtree", "codec"),
    [
        ("chp://a:5556", ["tcp://a:5556"], "", ""),
        ("chp://a:5556,b:5566/", ["tcp://a:5556", "tcp://b:5566"], "", ""),
        ("chp://a:5556,b:5566/rates/EUR/?codec=json", ["tcp://a:5556", "tcp://b:5566"], "/rates/EUR/", "json"),
        ("chp://a:5556?codec=text", ["tcp://a:5556"], "", "text"),
        ("chp://a:5556/my%20rates/", ["tcp://a:5556"], "/my rates/", ""),
    ],
)
def test_a_url_says_servers_subtree_and_codec(text: str, servers: list[str], subtree: str, codec: str) -> None:
    assert parse_url(text) == Url(servers, subtree, codec)
    assert list(read_servers(text)) == servers
    with Clone(text) as clone:
        assert clone.subtrees == (subtree,) and (clone.codec is None) is (not codec)
        assert [link.address for link in internals(clone).mailbox.core.links] == [
            beside(server, 0) for server in servers
        ]
        clone.close(0.0)


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("chp:///rates/", {}, "names no server"),
        ("chp://a:5556/rates", {}, "must be '' or begin and end with '/'; try '/rates/'"),
        ("chp://a:5556?codec", {}, "which is not name=value"),
        ("chp://a:5556?codec=", {}, "has not one codec"),
        ("chp://a:5556?codec=json&codec=text", {}, "has not one codec"),
        ("chp://a:5556?window=3", {}, "has 'window' behind '\\?', where only codec can stand"),
        ("chp://a:5556?codec=xml", {}, "codec 'xml'"),
        ("chp://a:", {}, "server 'tcp://a:' is not tcp://host:port"),
        ("chp://a:5556/r/", {"subtree": "/x/"}, "names the subtree '/r/', and another is given"),
        ("chp://a:5556/r/", {"subtree": None}, "names the subtree"),
        ("chp://a:5556/r/", {"subtrees": ["/x/"]}, "names the subtree"),
        ("chp://a:5556?codec=json", {"codec": "text"}, "names the codec 'json'"),
        (",".join(f"a:{port}" for port in range(1, 18)), {}, "17 servers are given, more than 16"),
    ],
)
def test_a_clone_refuses_an_invalid_or_contradictory_url(text: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Clone(text, **options)


@pytest.mark.parametrize("given", ["a:5556, b:5566", ["a:5556", "tcp://b:5566"], ("tcp://a:5556", "b:5566")])
def test_a_clone_adds_a_missing_tcp_prefix(given: str | list[str]) -> None:
    with Clone(given) as clone:
        assert [link.address for link in internals(clone).mailbox.core.links] == ["tcp://a:5556", "tcp://b:5566"]
        clone.close(0.0)


def followed(clone: Clone) -> list[str]:
    try:
        return [link.address for link in internals(clone).mailbox.core.links]
    finally:
        clone.close(0.0)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("a", "tcp://a:5556"),
        ("tcp://a", "tcp://a:5556"),
        ("10.0.0.1", "tcp://10.0.0.1:5556"),
        ("[::1]", "tcp://[::1]:5556"),
        ("a:1", "tcp://a:1"),
        ("ipc:///x/1", "ipc:///x/1"),
        ("5556", "5556"),
        ("a/b", "a/b"),
        ("a:", "tcp://a:"),
    ],
)
def test_a_host_without_a_port_has_the_default_one(given: str, address: str) -> None:
    assert full(given) == address


def test_a_clone_without_arguments_follows_chp_servers_or_the_local_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHP_SERVERS", raising=False)
    assert followed(Clone()) == list(LOCAL_PAIR)
    monkeypatch.setenv("CHP_SERVERS", "")
    assert followed(Clone(subtree="/a/")) == list(LOCAL_PAIR)
    monkeypatch.setenv("CHP_SERVERS", "a:5556,b:5566")
    assert followed(Clone()) == ["tcp://a:5556", "tcp://b:5566"]
    assert followed(Clone("c:1")) == ["tcp://c:1"]
    monkeypatch.setenv("CHP_SERVERS", "chp://a:5556/r/?codec=json")
    clone = Clone()
    assert followed(clone) == ["tcp://a:5556"] and clone.subtrees == ("/r/",) and clone.codec is not None
    monkeypatch.setenv("CHP_SERVERS", "non/sense")
    with pytest.raises(BadInput, match="CHP_SERVERS: server 'non/sense' is not tcp://host:port"):
        Clone()


def client_file(path: Path) -> Path:
    return keys.client_file(path, keys.new_pair(), {"tcp://k:5556": keys.new_pair().public})


def test_a_clone_takes_its_servers_from_a_client_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHP_SERVERS", "CHP_CLIENT_FILE", "CHP_CLIENT"):
        monkeypatch.delenv(name, raising=False)
    file = client_file(tmp_path / "alice.toml")
    assert followed(Clone(client_file=file)) == followed(Clone[int](client_file=str(file))) == ["tcp://k:5556"]
    for given in ("a:5556", ClientFile.read(file)):
        for act in (Clone, Admin):
            with pytest.raises(BadInput, match="both servers and client_file are given; the file names the servers"):
                act(given, client_file=file)
    monkeypatch.setenv("CHP_CLIENT_FILE", str(file))
    assert followed(Clone()) == ["tcp://k:5556"] and followed(Clone("a:5556")) == ["tcp://a:5556"]
    with Admin() as admin:
        assert admin.servers == ("tcp://k:5556",) and admin.with_key
    monkeypatch.setenv("CHP_SERVERS", "a:5556")
    with pytest.raises(BadInput, match="both CHP_SERVERS and CHP_CLIENT_FILE are set"):
        Clone()


def test_the_old_variable_is_refused_with_the_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHP_CLIENT", str(client_file(tmp_path / "alice.toml")))
    for act in (Clone, Admin):
        with pytest.raises(BadInput, match="CHP_CLIENT is set, which is CHP_CLIENT_FILE now"):
            act()
    assert followed(Clone("a:5556")) == ["tcp://a:5556"]


def test_an_async_clone_takes_its_subtree_from_chp_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHP_SERVERS", "chp://a:5556/r/")

    async def run() -> str:
        clone = AsyncClone()
        await clone.close(0.0)
        return repr(clone)

    assert "'/r/'" in asyncio.run(run())
