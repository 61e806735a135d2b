"""What an idle server costs: the processor time of its process over some seconds, as a share of a core.

Each client is a connection to P+1 that listens to one subtree and to a channel of its own, as a Clone does. All clients
are in one process, which does not read what comes.
"""

from __future__ import annotations

import time
from typing import Any

from .roles import Pipe, Role, closing_all
from .servers import ChpServer

SETTLED_S, WATCHED_S = 5.0, (20.0, 5.0)  # whole, quick
CASES = ((1, 1), (1, 1000), (1000, 1000))  # subtrees and clients


def run(quick: bool = False) -> dict[str, Any]:
    """Measure each case on a server of its own."""
    cases = {}
    for subtrees, clients in CASES:
        with closing_all() as keep:
            server = keep(ChpServer())
            role = keep(Role(listening, port=server.port, subtrees=subtrees, clients=clients))
            role.hear()
            time.sleep(SETTLED_S)
            before = server.cpu_s()
            time.sleep(WATCHED_S[quick])
            percent = 100 * (server.cpu_s() - before) / WATCHED_S[quick]
        figures = {"percent_of_a_core": percent, "p50_us": percent * 1e4, "p99_us": percent * 1e4}  # us a second
        cases[f"{subtrees:,} subtrees, {clients:,} clients"] = {"contenders": {"chp": figures}}
    return {"title": "An idle server, processor time a second", "unit": "us", "cases": cases}


def listening(pipe: Pipe, port: int, subtrees: int, clients: int) -> None:
    """Connect all clients, and read nothing of what comes."""
    import zmq

    from chp.keys import channel_topic, session_topic

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, clients + 10)
    sockets = []
    for i in range(clients):
        socket = context.socket(zmq.SUB)
        socket.connect(f"tcp://127.0.0.1:{port + 1}")
        socket.subscribe(channel_topic(f"/s{i % subtrees}/"))
        socket.subscribe(session_topic(i.to_bytes(16)))
        sockets.append(socket)
    pipe.say(up=True)
    pipe.hear()
