"""A running digest of bodies, which shows the two ends of a stream that they had the same bodies (SPEC.md, section 16).

The digest is a CRC-32 that is chained over the CRC-32 of each body rather than over the bytes. So the CRC of a body is
computed once for all streams that carry the body, and a program that holds bodies back keeps four bytes of each. The
digest finds accidents, not forgeries.
"""

from __future__ import annotations

from zlib import crc32

# The digest of a stream without a known beginning: the other end takes it over and does not compare it.
NOTHING = (0, 0)


def link(digest: int, body_crc: int) -> int:
    """Return the digest of the bodies so far and of one more, whose CRC-32 is `body_crc`."""
    return crc32(body_crc.to_bytes(4, "big"), digest)
