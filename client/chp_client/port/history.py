"""The versions of one key that the servers' log still holds: each value, its time and its writer.

A version is a record that wrote the key. The log keeps the records of all keys within the servers' `retain_bytes` and
`retain_s`, so a key that is seldom set may have no version. The writer of a record is known if the record is one
client's batch. A turn of the active often joins the batches of several clients, and then no writer is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from chp.errors import BadInput
from chp.keys import check_key
from chp.numbers import Revision

from ..codecs import Decoding
from ..errors import NotRetained
from .feed import Feed, FeedRecord

VERSIONS_MAX = 10_000
# A history is read at most this many times, because the log may drop its oldest record between two questions.
TRIES = 3


class Version(NamedTuple):
    """A version of a key; `operation` is "set", or "delete" with a `value` of None.

    expired   True for a delete at the end of a ttl or a lease, which no client made
    ttl       the ttl of this set in seconds; None for a key without an end, or with a lease
    when      the time by the clock of the server that was active; for people
    by        the client as 24 hexadecimal digits, as `chp leases` shows owners; None if the record does not tell
    """

    key: str
    value: Any
    operation: str
    revision: Revision
    expired: bool
    ttl: float | None
    when: datetime
    by: str | None


def history(
    servers: Sequence[str], key: str, decoding: Decoding | None, limit: int, timeout_s: float | None
) -> list[Version]:
    """Return the last `limit` versions of a key, the oldest first. Raises `TimeoutError` if no server answers."""
    check_key(key)
    if type(limit) is not int or not 1 <= limit <= VERSIONS_MAX:
        raise BadInput(f"limit={limit!r} is not a number of versions from 1 to {VERSIONS_MAX}")
    found: deque[Version] = deque(maxlen=limit)
    with Feed(servers, _subtree_of(key)) as feed:
        for left in reversed(range(TRIES)):
            found.clear()
            facts = feed.facts(timeout_s)
            try:
                for records in feed.fetch(facts.oldest, timeout_s, opener=facts.oldest_opener):
                    for record in records:
                        found.extend(_versions(record, key))
                break
            except NotRetained:
                if not left:
                    raise
    return [version if decoding is None else _shown(version, decoding) for version in found]


def _subtree_of(key: str) -> str:
    """Return the smallest subtree with this key."""
    return key[: key.rindex("/") + 1] if key.startswith("/") else ""


def _versions(record: FeedRecord, key: str) -> Iterator[Version]:
    """Yield the versions of the key in a record, nearly always none or one."""
    if key not in record.keys:
        return
    deletes, expiries = set(record.deletes), set(record.expiries)
    when = datetime.fromtimestamp(record.wall_ms / 1000, UTC)
    for i, each in enumerate(record.keys):
        if each == key:
            gone, expired, ttl = i in deletes, i in expiries, record.ttls_ms.get(i)
            value, operation = (None, "delete") if gone else (record.values[i], "set")
            by = record.client.hex() if record.client and not expired else None
            left = None if ttl is None else ttl / 1000
            yield Version(key, value, operation, Revision(record.first), expired, left, when, by)


def _shown(version: Version, decoding: Decoding) -> Version:
    """Return the version with its value decoded; a value that the codec can't take stays bytes."""
    return version if version.value is None else version._replace(value=decoding.value(version.key, version.value))
