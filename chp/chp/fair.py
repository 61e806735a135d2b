"""Bounded tables that several users share fairly: which user makes room when a table is full (SPEC.md, section 38).

A user alone may fill a whole table. When a table is full, the user who has most of it makes room. This user loses the
entry that it used longest ago. If it is also the user who asks for more, it is refused instead. A user who has less
than a quarter of the table never makes room for another. Without keys all clients are one user, whose name is "".

The choice depends on the table alone, so two servers whose tables are alike choose alike. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
QUARTER = 4


def crowding(counts: Mapping[str, int], most: int, asker: str | None = None) -> str | None:
    """Return the user who makes room in a full table of `most`; None if no user has a quarter of it.

    If several users have the most, the asker makes room if it is one of them, else the first by name.
    """
    top = max(counts.values(), default=0)
    if QUARTER * top < most or not top:
        return None
    if asker is not None and counts.get(asker) == top:
        return asker
    return min(user for user, count in counts.items() if count == top)


def making_room(users: Mapping[Key, str], most: int, asker: str, used: Callable[[Key], Any]) -> Key | None:
    """Return the entry of another user that makes room in a full table of `most`; None if the asker is refused.

    `users` tells the user of each entry, and `used` when it was used last.
    """
    user = crowding(Counter(users.values()), most, asker)
    if user is None or user == asker:
        return None
    return min((key for key, whose in users.items() if whose == user), key=used)


class FairTable(OrderedDict[Key, Value]):
    """A table of at most `most` entries in the order of their last use; each entry belongs to a user.

    Entries come by `put` and go by `del`. A caller that puts one entry too many removes the `loser`.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self._user_of: dict[Key, str] = {}
        # The entries of each user. While there is only one user, the table itself has the order of use, and the order
        # here is out of date.
        self._of_user: dict[str, OrderedDict[Key, None]] = {}

    @property
    def full(self) -> bool:
        """True if one more entry would be too many."""
        return len(self) >= self.most

    def put(self, key: Key, value: Value, user: str = "") -> None:
        """Keep an entry as the one that was used last."""
        self[key] = value
        self.give(key, user)

    def use(self, key: Key) -> None:
        """Note that an entry is used now."""
        self.move_to_end(key)
        if len(self._of_user) > 1:
            self._of_user[self._user_of[key]].move_to_end(key)

    def give(self, key: Key, user: str) -> None:
        """Assign an entry to a user, and mark it as the most recently used."""
        if user not in self._of_user:
            self._begin(user)
        before = self._user_of.get(key)
        if before is not None and before != user:
            self._take(key, before)
        self._user_of[key] = user
        self._of_user[user][key] = None
        self.use(key)

    def _begin(self, user: str) -> None:
        if len(self._of_user) == 1:
            (alone,) = self._of_user
            self._of_user[alone] = OrderedDict.fromkeys(key for key in self if key in self._user_of)
        self._of_user[user] = OrderedDict()

    def __delitem__(self, key: Key) -> None:
        """Remove an entry."""
        super().__delitem__(key)
        self._take(key, self._user_of.pop(key))

    def pop(self, key: Key) -> Value:  # type: ignore[override]  # no caller needs the default of a dict's own
        """Remove an entry, and return its value."""
        value = self[key]
        del self[key]
        return value

    def _take(self, key: Key, user: str) -> None:
        keys = self._of_user[user]
        del keys[key]
        if not keys:
            del self._of_user[user]

    def user_of(self, key: Key) -> str:
        """Return the user of an entry; "" if it has none, or is not here."""
        return self._user_of.get(key, "")

    def of_user(self, user: str) -> list[Key]:
        """Return a user's entries, the one used longest ago first."""
        if len(self._of_user) == 1 and user in self._of_user:
            return list(self)
        return list(self._of_user.get(user, ()))

    def crowding(self, asker: str | None = None) -> str | None:
        """Return the user who makes room, as the function of that name does."""
        return crowding({user: len(keys) for user, keys in self._of_user.items()}, self.most, asker)

    def loser(self, asker: str | None = None) -> Key:
        """Return the entry to remove: the one used longest ago of the user who makes room.

        If no user has a quarter, it is the one used longest ago of all.
        """
        user = self.crowding(asker)
        return next(iter(self if user is None or len(self._of_user) == 1 else self._of_user[user]))

    def refuses(self, asker: str) -> bool:
        """Return True if the table is full and no other user makes room. It is for tables that never remove entries."""
        return self.full and self.crowding(asker) in (None, asker)
