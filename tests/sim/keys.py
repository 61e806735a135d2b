"""The clients' keys in the simulator: an operator removes one while the client's session, leases and members live.

    unkey c1    The key of c1's program is removed at both servers. The next start of c1 has another key of its user.

Each server runs the production keyring, which reads the files of this module's `KeyFiles`. What must hold:

    found     A server finds that a key was removed within 10 s, counted from its last start, stop or long turn.
    hearing   From then on it sends nothing to a connection that has shown this key.
    writing   From then on it commits nothing that the client sends by this key. What had arrived before may be done.
    others    Leases and members of the removed key end with their ttl, so that other members drain the groups. The
              user's other keys go on.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING

from chp import keyfiles
from chp_server.access.keyring import Keyring

if TYPE_CHECKING:
    from .network import Conn
    from .servers import ServerNode
    from .world import World

# A server looks for removed keys this often, and refuses one within 10 s (rule S-62).
LOOK_S, FOUND_S = 1.0, 10.0
# The keyring logs each removed key. Without a handler of its log, Python would print these lines.
logging.getLogger(Keyring.__module__).addHandler(logging.NullHandler())
# A server that has not looked for removed keys for longer than this was stopped or was in a long turn.
GAP_S = 2.0


class KeyFiles:
    """The files of the clients' keys, which both servers have, and the times when keys were removed."""

    def __init__(self) -> None:
        self.users: dict[bytes, str] = {}
        self.changes = 0
        # key -> the time at which it was removed
        self.removed: dict[str, float] = {}
        self._key_of: dict[str, str] = {}
        self._made = 0

    def key_of(self, user: str) -> str:
        """Return the key with which a program of a user starts now."""
        if user not in self._key_of:
            self._made += 1
            key = sha256(b"%s.%d" % (user.encode(), self._made)).digest()
            self.users[key], self._key_of[user] = user, keyfiles.encode(key).decode()
            self.changes += 1
        return self._key_of[user]

    def remove(self, user: str, now: float) -> None:
        """Remove the key of a user's program."""
        key = self._key_of.pop(user, None)
        if key is not None:
            del self.users[keyfiles.decode(key)]
            self.changes += 1
            self.removed[key] = now


class ServerKeys(Keyring):
    """The keyring of a server: the production one, over files in memory."""

    def __init__(self, files: KeyFiles, now: float) -> None:
        self._in_memory = files
        self._users, self._admitted = {}, {}
        self._changed, self.removals = -1, 0
        self._read_again(self._state(), now)

    def _state(self) -> int:
        return self._in_memory.changes

    def _read(self) -> dict[bytes, str]:
        return dict(self._in_memory.users)


class KeyCheck:
    """The keys of one server's connections, and the times at which it found that keys were removed."""

    def __init__(self, node: ServerNode) -> None:
        self._node, self._files = node, node.world.key_files
        self.ring = ServerKeys(self._files, node.clock.mono())
        self._look_at = node.clock.mono() + LOOK_S
        self._removals = 0
        # The time of the last look, and the time since which looks came without a gap.
        self.looked = self.looks_since = node.world.time.now
        # key -> the time at which its connections were cut
        self.found = dict.fromkeys(self._files.removed, node.world.time.now)

    def admits(self, key: str, user: str) -> bool:
        """Return True if a connection that has shown this key as this user, or no key, may go on."""
        return not key or self.ring.admits(key, user)

    def lets_in(self, key: str) -> bool:
        """Return True if a connection that shows this key comes up."""
        return not key or self.ring.user_of(keyfiles.decode(key), self._node.clock.mono()) is not None

    def rejects(self, conn: Conn, user: str) -> bool:
        """Return True if a message came by a key that was removed, and cut its connection."""
        if not self.ring.removals or self.admits(conn.key, user):
            return False
        self._node.world.net.reset(conn)
        return True

    def look(self) -> bool:
        """Look for removed keys, now and then, and return True if some were found since the last look."""
        now, world_now = self._node.clock.mono(), self._node.world.time.now
        if world_now - self.looked > GAP_S:
            self.looks_since = world_now
        self.looked = world_now
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        self.ring.look(now)
        if self.ring.removals == self._removals:
            return False
        self._removals = self.ring.removals
        self.found = dict.fromkeys(self._files.removed, world_now) | self.found
        return True


def refused_since(world: World, node: ServerNode, key: str) -> float:
    """Return the time since which a server must have refused a key; infinity if it may take it."""
    removed, keys = world.key_files.removed.get(key), node.keys
    if removed is None or keys is None:
        return float("inf")
    # A server that is stopped, or in a long turn, looks late.
    late = world.time.now - keys.looked > GAP_S
    found = keys.found.get(key, float("inf"))
    return found if late else min(found, max(removed, keys.looks_since) + FOUND_S)
