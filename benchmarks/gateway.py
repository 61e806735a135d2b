"""What HTTP costs: one chp-gateway beside an AsyncClone and a bare Starlette application, in the same run.

There is a lone server in memory and one gateway. One process has connections on the loopback, each with one request
under way; it only writes requests and counts answers. An AsyncClone with as many tasks makes awaited sets. Every answer
has to be a 200. Readers of changes note how old each change is when it arrives.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import selectors
import socket
import sys
import time
import urllib.request
from contextlib import ExitStack
from typing import Any, cast

from .roles import Meter, Pipe, Process, Role, closing_all
from .rounds import Round, in_turn, percentiles, ratio, summary
from .servers import ChpServer, connects, free_port, wait_until

CONNECTIONS = 64
KEYS = 1000
VALUE = b"v" * 100
ROWS = 1000  # of a batch
# The batches of the POSTs. The connections take these batches in turn.
BATCHES = 8
READERS, CHANGES = 1000, 100  # readers of changes, changes a second
SECONDS = (6.0, 2.0)  # whole, quick
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
BARE = """
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def read(request):
    return Response(b"v" * 100, media_type="application/octet-stream")
uvicorn.run(Starlette(routes=[Route("/v1/keys/{key:path}", read)]), port=%d, access_log=False, log_level="error")
"""


class HttpProcess(Process):
    """A child that serves HTTP on a port."""

    def __init__(self, port: int, *command: str) -> None:
        self.port = port
        super().__init__([sys.executable, *command], f"what listens on {port}")
        wait_until(lambda: connects(port), self)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure reads, awaited sets, batches, and readers of changes."""
    rounds = 2 if quick else 5
    with closing_all() as keep:
        server, ports = keep(ChpServer()), (free_port(1), free_port(1))
        listen = ("--servers", server.address, "--listen", f"127.0.0.1:{ports[0]}")
        gateway = keep(HttpProcess(ports[0], "-c", "from chp_client.gateway import main; main()", *listen))
        bare = keep(HttpProcess(ports[1], "-c", BARE % ports[1]))
        clones, http = keep(Role(awaiting, address=server.address)), keep(Role(asking))
        clones.hear()
        answered = _answered_by(http, SECONDS[quick])
        _make_topic(gateway.port)
        seen = keep(Role(reading, port=gateway.port))
        for_s, put = SECONDS[quick], "PUT of a key, awaited"
        cases: dict[str, tuple[dict[str, Any], str]] = {
            put: (
                {"chp-gateway": answered("put", gateway), "chp AsyncClone.set": lambda: _awaited(clones, for_s)},
                "rate",
            ),
            "GET of a key": (
                {"chp-gateway": answered("get", gateway), "bare Starlette": answered("get", bare)},
                "rate",
            ),
            f"POST of {ROWS} keys, keys": ({"chp-gateway": answered("post", gateway)}, "rate"),
            f"POST of {ROWS} messages, messages": ({"chp-gateway": answered("publish", gateway)}, "rate"),
            f"{READERS} readers, {CHANGES} changes/s": ({"chp-gateway": lambda: _seen(seen, gateway, for_s)}, "p99_us"),
        }
        made = {name: _case(*case, rounds) for name, case in cases.items()}
    return {"title": "The gateway: HTTP on one connection each", "unit": "/s", "cases": made}


def _make_topic(port: int) -> None:
    """Make a topic that keeps at most 64 MiB of messages."""
    settings = json.dumps({"keep": "size", "max_bytes": 64 << 20}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/topics/bench", settings, method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201


def _case(contenders: Any, figure: str, rounds: int) -> dict[str, Any]:
    results = in_turn(contenders, rounds)
    case: dict[str, Any] = {"contenders": {name: summary(each) for name, each in results.items()}, "raw": results}
    if len(results) == 2:
        ours, theirs = results
        case[f"ratio_to_{theirs.replace(' ', '_')}"] = ratio(results, figure, ours, theirs)
    return case


def _answered_by(http: Role, seconds: float) -> Any:
    def of(kind: str, server: HttpProcess) -> Any:
        def act() -> Round:
            meter = Meter(server=server)
            said = http.ask(kind=kind, port=server.port, seconds=seconds)
            return {"rate": said["n"] / said["seconds"], **percentiles(said["took"]), **meter.read(said["n"])}

        return act

    return of


def _awaited(clones: Role, seconds: float) -> Round:
    said = clones.ask(seconds=seconds)
    return {"rate": said["n"] / said["seconds"], **percentiles(said["took"])}


def _seen(seen: Role, gateway: HttpProcess, seconds: float) -> Round:
    meter = Meter(server=gateway)
    said = seen.ask(seconds=seconds)
    assert said["events"] == said["wanted"], f"{said['events']} events of {said['wanted']} came"
    return {**percentiles(said["took"]), "events": said["events"], **meter.read(said["events"])}


# -- the client: one process that does as little as possible for each answer


def _requests(kind: str, port: int) -> itertools.cycle[bytes]:
    host = f"Host: 127.0.0.1:{port}\r\n"
    if kind == "get":
        made = [f"GET /v1/keys/bench/{i} HTTP/1.1\r\n{host}\r\n".encode() for i in range(KEYS)]
    elif kind == "put":
        head = f"{host}Content-Length: {len(VALUE)}\r\n\r\n"
        made = [f"PUT /v1/keys/bench/{i} HTTP/1.1\r\n{head}".encode() + VALUE for i in range(KEYS)]
    elif kind == "publish":
        made = [_rows("/v1/topics/bench/messages", host, [{"value": VALUE.decode()}] * ROWS)]
    else:
        keys = [[f"/batch/{batch}/{i}" for i in range(ROWS)] for batch in range(BATCHES)]
        made = [_rows("/v1/batch", host, [{"set": key, "value": VALUE.decode()} for key in each]) for each in keys]
    return itertools.cycle(made)


def _rows(path: str, host: str, rows: list[dict[str, str]]) -> bytes:
    body = "\n".join(map(json.dumps, rows)).encode()
    head = f"{host}Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"POST {path} HTTP/1.1\r\n{head}".encode() + body


def asking(pipe: Pipe) -> None:
    """Send a request after each answer. Tell the parent, for each round, the number of requests and their durations."""
    while True:
        words = pipe.hear()
        kind, n = words["kind"], 4 if words["kind"] in ("post", "publish") else CONNECTIONS
        begin = time.monotonic()
        took = _ask(kind, words["port"], n, words["seconds"])
        each = ROWS if kind in ("post", "publish") else 1
        pipe.say(n=len(took) * each, seconds=time.monotonic() - begin, took=took)


def _ask(kind: str, port: int, connections: int, seconds: float) -> list[float]:
    requests, took, begun = _requests(kind, port), list[float](), dict[socket.socket, float]()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ, bytearray())
            begun[each] = time.monotonic()
            each.sendall(next(requests))
        while begun:
            for key, _ in selector.select(1.0):
                one = cast(socket.socket, key.fileobj)
                key.data.extend(one.recv(1 << 16))
                if not _answered(key.data):
                    continue
                now = time.monotonic()
                took.append(now - begun.pop(one))
                if now < until:
                    begun[one] = now
                    one.sendall(next(requests))
    for each in sockets:
        each.close()
    return took


