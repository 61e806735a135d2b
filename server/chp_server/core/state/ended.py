"""Which keys ended by time, as far as it is remembered: the latest of them, since this server got its state.

A server that has to part with more than its log tells of sees by its state which keys are gone, and not why. One that
somebody deleted is deleted again in the history that survived; one that was over by time is no update of anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import repeat

KEYS_MAX = 10_000


class Ended:
    """The last ends of keys, and from which number on they are all here."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, int] = OrderedDict()  # key -> revision of the record that ended it
        self._since = 0

    def begin(self, number: int) -> None:
        """What ended up to a number is not known."""
        self._at.clear()
        self._since = number

    def note(self, keys: Iterable[str], revision: int) -> None:
        """A record ended these."""
        self._at.update(zip(keys, repeat(revision), strict=False))
        while len(self._at) > KEYS_MAX:
            self._since = max(self._since, self._at.popitem(last=False)[1])

    def may_have(self, key: str, after: int) -> bool:
        """Whether a key that is gone may have ended by time after a number."""
        return self._since > after or self._at.get(key, 0) > after
