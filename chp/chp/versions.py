"""The versions of CHP/2, and the rules for two programs of different versions (SPEC.md, section 24).

A server tells its version in GREETING and STATE, a client in ICANHAZ ("chp"). This program speaks the versions from
`OLDEST` to `VERSION`; it rejects any other, and says so with both numbers. A pair works at the lower version of its two
servers: requests that need the later one are REFUSED, since the other server would drop them.

    1   RFC 12        2   0.1 of this project, never released        3   stores and histories are proved
    4   rules of access, which an older passive would not have
    5   headers of messages, groups that count deliveries, and scheduled messages
    6   records between servers that name staged batches
"""

VERSION = 6
OLDEST = 3
# Rules of access.
ACCESS_SINCE = 4
# Headers of messages. An older reader gets the messages without them.
HEADERS_SINCE = 5
# Groups that count how often a message was given.
DELIVERIES_SINCE = 5
SCHEDULE_SINCE = 5
# A record of a large commit that names its staged batches. An older peer gets a record with the batches.
COMMIT_SINCE = 6
# A client that tells which batch is the oldest that it holds.
SKIPS_SINCE = 4
# Sparse columns that are newer than OLDEST, and the version of each.
COLUMN_SINCE: dict[str, int] = {"nack": DELIVERIES_SINCE, "schedule": SCHEDULE_SINCE, "cancel": SCHEDULE_SINCE}


def spoken(version: object) -> bool:
    """Return True if this program can speak with one of that version; a later program adapts to this one."""
    return type(version) is int and version >= OLDEST


def unspoken(version: object) -> str:
    """Return a text for people about a program whose version is not spoken here."""
    theirs = version if type(version) is int else "no version that is known"
    return f"it speaks version {theirs} of CHP/2, and this program {VERSION}; install the same release on both"