def _answered(data: bytearray) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0 or (found := LENGTH.search(data, 0, end)) is None:
        return False
    if len(data) < end + 4 + int(found[1]):
        return False
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(bytes(data[:500]).decode())
    data.clear()
    return True


def awaiting(pipe: Pipe, address: str) -> None:
    """Run a task for each connection of the gateway; each sets a key and waits."""
    asyncio.run(_awaiting(pipe, address))


async def _awaiting(pipe: Pipe, address: str) -> None:
    from chp_client import AsyncClone

    async with AsyncClone(address) as clone:
        await clone.wait_until_synced(60)
        pipe.say(up=True)
        while True:
            seconds = (await asyncio.to_thread(pipe.hear))["seconds"]
            begin, took = time.monotonic(), list[float]()

            async def work(first: int, until: float, took: list[float]) -> None:
                for i in itertools.count(first, CONNECTIONS):
                    before = time.monotonic()
                    if before > until:
                        return
                    await clone.set(f"/bench/{i % KEYS}", VALUE)
                    took.append(time.monotonic() - before)

            await asyncio.gather(*(work(i, begin + seconds, took) for i in range(CONNECTIONS)))
            pipe.say(n=len(took), seconds=time.monotonic() - begin, took=took)


# -- readers of changes


def reading(pipe: Pipe, port: int) -> None:
    """Run many readers of changes. The same process makes the changes; each has the time at which it was made."""
    while True:
        seconds = pipe.hear()["seconds"]
        wanted = int(seconds * CHANGES)
        took = _read(port, wanted)
        pipe.say(events=len(took), wanted=wanted * READERS, took=took[:: max(1, len(took) // 100_000)])


def _read(port: int, wanted: int) -> list[float]:
    ask = f"GET /v1/watch?prefix=/seen/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    mark, took = re.compile(rb'"value":"t([0-9.]+)'), list[float]()
    with selectors.DefaultSelector() as selector, ExitStack() as keep:
        rest: dict[socket.socket, bytes] = {}
        for _ in range(READERS):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(ask)
            rest[one] = b""
            selector.register(one, selectors.EVENT_READ)
        for one in list(rest):
            begun = b""
            while b"event: current" not in begun:
                begun += one.recv(1 << 16)
                assert begun.startswith(b"HTTP/1.1 200"), begun[:500].decode()
        writer = keep.enter_context(socket.create_connection(("127.0.0.1", port)))  # one that asks nothing ends
        selector.register(writer, selectors.EVENT_READ)
        made, due = 0, time.monotonic()
        quiet_until = due + wanted / CHANGES + 30
        while len(took) < wanted * READERS and time.monotonic() < quiet_until:
            now = time.monotonic()
            if made < wanted and now >= due:
                value = f"t{now:.6f}"
                head = (
                    f"PUT /v1/keys/seen/{made % 50} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(value)}"
                )
                writer.sendall(f"{head}\r\n\r\n{value}".encode())
                made, due = made + 1, due + 1 / CHANGES
            for key, _ in selector.select(max(0.0, due - time.monotonic()) if made < wanted else 0.1):
                reader = cast(socket.socket, key.fileobj)
                data = rest.get(reader, b"") + reader.recv(1 << 18)
                whole, _, rest[reader] = data.rpartition(b"\n\n")
                now = time.monotonic()
                took += [now - float(each) for each in mark.findall(whole)]
        for one in rest:
            one.close()
    return took
