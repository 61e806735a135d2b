"""Python's collector looks at what is new, and never at what is large and old. covers: cycles.py."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from chp_server.shell.cycles import NEW_MAX, Cycles


class Thing:
    """Something that may refer to itself."""

    def __init__(self) -> None:
        self.me: Thing | None = self


@pytest.fixture
def cycles() -> Iterator[Cycles]:
    cycles = Cycles()
    cycles.begin()
    yield cycles
    cycles.end()
    gc.collect()


def test_cyclic_garbage_is_collected_once_many_new_objects_exist(cycles: Cycles) -> None:
    gone = weakref.ref(Thing())
    cycles.step(False)
    assert gone() is not None, "nothing was looked at yet"
    # Without the GIL each thread counts its objects in steps of some hundreds.
    held = [[] for _ in range(NEW_MAX + 1000)]  # type: ignore[var-annotated]
    cycles.step(False)
    assert gone() is None and len(held) > NEW_MAX


def test_the_garbage_collector_never_looks_at_slices_of_an_image(cycles: Cycles) -> None:
    before = gc.get_freeze_count()
    slices = [(["a"] * 10, [b""] * 10) for _ in range(100)]
    cycles.step(True)
    assert gc.get_freeze_count() - before >= 100
    assert not any(thing is slices[0] for thing in gc.get_objects())


def test_a_frozen_object_is_freed_with_its_last_reference(cycles: Cycles) -> None:
    thing = Thing()
    thing.me = None
    gone = weakref.ref(thing)
    cycles.step(True)
    del thing
    assert gone() is None
