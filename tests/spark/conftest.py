"""One Spark session for all tests here, and a store that remembers what it was told."""

from collections.abc import Iterator

import pytest

from chp_client.spark import session, stop


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    found = session("tests", cores=2, quick_start=True)
    yield found
    stop(found)


class Store:
    """Stands in for a Clone: a dict, and the calls in their order."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.ttls: dict[str, float | None] = {}
        self.calls: list[tuple[str, int]] = []

    def set_many(self, items: dict[str, bytes], ttl: float | None = None) -> None:
        self.calls.append(("set_many", len(items)))
        self.items.update(items)
        self.ttls.update(dict.fromkeys(items, ttl))

    def delete_many(self, keys: list[str]) -> None:
        self.calls.append(("delete_many", len(keys)))
        for key in keys:
            self.items.pop(key, None)

    def flush(self, timeout: float | None = None) -> None:
        self.calls.append(("flush", 0))


@pytest.fixture
def store() -> Store:
    return Store()
