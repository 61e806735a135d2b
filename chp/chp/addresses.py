"""Addresses of servers: each stands for port P and the ports after it (SPEC.md, section 1).

tcp://HOST:P     P+1 is tcp://HOST:P+1, and so on; tcp://[::1]:P for an IPv6 address; a name may be of either kind
ipc://DIR/P      files of these names, for programs of the same host

People may leave `tcp://` out, and the port if it is 5556. One URL may name both servers, a subtree and a codec:
chp://a:5556,b:5566/rates/?codec=json
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

PORT_MAX = 65_535
# The size of a path in Linux's struct sockaddr_un.
IPC_BYTES_MAX = 107
_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^:/\s\[\]]+):(?P<port>[0-9]{1,5})")
_IPC = re.compile(r"ipc://(?P<host>/(?:[^\s,\0]*[^\s,\0/])?)/(?P<port>[0-9]{1,5})")
# A host without a port. Digits alone are no host, but a port whose host is missing.
_HOST_ALONE = re.compile(r"(?:tcp://)?(?![0-9]+\Z)(?:\[[0-9A-Fa-f:.%a-z]+\]|[^:/\s\[\]]+)")
SCHEME = "chp://"
PORT = 5556
LOCAL_PAIR = ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5566")
FORMS = "tcp://host:port or ipc:///directory/port"


def parse(address: str) -> tuple[str, int]:
    """Return (host or directory, port), or raise a ValueError, to whose text the caller adds the address."""
    found = _TCP.fullmatch(address) or _IPC.fullmatch(address)
    if found is None:
        raise ValueError(f"is not {FORMS}")
    host, port = found["host"], int(found["port"])
    if not 0 < port <= PORT_MAX - 2:
        raise ValueError(f"has a port that is not one of 1 to {PORT_MAX - 2}")
    if is_file(address) and len(f"{host}/{port + 3}".encode()) > IPC_BYTES_MAX:
        raise ValueError(f"has a path longer than the {IPC_BYTES_MAX} bytes that a socket's may have")
    return host, port


def is_ipv6(address: str) -> bool:
    """Return True for a literal IPv6 address, in brackets. A name may need IPv6 too."""
    return address.startswith("tcp://[")


def is_name(address: str) -> bool:
    """Return True if the host of an address is a name: it may have an IPv4 address, an IPv6 one, or both."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    return not (is_file(address) or is_ipv6(address) or re.fullmatch(r"[0-9.]+|\*", host))


def in_turn(address: str, tries: int) -> bool:
    """Return True if a socket uses IPv6 at this try: a name is looked up as IPv4 and as IPv6 in turn."""
    return is_ipv6(address) or (is_name(address) and tries % 2 == 1)


def is_file(address: str) -> bool:
    """Return True if an address names files of this host."""
    return address.startswith("ipc://")


def beside(address: str, offset: int) -> str:
    """Return the address of P+offset for a checked address of P."""
    host, port = parse(address)
    return f"ipc://{host}/{port + offset}" if is_file(address) else f"tcp://{host}:{port + offset}"


def full(address: str) -> str:
    """Return an address in full: `host:port` is `tcp://host:port`, and `host` is `tcp://host:5556`."""
    if _HOST_ALONE.fullmatch(address):
        return f"tcp://{address.removeprefix('tcp://')}:{PORT}"
    return f"tcp://{address}" if ":" in address and "://" not in address else address


def words(text: str) -> list[str]:
    """Return the addresses in a text, which commas or spaces separate. They are not checked yet."""
    return [full(word) for word in re.split(r"[,\s]+", text) if word]


class Url(NamedTuple):
    """The parts of `chp://host:port,host:port/subtree/?codec=json`; the codec is "" if the URL has none."""

    servers: list[str]
    subtree: str
    codec: str


def is_url(text: str) -> bool:
    """Return True if a text is a `chp://` URL, for `parse_url`."""
    return text.strip().startswith(SCHEME)


def parse_url(text: str) -> Url:
    """Return the parts of a `chp://` URL, or raise a ValueError, to whose text the caller adds the URL."""
    rest, _, query = text.strip().removeprefix(SCHEME).partition("?")
    hosts, slash, path = rest.partition("/")
    try:
        options = parse_qs(query, keep_blank_values=True, strict_parsing=True) if query else {}
    except ValueError:
        raise ValueError(f"has {query!r} behind '?', which is not name=value") from None
    codec = options.pop("codec", [""])
    if options:
        raise ValueError(f"has {min(options)!r} behind '?', where only codec can stand; give it to the Clone itself")
    if len(codec) > 1 or (query and not codec[0]):
        raise ValueError("has not one codec behind '?', such as codec=json")
    servers = words(hosts)
    if not servers:
        raise ValueError("names no server; write chp://host:port, or chp://host:port,host:port")
    return Url(servers, slash + unquote(path) if path else "", codec[0])
