"""GET of a key that is there, answered where its head is read: no task, no application, no middleware.

It is what most ask for. Whatever is not exactly that (a query, a condition, an origin, a key in escapes or not there, a
copy that is none yet) is for the long way, which is the same for whoever asks; `answer` then gives None.
"""

from __future__ import annotations

from time import perf_counter

from ...core.events import State
from ..gateway import Gateway
from .keys import OCTETS

PATH = b"/v1/keys"
LARGE = 65_536  # bytes of a value that is sent by the long way, which waits for slow readers
UNREADABLE = frozenset({State.CONNECTING, State.CLOSED})
# what may stand in the head without a meaning for this answer
PLAIN = frozenset(
    {b"host", b"accept", b"accept-encoding", b"accept-language", b"user-agent", b"cache-control", b"pragma"}
)
FIXED = (
    f"content-type: {OCTETS}\r\ncache-control: no-cache\r\nx-content-type-options: nosniff\r\n"
    "referrer-policy: no-referrer\r\nx-frame-options: DENY\r\n"
    "content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n\r\n"
).encode()


class Quick:
    """Of one gateway."""

    def __init__(self, gateway: Gateway, hosts: frozenset[bytes]) -> None:
        self._gateway, self._hosts = gateway, hosts

    def answer(self, url: bytes, headers: list[tuple[bytes, bytes]], common: bytes) -> bytes | None:
        """The whole answer, or None; `common`: the header lines that every answer has."""
        if not url.startswith(b"/v1/keys/") or b"%" in url or not url.isascii():
            return None
        for name, value in headers:
            if name not in PLAIN or (name == b"host" and value not in self._hosts):
                return None
        begin = perf_counter()
        gateway = self._gateway
        clone = gateway.clone
        entry = clone.entry(url[len(PATH) :].decode("ascii"))
        if entry is None or clone.state in UNREADABLE or not entry.key.startswith(gateway.subtrees):
            return None
        value, revision = entry.value, entry.revision
        if entry.ttl is not None or len(value) > LARGE:
            return None
        head = (
            f"HTTP/1.1 200 OK\r\nchp-number: {clone.revision}\r\nchp-staleness: {clone.staleness_s:.3f}\r\n"
            f'etag: "{revision}"\r\ncontent-length: {len(value)}\r\n'
        )
        gateway.metrics.took("read", 200, perf_counter() - begin)
        return b"".join((head.encode(), common, FIXED, value))
