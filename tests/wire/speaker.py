"""A user that talks to a server by hand: it sends batches and questions, and returns the codes of their refusals."""

from __future__ import annotations

from typing import Any

import zmq

from chp import headers
from chp.batch import Segment, decode, packb
from chp.keyfiles import KeyPair
from chp.keys import RESERVED_KEY, public_session, session_topic
from chp.messages import ICANHAZ
from chp.numbers import pack
from tests.talk import WAIT_S, until
from tests.wire import keys
from tests.wire.hand import at


class Speaker:
    """A user's connections to one server. `set` and `ask` return the codes of the server's refusals."""

    def __init__(
        self, address: str, server: bytes, name: str, key: KeyPair, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        self.session, self._no, self._id = name.encode().ljust(12, b".") + bytes(4), 0, 0
        # The text of the last refusal.
        self.why = ""
        self._sockets = [keys.socket(context, kind, key, server) for kind in (zmq.DEALER, zmq.SUB, zmq.PUB)]
        self._dealer, self._sub, self.pub = (each.__enter__() for each in self._sockets)
        for offset, socket in enumerate((self._dealer, self._sub, self.pub)):
            socket.connect(at(address, offset))
        self._sub.subscribe(session_topic(public_session(self.session)))
        self._sub.recv_multipart()

    def set(self, extras: dict[str, Any], key: str = "") -> str:
        """Send a batch with at most one key, and return the code of its refusal, or ""."""
        self._no += 1
        body = Segment([key] if key else [], [b"x"] if key else [], extras or None).encode()
        frames = [RESERVED_KEY, pack(self._no), self.session, b"", body]
        codes: list[str] = []

        def answered() -> bool:
            if not self._sub.poll(0):
                self.pub.send_multipart(frames)
            while not codes and self._sub.poll(300):
                header, _ = decode(self._sub.recv_multipart()[4])
                if isinstance(header, headers.Refused) and header.number == self._no:
                    codes.append(header.code)
                    self.why = str(header.detail)
                elif isinstance(header, headers.Ack) and any(first <= self._no <= last for first, last, _ in header[0]):
                    codes.append("")
            return bool(codes)

        until(answered, "an answer")
        return codes[0]

    def ask(self, subject: bytes = b"", **options: Any) -> str:
        """Ask a question on P, and return the code of its refusal, or ""."""
        self._id += 1
        self._dealer.send_multipart([ICANHAZ, subject, packb({"chp": 4, "id": self._id, **options})])
        while True:
            assert self._dealer.poll(int(WAIT_S * 1000)), options
            header, _ = decode(self._dealer.recv_multipart()[4])
            if header[0] == self._id:
                return header.code if isinstance(header, headers.Refused) else ""

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.__exit__(None, None, None)
