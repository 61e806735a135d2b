"""The last-value cache of the Guide between plain PUB and SUB programs: who comes late has the last value at once.

    python -m examples.last_value_cache

That is a demonstration. With two addresses, as of `python -m examples.last_value_cache tcp://127.0.0.1:5557
tcp://127.0.0.1:5558`, it is the cache: publishers of [topic, value] connect to the first, subscribers to the second. A
subscription to a topic's whole name is answered with its last value, which nobody else is given again; one to a prefix
has what comes. Every message is passed on; one that has not two frames, or a topic that can't be a key, is not kept.

The values are keys under /lvc/ of the pair: they survive a kill -9 of the cache, and Clones and Spark read them.
"""

import os
import sys
from threading import Event, Thread

import zmq

from chp.errors import ChpError
from chp_client import Clone

from .pair import servers

SUBTREE = "/lvc/"
WAITING_MAX = 100_000  # messages on their way to one program: beyond that a PUB socket drops them, as it does
Socket = zmq.Socket[bytes]


def bound(context: zmq.Context[Socket], publishers: str, subscribers: str) -> tuple[Socket, Socket]:
    """Where values come in, and where they go out; MANUAL: each subscription is told, and takes effect as we say."""
    into, out = context.socket(zmq.SUB), context.socket(zmq.XPUB)
    out.setsockopt(zmq.XPUB_MANUAL, 1)
    out.sndhwm = into.rcvhwm = WAITING_MAX
    into.subscribe(b"")
    into.bind(publishers)
    out.bind(subscribers)
    return into, out


def serve(clone: Clone, into: Socket, out: Socket, stop: Event) -> None:
    """Pass on and keep; `clone` has SUBTREE and is synced."""
    while not stop.is_set():
        ready, _, _ = zmq.select([into, out], [], [], 0.1)
        if into in ready:
            frames = into.recv_multipart()
            out.send_multipart(frames)
            keep(clone, frames)
        if out in ready:
            said = out.recv()
            if said[:1] == b"\x01":
                out.subscribe(said[1:])
                value = clone.get(SUBTREE + said[1:].decode("utf-8", "surrogateescape"))
                if value is not None:
                    send_to_last(out, [said[1:], value])
            elif said[:1] == b"\x00":
                out.unsubscribe(said[1:])


def keep(clone: Clone, frames: list[bytes]) -> None:
    """The value is the topic's last; the pair is told in the background."""
    try:
        topic, value = frames
        clone.set(SUBTREE + topic.decode(), value)
    except (ValueError, ChpError) as error:  # not two frames, not UTF-8, too long
        print(f"not kept: {frames!r:.80}: {error}", file=sys.stderr)


def send_to_last(out: Socket, frames: list[bytes]) -> None:
    """Send to him alone whose subscription was received last."""
    out.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)
    out.send_multipart(frames)
    out.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 0)  # this ends both
    out.setsockopt(zmq.XPUB_MANUAL, 1)


def run(pair: list[str], publishers: str, subscribers: str, stop: Event) -> None:
    """The cache, until `stop`."""
    with Clone(pair, SUBTREE) as clone, zmq.Context() as context:
        clone.wait_until_synced(30)  # before anybody can ask
        into, out = bound(context, publishers, subscribers)
        with into, out:
            print("the cache has", len(clone), "topics", flush=True)
            serve(clone, into, out, stop)


def main() -> None:
    """The cache; or a publisher of 1,000 topics, each once, and a subscriber who comes when all is over."""
    with servers() as pair:
        if len(sys.argv) == 3:
            run(pair, sys.argv[1], sys.argv[2], Event())
            return
        publishers, subscribers = (f"ipc://@chp-lvc-{os.getpid()}-{side}" for side in ("in", "out"))
        stop = Event()
        cache = Thread(target=run, args=(pair, publishers, subscribers, stop))
        cache.start()
        with zmq.Context() as context, context.socket(zmq.XPUB) as publisher, Clone(pair, SUBTREE) as clone:
            publisher.sndhwm = WAITING_MAX
            publisher.connect(publishers)
            publisher.recv()  # the cache has subscribed: an XPUB is a PUB that is told
            for n in range(1000):
                publisher.send_multipart([b"%03d" % n, b"save %d" % n])
            for _ in range(1000):  # at most 10 s: the cache's sets travel in batches
                if len(clone) < 1000:
                    Event().wait(0.01)
            with context.socket(zmq.SUB) as late:
                late.connect(subscribers)
                late.subscribe(b"042")
                print("late, and at once:", *late.recv_multipart())
            print("a Clone has", len(clone), "topics, 042 is", clone[SUBTREE + "042"])
        stop.set()
        cache.join()


if __name__ == "__main__":
    main()
