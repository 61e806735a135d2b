"""Questions to the snapshot port: an image and its slices, how far the feed reaches, the feed (SPEC.md, section 17).

    with SnapshotPort(servers, timeout_s=120) as port:
        facts = port.ask("/rates/", image=name, prefix="/rates/EUR", parts=4)
        for header, items in port.stream("/rates/", image=name, part=0): ...      # ends with the KTHXBAI

A question goes to one server; one that is passive, or silent for `RETRY_S`, has the next one asked. A stream that
has begun does not change servers in the middle: its chunks carry an index, and a gap, a silence or a connection that
goes is an error. For that long a failover may take, `timeout_s` is the bound. Blocking; for one thread.
"""

import itertools
from collections.abc import Iterator, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

import zmq

from chp.batch import decode, packb
from chp.errors import BadFrame, ChpError
from chp.headers import Header, Kthxbai, Records, Refused, Reply, Sync, name_of, request_of
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.versions import VERSION

RETRY_S = 2.0
CREDIT = 8
DEAD_MS = 10_000  # a host that answers nothing for so long, not even libzmq's own questions, is taken for gone


class ReadFailed(ChpError):
    """The servers did not answer a question, or not as it should be."""


class ReadRefused(ReadFailed):
    """A server said no: `code` is one of SPEC.md's."""

    def __init__(self, code: str, detail: Any) -> None:
        super().__init__(f"the server refused ({code}): {detail}")
        self.code = code
        self.detail = detail


class SnapshotPort:
    """A DEALER to each server, made when it is needed."""

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        self._servers = list(servers)
        self._timeout_s = timeout_s
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets: dict[str, tuple[Any, Any]] = {}  # a DEALER, and what libzmq tells of its connection
        self._ids = itertools.count(1)
        self._at = 0

    def ask(self, subtree: str, **options: Any) -> dict[str, Any]:
        """The facts of a REPLY."""
        header, _ = next(self._answers(subtree, options))
        if not isinstance(header, Reply):
            raise ReadFailed(
                f"{self._servers[self._at]} answered a question with {name_of(header)}; is it an older version?"
            )
        return header.facts

    def stream(self, subtree: str, **options: Any) -> Iterator[tuple[Header, list[Any]]]:
        """Header and items of each chunk, in order, and of the KTHXBAI."""
        for index, (header, items) in enumerate(self._answers(subtree, {"credit": CREDIT, **options})):
            if isinstance(header, Sync | Records) and header.chunk != index:
                raise ReadFailed(f"chunk {header.chunk} came where {index} was due; run the task again")
            yield header, items

    def _answers(self, subtree: str, options: dict[str, Any]) -> Iterator[tuple[Header, list[Any]]]:
        header, items, request = self._first(subtree, options)
        socket, monitor = self._socket()
        while True:
            yield header, items
            if isinstance(header, Kthxbai | Reply):
                return
            socket.send_multipart([ICANHAZ, subtree.encode(), packb({"chp": VERSION, "id": request, "more": 1})])
            answer = self._receive(socket, request, monotonic() + self._timeout_s, monitor)
            if answer is None:
                what = "went away" if monitor.poll(0) else f"said nothing for {self._timeout_s:g} s"
                raise ReadFailed(
                    f"{self._servers[self._at]} {what} in the middle of an answer; load() the data frame again, or "
                    "start the query again"
                )
            header, items = answer
            if isinstance(header, Refused):
                raise ReadRefused(header.code, header.detail)

    def _first(self, subtree: str, options: dict[str, Any]) -> tuple[Header, list[Any], int]:
        """Ask one server after the other until one answers."""
        deadline = monotonic() + self._timeout_s
        said, patience_s = "no answer", RETRY_S
        while (now := monotonic()) < deadline:
            (socket, monitor), request = self._socket(), next(self._ids)
            while monitor.poll(0):
                monitor.recv_multipart()  # of a connection before
            said_options = {"chp": VERSION, "id": request, "from": 0, **options}
            socket.send_multipart([ICANHAZ, subtree.encode(), packb(said_options)])
            answer = self._receive(socket, request, min(deadline, now + patience_s))
            refused = answer[0] if answer is not None else None
            if answer is not None and not isinstance(refused, Refused):
                return *answer, request
            if isinstance(refused, Refused) and refused.code not in ("passive", "busy"):
                raise ReadRefused(refused.code, refused.detail)
            said = refused.code if isinstance(refused, Refused) else "no answer"
            self._next(keep=answer is not None)
            if self._at == 0 and answer is None:
                patience_s *= 2  # all are silent, or one is busy with much: asked again and again it is not sooner done
            if answer is not None:
                self._socket()[0].poll(100)  # it said that it can't now: a moment later it may
        servers = ", ".join(self._servers)
        raise ReadFailed(
            f"no server of {servers} serves (waited {self._timeout_s:g} s, option timeout; last: {said}); is "
            "chp-server running there, and is it reached from this machine? See `chp status`"
        )

    def _receive(
        self, socket: Any, request: int, deadline: float, monitor: Any = None
    ) -> tuple[Header, list[Any]] | None:
        """An answer; None when there was none in time, or the connection that `monitor` watches has gone."""
        poller = zmq.Poller()
        for each in [socket] if monitor is None else [socket, monitor]:
            poller.register(each, zmq.POLLIN)
        while (left := deadline - monotonic()) > 0:
            if socket not in dict(poller.poll(max(1, int(left * 1000)))):
                return None
            frames = socket.recv_multipart()
            if len(frames) != 5:
                raise BadFrame(
                    f"an answer has 5 frames, not {len(frames)}; is {self._servers[self._at]} a CHP/2 server?"
                )
            header, items = decode(frames[4])
            if request_of(header) == request:
                return header, items
        return None

    def _socket(self) -> tuple[Any, Any]:
        server = self._servers[self._at]
        if server not in self._sockets:
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.rcvhwm = 0
            socket.maxmsgsize = DEFAULT.frame_bytes_max
            socket.heartbeat_ivl, socket.heartbeat_timeout = DEAD_MS // 2, DEAD_MS
            self._sockets[server] = socket, socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(server)
        return self._sockets[server]

    def _next(self, keep: bool) -> None:
        if not keep:
            self._drop(self._servers[self._at])
        self._at = (self._at + 1) % len(self._servers)

    def _drop(self, server: str) -> None:
        socket, monitor = self._sockets.pop(server)
        socket.disable_monitor()
        monitor.close(0)
        socket.close()

    def close(self) -> None:
        """Close the sockets."""
        for server in list(self._sockets):
            self._drop(server)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
