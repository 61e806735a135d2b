"""A way to let a Clone's leases expire, as if its process were stopped or dead."""

from chp_client import Clone
from chp_client.clone.base import internals


def stand_still(clone: Clone) -> None:
    """Stop refreshing all leases of a Clone, so that they expire a ttl later."""
    with internals(clone).mailbox.lock:
        leases = internals(clone).mailbox.core.leases.all()
    assert leases, "there is none to be lost"
    for lease in leases:
        internals(clone).writer.drop_lease(lease)
