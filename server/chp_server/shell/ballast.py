"""A file of no use, which is let go when the journal finds the disk full: so the turn under way can be finished.

A disk is looked at ten times a second, and another program may take its last byte between two looks. From then on
nothing is written (room.py), and nothing need be: but what is in hand has been done, and waits to be written. Once
there is room again the file is made anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NAME = "reserve"
BYTES_MAX = 4 << 20  # more than a turn writes, but for a value of many MiB: there is no set of that size at this point


class Ballast:
    """It is there, or it is not."""

    def __init__(self, directory: Path | None, disk_free_min: int) -> None:
        self._path = None if directory is None else directory / NAME
        self._bytes = min(BYTES_MAX, disk_free_min // 4)
        self._wanted = disk_free_min + self._bytes  # free, for it to be made
        self._there = False

    def hold(self, disk_free: int | None) -> None:
        """Make it, if there is room for it."""
        if self._there or self._path is None or not self._bytes or disk_free is None or disk_free < self._wanted:
            return
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._bytes)
        except OSError:
            self.let_go()
        else:
            self._there = True

    def let_go(self) -> bool:
        """Take it away; whether it was there."""
        was, self._there = self._there, False
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        return was
