"""One Spark session for all tests here."""

from collections.abc import Iterator

import pytest

from chp_client.spark import session, stop


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    found = session("tests", cores=2, quick_start=True)
    yield found
    stop(found)
