"""The one 8-byte number of RFC 12, which carries an epoch and a sequence (SPEC.md, sections 4 and 11).

    63            48 47                                              0
    +---------------+------------------------------------------------+
    |     epoch     |                    sequence                    |
    +---------------+------------------------------------------------+

A server that becomes active opens an epoch higher than any it has seen; the sequence goes on across epochs. So the
number strictly increases, as CHP/1 asks, and is never issued twice: the primary opens odd epochs, the backup even
ones, and a lone server is a primary. Epochs stay below 32,768, so that a number fits a signed 64-bit column.
"""

import struct

from .errors import BadFrame

EPOCH_SHIFT = 48
SEQUENCE_MASK = (1 << EPOCH_SHIFT) - 1
EPOCH_MAX = (1 << 15) - 1
U64_MASK = (1 << 64) - 1

_U64 = struct.Struct(">Q")
pack = _U64.pack
ZERO = pack(0)


def number(epoch: int, sequence: int) -> int:
    """The number of `sequence` in `epoch`."""
    return epoch << EPOCH_SHIFT | sequence


def epoch_of(n: int) -> int:
    """The epoch a number was issued in."""
    return n >> EPOCH_SHIFT


def sequence_of(n: int) -> int:
    """How many updates the store had seen when the number was issued."""
    return n & SEQUENCE_MASK


def unpack(frame: bytes) -> int:
    """The number in a sequence frame; `BadFrame` unless it is 8 bytes."""
    if len(frame) != 8:
        raise BadFrame(f"the sequence frame has {len(frame)} bytes; send 8, big-endian")
    return int(_U64.unpack(frame)[0])


def next_epoch(seen: int, *, odd: bool) -> int:
    """The smallest epoch above `seen` that this side may open: odd for the primary, even for the backup."""
    epoch = seen + 1
    return epoch if epoch % 2 == odd else epoch + 1


def describe(n: int) -> str:
    """`epoch.sequence`, as logs and transcripts show a number."""
    return f"{epoch_of(n)}.{sequence_of(n)}"
