"""covers: addresses.py, and what the client and the server say of addresses that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from chp.addresses import beside, parse
from chp.errors import BadInput
from chp_client.checks import endpoints_of
from chp_client.cli.settings import read_servers
from chp_server.config import ConfigError, load


@pytest.mark.parametrize(
    ("address", "after"),
    [
        ("tcp://a:5556", "tcp://a:5557"),
        ("tcp://127.0.0.1:99", "tcp://127.0.0.1:100"),
        ("ipc:///run/chp/5556", "ipc:///run/chp/5557"),
        ("ipc:///run/chp/9/5566", "ipc:///run/chp/9/5567"),
    ],
)
def test_an_address_stands_for_those_after_it(address: str, after: str) -> None:
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
        ("tcp://[::1]:5556", "IPv6"),
        (f"ipc:///{'x' * 103}/5556", "longer than the 107 bytes"),
        ("udp://a:5556", "not tcp"),
    ],
)
def test_what_is_none_is_named_with_the_reason(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(address)
    with pytest.raises(BadInput, match=why):
        endpoints_of([address])


@pytest.mark.parametrize("directory", ["run/chp", "/run/my chp", "/run,chp", f"/{'x' * 103}"])
def test_a_server_is_given_a_directory_that_addresses_can_name(directory: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(["--ipc", directory], {})
    assert error.value.problems[0].startswith(f"ipc = {directory}")


def test_the_files_are_named_as_the_ports(tmp_path: Path) -> None:
    config = load(["--backup", "--peer", "tcp://127.0.0.1:5556", "--ipc", "/run/chp/"], {}).config
    assert config.ipc_address == "ipc:///run/chp/5566" and config.describe()["ipc"] == config.ipc_address
