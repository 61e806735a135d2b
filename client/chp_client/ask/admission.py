"""Whether a server lets us in: what libzmq tells of the handshakes at its P, and what to do about one that fails.

P is the scout. A handshake that failed there is tried again, with the server's other key if a client file has two; once
one succeeds, the sockets to the other ports are connected anew, as theirs may have failed meanwhile. libzmq does that
by itself only where it can't tell a refusal from a connection that broke, and never tries another key (SPEC.md, section
25). Nor does it try a host name's other kind of address: until a server was reached, IPv4 and IPv6 have their turns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import zmq

from chp.addresses import in_turn, is_name

from ..clientfile import Credentials

AGAIN_S = 0.5
NOT_REACHED_S = 0.1  # after the first try of a name, which may have no IPv4 address
INSISTS_S = 0.4  # once it was refused for so long, an application is told: a server that starts may refuse for a moment
AUTH, PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
BROKEN, DONE = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
NOT_REACHED = int(zmq.EVENT_CONNECT_RETRIED)
EVENTS = AUTH | PROTOCOL | BROKEN | DONE | NOT_REACHED
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
NEVER = float("inf")
NOT_KNOWN = "does not know this client's key {key}; put its NAME.pub into clients/ of the server's --keys"
WANTS_KEY = "lets in only who has a key; give a client file (client_file=, chp --client-file, CHP_CLIENT_FILE)"
HAS_NONE = "has no keys (it runs without --keys), but the client file has some for it; mend the one or the other"
OTHER_KEY = "has another key than the client file says; put what its server.pub has into the file's keys for {address}"
Way = tuple["zmq.Socket[bytes]", str]  # a socket, and where it connects


def reason(address: str, frames: Sequence[bytes], known: Credentials | None) -> str:
    """What an event of a monitor says against us; "" if nothing."""
    event = int.from_bytes(frames[0][:2], sys.byteorder)
    value = int.from_bytes(frames[0][2:6], sys.byteorder)
    if event == AUTH and known is not None:
        return NOT_KNOWN.format(key=known.pair.public.decode())
    if event == PROTOCOL and value == MISMATCH:
        return HAS_NONE if known is not None else WANTS_KEY
    if event == BROKEN and known is not None:
        return OTHER_KEY.format(address=address)
    return ""


class Admission:
    """The ways to one server, that to P first."""

    def __init__(self, address: str, ways: Sequence[Way], credentials: Credentials | None) -> None:
        self.address = address
        self.due = NEVER  # when to connect again
        self._ways, self._credentials = list(ways), credentials
        self._why, self._since, self._turn = "", NEVER, 0
        self._unreached, self._tries, self._others_tries = is_name(address), 0, 0  # of P, and as the others connect
        self._heard_at = NEVER
        for way in self._ways:
            self._equip(way)

    def _equip(self, way: Way) -> None:
        way[0].ipv6 = in_turn(way[1], self._tries)
        if self._credentials is not None:
            self._credentials.put_on(way[0], self._turn)

    def heard(self, frames: Sequence[bytes], now: float) -> None:
        """An event of P's monitor: the event in two octets and its value in four, in this machine's order."""
        event = int.from_bytes(frames[0][:2], sys.byteorder)
        if event == DONE:
            self._admitted()
        elif event == NOT_REACHED:
            if self._unreached and self.due == NEVER:
                self.due = now + (AGAIN_S if self._tries else NOT_REACHED_S)
                self._tries += 1
        elif why := reason(self.address, frames, self._credentials):
            self._why, self._heard_at = why, now
            self._since = min(self._since, now)
            if event != BROKEN or self._keys > 1:
                self.due = min(self.due, now + AGAIN_S / self._keys)

    @property
    def _keys(self) -> int:
        return len(self._credentials.server_keys) if self._credentials else 1

    def _admitted(self) -> None:
        refused, self._why, self._since, self.due = bool(self._why), "", NEVER, NEVER
        self._unreached = False
        if refused or self._tries != self._others_tries:
            self._others_tries = self._tries
            for way in self._ways[1:]:
                self._anew(way)

    def step(self, now: float) -> None:
        """Connect again, if that is due."""
        if now >= self.due:
            self.due = NEVER
            self._turn += 1
            self._anew(self._ways[0])

    def _anew(self, way: Way) -> None:
        socket, endpoint = way
        try:
            socket.disconnect(endpoint)
        except zmq.ZMQError:
            pass  # libzmq has given it up by itself
        self._equip(way)
        socket.connect(endpoint)

    @property
    def why(self) -> str:
        """Why it does not let us in, once it has said so again for a while; "" if it does, or is not there."""
        return self._why if self._heard_at - self._since >= INSISTS_S else ""
