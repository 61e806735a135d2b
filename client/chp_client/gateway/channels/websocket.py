"""The frames of a WebSocket (RFC 6455), and the messages of a pair's ports in them (SPEC.md, section 37).

    message = server port *(length frame)      server, port: an octet; length: four octets, of the frame

A message that announces more bytes than the largest message of CHP/2 is refused at once. Pure.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha1
from struct import pack, unpack_from

# A message has at most this many bytes: a KVSET with all that surrounds it.
MESSAGE_BYTES_MAX = (17 << 20) + 4096
FRAMES_MAX = 16
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
# The codes with which a WebSocket is closed (RFC 6455, section 7.4.1).
NORMAL, GOING, BROKEN, NOT_BINARY, DENIED, LARGE = 1000, 1001, 1002, 1003, 1008, 1009
REASON_BYTES_MAX = 123
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Broken(Exception):
    """The error for a bad message; the WebSocket is closed with its `code` and `reason`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def accepted(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept for a Sec-WebSocket-Key."""
    return b64encode(sha1(key + _GUID).digest())


def framed(opcode: int, payload: bytes) -> bytes:
    """Return a whole frame of a server, which is not masked."""
    size, first = len(payload), 0x80 | opcode
    if size < 126:
        return bytes((first, size)) + payload
    head = pack(">BBH", first, 126, size) if size < 1 << 16 else pack(">BBQ", first, 127, size)
    return head + payload


def closing(code: int, reason: str = "") -> bytes:
    """Return the frame that closes a WebSocket."""
    text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return framed(CLOSE, code.to_bytes(2, "big") + text)


class FrameReader:
    """The reader of a client's frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        # The opcode of a message that comes in pieces; 0 between messages.
        self._kind = 0
        self._pieces = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield whole messages and control frames, with their opcodes; raise `Broken` for bad ones."""
        self._bytes += data
        while (found := self._frame()) is not None:
            last, opcode, payload = found
            if opcode >= CLOSE:
                yield opcode, payload
                continue
            if (opcode == CONTINUED) != bool(self._kind):
                raise Broken(BROKEN, "a message in pieces begins with its kind, and goes on with 0")
            self._kind = self._kind or opcode
            self._pieces += payload
            if len(self._pieces) > MESSAGE_BYTES_MAX:
                raise Broken(LARGE, f"a message has at most {MESSAGE_BYTES_MAX} bytes")
            if last:
                whole, kind = bytes(self._pieces), self._kind
                self._pieces.clear()
                self._kind = 0
                yield kind, whole

    def _frame(self) -> tuple[bool, int, bytes] | None:
        held = self._bytes
        if len(held) < 2:
            return None
        opcode, size, at = held[0] & 15, held[1] & 127, 2
        if held[0] & 0x70 or opcode not in (CONTINUED, TEXT, BINARY, CLOSE, PING, PONG):
            raise Broken(BROKEN, "a frame has an extension or a kind that was not agreed on")
        if not held[1] & 128:
            raise Broken(BROKEN, "a client masks what it sends")
        if opcode >= CLOSE and (size > 125 or not held[0] & 128):
            raise Broken(BROKEN, "a control frame has at most 125 bytes, and no pieces")
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(held) < at:
                return None
            size = unpack_from(">H" if at == 4 else ">Q", held, 2)[0]
        if size > MESSAGE_BYTES_MAX:
            raise Broken(LARGE, f"a message has at most {MESSAGE_BYTES_MAX} bytes")
        if len(held) < at + 4 + size:
            return None
        mask, payload = bytes(held[at : at + 4]), bytes(held[at + 4 : at + 4 + size])
        last = bool(held[0] & 128)
        del held[: at + 4 + size]
        return last, opcode, _unmasked(mask, payload)


def _unmasked(mask: bytes, payload: bytes) -> bytes:
    size = len(payload)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")


def put(server: int, port: int, frames: Sequence[bytes]) -> bytes:
    """Return a message for a WebSocket, made of the server, the port and the frames."""
    return bytes((server, port)) + b"".join(pack(">I", len(frame)) + frame for frame in frames)


def taken(message: bytes) -> tuple[int, int, list[bytes]]:
    """Return the server, the port and the frames of a WebSocket's message; raise `Broken` for a bad message."""
    if len(message) < 2:
        raise Broken(BROKEN, "a message begins with a server and a port, an octet each")
    frames, at = list[bytes](), 2
    while at < len(message):
        end = at + 4 + int.from_bytes(message[at : at + 4], "big")
        if len(message) < at + 4 or end > len(message) or len(frames) >= FRAMES_MAX:
            raise Broken(BROKEN, f"a message has at most {FRAMES_MAX} frames, each behind its length of four octets")
        frames.append(message[at + 4 : end])
        at = end
    return message[0], message[1], frames
