"""The admission of a client to one server: it hears from libzmq of handshakes, and repeats one that failed.

The socket to port P goes first. A failed handshake there is tried again, with the server's other key if a client file
has two.
Once a handshake succeeds, the sockets to the other ports connect anew, because their handshakes may have failed too.
libzmq tries again by itself only if it can't tell a refusal from a broken connection (SPEC.md, section 25). It never
tries another key, and never the other kind of address of a host name. So IPv4 and IPv6 take turns here, until the
server was reached once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import zmq

from chp.addresses import in_turn, is_name

from ..clientfile import Credentials

AGAIN_S = 0.5
# The pause after the first try of a name, which may have no IPv4 address.
NOT_REACHED_S = 0.1
# An application is told of refusals only after this long, because a server that starts may refuse for a moment.
INSISTS_S = 0.4
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
    """Return in words why a handshake failed, from the event of a socket monitor. Return "" for any other event."""
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
    """The sockets that connect to one server, the one to P first."""

    def __init__(self, address: str, ways: Sequence[Way], credentials: Credentials | None) -> None:
        self.address = address
        # The time to connect again.
        self.due = NEVER
        self._ways, self._credentials = list(ways), credentials
        self._why, self._since, self._turn = "", NEVER, 0
        # While a host name was never reached, each try takes the other kind of address (IPv4 or IPv6). Count the tries
        # of the socket to P, and of the sockets to the other ports.
        self._unreached, self._tries, self._others_tries = is_name(address), 0, 0
        self._heard_at = NEVER
        for way in self._ways:
            self._equip(way)

    def _equip(self, way: Way) -> None:
        way[0].ipv6 = in_turn(way[1], self._tries)
        if self._credentials is not None:
            self._credentials.put_on(way[0], self._turn)

    def heard(self, frames: Sequence[bytes], now: float) -> None:
        """Take an event of P's monitor: two octets of event, then four of value, in this machine's byte order."""
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
        """Connect again if that is due."""
        if now >= self.due:
            self.due = NEVER
            self._turn += 1
            self._anew(self._ways[0])

    def _anew(self, way: Way) -> None:
        socket, endpoint = way
        try:
            socket.disconnect(endpoint)
        except zmq.ZMQError:
            # libzmq has given the connection up by itself.
            pass
        self._equip(way)
        socket.connect(endpoint)

    @property
    def why(self) -> str:
        """The reason of the server's refusal, once it has refused for a while; "" if it does not refuse."""
        return self._why if self._heard_at - self._since >= INSISTS_S else ""
