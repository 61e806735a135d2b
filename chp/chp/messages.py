"""The six commands of CHP/1 (RFC 12) as frames on the wire (SPEC.md, section 5).

    port   direction          command    0          1          2      3            4
    P      client -> server   ICANHAZ    ICANHAZ?   subtree
    P      server -> client   KVSYNC     key        sequence   uuid   properties   value
    P      server -> client   KTHXBAI    KTHXBAI    sequence   uuid   properties   subtree
    P+1    server -> client   KVPUB      key        sequence   uuid   properties   value
    P+1    server -> client   HUGZ       HUGZ       sequence   uuid   properties   (empty)
    P+2    client -> server   KVSET      key        8 zeros    uuid   properties   value

These are plain functions from and to lists of frames. The hot path makes no object for a message (parse_kvset,
parse_kvpub and parse_kvsync return bare tuples). Every parser raises `BadFrame`, or the `BadKey` or `BadValue` of a
part, with the command's name and the remedy. The caller removes the identity that a ROUTER puts in front.

The parsers are liberal: they accept 0 or 16 bytes of uuid everywhere, any text in the last frame of a KTHXBAI, anything
in that of a HUGZ, properties in both, any 8 bytes as a KVSET's sequence, and any text as a CHP/1 subtree. The other
functions make strictly what SPEC.md says.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .errors import BadFrame, BadValue
from .keys import decode_key
from .limits import DEFAULT
from .numbers import ZERO, pack, unpack

ICANHAZ = b"ICANHAZ?"
KTHXBAI = b"KTHXBAI"
HUGZ = b"HUGZ"
NO_UUID = b""
_UUID_SIZES = (16, 0)
_VALUE_BYTES_MAX = DEFAULT.value_bytes_max

Kvset = tuple[str, bytes, bytes, bytes]  # key, uuid, properties, value
Kvpub = tuple[str, int, bytes, bytes, bytes]  # key, sequence, uuid, properties, value


class Kthxbai(NamedTuple):
    """The end of a snapshot: it is complete up to `sequence`."""

    sequence: int
    properties: bytes
    subtree: str


class Hugz(NamedTuple):
    """A sign of life of a server that has published up to `sequence` (0 if it follows the RFC to the letter)."""

    sequence: int
    properties: bytes


def icanhaz(subtree: str = "") -> list[bytes]:
    """Return ICANHAZ, which asks for a snapshot of a subtree."""
    return [ICANHAZ, subtree.encode()]


def parse_icanhaz(frames: Sequence[bytes]) -> str:
    """Return the subtree that a CHP/1 client asks for: any prefix, since the classic servers take any."""
    if len(frames) != 2:
        delimiter = "; send no empty delimiter (use a DEALER, not a REQ)" if frames and not frames[0] else ""
        raise BadFrame(f"ICANHAZ has {len(frames)} frames, not 2: 'ICANHAZ?' and the subtree{delimiter}")
    if frames[0] != ICANHAZ:
        raise BadFrame(f"request {frames[0][:40]!r} is not known here; send 'ICANHAZ?' and the subtree")
    return _text("ICANHAZ", "subtree", frames[1])


def kvset(key: str, value: bytes, *, uuid: bytes = NO_UUID, properties: bytes = b"") -> list[bytes]:
    """Return KVSET, which asks the server to set a key, or to delete it with an empty value."""
    return [key.encode(), ZERO, uuid, properties, value]


def parse_kvset(frames: Sequence[bytes]) -> Kvset:
    """Return (key, uuid, properties, value) of a KVSET; `ttl_ms_of` checks the properties."""
    try:
        key, sequence, uuid, properties, value = frames
    except ValueError:
        raise _wrong_count("KVSET", frames) from None
    if len(sequence) != 8 or len(uuid) not in _UUID_SIZES:
        raise _wrong_sizes("KVSET", sequence, uuid)
    if len(value) > _VALUE_BYTES_MAX:
        raise _too_big("KVSET", key, value)
    return decode_key(key), uuid, properties, value


def kvpub(key: str, sequence: int, value: bytes, *, uuid: bytes = NO_UUID, properties: bytes = b"") -> list[bytes]:
    """Return KVPUB, by which the active tells all clients of an update; an empty value is a delete."""
    return [key.encode(), pack(sequence), uuid, properties, value]


def parse_kvpub(frames: Sequence[bytes], command: str = "KVPUB") -> Kvpub:
    """Return (key, sequence, uuid, properties, value) of a KVPUB: a message of P+1 that does not begin with HUGZ."""
    try:
        key, sequence, uuid, properties, value = frames
    except ValueError:
        raise _wrong_count(command, frames) from None
    if len(sequence) != 8 or len(uuid) not in _UUID_SIZES:
        raise _wrong_sizes(command, sequence, uuid)
    if len(value) > _VALUE_BYTES_MAX:
        raise _too_big(command, key, value)
    return decode_key(key), int.from_bytes(sequence), uuid, properties, value


# A KVSYNC has the same five frames, on another port.
kvsync = kvpub


def parse_kvsync(frames: Sequence[bytes]) -> Kvpub:
    """Return (key, its own sequence, uuid, properties, value) of a KVSYNC: a message of P that is no KTHXBAI."""
    return parse_kvpub(frames, "KVSYNC")


def kthxbai(sequence: int, subtree: str = "", *, properties: bytes = b"") -> list[bytes]:
    """Return KTHXBAI: the snapshot of the subtree is complete, up to the server's current sequence."""
    return [KTHXBAI, pack(sequence), NO_UUID, properties, subtree.encode()]


