"""covers: replica_mark.py: the journal of a replica is no journal of a plain server, until its mark is cleared."""

from __future__ import annotations

from pathlib import Path

import pytest

from chp_server.core.replica import replica_mark
from chp_server.core.state.journal import Journal, WrongStore
from chp_server.store.store_url import open_journal


def opened(path: Path) -> Journal:
    journal = open_journal(f"sqlite:{path}")
    journal.load()
    return journal


def test_a_mark_is_in_the_journal_until_it_is_cleared(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    replica_mark.enter(journal, 0, replica=True)
    journal.sync()
    journal.close()
    journal = opened(tmp_path)
    replica_mark.enter(journal, 5, replica=True)
    with pytest.raises(WrongStore, match=f"{tmp_path}.* is the journal of a replica.* give an empty --data"):
        replica_mark.enter(journal, 5, replica=False)
    replica_mark.enter(journal, 5, replica=False, promote=True)
    with pytest.raises(WrongStore, match="is empty, so there is nothing to promote"):
        replica_mark.enter(journal, 0, replica=False, promote=True)
    journal.set_meta(replica_mark.REPLICA, b"")
    journal.sync()
    journal.close()
    journal = opened(tmp_path)
    replica_mark.enter(journal, 5, replica=False)
    with pytest.raises(WrongStore, match="is the journal of a server"):
        replica_mark.enter(journal, 5, replica=True)
    replica_mark.enter(journal, 0, replica=True)
    journal.close()
