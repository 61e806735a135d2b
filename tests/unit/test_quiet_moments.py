"""Tests of when a server gives memory back to the system.

covers: `QuietMoments` and `give_back` of shell/resources.py
"""

import ctypes
from itertools import pairwise

import pytest

from chp_server.shell.resources import GIVE_BACK_S, QUIET_LOOKS, QuietMoments, give_back


class Clock:
    """A server's seconds: `second` uses a share of the processor and returns whether memory is given back."""

    def __init__(self) -> None:
        self.moments, self.now, self.cpu_s = QuietMoments(), 1000.0, 0.0

    def second(self, share: float) -> bool:
        self.now += 1.0
        self.cpu_s += share
        return self.moments.look(self.now, self.cpu_s)

    def seconds(self, n: int, share: float) -> list[int]:
        return [i for i in range(n) if self.second(share)]


def test_memory_is_given_back_once_after_a_busy_moment() -> None:
    clock = Clock()
    clock.seconds(3, 0.9)
    assert clock.seconds(1000, 0.0009) == [QUIET_LOOKS - 1]


def test_a_server_that_was_never_busy_or_never_quiet_gives_nothing_back() -> None:
    for shares in ([0.009], [0.9], [0.1], [0.9, 0.01, 0.01], [0.01, 0.1]):
        clock = Clock()
        assert not any(clock.second(share) for _ in range(100) for share in shares), shares


def test_memory_is_given_back_at_most_once_per_interval() -> None:
    clock = Clock()
    given = []
    for _ in range(300):
        given += [clock.now for share in (0.9, *[0.01] * QUIET_LOOKS) if clock.second(share)]
    apart = [after - before for before, after in pairwise(given)]
    assert len(given) > 10 and min(apart) >= GIVE_BACK_S


def test_memory_is_given_back_only_if_libc_has_malloc_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    give_back()
    monkeypatch.undo()
    trimmed: list[int] = []
    libc = type("Libc", (), {"malloc_trim": staticmethod(trimmed.append)})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    give_back()
    assert trimmed == [0]
