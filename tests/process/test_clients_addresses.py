"""Tests of a Clone with an address where no CHP server is: errors name the address and what is there instead.

The ports are real: an HTTP server, a port that takes connections and says nothing, a free port, and the update port of
a CHP server in place of its first.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import zmq

from chp_client import Clone, Closed, State
from chp_server.testing import TestServer, free_port
from tests.talk import WAIT_S, until


class Quiet(BaseHTTPRequestHandler):
    """An HTTP handler that answers each request with an error, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    """Start an HTTP server, and return its address."""
    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", port), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """Open a port that takes connections and says nothing."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port), backlog=64):
        yield f"tcp://127.0.0.1:{port}"


def said_of(clone: Clone, words: str) -> None:
    """Wait until the error of `wait_until_synced` has these words."""

    def said() -> bool:
        with pytest.raises(TimeoutError) as caught:
            clone.wait_until_synced(0.05)
        return words in str(caught.value)

    until(said, f"an error that says {words!r}; now it is {clone.describe()!r}")


def test_a_client_reports_no_zeromq_handshake_from_an_http_server(web: str) -> None:
    with Clone(web) as clone:
        said_of(clone, f"{web} not heard from: it takes connections, but no ZeroMQ handshake follows")
        assert clone.state is State.CONNECTING
        with pytest.raises(TimeoutError, match="no ZeroMQ handshake follows"):
            clone.set("/a", b"1").wait(0.05)
        with pytest.raises(TimeoutError, match="no ZeroMQ handshake follows"):
            clone.flush(0.05)
        clone.close(0.05)


def test_a_client_reports_no_zeromq_handshake_from_a_silent_port(silent: str) -> None:
    with Clone(silent) as clone:
        said_of(clone, f"{silent} not heard from: it takes connections, but no ZeroMQ handshake follows")
        ticket = clone.set("/a", b"1")
        clone.close(0.05)
    with pytest.raises(Closed, match="no ZeroMQ handshake follows"):
        ticket.wait(WAIT_S)


def test_a_client_says_that_a_free_port_takes_no_connections() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with Clone(address) as clone:
        said_of(clone, f"{address} not heard from: nothing takes connections there")


@pytest.mark.parametrize("offset", [1, 2])
def test_a_client_reports_no_zeromq_handshake_from_a_wrong_port(server: TestServer, offset: int) -> None:
    """The kinds of socket do not fit, so the handshake fails."""
    host, _, port = server.address.rpartition(":")
    wrong = f"{host}:{int(port) + offset}"
    with Clone(wrong) as clone:
        said_of(
            clone, f"{wrong} not heard from: it takes connections, but no ZeroMQ handshake follows; is this the first"
        )


def test_a_client_reports_a_zeromq_program_that_sends_no_chp() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        address = f"tcp://127.0.0.1:{free_port()}"
        router.bind(address)
        with Clone(address) as clone:
            said_of(clone, f"{address} not heard from: it speaks ZeroMQ but sends no CHP")


def names_what_speaks_no_zmtp(clone: Clone) -> bool:
    return "no ZeroMQ handshake follows" in clone.describe()


def test_a_good_server_beside_a_bad_address_is_used(server: TestServer, web: str, silent: str) -> None:
    for bad in (web, silent):
        with Clone([bad, server.address]) as clone:
            clone.wait_until_synced(WAIT_S)
            clone.set("/a", b"1").wait(WAIT_S)
            assert clone.active == server.address
            until(partial(names_what_speaks_no_zmtp, clone), "the bad one to be named")


def test_a_client_describes_a_killed_server_as_heard_before(server: TestServer) -> None:
    with Clone(server.address) as clone:
        clone.wait_until_synced(WAIT_S)
        server.kill()
        until(lambda: clone.state is State.STALE, "the copy to be stale")
        assert "heard" in clone.describe() and "not heard from" not in clone.describe()
