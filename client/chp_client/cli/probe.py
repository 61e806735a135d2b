"""The reason why a server does not answer, from a plain connection to its address.

The kernel accepts connections for a stopped process. ZeroMQ reports a stopped process, an unknown host name and a port
without a listener in the same way. The text "nobody listens there; start chp-server" would then mislead an operator.
"""

from __future__ import annotations

import socket

from chp.addresses import is_file

from ..port.admin import Answer, Unreachable
from ..port.admission import WANTS_KEY
from .pair import ServerStatus

CONNECT_S = 0.2
GREETING_S = 1.0
# The beginning of ZMTP 3's greeting, up to the version. The answer has the mechanism at octets 12 to 31. We do not send
# our mechanism. A server that wants another mechanism would close the connection, sometimes before it sends its own
# greeting.
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03"
GREETING_BYTES = 64
MECHANISM = slice(12, 32)
NOT_FIRST = "is not the first port of a server: name the first of its four"
STOPPED = "takes connections but says nothing; is its process stopped, or is it no CHP server?"
BUSY = "greets, but does not answer in time; is it busy? Look at its log, or give a longer --timeout"
# The rest of our greeting, which we send to a server that wants no keys: minor version, mechanism NULL, "as a client",
# filler. The server answers with a READY command, which names the type of its socket. Only the first port of a CHP
# server is a ROUTER.
NULL_REST = b"\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY, TYPE = b"\x05READY", b"\x0bSocket-Type"
# The type comes within so many octets, which may begin with the rest of the server's greeting.
READY_BYTES = 2 * GREETING_BYTES
FIRST_PORT = b"ROUTER"
UNKNOWN = "its host name is not known here; mend the address"


def why_silent(server: str, answer: Answer, *, with_key: bool) -> str:
    """Return a better reason than the one of `answer`, or ""; `with_key` is True if the client showed a key."""
    if not isinstance(answer, Unreachable) or answer.connected or is_file(server):
        return ""
    host, _, port = server.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as found:
            mechanism = _mechanism(found)
            kind = _socket_type(found) if mechanism == b"NULL" else b""
    except socket.gaierror:
        return UNKNOWN
    except OSError:
        return ""
    if mechanism == b"CURVE" and not with_key:
        return WANTS_KEY
    if kind and kind != FIRST_PORT:
        return NOT_FIRST
    return BUSY if mechanism in (b"CURVE", b"NULL") else STOPPED


def _mechanism(found: socket.socket) -> bytes:
    """Return the mechanism that the server wants; b"" if the server is stopped or does not speak ZMTP."""
    greeting = b""
    try:
        found.settimeout(GREETING_S)
        found.sendall(GREETING)
        while len(greeting) < MECHANISM.stop and (more := found.recv(GREETING_BYTES)):
            greeting += more
    except OSError:
        return b""
    return greeting[MECHANISM].rstrip(b"\0") if greeting[:1] == GREETING[:1] else b""


def _socket_type(found: socket.socket) -> bytes:
    """Return the socket type that the server's READY command names; b"" if the server names none."""
    told = b""
    try:
        found.sendall(NULL_REST)
        while not (kind := _kind_in(told)) and len(told) < READY_BYTES and (more := found.recv(GREETING_BYTES)):
            told += more
    except OSError:
        return b""
    return kind


def _kind_in(told: bytes) -> bytes:
    """Return the socket's type in what came of a READY command; nothing until the whole type has come."""
    # After the name "Socket-Type" come the length of the value, in four octets, and the value.
    _, _, rest = told.partition(READY)[2].partition(TYPE)
    end = 4 + int.from_bytes(rest[:4])
    return rest[4:end] if len(rest) >= end else b""


def explain(view: ServerStatus, answer: Answer, *, with_key: bool) -> None:
    """Replace the problem in a server's status by a better reason, if a connection finds one."""
    why = why_silent(view.server, answer, with_key=with_key)
    view.problem = why or view.problem
    # A server with keys refuses a client without a key, so its state is shown as DENIED.
    view.denied = view.denied or why == WANTS_KEY
