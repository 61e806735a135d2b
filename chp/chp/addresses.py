"""A server's address, which stands for its port P and those after it (SPEC.md, section 1).

tcp://HOST:P     P+1 is tcp://HOST:P+1, and so on
ipc://DIR/P      files of these names, for programs of the same host
"""

from __future__ import annotations

import re

PORT_MAX = 65_535
IPC_BYTES_MAX = 107  # of a path, in Linux's struct sockaddr_un
_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^:/\s\[\]]+):(?P<port>[0-9]{1,5})")
_IPC = re.compile(r"ipc://(?P<host>/(?:[^\s,\0]*[^\s,\0/])?)/(?P<port>[0-9]{1,5})")
FORMS = "tcp://host:port or ipc:///directory/port"


def parse(address: str) -> tuple[str, int]:
    """Host or directory, and port; ValueError says what is wrong, to stand behind the address."""
    found = _TCP.fullmatch(address) or _IPC.fullmatch(address)
    if found is None:
        raise ValueError(f"is not {FORMS}")
    host, port = found["host"], int(found["port"])
    if not 0 < port <= PORT_MAX - 2:
        raise ValueError(f"has a port that is not one of 1 to {PORT_MAX - 2}")
    if host.startswith("["):
        raise ValueError("has an IPv6 address, which does not work yet; give a host name or an IPv4 address")
    if is_file(address) and len(f"{host}/{port + 3}".encode()) > IPC_BYTES_MAX:
        raise ValueError(f"has a path longer than the {IPC_BYTES_MAX} bytes that a socket's may have")
    return host, port


def is_file(address: str) -> bool:
    """Whether an address is one of this host's files."""
    return address.startswith("ipc://")


def beside(address: str, offset: int) -> str:
    """The address of P+offset, of a checked address."""
    host, port = parse(address)
    return f"ipc://{host}/{port + offset}" if is_file(address) else f"tcp://{host}:{port + offset}"
