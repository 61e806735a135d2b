"""Admission: the messages that may pass from a WebSocket to the pair. No command of an operator is one of them.

    P      ICANHAZ for a copy of a subtree that is served, credit for more of it, and the facts of a client
    P+1    the channels of subtrees that are served, and of a session that the connection has shown
    P+2    KVSETs of keys that are served, with the columns of ordinary sets; none if a page may only read

The servers know only the gateway, which has the rights of all its users. So each message is checked here. A message
that is not allowed ends the connection with a reason.

A lease belongs to the client that opened it, and the servers refuse it to other clients (SPEC.md, section 19). Members
of groups are leases of the gateway, and the servers can't tell them apart: no WebSocket may name one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chp import columns
from chp.batch import decode_segment, unpackb
from chp.errors import ChpError
from chp.keys import CLIENT_BYTES, ETX, RESERVED_KEY, STX, check_subtree, public_client
from chp.messages import ICANHAZ
from chp.topics import is_keyed_lease
from chp.unpacking import QUESTION

from ..access.caller import ANYBODY, Caller
from ..problems import Problem

# The ports that a message may name. ABOUT is no port of a server: the gateway uses it for its own messages.
P, UPDATES, COLLECTOR, ABOUT = range(4)
OPTIONS = {"chp", "id", "more", "from", "proof", "session", "credit", "store"}
PULSE = "/.chp/pulse/"
TELLS = STX + b"client" + ETX
COLUMNS = {
    columns.DELETES, columns.TTLS, columns.CONDITIONS, columns.UNLESS_NEWER, columns.LEASED, columns.LEASE,
    columns.REFRESH, columns.UNLEASE,
}  # fmt: skip
# The default, for a pair without rules: such a pair has no secret.
IS_MEMBER = partial(is_keyed_lease, b"")
OF_LEASES = (columns.LEASED, columns.REFRESH, columns.UNLEASE)
SESSION_BYTES = 16
# A WebSocket may show at most this many sessions. A client has one, and opens another after the servers refused it.
SESSIONS_MAX = 64
NO_COPY = "only copies are to be had here; operators use chp"
NOT_ITS_LEASE = "the lease is not of a session of this connection; open one of your own, which is your client's alone"
NOT_SHOWN = "the session is another's, or was not shown; show it in a frame behind the topic of its channel"


@dataclass(frozen=True, slots=True)
class AllowedMessages:
    """The rights of one WebSocket; `shown` has the public names of the clients whose sessions it has shown.

    `nested` has the mounts inside the WebSocket's mount. Their keys belong to other pairs.
    """

    subtrees: tuple[str, ...]
    write: bool
    caller: Caller = ANYBODY
    shown: set[bytes] = field(default_factory=set)
    is_member: Callable[[bytes], bool] = IS_MEMBER
    nested: tuple[str, ...] = ()

    def why_not(self, port: int, frames: Sequence[bytes]) -> str:
        """Return the reason why a message does not pass; "" if it passes."""
        try:
            if port == P and len(frames) == 3 and frames[0] == ICANHAZ:
                return self._unasked(frames[1], frames[2])
            if port == UPDATES and 1 <= len(frames) <= 2 and frames[0][:1] in (b"\0", b"\1"):
                return self._unheard(frames[0][1:], frames[1:])
            if port == COLLECTOR and len(frames) == 5 and frames[0] == RESERVED_KEY:
                return self._unset(frames[4])
        except (ChpError, UnicodeDecodeError, Problem) as error:
            return str(error)
        return "this is no message of CHP/2 to one of its three ports"

    def _unasked(self, subject: bytes, packed: bytes) -> str:
        options = unpackb(packed, "the options of ICANHAZ?", QUESTION)
        if not isinstance(options, dict):
            return "the options of ICANHAZ? are a map"
        if subject == TELLS:
            return ""
        if subject[:1] == STX or not options.keys() <= OPTIONS:
            return NO_COPY
        if (session := options.get("session")) and (type(session) is not bytes or self._hidden(session)):
            return NOT_SHOWN
        return "" if "more" in options else self._unread(subject.decode())

    def _unread(self, subtree: str) -> str:
        check_subtree(subtree)
        if subtree == PULSE:
            return ""
        if not subtree.startswith(self.subtrees):
            return f"{subtree!r:.60} is not served here, but {', '.join(self.subtrees):.60}"
        if subtree.startswith(self.nested):
            return f"{subtree!r:.60} is of another mount; open a WebSocket of that one"
        self.caller.read_all(subtree)
        return ""

    def _hidden(self, session: bytes) -> bool:
        return session[:CLIENT_BYTES] not in self.shown

    def _show(self, session: bytes) -> None:
        if len(session) == SESSION_BYTES and len(self.shown) < SESSIONS_MAX:
            self.shown.add(public_client(session[:CLIENT_BYTES]))

    def _unheard(self, topic: bytes, proof: Sequence[bytes]) -> str:
        if topic[:1] != STX or topic[-1:] != ETX or len(topic) < 2:
            return "a topic is a channel, from STX to ETX"
        if topic[1:2] == b"@":
            return self._not_own(topic[2:-1], proof)
        return self._unread(topic[1:-1].decode())

    def _not_own(self, name: bytes, proof: Sequence[bytes]) -> str:
        """Return the reason why the channel of a session is denied: its name is public, but its messages are not."""
        for each in proof:
            self._show(each)
        try:
            session = bytes.fromhex(name.decode("ascii"))
        except ValueError:
            session = b""
        if len(session) != SESSION_BYTES:
            return "the channel of a session is named by 32 hexadecimal digits"
        return NOT_SHOWN if self._hidden(session) else ""

    def _unset(self, body: bytes) -> str:
        if not self.write:
            return "read-only: pages may set if chp-gateway was started with --write"
        segment = decode_segment(body)
        if segment.extras and (others := segment.extras.keys() - COLUMNS):
            return f"column {min(others)!r} is not for clients of a gateway"
        if (foreign := next((key for key in segment.keys if not key.startswith(self.subtrees)), None)) is not None:
            return f"{foreign!r:.60} is not served here, but {', '.join(self.subtrees):.60}"
        if self.nested and (inside := next((key for key in segment.keys if key.startswith(self.nested)), None)):
            return f"{inside!r:.60} is of another mount; set it by a WebSocket of that one"
        return self._unowned(segment.extras or {}) or self._unruled(segment.keys, segment.extras or {})

    def _unowned(self, extras: dict[str, Any]) -> str:
        """Return why a set may not name its leases: one is the lease of a group member, or belongs to no one client."""
        opened = extras.get(columns.LEASE, [b""])
        named = [opened[0], *(extras[name] for name in OF_LEASES if name in extras)]
        return NOT_ITS_LEASE if len(opened) > 2 or any(map(self.is_member, named)) else ""

    def _unruled(self, keys: Sequence[str], extras: dict[str, Any]) -> str:
        conditions = [
            at for name in (columns.CONDITIONS, columns.UNLESS_NEWER) if name in extras for at in extras[name][0]
        ]
        self.caller.write(keys, conditions)
        rights = self.caller.rights
        if rights is None or rights.write.allow:
            return ""
        return f"user {self.caller.user!r} may not write anything"
