"""The rules as of a number, and whose each client is: what ACCESS records change (SPEC.md, section 36).

    rules     None until somebody gives some: then whoever is let in may do everything
    changed   the number of the record that they came with
    owners    of each client, by the first part of its public session: the user who wrote with it first
    secret    by which gateways name the members of groups, so that no user can compute the name of another's; made
              with the first rules, and told to users who may ask for the rules

Part of the replicated state: the active, its passive, a recovery and a backup have the same at the same number. An
ACCESS record is in journals and between servers only; nobody who reads the map, the feed or a recording is sent one.
A client's owner is remembered as long as one of its sessions is (sessions.py), that of an application as long as its
version is (staging.py), that of a group with the group (groups.py), so no table of owners has a bound of its own.
"""

from __future__ import annotations

from typing import Any

from chp.access import Rules
from chp.errors import BadFrame, BadInput
from chp.headers import Access
from chp.keys import CLIENT_BYTES

APPLICATION = b"="  # before its name, among the owners of a record; a client is a part of a hash, and may begin so, too

GROUP = b"/"  # before a topic, a slash, and the name of a group of it


class AccessState:
    """See the module."""

    def __init__(self) -> None:
        self.rules: Rules | None = None
        self.changed = 0
        self.owners: dict[bytes, str] = {}
        self.secret = b""

    def note(self, told: Access) -> None:
        """Take over the rules of a record, if it has some."""
        if told.rules is not None:
            self.rules, self.changed = _read(told.rules), told.last
        self.secret = told.secret or self.secret

    def owner_of(self, session_id: bytes) -> str | None:
        """Whose a session is, by its public id."""
        return self.owners.get(session_id[:CLIENT_BYTES])

    def to_list(self, others: list[list[Any]]) -> list[Any]:
        """Return the rules, the owners of clients, those of applications and groups (`others`), and the secret."""
        document = None if self.rules is None else self.rules.document
        return [self.changed, document, [*map(list, self.owners.items()), *others], self.secret]

    def load(self, rest: list[Any]) -> None:
        """Take over what `to_list` said, if a state has it; the owners of no clients are left to be taken out."""
        for changed, document, owners, *secret in rest[:1]:
            self.secret = secret[0] if secret else b""
            self.rules, self.changed = _read(document), changed
            self.owners.update(map(tuple, owners))


def _read(document: object) -> Rules:
    try:
        return Rules.of(document)
    except BadInput as error:
        raise BadFrame(f"rules came that are none ({error}); both servers have to be of the same version") from None
