"""The admin command `access`: it shows the rules of access, or replaces them (SPEC.md, section 36).

    {}                            -> {"rules", "number", "serving", "secret"}
    {"rules": {...}, "on": n}     -> the same four, once both servers have the new rules

A command replaces the rules as a whole. `on` is the number at which the operator read them; the command is refused if
the rules have changed since. So an operator reads, edits and sends the rules. If two operators do so at once, one of
them is told to read again. An answer to new rules waits, as an acknowledgement does, until the passive has confirmed
the record.

`secret` belongs to the pair. Gateways use it to name the members of groups (SPEC.md, section 43). It is made with the
first rules, is replicated and journaled with them, and never changes. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from chp.access import Rules, changes
from chp.errors import BadInput
from chp.versions import ACCESS_SINCE

from ..pair.pair_state import PairView
from ..updates.authorizer import Authorizer
from ..updates.commit import Committer
from ..updates.turn import CurrentTurn

NO_KEYS = "rules need keys, which tell the servers which user sends a message: start both servers with --keys DIR"


class AccessChanges:
    """The handler of the command `access`, and the answers that wait for a confirmation."""

    def __init__(self, turn: CurrentTurn, pair: PairView, committer: Committer, authorizer: Authorizer) -> None:
        self._turn, self._pair, self._authorizer = turn, pair, authorizer
        self._committer, self._committed = committer, committer.committed
        # The answers that wait: the connection, the id of the request, and the answer.
        self.owed: deque[tuple[bytes, int, dict[str, Any]]] = deque()

    def told(self) -> dict[str, Any]:
        """Return the rules, their number, whether this server serves, and the secret if there is one."""
        granted = self._committed.state.access
        document = None if granted.rules is None else granted.rules.document
        told = {"rules": document, "number": granted.changed, "serving": self._pair.serving}
        return {**told, "secret": granted.secret} if granted.secret else told

    def make_secret(self) -> None:
        """Make the secret if the rules lack one, because a server of an older version made or kept them."""
        turn, committer = self._turn, self._committer
        granted = self._committed.state.access
        if granted.rules is None or granted.secret or not self._pair.serving or committer.room.read_only:
            return
        committer.commit(turn)
        committer.keep_access(turn, secret=self._new_secret())

    def _new_secret(self) -> bytes:
        """Return a new secret, derived from the random secret of this run of the server."""
        return sha256(b"chp members" + self._pair.config.secret).digest()

    def replace(self, identity: bytes, options: dict[str, Any]) -> None:
        """Replace the rules. The answer waits until the passive has confirmed them, as the answer to a set does."""
        turn, committer, committed, authorizer = self._turn, self._committer, self._committed, self._authorizer
        granted = committed.state.access
        if why := self._not_now():
            raise BadInput(why)
        if options.get("on") != granted.changed:
            raise BadInput("the rules have changed since they were read; read them and try again")
        rules = Rules.of(options["rules"])
        if not rules.to_ask():
            raise BadInput(
                "no user could change these rules any more; first give one the admin command access, as in "
                f"`chp access grant {authorizer.speaker or 'NAME'} admin access`"
            )
        changed = changes(None if granted.rules is None else granted.rules.document, rules.document)
        # Write the refusals that the old rules decided. Refusals that do not fit into the record are decided again.
        committer.write_refusals(turn.now)
        committer.commit(turn)
        secret = b"" if granted.secret else self._new_secret()
        committer.keep_access(turn, user=authorizer.speaker, rules=rules.document, secret=secret)
        turn.effects.fact(
            "access changed", "warning", **authorizer.who(), number=committed.state.number, changes=changed
        )
        committer.acks.owe(committed.state.number)
        self.owed.append((identity, options["id"], self.told()))

    def _not_now(self) -> str:
        pair, committer = self._pair, self._committer
        if not pair.config.keyed:
            return NO_KEYS
        if not pair.serving:
            return "this server is not active; change the rules on the active server"
        if pair.config.has_peer and pair.peer is None:
            return "the other server was not heard yet, and its version may not support rules; start it first"
        if committer.view.version < ACCESS_SINCE:
            return (
                f"rules need version {ACCESS_SINCE} on both servers, and the pair works at "
                f"{committer.view.version}; upgrade the other server"
            )
        return ""

    def tell(self, upto: int, answer: Callable[[bytes, int, dict[str, Any]], None]) -> None:
        """Send the answers about rules whose number is at most `upto`: everything up to there is acknowledged."""
        while self.owed and self.owed[0][2]["number"] <= upto:
            answer(*self.owed.popleft())
