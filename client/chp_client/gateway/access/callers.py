"""The callers: the user of a request, by its token, by the header of a proxy, or by neither; and changes of the rules.

    no keys            users are not told apart: every program that reaches the loopback may do everything
    keys               Authorization: Bearer TOKEN, or Basic USER:TOKEN as browsers and `curl -u` send it
      a WebSocket      ... or Sec-WebSocket-Protocol: chp, bearer.TOKEN, as a page can set no header of a WebSocket
    --user-header      the user that a proxy on this host names, after it has checked the user
    --anonymous        a request without a token is of this user

The gateway asks the servers for the rules each second. Until it has the rules, it admits no caller. While no server
answers, the last rules hold. The copy is then as old as the rules, and no write succeeds.

If a gateway has several pairs, each pair has its own rules and tokens, which hold for its mount (`MountedCallers`). A
token has to be known to each pair whose keys its user reads or writes. Pure.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from chp.access import Rules, token_hash
from chp.topics import is_keyed_lease

from ...errors import Refused
from ...mount_table import Mounts
from ...port.admin import AdminError, AdminReply
from ..problems import RETRY_S, Problem
from .caller import ANYBODY, Caller, MountedCaller

# A token has at most this many characters.
TOKEN_MAX = 512
# In Sec-WebSocket-Protocol, a name with this prefix has a token behind the prefix.
PROTOCOL = b"bearer."
NO_RULES = "the gateway has not been told the rules yet"
Headers = Sequence[tuple[bytes, bytes]]


class AuthMethods(NamedTuple):
    """The ways in which a gateway knows its callers. `keyed` is True if a pair has keys; `header` is in lower case."""

    keyed: bool = False
    header: bytes = b""
    anonymous: str = ""


class Callers:
    """The callers of one gateway."""

    def __init__(self, ways: AuthMethods) -> None:
        self._ways = ways
        self.rules: Rules | None = None
        # The secret of the pair, by which members of groups are named.
        self.secret = b""
        # The reason why no caller is admitted; "" if callers are.
        self.why = NO_RULES if ways.keyed else ""
        self._number = 0
        # The count of changes of the rules, or of the reason.
        self.version = 0

    @property
    def ambient(self) -> bool:
        """True if a caller needs no token. A page of another origin could then act as a program of this host."""
        return not self._ways.keyed or bool(self._ways.header or self._ways.anonymous)

    def of_pair(self, mount: str) -> Callers:
        """Return the callers by the rules of the pair of a mount."""
        return self

    def is_member(self, lease: bytes) -> bool:
        """Return True if a lease has the name of a member of a group, of any user."""
        return is_keyed_lease(self.secret, lease)

    def of(self, headers: Headers) -> Caller:
        """Return the caller of a request; raise `Problem` if it has none."""
        if not self._ways.keyed:
            return ANYBODY
        if self.why:
            raise Problem(503, "no-rules", self.why, retry_s=RETRY_S)
        shown = _shown(headers, self._ways.header)
        if self._ways.header:
            return self._named(shown.get(self._ways.header, b""))
        token, name = _token(shown)
        if not token and self._ways.anonymous:
            return Caller(self._ways.anonymous, self.rules)
        return self._by_token(token, name)

    def plain(self, authorization: bytes) -> Caller | None:
        """Return the caller that this Authorization value, or b"" without one, proves; None if `of` has to decide."""
        if not self._ways.keyed:
            return None if authorization else ANYBODY
        if self.why or self.rules is None or self._ways.header or not authorization.startswith(b"Bearer "):
            return None
        hashed = token_hash(authorization[7:].decode("latin-1"))
        user = self.rules.user_of(hashed)
        return Caller(user, self.rules, hashed) if user else None

    def still(self, caller: Caller) -> Caller:
        """Return a caller by the present rules; raise `Problem` if its token is not known any more."""
        if caller.rules is self.rules and not self.why:
            return caller
        if self.why:
            raise Problem(503, "no-rules", self.why, retry_s=RETRY_S)
        if caller.hashed and (self.rules is None or self.rules.user_of(caller.hashed) != caller.user):
            raise Problem(401, "no-token", "the token is not known any more; ask for another")
        return Caller(caller.user, self.rules, caller.hashed)

    def _named(self, name: bytes) -> Caller:
        if not name:
            what = self._ways.header.decode("latin-1")
            raise Problem(401, "no-user", f"the header {what} names no user; ask through the proxy that sets it")
        return Caller(name.decode("latin-1"), self.rules)

    def _by_token(self, token: str, name: str) -> Caller:
        if not token:
            text = "the caller is not known; show a token that `chp access token` made: Authorization: Bearer TOKEN"
            raise Problem(401, "no-token", text)
        hashed = token_hash(token)
        user = self.rules.user_of(hashed) if self.rules is not None else ""
        if not user or name not in ("", user):
            raise Problem(401, "no-token", "the token is not known here, or of another user; ask for another")
        return Caller(user, self.rules, hashed)

    # -- from the servers

    def learn(self, answers: Mapping[str, AdminReply | AdminError | Refused]) -> bool:
        """Take the rules from the answers of the servers; return True if they have changed."""
        told = [answer for answer in answers.values() if isinstance(answer, AdminReply)]
        refused = next((answer for answer in answers.values() if isinstance(answer, Refused)), None)
        if not told:
            if refused is not None:
                self.fail(f"the pair does not tell this gateway its rules: {refused}")
            return refused is not None
        best = max(told, key=lambda reply: (bool(reply.facts.get("serving")), reply.number))
        number, document = best.facts["number"], best.facts.get("rules")
        self.secret = best.facts.get("secret") or self.secret
        same = not self.why and number == self._number
        if same or (not best.facts.get("serving") and not self.why and number < self._number):
            return False
        self.rules = None if document is None else Rules.of(document)
        self.why, self._number = "", number
        self.version += 1
        return True

    def fail(self, why: str) -> None:
        """Admit no caller any more, for this reason."""
        self.why = why
        self.version += 1


class MountedCallers(Callers):
    """The callers of a gateway of several pairs: those of each pair, by the prefix of its mount."""

    def __init__(self, ways: AuthMethods, table: Mounts, mounts: Sequence[str]) -> None:
        self._ways, self._table = ways, table
        self._by_mount = {mount: Callers(ways) for mount in mounts}

    # The answers of one pair change the part of that pair only. `why` and `version` are attributes of `Callers`; here
    # they are computed from all parts. A type checker does not allow a property in place of an attribute.
    @property
    def why(self) -> str:  # type: ignore[override]
        """The reasons of the pairs at which no caller is admitted; "" if there are none."""
        return "; ".join(f"mount {mount}: {each.why}" for mount, each in self._by_mount.items() if each.why)

    @property
    def version(self) -> int:  # type: ignore[override]
        """The count of changes of any rules."""
        return sum(each.version for each in self._by_mount.values())

    def of_pair(self, mount: str) -> Callers:
        """Return the callers by the rules of the pair of a mount."""
        return self._by_mount[mount]

    def of(self, headers: Headers) -> Caller:
        """Return the caller of a request; raise `Problem` if no pair knows it."""
        return self._together({mount: partial(each.of, headers) for mount, each in self._by_mount.items()})

    def plain(self, authorization: bytes) -> Caller | None:
        """Return the caller that this Authorization value, or b"" without one, proves; None if `of` has to decide."""
        parts: dict[str, Caller] = {}
        for mount, each in self._by_mount.items():
            if (part := each.plain(authorization)) is None:
                return None
            parts[mount] = part
        return self._made(parts, {})

    def still(self, caller: Caller) -> Caller:
        """Return a caller by the present rules; raise `Problem` if no pair knows its token any more."""
        assert isinstance(caller, MountedCaller), "`of` made it"
        now = self._together(
            {mount: partial(self._by_mount[mount].still, part) for mount, part in caller.parts.items()}, caller.reasons
        )
        return caller if all(now.parts.get(mount) is part for mount, part in caller.parts.items()) else now

    def _together(
        self, asked: Mapping[str, Callable[[], Caller]], known: Mapping[str, Problem] | None = None
    ) -> MountedCaller:
        """Return the caller of all pairs that know it. Raise the `Problem` of one of them if none does."""
        parts: dict[str, Caller] = {}
        reasons = dict(known or {})
        for mount, ask in asked.items():
            try:
                parts[mount] = ask()
            except Problem as problem:
                # Status 400 says that the request can't be read, whatever the rules are.
                if problem.status == 400:
                    raise
                reasons[mount] = problem
        if not parts:
            # A status other than 401 comes first: a pair whose rules are not known yet may know the caller.
            raise next((each for each in reasons.values() if each.status != 401), next(iter(reasons.values())))
        return self._made(parts, reasons)

    def _made(self, parts: dict[str, Caller], reasons: dict[str, Problem]) -> MountedCaller:
        users = [part for part in parts.values() if part.user] or [ANYBODY]
        hashed = next((part.hashed for part in users if part.hashed), "")
        return MountedCaller(users[0].user, None, hashed, table=self._table, parts=parts, reasons=reasons)


def _shown(headers: Headers, more: bytes) -> dict[bytes, bytes]:
    """Return the header fields that say who the caller is; raise `Problem` if a field is given twice."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in (b"authorization", b"sec-websocket-protocol", more):
            if name in found:
                raise Problem(400, "bad-token", f"the header {name.decode('latin-1')} is given twice; give it once")
            found[name] = value
    return found


