"""A transaction and a lease of a view. Each stays within one mount, which its first key or topic chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from chp.errors import BadInput

from .. import checks
from ..agent.lease import Lease
from ..agent.tickets import Ticket
from ..agent.writer import Items, Writer
from ..errors import Closed
from ..mount_table import Mounts, one
from ..topics.transaction import ConsumedBatch, Transaction

# A function (mount, key) that returns the writer of a mount. The key is about to be set; it is None for a topic or a
# condition.
WriterOf = Callable[[str, str | None], Writer]


class MountedTransaction(Transaction):
    """A transaction within one mount, that of its first key or topic. It refuses keys and topics of other mounts."""

    def __init__(self, mounts: Mounts, writer_of: WriterOf, timeout: float | None) -> None:
        self._mounts, self._writer_of = mounts, writer_of
        # The mount, and the key or topic that chose it.
        self._chosen: tuple[str, str] | None = None
        # The writer is None until a mount is chosen; the writer is not used before.
        super().__init__(None, timeout)  # type: ignore[arg-type]

    def _in(self, mount: str, thing: str, key: str | None = None) -> None:
        """Choose the mount, or raise `BadInput` if another mount is chosen already."""
        self._check_open()
        one("the transaction", [*([self._chosen] if self._chosen else []), (mount, thing)])
        writer = self._writer_of(mount, key)
        if self._chosen is None:
            self._chosen, self._writer = (mount, thing), writer

    def _of_key(self, key: str, *, sets: bool = True) -> None:
        self._in(self._mounts.of_key(key), key, key if sets else None)

    def _of_topic(self, topic: str) -> None:
        self._in(self._mounts.of_topic(topic), topic)

    def set(self, key: str, value: Any, ttl: checks.Ttl | None = None, if_revision: int | str | None = None) -> None:
        """Set a key; see `Transaction.set`."""
        self._of_key(key)
        super().set(key, value, ttl, if_revision)

    def set_many(self, items: Items, ttl: checks.Ttl | None = None) -> None:
        """Set many keys; see `Transaction.set_many`."""
        self._check_open()
        keys, values = checks.items_of(items)
        if keys:
            self._mounts.of_keys("set_many", keys)
            self._of_key(keys[0])
            super().set_many((keys, values), ttl)

    def delete(self, key: str, if_revision: int | str | None = None) -> None:
        """Delete a key; see `Transaction.delete`."""
        self._of_key(key)
        super().delete(key, if_revision)

    def expect(self, key: str, revision: int | str) -> None:
        """Do the transaction only if a key has this revision; see `Transaction.expect`."""
        self._of_key(key, sets=False)
        super().expect(key, revision)

    def publish(self, topic: str, *arguments: Any, **named: Any) -> None:
        """Publish a message; see `Transaction.publish`."""
        self._of_topic(topic)
        super().publish(topic, *arguments, **named)

    def publish_many(
        self, topic: str, values: Iterable[Any], keys: Sequence[str] | None = None, headers: Any = None
    ) -> None:
        """Publish messages; see `Transaction.publish_many`."""
        self._of_topic(topic)
        super().publish_many(topic, values, keys, headers)

    def schedule(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        *,
        delay_s: float | timedelta | None = None,
        at: datetime | None = None,
        every_s: float | timedelta | None = None,
        name: str | None = None,
        unless_changed: str | None = None,
        headers: Any = None,
    ) -> str:
        """Have the pair publish a message later; see `Transaction.schedule`."""
        self._of_topic(topic)
        if unless_changed is not None:
            self._of_key(unless_changed, sets=False)
        return super().schedule(
            topic, value, key, delay_s=delay_s, at=at, every_s=every_s, name=name, unless_changed=unless_changed,
            headers=headers,
        )  # fmt: skip

    def cancel(self, topic: str, name: str) -> None:
        """Drop a scheduled message; see `Transaction.cancel`."""
        self._of_topic(topic)
        super().cancel(topic, name)

    def ack(self, batch: ConsumedBatch) -> None:
        """Acknowledge a consumer's batch; see `Transaction.ack`."""
        self._of_topic(batch.whose[0])
        super().ack(batch)

    def send(self) -> Ticket:
        """Send the transaction; see `Transaction.send`.

        A transaction without a key or topic goes to the first mount. After `once` it is refused instead.
        """
        self._check_open()
        if self._chosen is None:
            if self._once is not None:
                raise BadInput("this transaction names no key and no topic, so no mount has it; expect a key of one")
            self._writer = self._writer_of(next(iter(self._mounts.servers)), None)
        return super().send()


class MountedLease(Lease):
    """A lease within one mount, that of its first key. The servers learn of the lease at its first set."""

    def __init__(
        self, mounts: Mounts, writer_of: WriterOf, lease_id: bytes, ttl_ms: int, timeout: float | None
    ) -> None:
        self._mounts, self._writer_of, self._timeout = mounts, writer_of, timeout
        self._chosen: tuple[str, str] | None = None
        self._prepare(lease_id, ttl_ms)

    def set_many(self, items: Items, timeout: float | None = None) -> Ticket:
        """Set many keys that live as long as the lease. Raise `BadInput` for keys of another mount."""
        if self._closed:
            raise Closed("this lease is closed; make another")
        keys, values = checks.items_of(items)
        if keys:
            mount = self._mounts.of_keys("the lease", keys)
            one("the lease", [*([self._chosen] if self._chosen else []), (mount, keys[0])])
            writer = self._writer_of(mount, keys[0])
            if self._chosen is None:
                # Keys and values are checked first, so that a bad one chooses no mount.
                writer.columns((keys, values), {})
                self._begin(writer, self._timeout)
                self._chosen = mount, keys[0]
        if self._chosen is None:
            raise BadInput("no keys; the first key of a lease says which mount has it")
        return super().set_many((keys, values), timeout)

    @property
    def begun(self) -> bool:
        """True if the lease has a key, and so a mount."""
        return self._chosen is not None

    def close(self, timeout: float | None = None) -> Ticket | None:
        """End the lease. Its keys are deleted together."""
        if self._chosen is None:
            self._closed = True
            return None
        return super().close(timeout)

    def __exit__(self, *exc: object) -> None:
        if self._chosen is None or not self._writer.closed:
            self.close()
