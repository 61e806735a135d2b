"""Files of updates that are not history: what a server did alone, and what became of each, for a person to look at.

Each line is JSON; the first tells the format, the others a key each.
"""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

from chp.numbers import describe

from ..core.state.journal import JournalError
from ..core.turn import Save
from ..store.sql.sqlite_files import sync_directory

FORMAT = 1


def saved(directory: str, save: Save) -> str:
    """As `write_updates`; what fails ends the server, as the journal is about to forget them."""
    try:
        return write_updates(directory, save)
    except OSError as error:
        text = f"{directory}: updates that are not history can't be saved ({error}); mend it, start again"
        raise JournalError(text) from error


def write_updates(directory: str, save: Save) -> str:
    """Write a suffix as JSON lines into the data directory, durably: its format, a line a key; returns the path."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{save.name}-{time.time_ns()}.jsonl")
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps({"chp": "suffix", "format": FORMAT}) + "\n")
        for update in save.updates:
            value = None if update.value is None else base64.b64encode(update.value).decode()
            line = {
                "key": update.key,
                "operation": "delete" if value is None else "set",
                "value_base64": value,
                "ttl_ms": update.ttl_ms,
                "number": describe(update.number),
                "outcome": update.outcome,
            }
            file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(Path(path))  # the journal is about to forget them
    return path
