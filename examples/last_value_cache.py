"""The last-value cache of the Guide between plain PUB and SUB programs: a late subscriber gets the last value at once.

    python -m examples.last_value_cache

Without arguments it is a demonstration. With two addresses (`python -m examples.last_value_cache
tcp://127.0.0.1:5557 tcp://127.0.0.1:5558`) it is the cache: publishers of [topic, value] connect to the first address,
subscribers to the second. A subscription to the whole name of a topic is answered with its last value; other
subscribers do not get that value again. A subscription to a prefix gets new messages only. Every message is passed on.
A message without two frames is not kept, nor is one whose topic cannot be a key.

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
# A socket queues at most this many messages for one program. A PUB or XPUB socket drops the rest.
WAITING_MAX = 100_000
Socket = zmq.Socket[bytes]


def bound(context: zmq.Context[Socket], publishers: str, subscribers: str) -> tuple[Socket, Socket]:
    """Return the socket that receives values and the socket that sends them.

    MANUAL lets the cache see each subscription before it takes effect.
    """
    into, out = context.socket(zmq.SUB), context.socket(zmq.XPUB)
    out.setsockopt(zmq.XPUB_MANUAL, 1)
    out.sndhwm = into.rcvhwm = WAITING_MAX
    into.subscribe(b"")
    into.bind(publishers)
    out.bind(subscribers)
    return into, out


def serve(clone: Clone, into: Socket, out: Socket, stop: Event) -> None:
    """Pass on and keep values. `clone` holds SUBTREE and is synced."""
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
    """Keep the last value of a topic. The Clone sends it to the pair in the background."""
    try:
        topic, value = frames
        clone.set(SUBTREE + topic.decode(), value)
    # The message does not have two frames, or its topic is not UTF-8 or is too long.
    except (ValueError, ChpError) as error:
        print(f"not kept: {frames!r:.80}: {error}", file=sys.stderr)


def send_to_last(out: Socket, frames: list[bytes]) -> None:
    """Send only to the subscriber whose subscription was received last."""
    out.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 1)
    out.send_multipart(frames)
    # Setting this option to 0 ends both modes, so MANUAL is set again.
    out.setsockopt(zmq.XPUB_MANUAL_LAST_VALUE, 0)
    out.setsockopt(zmq.XPUB_MANUAL, 1)


def run(pair: list[str], publishers: str, subscribers: str, stop: Event) -> None:
    """Run the cache until `stop`."""
    with Clone(pair, SUBTREE) as clone, zmq.Context() as context:
        # The cache is complete before the first subscriber can connect.
        clone.wait_until_synced(30)
        into, out = bound(context, publishers, subscribers)
        with into, out:
            print("the cache has", len(clone), "topics", flush=True)
            serve(clone, into, out, stop)


def main() -> None:
    """Run the cache; or demonstrate it with 1,000 topics and a subscriber that comes late."""
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
            # An XPUB socket receives subscriptions. When the first has arrived, the cache listens.
            publisher.recv()
            for n in range(1000):
                publisher.send_multipart([b"%03d" % n, b"save %d" % n])
            # The cache sends its sets in batches. Wait at most 10 s until all of them are in this Clone.
            for _ in range(1000):
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
