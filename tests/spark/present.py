"""Access to things that must exist: the entry of a key in a Clone, and the core of a running server."""

from __future__ import annotations

from chp_client import Clone, Entry
from chp_server.core.core import ServerCore
from chp_server.testing import TestServer


def entry_of(clone: Clone, key: str) -> Entry:
    """The entry of a key that is held."""
    entry = clone.entry(key)
    assert entry is not None, f"{key} is not held"
    return entry


def core_of(server: TestServer) -> ServerCore:
    """The core of a server that was started."""
    assert server.server is not None, "start it first"
    return server.server.core
