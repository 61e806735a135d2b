"""The rule by which a silent peer counts as gone (SPEC.md, section 21).

    peer_timeout_s         if the connection to the peer's P+3 broke after its last word, or is down: the process ended
    3 x peer_timeout_s     while that connection is up: the process is slow, is stopped, or is cut off

A slow server and a dead one are both silent. But the kernel of a dead one ends its connections, and that of a slow one
does not. So the connection tells which of the two it is, and a server on a busy machine is not replaced while it lives.

Pure: `now` is an argument.
"""

from __future__ import annotations

# While the connection is up, a silent peer counts as gone after this many times `peer_timeout_s`.
STANDING = 3
NEVER = float("-inf")


class Liveness:
    """The connection of a server to its peer, and when a server there last spoke."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.connected = False
        # The time when the connection was first up.
        self._first_at = NEVER
        # The times when it last came up, and when it last broke.
        self._up_at = self._broke_at = NEVER
        self._excused_at = NEVER
        self._word_at = NEVER

    def connection(self, up: bool, now: float) -> None:
        """Note that the connection to the peer's P+3 is up, with its handshake, or that it broke."""
        if up and self._first_at == NEVER:
            self._first_at = now
        if up and not self.connected:
            self._up_at = now
        elif self.connected and not up:
            self._broke_at = now
        self.connected = up

    def word(self, now: float) -> None:
        """Note that a server spoke on P+3, even if it is not known as the peer yet."""
        self._word_at = now

    def left(self) -> None:
        """Note that the peer said that it ends."""
        self._word_at = NEVER

    def excuse(self, heard: float, now: float) -> None:
        """Give a peer, last heard at `heard`, its full time again after a pause of this server; once per silence."""
        if heard >= self._excused_at:
            self._excused_at = now

    def is_heard(self, heard: float, now: float) -> bool:
        """Return whether a peer that last spoke at `heard` counts as alive."""
        if not self._stands_since(heard):
            return now - heard <= self._timeout_s
        return now - max(heard, self._excused_at) <= STANDING * self._timeout_s

    def may_be_there(self, now: float) -> bool:
        """Return whether a server that starts must go on waiting for its peer.

        It waits for a peer that spoke, and for one whose connection is up but has not carried a word yet. The time of
        the latter counts from the first connection: a peer that ends at each start must not hold this server up.
        """
        mute = self.connected and now - self._first_at <= STANDING * self._timeout_s
        return mute or self.is_heard(self._word_at, now)

    def is_unbroken(self, heard: float) -> bool:
        """Return True if the connection to the peer stands, and was up when the peer spoke at `heard`.

        Words that came between a break and the next connection may be the last ones of a run that has ended.
        """
        return self.connected and heard > self._broke_at and heard >= self._up_at

    def _stands_since(self, heard: float) -> bool:
        # When a peer ends, its last words and the break may come in one turn of this server, with the same time. Then
        # the words count only if the connection also came up again in that turn, as they may belong to the new one.
        return self.connected and (heard > self._broke_at or heard == self._up_at)
