"""A Clone of all that the lone server holds."""

from collections.abc import Iterator

import pytest

from chp_client import Clone
from chp_server.testing import TestServer


@pytest.fixture
def clone(lone: TestServer) -> Iterator[Clone]:
    with Clone(lone.address) as made:
        made.wait_until_synced(30)
        yield made
