"""The mark in a journal that a replica has written: a meta value, stored with the first record.

A replica syncs its journal late, so the journal may lack the last sets. A plain server that began from it would serve
without them, as an active of the same store. So a plain server refuses a marked journal, and a replica refuses one that
has records and no mark. `clear` makes a marked journal that of a plain server: a promotion calls it, after it has made
sure that nothing is missing.
"""

from __future__ import annotations

from ..state.journal import Journal, WrongStore

# The name of the meta value.
REPLICA = "replica"
OF_A_REPLICA = (
    "{0} is the journal of a replica, which may lack the last sets: start it with --replica --upstream, or give an "
    "empty --data, which the other server of the pair fills"
)
OF_A_SERVER = (
    "{0} is the journal of a server of a pair, not of a replica: start it without --replica, or give an empty --data, "
    "which upstream fills"
)


def is_marked(journal: Journal) -> bool:
    """Return True if a replica has written this journal."""
    return bool(journal.get_meta(REPLICA))


def enter(journal: Journal, number: int, *, replica: bool) -> None:
    """Let a server begin from a loaded journal that ends at `number`; raise `WrongStore` if it is of the other kind.

    A replica marks it, which is stored with the next record.
    """
    marked = is_marked(journal)
    if marked and not replica:
        raise WrongStore(OF_A_REPLICA.format(journal.stats().get("store")))
    if replica and number and not marked:
        raise WrongStore(OF_A_SERVER.format(journal.stats().get("store")))
    if replica and not marked:
        journal.set_meta(REPLICA, b"1")


def clear(journal: Journal) -> None:
    """Make a loaded journal that of a plain server, from the next sync on."""
    journal.set_meta(REPLICA, b"")
