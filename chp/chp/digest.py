"""A running digest of bodies, in order: by it two ends of a stream know that they had the same (SPEC.md, section 16).

CRC-32, chained over the CRC-32 of each body rather than over the bytes: so a body's own sum is computed once, whatever
chains it becomes part of, and whoever holds bodies back keeps four bytes of each. It finds accidents, not forgers.
"""

from __future__ import annotations

from zlib import crc32

NOTHING = (0, 0)  # of no known beginning: to be taken over, not compared


def link(digest: int, body_crc: int) -> int:
    """The digest of what `digest` is of, and then of a body with the CRC-32 `body_crc`."""
    return crc32(body_crc.to_bytes(4, "big"), digest)
