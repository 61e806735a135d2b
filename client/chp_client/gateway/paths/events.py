"""What a change looks like to who reads server-sent events: one event a record, so that none is seen in part.

    id: 1.136
    event: change
    data: {"number": "1.136", "changes": [{"key": "/a", "value": "1"}, {"key": "/b", "deleted": true}]}

A delete by time has `"expired": true` too.

A reader who comes back with Last-Event-ID therefore misses nothing and has nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from ...agent.changes import Changes
from .entries import shown

SNAPSHOT_ROWS = 500  # of one event of a snapshot


def events(changes: Changes) -> Iterator[tuple[int, bytes]]:
    """Each record's number, and the event that tells of it."""
    expired = list(map(set(changes.expiries).__contains__, range(len(changes))))
    rows = zip(changes.revisions, changes.keys, changes.values, expired, strict=True)
    for revision, record in groupby(rows, key=itemgetter(0)):
        yield int(revision), _event(str(revision), [_row(*row) for _, *row in record])


def snapshot(changes: Changes, number: str) -> Iterator[bytes]:
    """What there is, to begin anew with; only its end has an id: who has less must have it again."""
    columns = zip(changes.keys, changes.values, changes.revisions, strict=True)
    rows = [{**_row(key, value), "revision": str(revision)} for key, value, revision in columns]
    yield _said("snapshot", {"keys": len(rows)})
    for i in range(0, len(rows), SNAPSHOT_ROWS):
        yield _said("entries", {"changes": rows[i : i + SNAPSHOT_ROWS]})
    yield f"id: {number}\n".encode() + _said("current", {"number": number})


def _event(number: str, rows: list[dict[str, object]]) -> bytes:
    return f"id: {number}\n".encode() + _said("change", {"number": number, "changes": rows})


def _said(event: str, data: dict[str, object]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _row(key: str, value: bytes | None, expired: bool = False) -> dict[str, object]:
    if value is not None:
        return {"key": key, **shown(value)}
    return {"key": key, "deleted": True, "expired": True} if expired else {"key": key, "deleted": True}
