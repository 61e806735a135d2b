"""One Spark session for all tests here, and the classes that it loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client.spark import session, stop

from . import classes


@pytest.fixture(scope="session", autouse=True)
def archive(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The classes that sessions load; made beside the first tests of a checkout."""
    cache = getattr(pytestconfig, "cache", None)  # there is none with `-p no:cacheprovider`
    found = classes.place(cache.mkdir("spark") if cache else tmp_path_factory.mktemp("classes"))
    classes.use(found)
    maker = classes.begin(found)
    yield found
    if maker is not None:
        classes.give_up(maker)


@pytest.fixture(autouse=True)
def _quick_jvms(archive: Path) -> None:
    """Those that this test starts, once the archive is there."""
    classes.use(archive)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    found = session("tests", cores=2, quick_start=True)
    yield found
    stop(found)
