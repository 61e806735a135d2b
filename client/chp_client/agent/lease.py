"""A lease: keys that live together and expire together. One refresh keeps them alive, however many there are.

The batches of a lease carry its 16-byte name. The agent refreshes it at a third of its ttl. When the lease or its Clone
is closed, its keys are deleted together. When its process dies, the servers delete them one ttl later. A process that
was stopped or cut off for that long learns at its next refresh that the lease is *lost*.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from chp import columns
from chp.errors import BadInput

from ..errors import Closed, Refused
from ..locks import Lock
from .tickets import Ticket
from .writer import Items, Writer


class Lease:
    """The lease that `Clone.lease` makes; use it as a context manager, or call `close`."""

    def __init__(self, writer: Writer, lease_id: bytes, ttl_ms: int, timeout: float | None = None) -> None:
        self._prepare(lease_id, ttl_ms)
        self._begin(writer, timeout)

    def _prepare(self, lease_id: bytes, ttl_ms: int) -> None:
        self.id, self._ttl_ms = lease_id, ttl_ms
        self.ttl_s = ttl_ms / 1000
        self._closed = self._lost = False
        self._listeners: list[Callable[[Lease], object]] = []
        self._listening = Lock()

    def _begin(self, writer: Writer, timeout: float | None) -> None:
        """Tell the servers of the lease, and keep it alive from now on."""
        self._writer = writer
        writer.put([], [], {columns.LEASE: [self.id, self._ttl_ms]}, timeout)
        writer.keep_lease(self.id, self._ttl_ms, self._refresh)

    def set(self, key: str, value: Any, timeout: float | None = None) -> Ticket:
        """Set a key that lives as long as the lease.

        `timeout` and errors are those of `Clone.set`. Raises `Closed` if the lease is closed or lost.
        """
        return self.set_many(([key], [value]), timeout)

    def set_many(self, items: Items, timeout: float | None = None) -> Ticket:
        """Set many keys that live as long as the lease."""
        if self._closed:
            raise Closed("this lease is closed; make another")
        if self._lost:
            raise Closed("this lease is lost, and its keys are gone: it was not refreshed in time; make another")
        keys, values, _ = self._writer.columns(items, {})
        return self._writer.put(keys, values, {columns.LEASED: self.id}, timeout)

    def close(self, timeout: float | None = None) -> Ticket | None:
        """End the lease. Its keys are deleted together. It never waits for room, so it needs no `timeout`."""
        return None if self._closed else self.end()

    def end(self, timeout: float | None = None) -> Ticket:
        """End a lease that is open, and return the ticket."""
        ticket = self._writer.end_lease(self.id)
        self._closed = True
        return ticket

    def abandon(self) -> None:
        """End the lease without a ticket for the answer."""
        with suppress(Closed):
            self.close()

    # -- whether it lives

    @property
    def lost(self) -> bool:
        """True if the servers have ended the lease: it was not refreshed for its ttl, and its keys are gone."""
        return self._lost

    def on_lost(self, listener: Callable[[Lease], object]) -> None:
        """Call `listener(lease)` once the lease is lost, or now if it is.

        The listener runs on the thread of the Clone's listeners.
        """
        if not callable(listener):
            raise BadInput(f"a listener is something to call with the lease, not {listener!r:.60}")
        with self._listening:
            self._listeners.append(listener)
            lost = self._lost
        if lost:
            self._tell()

    def _refresh(self) -> Ticket:
        ticket = self._writer.new_ticket()
        ticket.on_settled(self._on_refreshed)
        return ticket

    def _on_refreshed(self, ticket: Ticket) -> None:
        error = ticket.error
        if isinstance(error, Refused) and error.code == "lease" and not self._closed:
            self._writer.lease_lost(self.id)
            with self._listening:
                self._lost = True
            self._tell()

    def _tell(self) -> None:
        while self._listeners:
            try:
                listener = self._listeners.pop()
            except IndexError:
                # Another thread took the last one.
                return
            self._writer.call(partial(listener, self))

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        return f"<Lease {self.id.hex()} of {self.ttl_s} s{', closed' if self._closed else ''}>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._writer.closed:
            self.close()
