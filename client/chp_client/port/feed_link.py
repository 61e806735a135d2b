"""One server as the reader of a feed sees it: a DEALER to P for questions, a SUB to P+1 for what comes.

    ask       sends ICANHAZ; False if no connection stands
    answer    the messages that answer it; `Elsewhere` when this server won't, and another may
    hear      what has come on the channel, a bounded number of messages

A feed's link knows no rules about numbers; those are in `feed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import zmq

from chp.headers import Greeting, Header, Heartbeat
from chp.headers import Refused as RefusedHeader
from chp.keys import channel_topic
from chp.limits import DEFAULT

from ..clientfile import Credentials
from ..core.question import Question, Told, read
from ..errors import Refused
from . import admission
from .ask import LATER, Connection, Elsewhere
from .receive import drain

CREDIT = 16
GRANT = 8  # chunks taken before room for as many is granted
MARK = 20_000  # messages held while the reader is busy; a hole beyond that heals from the log
MESSAGES_A_TURN = 200


class FeedLink:
    """Both sockets to one server, and what it said of itself."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoints: tuple[str, str, str],
        subtree: str,
        known: Credentials | None = None,
    ) -> None:
        self.address = endpoints[0]
        self.state = 0
        self.number = 0  # its last, when it last told its state
        self.heartbeat_s = 1.0
        self.anew = False  # it was started anew since it was last asked: it may hold another store
        self._forbidden = False
        self._run = b""  # which run of the server it is
        self._subtree = subtree.encode()
        self._question: Question | None = None
        self.requests = context.socket(zmq.DEALER)
        self.updates = context.socket(zmq.SUB)
        for socket in (self.requests, self.updates):
            socket.linger = 0
            socket.maxmsgsize = DEFAULT.frame_bytes_max
            socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 500
            socket.rcvhwm = MARK
        self.requests.immediate = 1  # a request that waits for a server that is away would be stale
        self.updates.subscribe(channel_topic(subtree))
        self._line = Connection(self.address, self.requests)
        self._monitor = self.requests.get_monitor_socket(admission.EVENTS)
        ways = [(self.requests, endpoints[0]), (self.updates, endpoints[1])]
        self._admission = admission.Admission(self.address, ways, known)
        self.requests.connect(endpoints[0])
        self.updates.connect(endpoints[1])

    @property
    def denied(self) -> str:
        """Why it does not let us in; what is due about it is done."""
        for event in drain(self._monitor, MESSAGES_A_TURN):
            self._admission.heard(event, monotonic())
        self._admission.step(monotonic())
        return self._admission.why

    def ask(self, request_id: int, options: dict[str, Any]) -> bool:
        """Put a question: the feed, a probe of it, or a snapshot, by its options."""
        drain(self.requests, 1 << 30)  # what answers somebody who no longer waits
        self._question = Question(request_id, self._subtree, {"from": 0, "credit": CREDIT, **options}, grant=GRANT)
        if not self._line.put(self._question.frames):
            return False
        self.anew = False
        if self._forbidden:
            self._subscribe_again()
        return True

    def answer(self, silence_s: float) -> Iterator[Told]:
        """Each message that answers what was asked; KTHXBAI or a REPLY is the last."""
        assert self._question is not None, "ask first"
        try:
            yield from self._line.answer(self._question, silence_s)
        except Refused as refused:
            if refused.code == "passive":
                self.state = int(refused.detail)
            if refused.code in LATER:
                raise Elsewhere(str(refused)) from None
            raise

    def hear(self) -> Iterator[tuple[Header, list[Any]]]:
        """(header, items) of what has come on the channel; greetings and heartbeats are noted."""
        for frames in drain(self.updates, MESSAGES_A_TURN):
            if len(frames) != 5:
                continue  # HUGZ and KVPUB of CHP/1 don't come on this topic
            header, items = read(self.address, frames[4])
            if isinstance(header, RefusedHeader) and header.code == "access":
                self._forbidden = True
            if isinstance(header, Greeting | Heartbeat):
                self.state, self.number, self.heartbeat_s = header.state, header.number, header.heartbeat_ms / 1000
            if isinstance(header, Greeting):
                self.anew |= self._run not in (b"", header.server)
                self._run = header.server
            yield header, items

    def _subscribe_again(self) -> None:
        """The rules kept the channel from us: what is asked now tells whether they still do."""
        self._forbidden = False
        self.updates.unsubscribe(channel_topic(self._subtree.decode()))
        self.updates.subscribe(channel_topic(self._subtree.decode()))

    def close(self) -> None:
        """Close both sockets."""
        self.requests.disable_monitor()
        self._monitor.close(0)
        self.requests.close()
        self.updates.close()


def wait_any(links: list[FeedLink], timeout_s: float, connected: bool = False) -> list[FeedLink]:
    """Wait until something has come on a channel, or (`connected`) a request could be sent; the links it came from."""
    poller = zmq.Poller()
    for link in links:
        poller.register(link.updates, zmq.POLLIN)
        if connected:
            poller.register(link.requests, zmq.POLLOUT)
    ready = dict(poller.poll(max(0, int(timeout_s * 1000 + 0.999))))
    return [link for link in links if ready.get(link.updates)]


def deadline_in(timeout_s: float | None) -> float:
    """The moment `timeout_s` from now; never, for None."""
    return float("inf") if timeout_s is None else monotonic() + timeout_s
