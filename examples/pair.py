"""The servers of the small examples: those in CHP_SERVERS, or a pair in this process while the example runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from chp_server.testing import Pair


@contextmanager
def servers() -> Iterator[list[str]]:
    """Yield the addresses of the servers, the primary's first."""
    if named := os.environ.get("CHP_SERVERS"):
        yield named.split(",")
    else:
        with Pair() as pair:
            yield pair.servers
