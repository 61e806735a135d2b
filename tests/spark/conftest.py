"""The fixtures of tests/spark: one Spark session for all tests, and the file of the classes that it loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client.spark import session, stop

from . import classes


@pytest.fixture(scope="session", autouse=True)
def archive(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the file of classes that sessions load. It is made during the first tests of a checkout."""
    # With `-p no:cacheprovider` there is no cache.
    cache = getattr(pytestconfig, "cache", None)
    found = classes.place(cache.mkdir("spark") if cache else tmp_path_factory.mktemp("classes"))
    classes.use(found)
    maker = classes.begin(found)
    yield found
    if maker is not None:
        classes.give_up(maker)


@pytest.fixture(autouse=True)
def _quick_jvms(archive: Path) -> None:
    """Let the JVMs of this test use the archive, once it exists."""
    classes.use(archive)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    found = session("tests", cores=2, quick_start=True)
    yield found
    stop(found)