def parse_kthxbai(frames: Sequence[bytes]) -> Kthxbai:
    """Return the content of a KTHXBAI."""
    sequence, properties, subtree = _parse_control("KTHXBAI", KTHXBAI, frames)
    return Kthxbai(sequence, properties, _text("KTHXBAI", "subtree", subtree))


def hugz(sequence: int = 0, *, properties: bytes = b"") -> list[bytes]:
    """Return HUGZ, the sign of life. It has no body: classic clients would store a body as a key named HUGZ."""
    return [HUGZ, pack(sequence), NO_UUID, properties, b""]


def parse_hugz(frames: Sequence[bytes]) -> Hugz:
    """Return the content of a HUGZ. A body is ignored. A sequence of eight ASCII zeros, as RFC 12 may be read, is 0."""
    sequence, properties, _ = _parse_control("HUGZ", HUGZ, frames)
    return Hugz(0 if frames[1] == b"00000000" else sequence, properties)


def _parse_control(command: str, word: bytes, frames: Sequence[bytes]) -> tuple[int, bytes, bytes]:
    if len(frames) != 5:
        raise _wrong_count(command, frames)
    if frames[0] != word:
        raise BadFrame(f"{command} begins with {frames[0][:40]!r}; frame 0 is {word.decode()!r}")
    if len(frames[1]) != 8 or len(frames[2]) not in _UUID_SIZES:
        raise _wrong_sizes(command, frames[1], frames[2])
    return unpack(frames[1]), frames[3], frames[4]


def _text(command: str, name: str, frame: bytes) -> str:
    if len(frame) > DEFAULT.subtree_bytes_max:
        limit = DEFAULT.subtree_bytes_max
        raise BadFrame(f"{command} has a {name} of {len(frame)} bytes; send at most {limit}")
    try:
        return frame.decode()
    except UnicodeDecodeError:
        raise BadFrame(f"{command} has a {name} that is not UTF-8: {frame[:40]!r}; send UTF-8") from None


def _wrong_count(command: str, frames: Sequence[bytes]) -> BadFrame:
    return BadFrame(f"{command} has {len(frames)} frames, not 5: key, sequence, uuid, properties, value")


def _wrong_sizes(command: str, sequence: bytes, uuid: bytes) -> BadFrame:
    if len(sequence) != 8:
        return BadFrame(f"{command} has a sequence of {len(sequence)} bytes; send 8, big-endian")
    return BadFrame(f"{command} has a uuid of {len(uuid)} bytes; send 16 or none")


def _too_big(command: str, key: bytes, value: bytes) -> BadValue:
    return BadValue(
        f"{command} of {key[:40]!r} has a value of {len(value)} bytes; at most {_VALUE_BYTES_MAX} are allowed"
    )
