"""How long one thing takes: a set until it is acknowledged; an update until a watcher in another process has it.

    awaited   one set after another, each awaited       beside Redis SET, and a bare pyzmq relay there and back;
                                                        by ports, and by the files of --ipc
    watched   1,000 sets a second, not awaited          beside Redis SET + PUBLISH; from the call to the watcher's loop

Both processes read the same monotonic clock. No program that uses these sockets can be faster than the relay.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from .chp1 import relay_helpers
from .roles import Meter, Pipe, Role, closing_all
from .rounds import Round, in_turn, percentiles, summary
from .servers import ChpPair, ChpServer, Redis, free_port, redis_program, wait_in_sync
from .writers import clone_of

KEYS = [f"/one/{i:03d}" for i in range(100)]
VALUE = b"v" * 100
KINDS_OF_VALUES = 4
PACE_S = 0.001
_STAMP = struct.Struct("<d")


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both cases."""
    return {
        "title": "How long one set takes",
        "unit": "us",
        "cases": {"one set awaited": awaited(quick), "update to watcher at 1,000/s": watched(quick)},
    }


def awaited(quick: bool) -> dict[str, Any]:
    """Measure one set, awaited."""
    sets, rounds = (500, 2) if quick else (3000, 5)
    with closing_all() as keep:
        contenders = {name: keep(Awaited(name)) for name in ("chp", "chp by a file", "relay")}
        if redis_program():
            contenders["redis"] = keep(Awaited("redis"))
        for lane in contenders.values():
            lane.round(200)
        results = in_turn({name: partial(lane.round, sets) for name, lane in contenders.items()}, rounds)
    return {"contenders": {name: summary(rounds) for name, rounds in results.items()}, "raw": results}


class Awaited:
    """A server and one client."""

    def __init__(self, store: str, keyed: tuple[Any, str] | None = None) -> None:
        self.server: Any
        self._files = tempfile.TemporaryDirectory(prefix="chp-")
        if keyed is not None:
            self.server, address = keyed
            self.client = Role(awaiter, kind="chp", address=address)
            self.client.hear()
            return
        if store == "relay":
            port = free_port()
            self.server = Role(relay_helpers, port=port)
            self.server.hear()
        else:
            files: dict[str, Any] = (
                {"ipc": self._files.name} if store == "chp by a file" else {}
            )  # older servers have no --ipc
            self.server = Redis() if store == "redis" else ChpServer(**files)
            port = self.server.port
        address = f"ipc://{self._files.name}/{port}" if store == "chp by a file" else f"tcp://127.0.0.1:{port}"
        self.client = Role(awaiter, kind=store.partition(" ")[0], address=address)
        self.client.hear()

    def round(self, sets: int, size: int = len(VALUE)) -> Round:
        """Return one measurement."""
        meter = Meter(client=self.client, server=self.server)
        took = self.client.ask(sets=sets, size=size)["took"]
        return {**percentiles(took), **meter.read(sets)}

    def close(self) -> None:
        """End both."""
        self.client.close()
        self.server.close()
        self._files.cleanup()


def awaiter(pipe: Pipe, kind: str, address: str) -> None:
    """Set a key and wait, again and again; answer with the duration of each set."""
    put = {"chp": _chp, "redis": _redis, "relay": _relay}[kind](address)
    pipe.say(up=True)
    while True:
        todo, took = pipe.hear(), []
        values = [bytes([65 + i]) * todo["size"] for i in range(KINDS_OF_VALUES)]
        for i in range(todo["sets"]):
            begin = time.monotonic()
            put(KEYS[i % len(KEYS)], values[i % KINDS_OF_VALUES])
            took.append(time.monotonic() - begin)
        pipe.say(took=took)


def _chp(address: str) -> Callable[[str, bytes], Any]:
    clone = clone_of(address)
    clone.wait_until_synced(timeout=30)
    return lambda key, value: clone.set(key, value).wait(30)


def _redis(address: str) -> Callable[[str, bytes], Any]:
    import redis

    client = redis.Redis("127.0.0.1", _port(address))
    setter: Callable[[str, bytes], Any] = client.set
    return setter


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _relay(address: str) -> Callable[[str, bytes], Any]:
    context, port = zmq.Context(), _port(address)
    out, back = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    back.subscribe(b"")
    back.connect(f"tcp://127.0.0.1:{port + 1}")
    out.connect(f"tcp://127.0.0.1:{port + 2}")
    out.recv()

    def put(key: str, value: bytes) -> None:
        out.send_multipart([key.encode(), b"\0" * 8, b"", b"", value])
        back.recv_multipart()

    # Send probes until our subscription has arrived at the relay.
    while True:
        out.send_multipart([b"probe"] * 5)
        if back.poll(50):
            break
    while back.poll(100):
        back.recv_multipart()
    return put


