"""How many of our functions one HTTP PUT calls, and in how many files: the gateway's loop and its client's agent.

    python -m benchmarks.journeys_http

A server in memory, a gateway and one connection are in this process. `sys.setprofile` counts in the threads of the
gateway while one plain PUT passes, from its first byte to its answer. The figure is the median of many PUTs, so that a
heartbeat that falls into one of them does not count.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple

from chp_client.gateway.main import arguments, server_of
from chp_server.testing import TestServer

OURS = ("/chp/", "/chp_client/")
ROUNDS = 101
WARM_UP = 10
# After the answer, the agent has this long to take the record of the update.
PAUSE_S = 0.02
LOOP, AGENT = "gateway", "chp-agent-gateway"
THREADS = (LOOP, AGENT)


class Step(NamedTuple):
    """The calls of one thread while one PUT passed."""

    calls: int
    files: int
    hops: int


class CallCounter:
    """A counter of the calls of our functions, in all threads that start after its installation."""

    def __init__(self) -> None:
        self.counts = False
        self.calls: dict[str, list[tuple[str, str]]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note one call, as a profile function of `sys.setprofile`."""
        if self.counts and event == "call":
            code = frame.f_code
            if any(part in code.co_filename for part in OURS) and "/tests/" not in code.co_filename:
                thread = threading.current_thread().name
                self.calls.setdefault(thread, []).append((code.co_filename, code.co_qualname))


def step(calls: list[tuple[str, str]]) -> Step:
    """Return how many calls there were, in how many files, and how often the next call was in another file."""
    files = [file for file, _ in calls]
    hops = sum(before != after for before, after in pairwise(files))
    return Step(len(calls), len(set(files)), hops)


def http_put_journey(rounds: int = ROUNDS, headers: str = "") -> dict[str, Step]:
    """Return the median step of the loop and of the agent; `headers` make a PUT that is not plain."""
    return {name: _median([step(each) for each in seen]) for name, seen in _recorded(rounds, headers).items()}


def _recorded(rounds: int, headers: str) -> dict[str, list[list[tuple[str, str]]]]:
    counter = CallCounter()
    threading.setprofile(counter)
    found: dict[str, list[list[tuple[str, str]]]] = {thread: [] for thread in THREADS}
    try:
        with (
            TestServer() as server,
            _gateway(server.address) as port,
            socket.create_connection(("127.0.0.1", port)) as one,
        ):
            for i in range(WARM_UP + rounds):
                request = f"PUT /v1/keys/journey/{i} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}"
                counter.calls.clear()
                counter.counts = True
                one.sendall(f"{request}Content-Length: 1\r\n\r\n1".encode())
                answer = _answer(one)
                time.sleep(PAUSE_S)
                counter.counts = False
                assert answer.startswith(b"HTTP/1.1 200"), answer
                for thread, calls in found.items():
                    calls.append(counter.calls.get(thread, []))
    finally:
        threading.setprofile(None)
    return {thread: calls[WARM_UP:] for thread, calls in found.items()}


@contextmanager
def _gateway(address: str) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = server_of(arguments().parse_args(["--servers", address, "--listen", f"127.0.0.1:{port}"]))
    thread = threading.Thread(target=server.run, args=([listener],), name=LOOP, daemon=True)
    thread.start()
    while not _is_ready(port):
        time.sleep(0.05)
    try:
        yield port
    finally:
        server.handle_exit(15, None)
        thread.join(20)
        listener.close()


def _is_ready(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(f"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        return _answer(one).startswith(b"HTTP/1.1 200")


def _answer(one: socket.socket) -> bytes:
    data = b""
    while b"}\n" not in data and not data.endswith(b"}"):
        data += one.recv(1 << 16)
    return data


def _median(steps: list[Step]) -> Step:
    return Step(*(int(statistics.median_low(column)) for column in zip(*steps, strict=True)))


def main() -> None:
    """Print the figures, and with `--calls` the calls of one typical PUT in the gateway's loop."""
    for name, headers in (("plain", ""), ("by the parser", "X-Any: 1\r\n")):
        found = _recorded(ROUNDS, headers)
        figures = {thread: _median([step(each) for each in seen])._asdict() for thread, seen in found.items()}
        print(json.dumps({"PUT": name, **figures}))
        if "--calls" in sys.argv:
            wanted = figures[LOOP]["calls"]
            typical = next(each for each in found[LOOP] if len(each) == wanted)
            for place, count in Counter(typical).items():
                print(f"  {count}  {place[0].rpartition('/chp')[2]}: {place[1]}")


if __name__ == "__main__":
    main()
