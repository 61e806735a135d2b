"""Warnings about host names of servers that can't be resolved. libzmq tries for ever, and reports nothing.

A separate thread asks the resolver once, as that may take long. The thread then ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from threading import Thread

from chp.addresses import is_name


def unresolved(address: str) -> str:
    """Return why the host of `tcp://host:port` can't be resolved, or ""."""
    host = _host(address)
    try:
        socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"the host name {host!r} can't be resolved ({getattr(error, 'strerror', None) or error}); check it"
    return ""


def look_up(addresses: list[str], tell: Callable[[int, str], object]) -> None:
    """Call `tell(i, why)` for each address whose name can't be resolved.

    The calls come from a new thread, which starts only if there are names.
    """
    named = [i for i, address in enumerate(addresses) if is_name(address)]
    if named:
        Thread(target=partial(_look_up, addresses, named, tell), name="chp-names", daemon=True).start()


def only_ipv6(address: str) -> bool:
    """Return True if the name in an address has only IPv6 addresses now. The resolver may take long."""
    if not is_name(address):
        return False
    try:
        found = socket.getaddrinfo(_host(address), None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)


def _host(address: str) -> str:
    return address.removeprefix("tcp://").rpartition(":")[0]


def _look_up(addresses: list[str], named: list[int], tell: Callable[[int, str], object]) -> None:
    for i in named:
        if why := unresolved(addresses[i]):
            tell(i, why)
