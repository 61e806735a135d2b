"""GET of a key that is there, and a plain PUT, answered where they are read: no task, no application, no middleware.

They are what most ask for. Whatever is not exactly that (a condition, an origin, a key that is not there, one that
another write has in hand, a copy that is none yet) is for the long way, which is the same for whoever asks; `answer`
then gives None, and `put` False.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter

from chp.errors import ChpError

from ...core.events import Ack, State
from ..access.caller import Caller
from ..gateway import Gateway
from ..problems import Problem
from .batches import key_to_set
from .keys import OCTETS

PATH = b"/v1/keys"
LARGE = 65_536  # bytes of a value that is taken or sent by the long way, which waits for who is slow
UNREADABLE = frozenset({State.CONNECTING, State.CLOSED})
# what may stand in the head without a meaning for this answer; whether the connection stays is the server's affair
PLAIN = frozenset(
    {
        b"host",
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"user-agent",
        b"cache-control",
        b"pragma",
        b"connection",
    }
)
OF_A_BODY = frozenset({b"content-length", b"content-type"})
JSON = "application/json"
FIXED = (
    b"cache-control: no-cache\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    b"x-frame-options: DENY\r\ncontent-security-policy: default-src 'none'; frame-ancestors 'none'\r\n\r\n"
)
Headers = list[tuple[bytes, bytes]]


class FastPath:
    """Of one gateway."""

    def __init__(self, gateway: Gateway, hosts: frozenset[bytes]) -> None:
        self._gateway, self._hosts = gateway, hosts
        self.user = ""  # of the last request that was answered here, or begun
        self._done: tuple[object, bytes, bytes] = (None, b"", b"")  # the answer to all writes of one record, made once

    def _caller(self, headers: Headers, also: frozenset[bytes] = frozenset()) -> Caller | None:
        callers, token = self._gateway.callers, b""
        for name, value in headers:
            if name == b"authorization" and not token:
                token = value
            elif name == b"host":
                if value not in self._hosts and callers.ambient:
                    return None
            elif name not in PLAIN and name not in also:
                return None
        caller = callers.quick(token)
        if caller is None or not self._gateway.audit.knows(caller):
            return None
        self.user = caller.user
        return caller

    def answer(self, path: bytes, headers: Headers, common: bytes) -> bytes | None:
        """The whole answer to a GET, or None; `common`: the header lines that every answer has."""
        caller, gateway = self._caller(headers), self._gateway
        if caller is None:
            return None
        begin, key = perf_counter(), _key(path)
        clone = gateway.clone
        entry = clone.entry(key)
        if entry is None or clone.state in UNREADABLE or not key.startswith(gateway.subtrees):
            return None
        value, revision = entry.value, entry.revision
        if entry.ttl is not None or len(value) > LARGE or not caller.may_read(key):
            return None
        head = f'{self._head(200)}etag: "{revision}"\r\ncontent-type: {OCTETS}\r\ncontent-length: {len(value)}\r\n'
        gateway.metrics.took("read", 200, perf_counter() - begin)
        return b"".join((head.encode(), common, FIXED, value))

    def _head(self, status: int) -> str:
        clone = self._gateway.clone
        return f"HTTP/1.1 {status} OK\r\nchp-number: {clone.revision}\r\nchp-staleness: {clone.staleness_s:.3f}\r\n"

    # -- PUT

    def put(self, path: bytes, headers: Headers, body: bytes, common: bytes, answered: Callable[[bytes], None]) -> bool:
        """Begin to set a key, and call `answered` with the whole answer; False if it is for the long way."""
        gateway, key = self._gateway, _key(path)
        caller, size = self._caller(headers, OF_A_BODY), len(body)
        if caller is None or size > LARGE or gateway.under_way >= gateway.limits.requests:
            return False
        if not gateway.bodies.room(size) or not _may_set(caller, key, gateway.subtrees):
            return False
        begin = perf_counter()

        def act(done: Ack | Exception) -> None:
            gateway.under_way -= 1
            gateway.bodies.held -= size
            status, whole = self._said(done, key, common)
            gateway.metrics.took("write", status, perf_counter() - begin)
            answered(whole)

        if not gateway.writes.soon(key, body, act):
            return False
        gateway.under_way += 1
        gateway.bodies.held += size
        return True

    def _said(self, done: Ack | Exception, key: str, common: bytes) -> tuple[int, bytes]:
        if isinstance(done, Exception):
            return self._refused(done, key, common)
        if self._done[0] is not done or self._done[1] is not common:
            self._done = done, common, self._answer(done, common)
        return 200, self._done[2]

    def _answer(self, ack: Ack, common: bytes) -> bytes:
        self._gateway.keys.written(ack.revision)
        body = json.dumps({"revision": str(ack.revision), "durability": ack.durability}) + "\n"
        head = (
            f'{self._head(200)}chp-durability: {ack.durability}\r\netag: "{ack.revision}"\r\n'
            f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        )
        return b"".join((head.encode(), common, FIXED, body.encode()))

    def _refused(self, error: Exception, key: str, common: bytes) -> tuple[int, bytes]:
        response = self._gateway.told(error, key).response()
        lines = b"".join(b"%s: %s\r\n" % each for each in response.raw_headers if each[0] != b"cache-control")
        head = b"HTTP/1.1 %d Problem\r\n" % response.status_code
        return response.status_code, b"".join((head, lines, common, FIXED, bytes(response.body)))


def _key(path: bytes) -> str:
    """The key that a plain path names."""
    return path[len(PATH) :].decode("ascii")


def _may_set(caller: Caller, key: str, subtrees: tuple[str, ...]) -> bool:
    try:
        key_to_set(key, subtrees)
        caller.write((key,), ())
    except (ChpError, Problem):
        return False
    return True
