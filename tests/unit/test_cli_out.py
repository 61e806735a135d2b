"""Tests of the command line's output beside its answer, and of its input at the limits."""

import json
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from chp.limits import DEFAULT
from chp_client import Lagging, State
from chp_client.cli import pair, store
from chp_client.cli.faults import RefusedByServer
from chp_client.cli.out import json_line
from chp_client.cli.servers import operate, status
from tests.talk import run
from tests.unit.cli_standin import Shared, StandIn


def test_json_shows_bytes_in_hex_and_unknown_types_as_text() -> None:
    assert json.loads(json_line({"id": b"\x01\xff", "state": State.SYNCED, "place": {1}})) == {
        "id": "01ff", "state": "SYNCED", "place": "{1}",
    }  # fmt: skip


@pytest.mark.parametrize(("size", "code"), [(DEFAULT.value_bytes_max, 0), (DEFAULT.value_bytes_max + 1, 2)])
def test_set_takes_the_largest_value_but_no_larger_one(monkeypatch: pytest.MonkeyPatch, size: int, code: int) -> None:
    shared = Shared()
    monkeypatch.setattr(store, "make_clone", lambda settings, subtrees: StandIn(shared, subtrees))
    result = run("set", "/a", "-", stdin=bytes(size))
    assert result.exit_code == code and len(shared.entries) == (not code)


def test_top_stops_after_the_given_number_of_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(status, "_wait", lambda seconds: None)
    look: Any = SimpleNamespace(again=lambda: looks.append(1))
    assert len(list(islice(status.looks([status.MountLook("", look)], 1.0, 3), 10))) == len(looks) == 3


def test_a_hand_over_fails_if_the_server_does_not_become_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "view", lambda server, answer: SimpleNamespace(active=False))
    admin: Any = SimpleNamespace(timeout_s=0.05, ask=lambda server, command: {})
    with pytest.raises(RefusedByServer, match=r"tcp://b:1 did not become active within 0\.05 s"):
        operate.wait_until_active(admin, "tcp://b:1")


def test_a_lagging_watch_is_told_the_remedy_of_the_command_line() -> None:
    settings: Any = None
    remedy = "fell behind; read faster, or begin anew with --from snapshot"
    with pytest.raises(RefusedByServer, match=remedy), store.explained(settings):
        raise Lagging("this watch fell behind", "use conflate=True")