def _token(shown: Mapping[bytes, bytes]) -> tuple[str, str]:
    """Return the token, and the user name that came with the token; "" for what is missing."""
    kind, _, text = shown.get(b"authorization", b"").strip().partition(b" ")
    text = text.strip()
    if not kind:
        offered = (each.strip() for each in shown.get(b"sec-websocket-protocol", b"").split(b","))
        text = next((each.removeprefix(PROTOCOL) for each in offered if each.startswith(PROTOCOL)), b"")
    elif kind.lower() == b"basic":
        return _basic(text)
    elif kind.lower() != b"bearer":
        raise Problem(
            401, "no-token", f"Authorization: {kind[:20].decode('latin-1')} is not known; show a Bearer token"
        )
    return _bounded(text), ""


def _basic(text: bytes) -> tuple[str, str]:
    try:
        name, _, token = b64decode(text[: 2 * TOKEN_MAX], validate=True).decode().partition(":")
    except (Error, UnicodeDecodeError, ValueError):
        raise Problem(401, "no-token", "Authorization: Basic is base64 of USER:TOKEN; it can't be read") from None
    return _bounded(token.encode()), name


def _bounded(token: bytes) -> str:
    if len(token) > TOKEN_MAX:
        raise Problem(401, "no-token", f"a token has at most {TOKEN_MAX} characters; this is none")
    return token.decode("latin-1")
