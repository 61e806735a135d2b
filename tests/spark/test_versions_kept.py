"""Tests of how long the servers remember that a batch write was made: by age, and with a bound that refuses.

covers: docs/spark.md, `applicationId` and `version`
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chp.limits import DEFAULT
from chp_client import Clone
from chp_server.testing import TestServer
from tests.talk import until

from .present import core_of

pytestmark = pytest.mark.spark
KEPT_S = 30 * 86_400.0


@pytest.fixture
def two() -> Iterator[TestServer]:
    """Start a server that remembers two applications."""
    with TestServer(replace(DEFAULT, applications_max=2), heartbeat_s=0.1) as started:
        yield started


def test_a_new_application_is_refused_until_an_older_application_is_forgotten(spark: Any, two: TestServer) -> None:
    def save(value: str, application: str, version: int) -> None:
        frame = spark.createDataFrame([("/n/1", value)], "key string, value string")
        given = {"servers": two.address, **({"applicationId": application, "version": version} if application else {})}
        frame.write.format("chp").options(**given).mode("append").save()

    with Clone(two.address) as clone:
        save("a", "job", 1)
        save("b", "other", 1)
        full = r"can't remember another application .*2 applications are remembered, and no more may be .*30 days after"
        with pytest.raises(Exception, match=full):
            save("c", "third", 1)
        save("d", "job", 1)
        save("e", "", 0)
        until(lambda: clone.get("/n/1") == b"e", "a write without a name needs no memory")
        # Other commits make no room, and what is remembered is recognised.
        for _ in range(3):
            save("f", "job", 1)
        assert clone["/n/1"] == b"e"
        versions = core_of(two).state.staging.versions
        versions["job"] = versions["job"]._replace(touched=versions["job"].touched - KEPT_S)
        until(lambda: "job" not in versions, "30 days after its last commit a name is forgotten")
        save("g", "third", 1)
        until(lambda: clone["/n/1"] == b"g")
