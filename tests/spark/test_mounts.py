"""Tests of the connector over several pairs: a read has the keys of all of them, and a write goes to one.

covers: chp_client/spark/pairs.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp.errors import BadInput
from chp_client import Clone
from chp_client.spark import foreach_batch
from chp_client.spark.options import BadOption, parse
from chp_client.spark.pairs import places_of
from chp_server.testing import TestServer
from tests.talk import NO_SERVER, synced, until
from tests.wire import keys

from .present import entry_of

ALICE = keys.new_pair()
HELD = {"/a": b"1", "/rates/EUR": b"2", "/rates/USD": b"3", "/z": b"4"}


@pytest.fixture(scope="module")
def other() -> Iterator[TestServer]:
    """Start the server of the mount /rates/."""
    with TestServer() as started:
        yield started


@pytest.fixture
def mounts(server: TestServer, other: TestServer) -> Iterator[str]:
    """Return the mounts of two servers, which hold HELD, as a text."""
    text = f"/={server.address} /rates/={other.address}"
    with Clone(text) as clone:
        for key, value in HELD.items():
            clone.set(key, value).wait(30)
        # The key was there before /rates/ moved.
        clone.mounts["/"].set("/rates/OLD", b"0").wait(30)
        yield text
        for mount in clone.mounts.values():
            mount.wait_until_synced(30)
            mount.clear()
            mount.flush(30)


def held(servers: str) -> dict[str, bytes]:
    """Return all that the pairs hold."""
    with Clone(servers) as clone:
        clone.wait_until_synced(30)
        return dict(clone)


@pytest.mark.spark
def test_a_read_has_the_keys_of_all_mounts(spark: Any, mounts: str) -> None:
    frame = spark.read.format("chp").options(servers=mounts).load()
    assert {row.key: bytes(row.value) for row in frame.collect()} == HELD
    inside = spark.read.format("chp").options(servers=mounts, subtree="/rates/").load()
    assert sorted(row.key for row in inside.collect()) == ["/rates/EUR", "/rates/USD"]


def test_a_filter_narrows_the_read_of_each_mount() -> None:
    options = parse({"servers": "/=a:1 /rates/=c:1 /rates/EUR/=e:1"}, several=True)

    def places(prefix: str) -> list[tuple[str, ...]]:
        return [(place.servers[0], place.prefix, *place.inside) for place in places_of(options, prefix)]

    a, c, e = ("tcp://a:1", "tcp://c:1", "tcp://e:1")
    assert places("") == [(a, "", "/rates/EUR/", "/rates/"), (c, "/rates/", "/rates/EUR/"), (e, "/rates/EUR/")]
    assert places("/ra") == [(a, "/ra", "/rates/EUR/", "/rates/"), (c, "/rates/", "/rates/EUR/"), (e, "/rates/EUR/")]
    assert places("/rates/E") == [(c, "/rates/E", "/rates/EUR/"), (e, "/rates/EUR/")]
    assert places("/rates/EUR/USD") == [(e, "/rates/EUR/USD")]
    assert places("/z") == [(a, "/z")]
    two = parse({"servers": "/x/=a:1 /rates/=c:1 /rates/EUR/=e:1", "subtree": "/rates/"}, several=True)
    assert [place.prefix for place in places_of(two, "/z")] == ["/rates/", "/rates/EUR/"], "Spark needs a task"


@pytest.mark.spark
def test_a_write_may_have_keys_of_one_mount_only(spark: Any, mounts: str, tmp_path: Path) -> None:
    def save(*rows: str, partitions: int = 1, **options: str) -> None:
        frame = spark.createDataFrame([(key, "new") for key in rows], "key string, value string")
        frame = frame.repartitionByRange(partitions, "key") if partitions > 1 else frame.coalesce(1)
        frame.write.format("chp").options(servers=mounts, **options).mode("append").save()

    save("/rates/GBP", "/rates/CHF", partitions=2)
    assert held(mounts) == {**HELD, "/rates/GBP": b"new", "/rates/CHF": b"new"}
    both = r"a write of Spark spans two mounts: '/\w+' is of '/', and '/rates/SEK' is of '/rates/'"
    for partitions in (1, 2):
        with pytest.raises(Exception, match=both):
            save("/b", "/rates/SEK", partitions=partitions)
    sink = foreach_batch(servers=mounts, applicationId="both")
    with pytest.raises(BadInput, match=both):
        sink(spark.createDataFrame([("/b", "new"), ("/rates/SEK", "new")], "key string, value string"), 0)
    foreach_batch(servers=mounts, applicationId="one")(
        spark.createDataFrame([("/b", "x")], "key string, value string"), 0
    )
    assert held(mounts) == {**HELD, "/rates/GBP": b"new", "/rates/CHF": b"new", "/b": b"x"}


def test_operations_of_one_pair_refuse_several_mounts(mounts: str, other: TestServer) -> None:
    both = r"spans the mounts '/' and '/rates/'.*name a subtree of one mount"
    with pytest.raises(BadOption, match=both):
        parse({"servers": mounts})
    with pytest.raises(BadOption, match=both):
        foreach_batch(overwrite=True, servers=mounts, confirm_overwrite=True)
    assert parse({"servers": mounts, "subtree": "/rates/"})["servers"] == (other.address,)
    with pytest.raises(BadOption, match="replicas is of one pair, and the subtree '' spans several mounts"):
        parse({"servers": mounts, "replicas": "tcp://c:5556"}, several=True)


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        ("", r"server '' is not tcp"),
        ("tcp://c:5556,tcp://c:5556", "server tcp://c:5556 is given twice"),
        (",".join(f"tcp://c:{5000 + i}" for i in range(17)), "17 servers are given, more than 16"),
    ],
)
def test_a_bad_replicas_option_is_refused(replicas: str, said: str) -> None:
    with pytest.raises(BadOption, match=rf"option replicas is .*{said}"):
        parse({"servers": NO_SERVER, "replicas": replicas})


def test_each_read_begins_with_a_random_replica() -> None:
    options = parse({"servers": NO_SERVER, "replicas": "tcp://c:1,tcp://d:1,tcp://e:1"})
    turned = {tuple(places_of(options, "")[0].servers) for _ in range(200)}
    c, d, e = options["replicas"]
    assert turned == {(c, d, e), (d, e, c), (e, c, d)}


def test_each_replica_must_be_in_the_client_file(tmp_path: Path) -> None:
    c, d = "tcp://c:5556", "tcp://d:5556"
    file = keys.client_file(tmp_path / "alice.toml", ALICE, {c: ALICE.public, d: ALICE.public})
    options = parse({"clientFile": str(file), "replicas": d})
    assert tuple(options["replicas"]) == (d,) and d in options["replicas"].credentials
    with pytest.raises(BadOption, match="option replicas: tcp://e:5556 is no server of the client file"):
        parse({"clientFile": str(file), "replicas": "tcp://e:5556"})


@pytest.mark.spark
def test_reads_go_to_replicas_and_writes_go_to_the_pair(spark: Any, server: TestServer, clone: Clone) -> None:
    with TestServer(replica=True, upstream=server.address, heartbeat_s=0.1) as replica:
        with synced(replica.address) as reader:
            given = {"servers": NO_SERVER, "replicas": replica.address}
            frame = spark.createDataFrame([("/r/1", "x"), ("/r/2", "y")], "key string, value string")
            frame.write.format("chp").options(servers=server.address, replicas=NO_SERVER).mode("append").save()
            until(lambda: len(reader) == 2, "the replica follows")
        held = spark.read.format("chp").options(**given, partitions="2").load()
        until(lambda: len(clone) == 2)
        revision = entry_of(clone, "/r/1").revision
        assert sorted((row.key, bytes(row.value), row.revision) for row in held.collect()) == [
            ("/r/1", b"x", revision), ("/r/2", b"y", revision)
        ]  # fmt: skip
        changes = spark.read.format("chp").options(**given, startingOffsets="earliest").load()
        assert sorted(row.key for row in changes.collect()) == ["/r/1", "/r/2"]