def watched(quick: bool) -> dict[str, Any]:
    """Measure the time from an update to the watcher, at a steady pace."""
    sets, rounds = (500, 2) if quick else (3000, 5)
    with closing_all() as keep:
        contenders = {"chp": keep(Watched("chp"))}
        if redis_program():
            contenders["redis"] = keep(Watched("redis"))
        for lane in contenders.values():
            lane.round(100)
        results = in_turn({name: partial(lane.round, sets) for name, lane in contenders.items()}, rounds)
    return {"contenders": {name: summary(rounds) for name, rounds in results.items()}, "raw": results}


class AwaitedOfPair:
    """A pair in sync and one client; `settings` are those of the servers."""

    def __init__(self, **settings: Any) -> None:
        self.pair = ChpPair(**settings)
        wait_in_sync(self.pair)
        self.client = Role(awaiter, kind="chp", address=",".join(self.pair.addresses))
        self.client.hear()

    def round(self, sets: int) -> Round:
        """Return one measurement."""
        meter = Meter(client=self.client, server=self.pair.servers[0], backup=self.pair.servers[1])
        took = self.client.ask(sets=sets, size=len(VALUE))["took"]
        return {**percentiles(took), **meter.read(sets)}

    def close(self) -> None:
        """End all."""
        self.client.close()
        self.pair.close()


class Watched:
    """A server, a writer that keeps a pace, and watchers."""

    def __init__(self, store: str, n: int = 1) -> None:
        self.server: Any = ChpServer() if store == "chp" else Redis()
        self.watchers = [Role(watcher, kind=store, port=self.server.port) for _ in range(n)]
        for each in self.watchers:
            each.hear()
        self.writer = Role(pacer, kind=store, port=self.server.port)
        self.writer.hear()

    def round(self, sets: int) -> Round:
        """Return one measurement; the processor time is that of the first watcher."""
        meter = Meter(writer=self.writer, server=self.server, watcher=self.watchers[0])
        for each in self.watchers:
            each.say(sets=sets)
        self.writer.ask(sets=sets)
        took = [seconds for each in self.watchers for seconds in each.hear()["took"]]
        return {**percentiles(took), **meter.read(sets)}

    def close(self) -> None:
        """End all."""
        for process in (self.writer, *self.watchers, self.server):
            process.close()


def pacer(pipe: Pipe, kind: str, port: int) -> None:
    """Make 1,000 sets a second; each value is the moment of its set."""
    put: Callable[[str, bytes], Any]
    if kind == "chp":
        from chp_client import Clone

        clone = Clone(f"tcp://127.0.0.1:{port}")
        clone.wait_until_synced(timeout=30)
        put = clone.set
    else:
        import redis

        client = redis.Redis("127.0.0.1", port)

        def put(key: str, value: bytes) -> None:
            pipeline = client.pipeline(transaction=False)
            pipeline.set(key, value)
            pipeline.publish("bench", value)
            pipeline.execute()

    pipe.say(up=True)
    while True:
        sets = pipe.hear()["sets"]
        # The pace begins now, so this round does not make up for the time before it.
        due = time.monotonic()
        for i in range(sets):
            due += PACE_S
            time.sleep(max(0.0, due - time.monotonic()))
            put(KEYS[i % len(KEYS)], _STAMP.pack(time.monotonic()).ljust(100, b"."))
        pipe.say(done=True)


def watcher(pipe: Pipe, kind: str, port: int) -> None:
    """Follow the updates, and tell how old each update was when it came."""
    if kind == "chp":
        from chp_client import Clone

        clone = Clone(f"tcp://127.0.0.1:{port}")
        clone.wait_until_synced(timeout=30)
        changes = (change.value for change in clone.watch("/one/"))
    else:
        import redis

        pubsub = redis.Redis("127.0.0.1", port).pubsub()
        pubsub.subscribe("bench")
        pubsub.get_message(timeout=10)
        changes = (message["data"] for message in pubsub.listen() if message["type"] == "message")
    pipe.say(up=True)
    while True:
        sets = pipe.hear()["sets"]
        took = []
        for _ in range(sets):
            value = next(changes)
            took.append(time.monotonic() - _STAMP.unpack_from(value)[0])
        pipe.say(took=took)
