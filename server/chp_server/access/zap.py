"""Admission of connections: the keys of listening sockets, and answers to libzmq's questions (ZAP, ZeroMQ's RFC 27).

    clients    CURVE     P, P+1, P+2     the users of the keyring
    peer       CURVE     P+3             the peer's key, and no other
    local      NULL      --plain-bind, --ipc: programs of this host; user "local"

libzmq asks at each handshake, on a socket of ours that the reactor's loop reads. It does not ask about a wrong server
key or a client without keys: it cuts these by itself and tells a monitor of the socket.

Each message that comes by a connection has the user and the key with it, as ZAP's metadata. If a key was removed after
the handshake, messages by that connection are rejected.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import NamedTuple

import zmq

from chp import keyfiles

from .. import logs
from .audit import DENIED, KEY, Audit
from .keyring import Keyring

log = logs.get_log(__name__)
CLIENTS, PEER, LOCAL = b"clients", b"peer", b"local"
# A turn answers this many questions.
QUESTIONS_MAX = 200
# The time between two lines about the same key.
SAY_S = 60.0
# The server remembers this many keys.
SAID_MAX = 1000
# The server reads at most this many events of a monitor in a second.
EVENTS_MAX = 2000
NO_KEY = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
# The property of each message with the key of its connection. It is always set (NONE without a key), or the other end
# of a connection could set it.
KEY_PROPERTY, NONE = "X-Key", b"-"
LOCAL_KEY = NONE.decode()
ENDPOINT = "inproc://zeromq.zap.01"
FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL) | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
Frames = list[bytes]


def _metadata(key: bytes) -> bytes:
    """Return the metadata of a key in the form of ZAP: names and values with their lengths."""
    name = KEY_PROPERTY.encode()
    return bytes([len(name)]) + name + len(key).to_bytes(4, "big") + key if key else b""


class ZapReply(NamedTuple):
    """The answer for a connection: the user if it is admitted, the reason if not, and the text of its key."""

    user: str
    why: str = ""
    # The text of the key.
    key: bytes = b""


class ZapHandler:
    """The keys of one server's sockets, and the answers about the connections to them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring) -> None:
        self._keyring = keyring
        self.counts: Counter[str] = Counter()
        self.audit: Audit | None = None
        # Keys that were admitted, and their text.
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        self._said: dict[bytes, float] = {}
        self._monitors: dict[str, tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = {}
        self.questions = context.socket(zmq.REP)
        self.questions.linger = 0
        self.questions.bind(ENDPOINT)

    def lock(self, socket: zmq.Socket[bytes], domain: bytes) -> None:
        """Let addresses that the socket binds from now on ask for keys."""
        socket.curve_server = 1
        socket.curve_secretkey = self._keyring.pair.secret
        socket.zap_domain = domain

    def unlock(self, socket: zmq.Socket[bytes]) -> None:
        """Let addresses that the socket binds from now on ask for no keys."""
        socket.curve_server = 0
        socket.zap_domain = LOCAL

    def introduce(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket that connects to the peer show our key, and ask for the peer's."""
        socket.curve_publickey, socket.curve_secretkey = self._keyring.pair.public, self._keyring.pair.secret
        if self._keyring.peer:
            socket.curve_serverkey = self._keyring.peer

    def peer_has_another_key(self) -> bool:
        """Return True if the file of the peer's key has another key since the last call; that key is used now."""
        return self._keyring.read_peer_again()

    def watch(self, socket: zmq.Socket[bytes], port: str) -> None:
        """Watch for handshakes that fail before libzmq asks about them."""
        endpoint = f"inproc://zap.{port}"
        socket.monitor(endpoint, FAILED)
        monitor = socket.context.socket(zmq.PAIR)
        # A full queue would stop libzmq's own thread.
        monitor.rcvhwm = 0
        monitor.connect(endpoint)
        self._monitors[port] = (socket, monitor)

    def answer(self, now: float) -> None:
        """Answer the authentication requests of libzmq (ZAP), at most a turn's share of them."""
        for _ in range(QUESTIONS_MAX):
            try:
                asked = self.questions.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            found = self._decide(asked, now)
            code, text = (b"200", b"OK") if found.user else (b"400", found.why.encode())
            self.questions.send_multipart([*asked[:2], code, text, found.user.encode(), _metadata(found.key)])

    def _decide(self, asked: Frames, now: float) -> ZapReply:
        domain, address = asked[2], asked[3].decode(errors="replace").removeprefix("::ffff:")
        mechanism, key = asked[5], asked[6] if len(asked) > 6 else b""
        if domain == LOCAL and mechanism == b"NULL":
            return ZapReply("local", key=NONE)
        if domain == PEER and mechanism == b"CURVE" and self._keyring.is_peer(key):
            return ZapReply("peer")
        if domain == CLIENTS and mechanism == b"CURVE" and (user := self._keyring.user_of(key, now)):
            return ZapReply(user, key=self._seen(user, key, address))
        self._unknown(key, domain, address, now)
        return ZapReply("", "this key is not known here")

    def _seen(self, user: str, key: bytes, address: str) -> bytes:
        text = self._known.get(key)
        if text is None:
            text = self._known[key] = keyfiles.encode(key)
            if len(self._known) > SAID_MAX:
                self._known.popitem(last=False)
            if self.audit is not None:
                shown = text[: keyfiles.SHOWN].decode()
                self.audit.tell(KEY, user=user, key=shown, address=address, what="connects", verdict="let in")
        return text

    def _unknown(self, key: bytes, domain: bytes, address: str, now: float) -> None:
        self.counts["unknown_keys"] += 1
        # The log had a line about this key a moment ago.
        if now < self._said.get(key, now):
            return
        if len(self._said) >= SAID_MAX:
            self._said = {known: until for known, until in self._said.items() if until > now}
        if len(self._said) < SAID_MAX:
            self._said[key] = now + SAY_S
            said = keyfiles.encode(key).decode()
            log.limited("a key that is not known", key=said, port=domain.decode(errors="replace"), address=address)
            if self.audit is not None:
                who = {"key": said[: keyfiles.SHOWN], "address": address}
                self.audit.tell(DENIED, **who, what="connects", verdict="denied: a key that is not known")

    @property
    def removals(self) -> int:
        """The number of times that keys were found to be removed."""
        return self._keyring.removals

    def admits(self, key: str, user: str) -> bool:
        """Return True if a connection of this user that has shown this key may go on; one without a key may."""
        return key in ("", LOCAL_KEY) or self._keyring.admits(key, user)

    def rejected(self, key: str, user: str, address: str) -> None:
        """Note that a message came by a key that was removed."""
        self.counts["removed_keys"] += 1
        log.limited("a key that was removed", user=user, key=key[: keyfiles.SHOWN], address=address)
        if self.audit is not None:
            who = {"user": user, "key": key[: keyfiles.SHOWN], "address": address}
            self.audit.tell(DENIED, **who, what="goes on", verdict="denied: a key that was removed")

    def look(self, now: float) -> None:
        """Count the handshakes that failed, and find removed keys, now and then."""
        self._keyring.look(now)
        for port, (_, monitor) in self._monitors.items():
            for _ in range(EVENTS_MAX):
                try:
                    event, *_ = monitor.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self.failed(port, int.from_bytes(event[2:6], sys.byteorder))

    def failed(self, port: str, value: int) -> None:
        """Count a failed handshake. `Subscribers` calls this for P+1, as libzmq has one monitor for a socket."""
        why = "no key" if value == NO_KEY else "broken off, or another server's key"
        self.counts["handshakes_failed"] += 1
        log.limited("a handshake failed", port=port, why=why)

    def close(self) -> None:
        """Close the sockets."""
        for socket, monitor in self._monitors.values():
            socket.disable_monitor()
            monitor.close(0)
        self.questions.close()
