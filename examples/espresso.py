"""Espresso: print a line for each message that passes between PUB and SUB programs, or that a live pair publishes.

    python -m examples.espresso

Without arguments it demonstrates both. With two addresses (`python -m examples.espresso tcp://127.0.0.1:6001
tcp://127.0.0.1:6000`) it is a proxy: publishers connect to the first address, subscribers to the second. `python -m
examples.espresso --pair SERVER [SUBTREE]` prints what a server publishes, and changes nothing there. The program is no
Clone and has no keys, so a pair with keys does not admit it.
"""

import sys
from collections.abc import Callable, Generator
from threading import Event, Thread
from typing import Any

import zmq

from chp.batch import decode, segment_of
from chp.headers import Batch, State
from chp_client import Clone

from .pair import servers

# A line is cut to this many characters, because a value may have megabytes.
WIDTH = 120
Socket = zmq.Socket[bytes]


def bound(context: zmq.Context[Socket], publishers: str, subscribers: str) -> tuple[Socket, Socket]:
    """Return the two sides of the proxy. With VERBOSER it sees each subscription, not just the first to a topic."""
    xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
    xsub.bind(publishers)
    xpub.bind(subscribers)
    return xsub, xpub


def proxy(xsub: Socket, xpub: Socket, show: Callable[[str], object], stop: Event) -> None:
    """Pass on each message of either side unchanged, and print it."""
    while not stop.is_set():
        ready, _, _ = zmq.select([xsub, xpub], [], [], 0.1)
        if xsub in ready:
            frames = xsub.recv_multipart()
            xpub.send_multipart(frames)
            show(f"-> {' '.join(map(repr, frames)):.{WIDTH}}")
        if xpub in ready:
            said = xpub.recv()
            xsub.send(said)
            what = {b"\x00": "unsubscribed", b"\x01": "subscribed"}.get(said[:1], "<-")
            show(f"{what} {said[1:]!r:.{WIDTH}}")


def of_pair(server: str, subtree: str = "") -> Generator[tuple[Any, str], None, None]:
    """Yield the header and a line of text of each GREETING, BATCH and HEARTBEAT of a server for a subtree."""
    host, _, port = server.rpartition(":")
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.connect(f"{host}:{int(port) + 1}")
        sub.subscribe(b"\x02" + subtree.encode() + b"\x03")  # the channel (SPEC.md, section 13)
        while True:
            header, items = decode(sub.recv_multipart()[4])
            segments = " ".join(segment_of(item).describe() for item in items) if isinstance(header, Batch) else ""
            yield header, f"{header.describe(segments):.{WIDTH}}"


def demo_proxy() -> None:
    """Run a publisher and a subscriber that know nothing of the proxy between them."""
    stop = Event()
    with zmq.Context() as context:
        sides = bound(context, "inproc://publishers", "inproc://subscribers")
        thread = Thread(target=proxy, args=(*sides, print, stop))
        thread.start()
        with context.socket(zmq.XPUB) as publisher, context.socket(zmq.SUB) as subscriber:
            publisher.connect("inproc://publishers")
            subscriber.connect("inproc://subscribers")
            subscriber.subscribe(b"weather.")
            # An XPUB socket receives subscriptions, so the publisher waits here for the subscriber.
            publisher.recv()
            publisher.send_multipart([b"weather.oslo", b"-3"])
            print("received", *subscriber.recv_multipart())
        stop.set()
        thread.join()
        for side in sides:
            side.close()


def demo_pair(pair: list[str]) -> None:
    """Print the greeting of each server, and the first BATCH of the active, which has our own set."""
    with Clone(pair, None) as clone:
        for server in pair:
            lines = of_pair(server)
            header, line = next(lines)
            print(line)
            if header.state == State.ACTIVE:
                clone.set("/weather/oslo", b"-3").wait(10)
                while not isinstance(header, Batch):
                    header, line = next(lines)
                print(line)
            lines.close()


def main() -> None:
    """Run the proxy, print what a server publishes, or demonstrate both, as the arguments say."""
    if sys.argv[1:2] == ["--pair"]:
        for _, line in of_pair(*sys.argv[2:4]):
            print(line, flush=True)
    elif len(sys.argv) == 3:
        with zmq.Context() as context:
            proxy(*bound(context, *sys.argv[1:]), lambda line: print(line, flush=True), Event())
    else:
        demo_proxy()
        with servers() as pair:
            demo_pair(pair)


if __name__ == "__main__":
    main()
