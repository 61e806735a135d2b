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
from typing import Self

from .errors import BadFrame, BadInput

EPOCH_SHIFT = 48
SEQUENCE_MASK = (1 << EPOCH_SHIFT) - 1
EPOCH_MAX = (1 << 15) - 1
U64_MASK = (1 << 64) - 1

_U64 = struct.Struct(">Q")
pack = _U64.pack
ZERO = pack(0)


def number(epoch: int, sequence: int) -> int:
    """Return the number of `sequence` in `epoch`."""
    return epoch << EPOCH_SHIFT | sequence


def epoch_of(n: int) -> int:
    """Return the epoch in which a number was issued."""
    return n >> EPOCH_SHIFT


def sequence_of(n: int) -> int:
    """Return the number of updates that the store had seen when a number was issued."""
    return n & SEQUENCE_MASK


def unpack(frame: bytes) -> int:
    """Return the number in a sequence frame; raise `BadFrame` unless it has 8 bytes."""
    if len(frame) != 8:
        raise BadFrame(f"the sequence frame has {len(frame)} bytes; send 8, big-endian")
    n: int = _U64.unpack(frame)[0]
    return n


def next_epoch(seen: int, *, odd: bool) -> int:
    """Return the smallest epoch above `seen` that this side may open: odd for the primary, even for the backup."""
    epoch = seen + 1
    return epoch if epoch % 2 == odd else epoch + 1


class Revision(int):
    """An int whose text is `epoch.sequence`, and that can be made from such a text.

    Write its text to JSON: most readers of JSON do not keep so large a number exactly.
    """

    __slots__ = ()

    def __new__(cls, given: int | str = 0) -> Self:
        return super().__new__(cls, parse(given) if isinstance(given, str) else given)

    def __repr__(self) -> str:
        return describe(self)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec[-1:] in _INT_FORMATS else format(describe(self), spec)


_INT_FORMATS = tuple("bcdoxXneEfFgG%")
# No key ever has this revision, `0.1`, so a condition made of it fails.
UNKNOWN = Revision(1)


def parse(text: str) -> int:
    """Return the number of a text `epoch.sequence`, or of its digits; raise `BadInput` for any other text."""
    epoch, dot, sequence = text.strip().rpartition(".")
    digits = epoch + sequence
    if not (digits.isascii() and digits.isdigit() and sequence) or bool(dot) is not bool(epoch) or len(digits) > 20:
        raise BadInput(f"{text!r:.40} is not a revision; give it as shown, such as 1.42")
    made = number(int(epoch), int(sequence)) if dot else int(sequence)
    if epoch_of(made) > EPOCH_MAX or (dot and int(sequence) > SEQUENCE_MASK):
        raise BadInput(f"{text!r:.40}: the epoch is at most {EPOCH_MAX} and the sequence at most {SEQUENCE_MASK}")
    return made


def describe(n: int) -> str:
    """Return `epoch.sequence`, as logs and transcripts show a number."""
    return f"{n >> EPOCH_SHIFT}.{n & SEQUENCE_MASK}"
