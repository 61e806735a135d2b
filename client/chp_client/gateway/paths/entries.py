"""A key and its value in JSON, wherever one is shown."""

from __future__ import annotations

import base64
from typing import Any

from ...clone.mapping import Entry


def shown(value: bytes) -> dict[str, str]:
    """A value in JSON: as text if it is UTF-8, else as base64."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as JSON has it."""
    said = {"key": entry.key, **shown(entry.value), "revision": str(entry.revision)}
    return said if entry.ttl is None else {**said, "ttl": round(entry.ttl, 3)}
