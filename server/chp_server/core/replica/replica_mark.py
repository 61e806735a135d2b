"""The mark in a journal that a replica has written: a meta value, stored with the first record. It names the journal.

A replica syncs its journal late, so the journal may lack the last sets. A plain server that began from it would serve
without them, as an active of the same store. So a plain server refuses a marked journal, and a replica refuses one that
has records and no mark. A server that is started with `--promote` takes a marked journal, and clears the mark once it
is active, or follows its peer (core.py).
"""

from __future__ import annotations

from ..state.journal import Journal, WrongStore

# The name of the meta value.
REPLICA = "replica"
OF_A_REPLICA = (
    "{0} is the journal of a replica, which may lack the last sets: start it with --replica --upstream, or give an "
    "empty --data, which the other server of the pair fills. If both servers of the pair are gone, --promote serves "
    "from it"
)
OF_A_SERVER = (
    "{0} is the journal of a server of a pair, not of a replica: start it without --replica, or give an empty --data, "
    "which upstream fills"
)
NOTHING = "{0} is empty, so there is nothing to promote: give --data the directory of a replica"


def is_marked(journal: Journal) -> bool:
    """Return True if a replica has written this journal."""
    return bool(journal.get_meta(REPLICA))


def enter(journal: Journal, number: int, *, replica: bool, promote: bool = False, run: bytes = b"1") -> bytes:
    """Let a server begin from a loaded journal that ends at `number`; raise `WrongStore` if it is of the other kind.

    A replica marks it with the id of its run, which is stored with the next record. A server that promotes a replica
    takes a marked one, and one whose mark a promotion has cleared. Return the mark, or b"".
    """
    marked = is_marked(journal)
    if promote and not number:
        raise WrongStore(NOTHING.format(journal.stats().get("store")))
    if marked and not (replica or promote):
        raise WrongStore(OF_A_REPLICA.format(journal.stats().get("store")))
    if replica and number and not marked:
        raise WrongStore(OF_A_SERVER.format(journal.stats().get("store")))
    if replica and not marked:
        journal.set_meta(REPLICA, run)
        return run
    return journal.get_meta(REPLICA) or b""
