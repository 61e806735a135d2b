"""A stand-in for `Clone`, as the command line uses it: one dictionary for all that are opened, no sockets.

`Shared` is the store behind them; a test reads and prepares it, and makes it fail as a real pair would.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from chp.keys import check_key
from chp.numbers import number
from chp_client.errors import Conflict


@dataclass
class Shared:
    """The contents and the behaviour of the stand-in for a pair."""

    entries: dict[str, SimpleNamespace] = field(default_factory=dict)
    # The changes that a watch gives.
    changes: list[SimpleNamespace] = field(default_factory=list)
    # The subtree of each Clone that was opened.
    opened: list[Any] = field(default_factory=list)
    closed: int = 0
    # (keys, ttl) of each set_many
    many: list[tuple[int, float | None]] = field(default_factory=list)
    synced: bool = True
    acknowledges: bool = True
    # What a set_many is refused with, by a key of it.
    refuses: dict[str, Exception] = field(default_factory=dict)
    next: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, key: str, value: bytes, ttl: float | None = None) -> int:
        """Set a key; returns its revision."""
        revision = number(3, next(self.next))
        self.entries[key] = SimpleNamespace(value=value, revision=revision, ttl=ttl)
        return revision


class StandIn:
    """A Clone of `Shared`, showing only its subtrees."""

    def __init__(self, shared: Shared, subtrees: list[str]) -> None:
        self.shared = shared
        self.subtrees = subtrees
        self.revision = number(3, 1042)
        shared.opened.append(subtrees)

    def close(self, timeout: float) -> None:
        self.shared.closed += 1

    refused = ""

    def wait_until_synced(self, timeout: float) -> None:
        if not self.shared.synced:
            raise TimeoutError("not synced")

    def _holds(self, key: str) -> bool:
        return any(key.startswith(s) for s in self.subtrees)

    def __iter__(self) -> Iterator[str]:
        return (key for key in list(self.shared.entries) if self._holds(key))

    def prefix(self, prefix: str, after: str | None = None) -> list[str]:
        return sorted(key for key in self if key.startswith(prefix) and (after is None or key > after))

    def entry(self, key: str) -> Any:
        return self.shared.entries.get(key) if self._holds(key) else None

    def set(self, key: str, value: bytes, ttl: float | None = None, if_revision: int | None = None) -> Ticket:
        check_key(key)
        present = self.shared.entries[key].revision if key in self.shared.entries else 0
        if if_revision is not None and if_revision != present:
            return Ticket(self.shared, error=Conflict("not set", "revision", {key: present}))
        return Ticket(self.shared, self.shared.put(key, value, ttl))

    def set_many(self, values: Mapping[str, bytes], ttl: float | None = None, timeout: float = 0) -> Ticket:
        self.shared.many.append((len(values), ttl))
        if refused := next((error for key, error in self.shared.refuses.items() if key in values), None):
            return Ticket(self.shared, error=refused)
        return Ticket(self.shared, [self.shared.put(k, v, ttl) for k, v in values.items()][-1])

    def delete_many(self, keys: list[str], timeout: float) -> Ticket:
        for key in keys:
            self.shared.entries.pop(key, None)
        return Ticket(self.shared, number(3, next(self.shared.next)))

    def watch(self, prefix: str, start: Any) -> Watch:
        self.shared.opened.append(("watch", prefix, start))
        return Watch(self.shared)


class Watch:
    """Gives the changes that the test prepared, two at a time."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def batches(self) -> Iterator[list[SimpleNamespace]]:
        changes = self.shared.changes
        return (changes[i : i + 2] for i in range(0, len(changes), 2))


class Ticket:
    """Settled at once, or never."""

    def __init__(self, shared: Shared, revision: int = 0, error: Exception | None = None) -> None:
        self.shared, self.revision, self.error = shared, revision, error

    def wait(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        if not self.shared.acknowledges:
            raise TimeoutError("no acknowledgement")
        return SimpleNamespace(revision=self.revision, durability="replicated")
