"""Which versions of CHP/2 there are, and what two programs of different ones do (SPEC.md, section 24).

A server tells its version in GREETING and STATE, a client in ICANHAZ ("chp"). This program speaks those from `OLDEST`
to `VERSION`; with any other it has no dealings, and says so with both numbers. A pair works at the lower version of
its two: what only a later one knows is REFUSED, since the other server would drop it.

    1   RFC 12        2   0.1 of this project, never released        3   stores and histories are proved
    4   rules of access, which an older passive would not have
"""

VERSION = 4
OLDEST = 3
ACCESS_SINCE = 4  # rules
SKIPS_SINCE = 4  # a client that tells which batch is the oldest that it holds
COLUMN_SINCE: dict[str, int] = {}  # sparse columns that came after OLDEST, and with which version


def spoken(version: object) -> bool:
    """Whether this program speaks a version that somebody else named; a later one speaks ours, and sees to it."""
    return type(version) is int and version >= OLDEST


def unspoken(version: object) -> str:
    """What to tell people of somebody whose version is not spoken here."""
    theirs = version if type(version) is int else "no version that is known"
    return f"it speaks version {theirs} of CHP/2, and this program {VERSION}; install the same release on both"
