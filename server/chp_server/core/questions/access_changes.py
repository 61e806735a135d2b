"""The admin command `access`: what the rules are, and others in their place (SPEC.md, section 36).

    {}                            -> {"rules", "number", "serving", "secret"}
    {"rules": {...}, "on": n}     -> the same, when both servers have them; refused if they have changed since `n`

Rules are replaced as a whole, on the number that they were read at. So whoever grants or revokes reads, edits and
gives back, and of two who do it at once one is told to read again. An answer is owed like an acknowledgement: it leaves
when the passive has confirmed the record, and says no less than that.

`secret` is the pair's, by which gateways name the members of groups (SPEC.md, section 43). It comes with the first
rules, is replicated and journaled as they are, and stays the same for good. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from chp.access import Rules, changes
from chp.errors import BadInput
from chp.versions import ACCESS_SINCE

from ..context import ServerContext

NO_KEYS = "rules need keys: start both servers with --keys DIR, so that it is known who asks"


class AccessChanges:
    """New rules, and who is to be told of them."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self.owed: deque[tuple[bytes, int, dict[str, Any]]] = deque()  # whom to answer which question, and what

    def told(self) -> dict[str, Any]:
        """What there is."""
        granted = self._ctx.state.access
        document = None if granted.rules is None else granted.rules.document
        told = {"rules": document, "number": granted.changed, "serving": self._ctx.serving}
        return {**told, "secret": granted.secret} if granted.secret else told

    def make_secret(self) -> None:
        """Make the secret where there are rules without one: a server without it gave them, or served meanwhile."""
        ctx, granted = self._ctx, self._ctx.state.access
        if granted.rules is None or granted.secret or not ctx.serving or ctx.room.read_only:
            return
        ctx.commit()
        ctx.committer.keep_access(ctx.turn, ctx.now, ctx.wall, secret=self._new_secret())

    def _new_secret(self) -> bytes:
        """Return a secret made of what this run of the server drew at random."""
        return sha256(b"chp members" + self._ctx.config.secret).digest()

    def replace(self, identity: bytes, options: dict[str, Any]) -> None:
        """Make these the rules; the answer comes when they are as safe as any set."""
        ctx, granted = self._ctx, self._ctx.state.access
        if why := self._not_now():
            raise BadInput(why)
        if options.get("on") != granted.changed:
            raise BadInput("the rules have changed since they were read; read them and try again")
        rules = Rules.of(options["rules"])
        if not rules.to_ask():
            raise BadInput(
                "nobody could change these rules any more; first give somebody the admin command access, as in `chp "
                f"access grant {ctx.authorizer.speaker or 'NAME'} admin access`"
            )
        changed = changes(None if granted.rules is None else granted.rules.document, rules.document)
        ctx.committer.write_refusals(ctx.now)  # by the rules as they were; what does not fit is refused again
        ctx.commit()
        secret = b"" if granted.secret else self._new_secret()
        ctx.committer.keep_access(
            ctx.turn, ctx.now, ctx.wall, user=ctx.authorizer.speaker, rules=rules.document, secret=secret
        )
        ctx.turn.fact("access changed", "warning", **ctx.authorizer.who(), number=ctx.state.number, changes=changed)
        ctx.committer.acks.owe(ctx.state.number)
        self.owed.append((identity, options["id"], self.told()))

    def _not_now(self) -> str:
        ctx = self._ctx
        if not ctx.config.keyed:
            return NO_KEYS
        if not ctx.serving:
            return "this server is not active; change the rules on the one that is"
        if ctx.config.has_peer and ctx.peer is None:
            return "the other server has not been heard, and may not know of rules; start it first"
        if ctx.committer.view.version < ACCESS_SINCE:
            return (
                f"rules need version {ACCESS_SINCE} on both servers, and the pair works at "
                f"{ctx.committer.view.version}; upgrade the other one"
            )
        return ""

    def tell(self, upto: int, answer: Callable[[bytes, int, dict[str, Any]], None]) -> None:
        """Answer whose rules are safe by now, as everything up to that number has been acknowledged."""
        while self.owed and self.owed[0][2]["number"] <= upto:
            answer(*self.owed.popleft())
