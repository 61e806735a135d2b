"""covers: examples/espresso.py and examples/last_value_cache.py as programs between plain PUB and SUB sockets."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from chp_client import Clone
from chp_server.testing import Pair, free_port
from examples import espresso

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 30_000
Socket = zmq.Socket[bytes]
Child = subprocess.Popen[str]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    yield made
    made.destroy(linger=0)


@contextmanager
def program(name: str, *arguments: str, **more: str) -> Iterator[Child]:
    command = [sys.executable, "-m", f"examples.{name}", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ | more, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def publisher(context: zmq.Context[Socket], address: str) -> Socket:
    """Return an XPUB that has received its first subscription."""
    made = context.socket(zmq.XPUB)
    # A thousand messages at once must not be dropped.
    made.rcvtimeo, made.sndhwm = PATIENCE_MS, 10_000
    made.connect(address)
    made.recv()
    return made


def subscriber(context: zmq.Context[Socket], address: str, topic: bytes) -> Socket:
    made = context.socket(zmq.SUB)
    made.rcvtimeo, made.rcvhwm = PATIENCE_MS, 10_000
    made.connect(address)
    made.subscribe(topic)
    return made


def said(child: Child) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def two_addresses() -> list[str]:
    port = free_port()
    return [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"]


def test_espresso_forwards_and_shows_subscriptions_and_messages(context: zmq.Context[Socket]) -> None:
    into, out = two_addresses()
    with program("espresso", into, out) as child:
        first, second = subscriber(context, out, b"a"), None
        assert said(child) == "subscribed b'a'"
        source = publisher(context, into)
        source.send_multipart([b"b", b"for nobody"])
        source.send_multipart([b"a\xff", b"1", b"x" * 1000])
        assert first.recv_multipart() == [b"a\xff", b"1", b"x" * 1000], "and what nobody wants was not sent"
        assert said(child) == f"-> b'a\\xff' b'1' b'{'x' * 1000}'"[: espresso.WIDTH + 3]
        second = subscriber(context, out, b"a")
        assert said(child) == "subscribed b'a'", "each of them is shown"
        first.unsubscribe(b"a")
        assert said(child) == "unsubscribed b'a'"
        source.send_multipart([b"a", b"2"])
        assert second.recv_multipart() == [b"a", b"2"]


def test_espresso_shows_the_greeting_and_batches_of_a_pair(pair: Pair) -> None:
    with program("espresso", "--pair", pair.servers[0], "/a/") as child, Clone(pair.servers, None) as clone:
        assert said(child).startswith("GREETING ACTIVE 1.")
        clone.set("/b/c", b"1").wait(10)
        revision = clone.set("/a/b", b"2").wait(10).revision
        shown = said(child)
        while shown.startswith("HEARTBEAT "):
            shown = said(child)
        assert shown.startswith(f"BATCH #{revision} /a/b=2 (after ")


def test_a_late_subscriber_gets_the_last_value_even_from_a_restarted_cache(
    pair: Pair, context: zmq.Context[Socket]
) -> None:
    into, out = two_addresses()
    servers = {"CHP_SERVERS": ",".join(pair.servers)}
    with program("last_value_cache", into, out, **servers) as cache:
        assert said(cache) == "the cache has 0 topics"
        source = publisher(context, into)
        source.send_multipart([b"only one frame"])
        source.send_multipart([b"first", b"0"])
        with Clone(pair.servers, "/lvc/") as clone, clone.watch("/lvc/first", start="snapshot") as changes:
            assert changes.get(timeout=30).value == b"0"
        early = subscriber(context, out, b"")
        early.subscribe(b"first")
        assert early.recv_multipart() == [b"first", b"0"], "by now it is subscribed to both"
        for n in range(1000):
            source.send_multipart([b"%03d" % n, b"1"])
        assert [early.recv_multipart() for _ in range(1000)] == [[b"%03d" % n, b"1"] for n in range(1000)]
        late = subscriber(context, out, b"042")
        assert late.recv_multipart() == [b"042", b"1"]
        # The socket is XPUB_VERBOSER, so the cache also hears of the second subscriber of a topic.
        later, unknown = subscriber(context, out, b"042"), subscriber(context, out, b"none")
        assert later.recv_multipart() == [b"042", b"1"]
        source.send_multipart([b"\xff", b"is no key"])
        source.send_multipart([b"none", b"1"])
        assert unknown.recv_multipart() == [b"none", b"1"], "live, or because it has it by now"
        source.send_multipart([b"042", b"2"])
        for each in (late, later):
            assert each.recv_multipart() == [b"042", b"2"], "nobody is given the last value twice"
        told = [early.recv_multipart() for _ in range(3)]
        assert told == [[b"\xff", b"is no key"], [b"none", b"1"], [b"042", b"2"]], "nor who had it live"
        with Clone(pair.servers, "/lvc/") as clone:
            with clone.watch("/lvc/042", start="snapshot") as changes:
                while changes.get(timeout=30).value != b"2":
                    pass
            assert len(clone) == 1002
        cache.kill()
        cache.wait()
    for each in (early, late, later, unknown):
        each.close()
    with program("last_value_cache", into, out, **servers) as cache:
        assert said(cache) == "the cache has 1002 topics"
        assert subscriber(context, out, b"042").recv_multipart() == [b"042", b"2"]
        assert subscriber(context, out, b"999").recv_multipart() == [b"999", b"1"]
