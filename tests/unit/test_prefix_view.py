"""covers: chp_client.clone.prefix_view: what a Clone holds under a prefix, in order, in ranges and pages; alone."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from chp_client import AsyncClone, BadInput, Clone
from chp_client.clone.base import internals
from tests.talk import NO_SERVER, unconnected

KEYS = [f"/r/{i:05d}" for i in range(5000)]


@pytest.fixture
def clone() -> Iterator[Clone]:
    with unconnected() as made:
        made.update({key: key.encode() for key in reversed(KEYS)} | {"/q": b"", "/s/1": b"", "/r": b""})
        yield made


def test_a_prefix_view_is_a_mapping_in_key_order(clone: Clone) -> None:
    view = clone.prefix("/r/")
    assert list(view) == list(view.keys()) == KEYS and len(view) == len(KEYS) and view
    assert list(view.values()) == [key.encode() for key in KEYS] and b"/r/00001" in view.values()
    assert dict(view.items()) == {key: key.encode() for key in KEYS}
    assert view["/r/00001"] == b"/r/00001" and "/r/00001" in view and view.get("/r") is None
    assert "/s/1" not in view and "/s/1" in clone
    with pytest.raises(KeyError):
        view["/s/1"]
    assert list(clone.prefix("")) == sorted(clone) and list(clone.prefix("/none/")) == [] and not clone.prefix("/none/")


def test_a_prefix_view_follows_sets_and_deletes(clone: Clone) -> None:
    view = clone.prefix("/r/")
    assert len(view) == 5000
    clone["/r/00001x"] = b"new"
    assert list(view)[1:3] == ["/r/00001", "/r/00001x"]
    del clone["/r/00001"]
    clone.delete_many(KEYS[2:4000])
    assert list(view) == ["/r/00000", "/r/00001x", *KEYS[4000:]]
    clone["/r/00001"] = b"again"
    assert list(view)[:3] == ["/r/00000", "/r/00001", "/r/00001x"]


def test_ranges_and_pages(clone: Clone) -> None:
    assert list(clone.prefix("/r/", after=KEYS[10], until=KEYS[13])) == KEYS[11:13]
    assert list(clone.prefix("/r/", after="/a", until="/z")) == KEYS
    view, after = clone.prefix("/r/"), None
    seen: list[str] = []
    while page := view.page(300, after):
        assert len(page) <= 300
        seen += page
        after = max(page)
    assert seen == KEYS
    assert clone.prefix("/r/", until=KEYS[5]).page(100) == {key: key.encode() for key in KEYS[:5]}


def test_a_page_is_full_although_keys_were_deleted(clone: Clone) -> None:
    assert len(clone.prefix("/r/")) == 5000
    clone.delete_many(KEYS[:4990:2])
    assert list(clone.prefix("/r/").page(10)) == KEYS[1:20:2]


def test_a_page_looks_at_only_a_part_of_the_keys(clone: Clone) -> None:
    """Counted, not timed: of a map of 5,000 keys a page of ten looks at one chunk."""
    view = clone.prefix("/r/")
    view.page(10)
    looked: list[int] = []
    spans = internals(clone).mailbox.core.subscriptions.order.spans

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(order, name)

        def spans(self, low: str, high: str | None) -> Iterator[tuple[list[str], int]]:
            for keys, at in spans(low, high):
                looked.append(len(keys))
                yield keys, at

    order = internals(clone).mailbox.core.subscriptions.order
    internals(clone).mailbox.core.subscriptions.order = Counting()  # type: ignore[assignment]
    try:
        assert len(view.page(10, after=KEYS[2500])) == 10
    finally:
        internals(clone).mailbox.core.subscriptions.order = order
    assert 10 <= sum(looked) <= 2048


def test_bad_prefix_arguments_are_refused(clone: Clone) -> None:
    for bad in (lambda: clone.prefix(3), lambda: clone.prefix("/", after=b"x"), lambda: clone.prefix("/").page(0)):  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            bad()
    with Clone(NO_SERVER, subtree="/a/") as narrow, pytest.raises(BadInput, match="read it with a Clone"):
        narrow.prefix("/b/")
    with Clone(NO_SERVER, subtree=None) as writer, pytest.raises(BadInput, match="only writes"):
        writer.prefix("/b/")
    with pytest.raises(BadInput, match="clear"):
        clone.delete_prefix("")


def test_threads_read_a_prefix_view_while_another_thread_sets(clone: Clone) -> None:
    errors: list[str] = []

    def read() -> None:
        for _ in range(30):
            found = list(clone.prefix("/r/"))
            if found != sorted(found) or not set(KEYS) <= set(found):
                errors.append("a key that was there all the time is missing")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(3000):
        clone[f"/r/{i:05d}+"] = b""
        del clone[f"/r/{i:05d}+"]
    for reader in readers:
        reader.join()
    assert not errors and list(clone.prefix("/r/")) == KEYS


def test_a_forked_child_process_can_read_a_prefix_view(clone: Clone) -> None:
    clone.prefix("/r/").page(1)
    clone["/r/new"] = b""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if list(clone.prefix("/r/")) == [*KEYS, "/r/new"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_async_clone_has_prefix_views() -> None:
    async def run() -> list[str]:
        async with AsyncClone(NO_SERVER) as clone:
            clone.submit("/b", b"")
            clone.submit("/a", b"")
            assert list(clone.prefix("/").page(1)) == ["/a"]
            found = list(clone.prefix("/"))
            await clone.close(0.0)
            return found

    assert asyncio.run(run()) == ["/a", "/b"]
