"""Why nobody answered at an address: what a plain connection there finds.

A process that is stopped leaves its kernel taking connections, and ZeroMQ tells neither that nor an unknown host name
from an empty port. "Nobody listens there; start chp-server" would then send an operator the wrong way.
"""

from __future__ import annotations

import socket

from chp.addresses import is_file

from ..port.admin import Answer, Unreachable
from ..port.admission import WANTS_KEY
from .pair import ServerStatus

CONNECT_S = 0.2
GREETING_S = 1.0
# what ZMTP 3 begins with, up to its version; the answer has the mechanism at octets 12 to 31. Ours is not told, as who
# wants another one hangs up, at times before its own is on the way
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03"
GREETING_BYTES = 64
MECHANISM = slice(12, 32)
STOPPED = "takes connections but says nothing; is its process stopped, or is it no CHP server?"
BUSY = "greets, but does not answer in time; is it busy? Look at its log, or give a longer --timeout"
UNKNOWN = "its host name is not known here; mend the address"


def why_silent(server: str, answer: Answer, *, with_key: bool) -> str:
    """A better reason than `answer` gives for there being none, or an empty text; `with_key`: it was asked with one."""
    if not isinstance(answer, Unreachable) or answer.connected or is_file(server):
        return ""
    host, _, port = server.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as found:
            mechanism = _mechanism(found)
    except socket.gaierror:
        return UNKNOWN
    except OSError:
        return ""
    if mechanism == b"CURVE" and not with_key:
        return WANTS_KEY
    return BUSY if mechanism in (b"CURVE", b"NULL") else STOPPED


def _mechanism(found: socket.socket) -> bytes:
    """How whoever is there wants to be greeted; nothing if it does not greet, as a stopped process, or not by ZMTP."""
    greeting = b""
    try:
        found.settimeout(GREETING_S)
        found.sendall(GREETING)
        while len(greeting) < MECHANISM.stop and (more := found.recv(GREETING_BYTES)):
            greeting += more
    except OSError:
        return b""
    return greeting[MECHANISM].rstrip(b"\0") if greeting[:1] == GREETING[:1] else b""


def explain(view: ServerStatus, answer: Answer, *, with_key: bool) -> None:
    """Put the better reason, if there is one, into what is shown of the server."""
    view.problem = why_silent(view.server, answer, with_key=with_key) or view.problem
