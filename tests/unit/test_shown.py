"""covers: shown.py: the map that a Clone shows, as it is with the global lock and without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from chp_client.core.copy.shown import LockedDict, exchange, removal, showing


@pytest.mark.parametrize("made", [dict, lambda: LockedDict(threading.RLock())])
def test_keys_are_deleted_and_set_together(made: Callable[[], dict[str, bytes]]) -> None:
    shown = made()
    shown.update({"/a": b"1", "/b": b"2"})
    exchange(shown, {"/a", "/none"}, {"/c": b"3"})
    _ = [*showing(shown, zip(["/d"], [b"4"], strict=True))]
    assert shown == {"/b": b"2", "/c": b"3", "/d": b"4"}
    removal(shown, ["/b", "/none"])()
    exchange(shown, (), {"/c": b"5"})
    assert dict(shown) == shown.copy() == {"/c": b"5", "/d": b"4"} and type(shown.copy()) is dict
    assert [*shown] == [*shown.keys()] and [*shown.values()] == [b"5", b"4"] and dict(shown.items()) == shown


@pytest.mark.parametrize("read", ["copy", "keys", "values", "items"])
def test_a_copy_waits_for_the_end_of_a_change(read: str) -> None:
    shown, copies = LockedDict(threading.RLock()), list[Any]()
    shown["/a"] = b"1"

    def steps() -> Any:
        reader.start()
        reader.join(0.1)
        assert reader.is_alive(), "the change is not done yet"
        yield "/b", b"2"

    reader = threading.Thread(target=lambda: copies.append(list(getattr(shown, read)())))
    shown.update(steps())
    reader.join(10)
    assert [len(copy) for copy in copies] == [2]
