"""Tests of a watch that begins while the agent hands out changes: it gets each change once."""

from __future__ import annotations

import pytest

from chp_client import Clone, Watch
from chp_client.core.events import Effects
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until


@pytest.mark.parametrize("start", ["snapshot", "end"])
def test_a_watch_begun_while_changes_are_handed_out_gets_no_change_twice(server: TestServer, start: str) -> None:
    """The map has the change already, so a watch that begins there must not get it again."""
    made: list[Watch] = []
    with Clone(server.address) as clone, Clone(server.address) as writer, clone.watch() as earlier:
        clone.wait_until_synced(WAIT_S)
        perform = clone._agent._perform

        def begin_a_watch(effects: Effects) -> None:
            if effects.changes and not made:
                made.append(clone.watch("/w/", start=start))
            perform(effects)

        clone._agent._perform = begin_a_watch  # type: ignore[method-assign]
        first = writer.set("/w/1", b"1").wait(WAIT_S)
        until(lambda: made, "the watch to be made")
        second = writer.set("/w/2", b"2").wait(WAIT_S)
        assert [earlier.get(WAIT_S).revision for _ in range(2)] == [first.revision, second.revision]
        wanted = [first.revision, second.revision] if start == "snapshot" else [second.revision]
        assert [made[0].get(WAIT_S).revision for _ in wanted] == wanted
