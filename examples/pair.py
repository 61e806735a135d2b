"""Where the small examples find their servers: those of CHP_SERVERS, or a pair in this process while they run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from chp_server.testing import Pair


@contextmanager
def servers() -> Iterator[list[str]]:
    """The addresses, the primary's first."""
    if named := os.environ.get("CHP_SERVERS"):
        yield named.split(",")
    else:
        with Pair() as pair:
            yield pair.servers
