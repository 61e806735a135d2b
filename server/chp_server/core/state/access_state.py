"""The access rules at a number, and the user that owns each client: what ACCESS records change (SPEC.md, section 36).

    rules     None until an operator sets some; until then each admitted client may do everything
    changed   the number of the record that set the rules
    owners    client -> the user that wrote with it first; the client is the first part of a session's public id
    secret    gateways compute the names of group members with it, so that no user can compute another user's names.
              The secret is made with the first rules. The server tells it to users who may read the rules.

This is part of the replicated state: the active, the passive, a recovery and a backup agree on it
at each number. ACCESS records exist in journals and between servers only: readers of the map, of
a feed or of a recording never get one.

The table of owners needs no bound of its own. The owner of a client is kept as long as a session of this client
(sessions.py). The owner of an application is kept as long as its version (staging.py), and the owner of a group as long
as the group (groups.py).
"""

from __future__ import annotations

from typing import Any

from chp.access import Rules
from chp.errors import BadFrame, BadInput
from chp.headers import Access
from chp.keys import CLIENT_BYTES

# The prefix of an application's name in the list of owners of a record. The id of a client may begin with this byte
# too, because the id is part of a hash.
APPLICATION = b"="

# The prefix of a group's name among the owners of a record; the topic, a slash and the name of the group follow.
GROUP = b"/"


class AccessState:
    """The access rules, the owners of clients, and the secret of gateways; see the module."""

    def __init__(self) -> None:
        self.rules: Rules | None = None
        self.changed = 0
        self.owners: dict[bytes, str] = {}
        self.secret = b""

    def note(self, told: Access) -> None:
        """Take over the rules and the secret of a record, if the record has them."""
        if told.rules is not None:
            self.rules, self.changed = _read(told.rules), told.last
        self.secret = told.secret or self.secret

    def owner_of(self, session_id: bytes) -> str | None:
        """Return the user that owns a session, given by its public id; None if it has no owner."""
        return self.owners.get(session_id[:CLIENT_BYTES])

    def to_list(self, others: list[list[Any]]) -> list[Any]:
        """Return rules, owners and secret as a list; `others` are the owners of applications and groups."""
        document = None if self.rules is None else self.rules.document
        return [self.changed, document, [*map(list, self.owners.items()), *others], self.secret]

    def load(self, rest: list[Any]) -> None:
        """Take over the list that `to_list` made, if the state has one.

        This adds the owners of applications and groups to `owners` too; the caller takes these out again.
        """
        for changed, document, owners, *secret in rest[:1]:
            self.secret = secret[0] if secret else b""
            self.rules, self.changed = _read(document), changed
            self.owners.update(map(tuple, owners))


def _read(document: object) -> Rules:
    try:
        return Rules.of(document)
    except BadInput as error:
        raise BadFrame(f"the rules in a record are malformed ({error}); run the same version on both servers") from None
