"""Why nobody answered at an address: what a plain connection there finds.

A process that is stopped leaves its kernel taking connections, and ZeroMQ tells neither that nor an unknown host name
from an empty port. "Nobody listens there; start chp-server" would then send an operator the wrong way.
"""

from __future__ import annotations

import socket

from chp.addresses import is_file

from ..admin import Answer, Unreachable
from .pair import View

CONNECT_S = 0.2
STOPPED = "takes connections but says nothing; is its process stopped, or is it no CHP server?"
UNKNOWN = "its host name is not known here; mend the address"


def why_silent(server: str, answer: Answer) -> str:
    """A better reason than `answer` gives for there being none, or an empty text."""
    if not isinstance(answer, Unreachable) or answer.connected or is_file(server):
        return ""
    host, _, port = server.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except socket.gaierror:
        return UNKNOWN
    except OSError:
        return ""
    return STOPPED


def explain(view: View, answer: Answer) -> None:
    """Put the better reason, if there is one, into what is shown of the server."""
    view.problem = why_silent(view.server, answer) or view.problem
