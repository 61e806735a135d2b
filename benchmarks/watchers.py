"""Watchers: processes that hold what arrives, say when the last of it was there, and compare their copy.

One role forks as many of them as are asked for (so that a hundred start in a moment); each opens its own connection.
A round ends with a marker: one more key, set last. A watcher looks for it every `LOOK_S` and tells the time it was
there, what it got, what it missed, and whether its copy is what was written.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from .roles import Pipe
from .workload import MARKER, expected
from .writers import clone_of

LOOK_S = 0.001
GIVE_UP_S = 60.0


def watchers(pipe: Pipe, kind: str, address: str, n: int) -> None:
    """Run `n` watchers of a kind in `KINDS`; answer with the sums of their figures."""
    lines = [_fork(KINDS[kind], address, LOOK_S * max(1, n // 4)) for _ in range(n)]
    for line in lines:
        line.readline()
    pipe.say(up=n)
    while True:
        todo = json.dumps(pipe.hear()) + "\n"
        for line in lines:
            line.write(todo)
            line.flush()
        for line in lines:
            line.readline()
        pipe.say(ready=n)
        answers = [json.loads(line.readline()) for line in lines]
        pipe.say(
            end=max(a["end"] for a in answers),
            right=sum(a["right"] for a in answers),
            **{key: sum(a[key] for a in answers) for key in ("seen", "holes", "resyncs", "cpu_s")},
        )


def _fork(kind: Callable[[Any, str, float], None], address: str, look_s: float) -> Any:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        code = 1
        try:
            kind(theirs.makefile("rw"), address, look_s)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    return ours.makefile("rw")


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system


def _rounds(line: Any, get: Callable[[], Any], held: dict[Any, Any], look_s: float, stats: Callable[[], Any]) -> None:
    line.write("up\n")
    line.flush()
    while todo := line.readline():
        todo = json.loads(todo)
        cpu, before = _cpu_s(), stats()
        line.write("ready\n")
        line.flush()
        line_marker = todo["marker"].encode()
        until = time.monotonic() + GIVE_UP_S
        while get() != line_marker and time.monotonic() < until:
            time.sleep(look_s)
        end = time.monotonic()
        # The counters change just after the map, so wait for them.
        time.sleep(0.05)
        cpu, after = _cpu_s() - cpu, stats()
        want = expected(todo["sets"], todo["size"])
        right = all(held.get(key) == value for key, value in want.items())
        delta = {key: after[key] - before[key] for key in after}
        line.write(json.dumps({"end": end, "right": right, "cpu_s": cpu, **delta}) + "\n")
        line.flush()


def chp(line: Any, address: str, look_s: float) -> None:
    """Watch with a Clone that holds everything."""
    with clone_of(address) as clone:
        clone.wait_until_synced(timeout=30)

        def stats() -> dict[str, int]:
            got = clone.stats
            resyncs = sum(n for name, n in got.items() if name.startswith("resyncs"))
            return {"seen": got.get("updates_applied", 0), "holes": got.get("holes", 0), "resyncs": resyncs}

        held = clone._shown
        _rounds(line, lambda: held.get(MARKER), held, look_s, stats)


def chp_batches(line: Any, address: str, look_s: float) -> None:
    """Watch with a Clone; read its changes as columns, and keep them."""

    def take(watch: Any, held: dict[Any, Any], count: dict[str, int]) -> None:
        for changes in watch.batches():
            held.update(zip(changes.keys, changes.values, strict=True))
            count["seen"] += len(changes)

    _looping(line, address, look_s, take)


def chp_changes(line: Any, address: str, look_s: float) -> None:
    """Watch with a Clone; read its changes one by one, and keep them."""

    def take(watch: Any, held: dict[Any, Any], count: dict[str, int]) -> None:
        for change in watch:
            held[change.key] = change.value
            count["seen"] += 1

    _looping(line, address, look_s, take)


def _looping(
    line: Any, address: str, look_s: float, take: Callable[[Any, dict[Any, Any], dict[str, int]], None]
) -> None:
    import threading

    from chp_client import Clone

    held: dict[Any, Any] = {}
    count = {"seen": 0, "holes": 0, "resyncs": 0}
    with Clone(address) as clone:
        clone.wait_until_synced(timeout=30)
        watch = clone.watch(queue_max=10_000_000)
        threading.Thread(target=take, args=(watch, held, count), daemon=True).start()
        _rounds(line, lambda: held.get(MARKER), held, look_s, lambda: dict(count))


def redis_keys(line: Any, address: str, look_s: float) -> None:
    """Watch with a subscriber that gets "key value" for each SET, and keep the values."""
    _redis(line, address, look_s, _one)


def redis_packed(line: Any, address: str, look_s: float) -> None:
    """Watch with a subscriber that gets a thousand keys and values packed by hand, and keep them."""
    import msgpack

    def take(held: dict[Any, Any], data: bytes) -> int:
        keys, values = msgpack.unpackb(data)
        held.update(zip(keys, values, strict=True))
        return len(keys)

    _redis(line, address, look_s, take)


def _one(held: dict[Any, Any], data: bytes) -> int:
    key, _, value = data.partition(b" ")
    held[key.decode()] = value
    return 1


def _redis(line: Any, address: str, look_s: float, take: Callable[[dict[Any, Any], bytes], int]) -> None:
    import threading

    import redis

    client = redis.Redis("127.0.0.1", int(address.rpartition(":")[2]))
    held: dict[Any, Any] = {}
    count = {"seen": 0, "holes": 0, "resyncs": 0}
    pubsub = client.pubsub()
    pubsub.subscribe("bench")
    pubsub.get_message(timeout=10)

    def follow() -> None:
        while True:
            try:
                for message in pubsub.listen():
                    if message["type"] == "message":
                        count["seen"] += take(held, message["data"])
            except redis.ConnectionError:
                # Redis cut the subscriber off: the updates of that time are lost without a message.
                count["resyncs"] += 1

    threading.Thread(target=follow, daemon=True).start()
    _rounds(line, lambda: held.get(MARKER), held, look_s, lambda: dict(count))


KINDS = {
    "chp": chp,
    "chp_batches": chp_batches,
    "chp_changes": chp_changes,
    "redis_keys": redis_keys,
    "redis_packed": redis_packed,
}
