"""The rule by which a silent peer counts as gone (SPEC.md, section 21).

    peer_timeout_s         if the connection to its P+3 broke after its last word, or does not stand: its process ended
    3 x peer_timeout_s     while that connection stands: its process is slow, is stopped, or is cut off

A slow server and a dead one are both silent. The kernel of a dead one ends its connections, and that of a slow one
does not. So the connection tells which of the two it is, and a busy machine does not replace a server that lives.

Pure: `now` is an argument.
"""

from __future__ import annotations

STANDING = 3  # times peer_timeout_s, while the connection stands
NEVER = float("-inf")


class Liveness:
    """What a server knows of its connection to the peer, and when a server there last spoke."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.connected = False
        self._first_at = NEVER  # when the connection first stood
        self._broke_at = NEVER
        self._excused_at = NEVER
        self._word_at = NEVER

    def connection(self, up: bool, now: float) -> None:
        """Note that the connection to the peer's P+3 stands, its handshake too, or that it broke."""
        if up and self._first_at == NEVER:
            self._first_at = now
        if self.connected and not up:
            self._broke_at = now
        self.connected = up

    def word(self, now: float) -> None:
        """Note that a server spoke on P+3, whether it is known as the peer or not yet."""
        self._word_at = now

    def left(self) -> None:
        """Note that the peer said that it ends."""
        self._word_at = NEVER

    def excuse(self, heard: float, now: float) -> None:
        """Give the peer, last heard at `heard`, its time anew after a pause of this server: once in each silence."""
        if heard >= self._excused_at:
            self._excused_at = now

    def is_heard(self, heard: float, now: float) -> bool:
        """Return whether a peer that last spoke at `heard` counts as living."""
        if not self._stands_since(heard):
            return now - heard <= self._timeout_s
        return now - max(heard, self._excused_at) <= STANDING * self._timeout_s

    def may_be_there(self, now: float) -> bool:
        """Return whether a server that starts has to wait on for its peer.

        It waits for one that spoke, and for one whose connection stands and has not yet carried a word. The time of
        the latter counts from the first connection: a peer that ends at each start must not hold this one up for ever.
        """
        mute = self.connected and now - self._first_at <= STANDING * self._timeout_s
        return mute or self.is_heard(self._word_at, now)

    def _stands_since(self, heard: float) -> bool:
        return self.connected and NEVER < heard >= self._broke_at
