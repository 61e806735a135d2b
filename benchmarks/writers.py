"""Writers: one process that sets keys in one of several ways, until all of it is acknowledged.

chp_keys      clone.set, a key a call; clone.flush at the end
chp_many      clone.set_many of 1,000; clone.flush at the end
redis_keys    SET and PUBLISH of each key, in pipelines of 1,000 keys; each pipeline's answers are read
redis_packed  MSET of 1,000, and one PUBLISH of the thousand packed by hand; the answers are read
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .roles import Pipe
from .workload import MARKER, batches

Batches = list[tuple[list[str], list[bytes]]]


def writer(pipe: Pipe, kind: str, address: str) -> None:
    """Write what the parent asks for; answer with the times of the beginning and of the last acknowledgement."""
    write = KINDS[kind](address)
    pipe.say(up=True)
    while True:
        todo = pipe.hear()
        work = batches(todo["sets"], todo["size"])
        begin = time.monotonic()
        write(work, todo["marker"].encode())
        pipe.say(begin=begin, end=time.monotonic())


def clone_of(address: str) -> Any:
    """Return a Clone that is not yet synced. `address` has one server, two with a comma, or is a client file."""
    from chp_client import Clone

    return Clone(client_file=address) if address.endswith(".toml") else Clone(address.split(","))


def _clone(address: str) -> Any:
    clone = clone_of(address)
    clone.wait_until_synced(timeout=30)
    return clone


def chp_keys(address: str) -> Callable[[Batches, bytes], None]:
    """Return a writer that sets one key a call."""
    clone = _clone(address)

    def write(work: Batches, marker: bytes) -> None:
        put = clone.set
        for keys, values in work:
            for key, value in zip(keys, values, strict=True):
                put(key, value)
        put(MARKER, marker)
        clone.flush(timeout=60)

    return write


def chp_many(address: str) -> Callable[[Batches, bytes], None]:
    """Return a writer that sets a thousand keys a call."""
    clone = _clone(address)

    def write(work: Batches, marker: bytes) -> None:
        for columns in work:
            clone.set_many(columns)
        clone.set(MARKER, marker)
        clone.flush(timeout=60)

    return write


def _redis(address: str) -> Any:
    import redis

    return redis.Redis("127.0.0.1", int(address.rpartition(":")[2]))


def redis_keys(address: str) -> Callable[[Batches, bytes], None]:
    """Return a writer that sends SET and PUBLISH for each key, in pipelines of 1,000 keys."""
    client = _redis(address)

    def write(work: Batches, marker: bytes) -> None:
        for keys, values in [*work, ([MARKER], [marker])]:
            pipeline = client.pipeline(transaction=False)
            for key, value in zip(keys, values, strict=True):
                pipeline.set(key, value)
                pipeline.publish("bench", key.encode() + b" " + value)
            pipeline.execute()

    return write


def redis_packed(address: str) -> Callable[[Batches, bytes], None]:
    """Return a writer that sends MSET, and packs each thousand by hand for one PUBLISH."""
    import msgpack

    client = _redis(address)

    def write(work: Batches, marker: bytes) -> None:
        for keys, values in [*work, ([MARKER], [marker])]:
            pipeline = client.pipeline(transaction=False)
            pipeline.mset(dict(zip(keys, values, strict=True)))
            pipeline.publish("bench", msgpack.packb((keys, values)))
            pipeline.execute()

    return write


KINDS = {"chp_keys": chp_keys, "chp_many": chp_many, "redis_keys": redis_keys, "redis_packed": redis_packed}
