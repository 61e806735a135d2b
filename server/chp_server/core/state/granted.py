"""The rules as of a number, and whose each session is: what ACCESS records change (SPEC.md, section 36).

    rules     None until somebody gives some: then whoever is let in may do everything
    changed   the number of the record that they came with
    owners    of each client, by the first part of its public session: the user who wrote with it first; of each
              application, by its name after "="
    secret    by which gateways name the members of groups, so that no user can compute the name of another's; made
              with the first rules, and told to users who may ask for the rules

Part of the replicated state: the active, its passive, a recovery and a backup have the same at the same number. An
ACCESS record is in journals and between servers only; nobody who reads the map, the feed or a recording is sent one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from chp.access import Rules
from chp.errors import BadFrame, BadInput
from chp.headers import Access
from chp.keys import CLIENT_BYTES

APPLICATION = b"="  # before its name, among the owners; clients are known by parts of hashes


class Granted:
    """See the module."""

    def __init__(self, owners_max: int) -> None:
        self._max = owners_max
        self.rules: Rules | None = None
        self.changed = 0
        self.owners: OrderedDict[bytes, str] = OrderedDict()
        self.secret = b""

    def note(self, told: Access) -> None:
        """A record: new rules, or the owners of sessions."""
        if told.rules is not None:
            self.rules, self.changed = _read(told.rules), told.last
        self.secret = told.secret or self.secret
        for client, user in told.owners:
            self.own(client, user)

    def own(self, client: bytes, user: str) -> None:
        """A client's sessions are a user's, for good; those least lately heard of first are forgotten."""
        self.owners.setdefault(client, user)
        while len(self.owners) > self._max:
            self.owners.popitem(last=False)

    def owner_of(self, session_id: bytes) -> str | None:
        """Whose a session is, by its public id."""
        return self.owners.get(session_id[:CLIENT_BYTES])

    def whose(self, application: str) -> str:
        """The user of an application; "" if it is nobody's, as without rules."""
        return self.owners.get(APPLICATION + application.encode(), "")

    def to_rest(self) -> list[Any]:
        """As a state carries it: nothing, where there have never been rules."""
        if self.rules is None:
            return []
        return [[self.changed, self.rules.document, list(map(list, self.owners.items())), self.secret]]

    def load(self, rest: list[Any]) -> None:
        """Take over what `to_rest` said."""
        for changed, document, owners, *secret in rest[:1]:
            self.secret = secret[0] if secret else b""
            self.rules, self.changed = _read(document), changed
            self.owners = OrderedDict((client, user) for client, user in owners)


def _read(document: object) -> Rules:
    try:
        return Rules.of(document)
    except BadInput as error:
        raise BadFrame(f"rules came that are none ({error}); both servers have to be of the same version") from None
