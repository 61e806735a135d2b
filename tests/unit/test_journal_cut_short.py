"""covers: core.py for a journal that ends before its high-water mark: the server never serves from what is left."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import Segment
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.asks import Vote
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.performing import recover
from chp_server.core.state.journal import LoadedJournal, Options
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.memory_store import MemoryStore

MARK = 1 << 48 | 40


class Short(MemoryStore):
    """A journal that has three of the forty numbers that its mark tells of."""

    def __init__(self, rows: list[LoggedRow]) -> None:
        super().__init__("memory:", Options())
        self._found = rows

    def load(self) -> LoadedJournal:
        return LoadedJournal(self._found[-1].last, 0, iter(()), iter(self._found), "told", marked=MARK, seen_epoch=1)


def rows() -> list[LoggedRow]:
    """Return the rows that a lone server wrote."""
    core = ServerCore(CoreConfig(), b"o" * 16, 0.0, DEFAULT)
    written: list[LoggedRow] = []
    for no in range(3):
        core.begin_turn(core.turn.now + 0.1, 0.0)
        if no:
            core.collect([RESERVED_KEY, pack(no), b"c" * 16, b"", Segment(["/a"], [b"%d" % no]).encode()])
        written += [op.row() for op in core.end_turn().journal]  # type: ignore[union-attr]
    return written


def started(primary: bool = True, **config: Any) -> ServerCore:
    core = ServerCore(CoreConfig(primary=primary, **config), b"n" * 16, 0.0, DEFAULT)
    recover(core, Short(rows()), 0.0, 0.0)
    return core


def run(seconds: float, *cores: ServerCore) -> None:
    """Let the servers take turns, and deliver their messages to each other."""
    mail: list[list[list[bytes]]] = [[] for _ in cores]
    for _ in range(round(seconds / 0.05)):
        for i, core in enumerate(cores):
            core.begin_turn(core.turn.now + 0.05, 0.0)
            for frames in mail[i]:
                core.peer_message(frames)
            mail[i] = []
            turn = core.end_turn()
            if len(cores) > 1:
                mail[1 - i] += [*turn.to_peer, *turn.opened, *turn.confirm]


def test_a_short_journal_ends_a_lone_server_and_both_numbers_are_told() -> None:
    core = started()
    run(0.1, core)
    assert not core.active and "ends at 1.3" in core.pair.cut_short and "at 1.40" in core.pair.cut_short
    assert "there is no peer" in core.pair.cut_short and "--recover prefix" in core.pair.cut_short


def test_a_short_journal_ends_a_server_whose_peer_stays_silent() -> None:
    core = started(has_peer=True, solo_wait_s=3.0)
    run(2.5, core)
    assert not core.active and not core.pair.cut_short
    run(1.0, core)
    assert not core.active and "the peer was not heard" in core.pair.cut_short


@pytest.mark.parametrize("primary", [True, False])
def test_a_short_journal_ends_a_server_whose_peer_has_no_more(primary: bool) -> None:
    core = started(primary, has_peer=True)
    peer = ServerCore(CoreConfig(primary=not primary, has_peer=True), b"p" * 16, 0.0, DEFAULT)
    run(1.0, core, peer)
    assert not core.active and "the peer has no more" in core.pair.cut_short


@pytest.mark.parametrize("primary", [True, False])
def test_a_server_with_a_short_journal_may_serve_after_it_catches_up(primary: bool) -> None:
    core = started(primary, has_peer=True)
    peer = ServerCore(CoreConfig(primary=not primary, has_peer=True), b"p" * 16, 0.0, DEFAULT)
    held = rows()
    more = ServerCore(CoreConfig(), b"q" * 16, 0.0, DEFAULT)
    for row in held:
        more.committer.committed.follow(row.body, 0.0)
    more.pair.high_water_mark = 0
    for row in held:
        peer.committer.committed.log.append(peer.committer.committed.follow(row.body, 0.0))
    more.begin_turn(0.1, 0.0)
    for no in range(3, 45):
        more.collect([RESERVED_KEY, pack(no), b"c" * 16, b"", Segment(["/a"], [b"%d" % no]).encode()])
    for op in more.end_turn().journal:
        peer.committer.committed.log.append(peer.committer.committed.follow(op.body, 0.0))  # type: ignore[union-attr]
    run(2.0, core, peer)
    assert peer.active and not core.pair.cut_short and core.pair.in_sync()
    assert core.state.number == peer.state.number > core.pair.high_water_mark
    # The peer is gone, and a client votes.
    run(3.0, core)
    assert core.do(Vote()) and core.active
