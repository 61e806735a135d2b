"""The keys in `--keys DIR`: this server's own, the peer's, and those of users (SPEC.md, section 25).

    server.secret        the two keys of this server, readable for its user alone
    peer.pub             the other server's public key
    upstreamN.pub        of a replica: the public key of the Nth server of --upstream
    clients/NAME.pub     a key of user NAME; more keys are NAME.2.pub, NAME.new.pub ...; no user is `local` or `peer`

`clients` is looked at each second, and read again when the directory has changed, and every `AGAIN_S`. A file that is
moved there admits its owner at the next handshake. When a file is taken away, its key is *removed*: it is not admitted
any more, and messages by its open connections are refused. `peer.pub` is looked at each second too, so that the other
server may have new keys while this one serves. This directory has only the public halves of other programs' keys.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from pwd import getpwuid
from typing import TypeVar

import zmq

from chp import keyfiles
from chp.keyfiles import KeyPair

from .. import logs
from ..exits import CannotStart, Exit

log = logs.get_log(__name__)
# At most this many files are read at once, in the turn of a handshake.
USERS_MAX = 10_000
# A file may change although its directory does not. So files are read again after this time, and not more often,
# because strangers can cause these reads.
AGAIN_S = 5.0
RESERVED = {"local": "who comes without a key from this host", "peer": "the other server"}
_USER = re.compile(r"([A-Za-z0-9_-]{1,64})(\.[A-Za-z0-9_.-]{1,64})?\.pub\Z")
Read = TypeVar("Read")
# The stamp of a file, which changes when its content does.
Stamp = tuple[int, int, int, int]
# A user, and the key.
Found = tuple[str, bytes]
# One line of the log names at most this many users.
SAID_MAX = 20


class Keyring:
    """The keys of this server, its peer and its users."""

    def __init__(self, directory: str, *, has_peer: bool) -> None:
        """Read all keys; raise `CannotStart` that names the file and the remedy."""
        base = Path(directory)
        self._base, self._clients, self._of_peer = base, base / "clients", base / "peer.pub"
        self._peer_state = _state_of(self._of_peer)
        self.pair = _own(base / "server.secret")
        self.peer = _file(self._of_peer, keyfiles.read_public, _NO_PEER) if has_peer else b""
        if has_peer and self.peer == self.pair.public:
            raise CannotStart(
                Exit.USAGE, f"{base / 'peer.pub'} is this server's own key; copy the other server's there"
            )
        self._peer = keyfiles.decode(self.peer.decode()) if has_peer else b""
        # The stamp of each file when it was read, and its user and key; None for a file that is not used.
        self._files: dict[str, tuple[Stamp, Found | None]] = {}
        self._users: dict[bytes, str] = {}
        # The user of each key by the text of the key.
        self._admitted: dict[str, str] = {}
        self._changed = -1
        self._read_at = float("-inf")
        # The number of times that keys were found to be removed.
        self.removals = 0

    def upstream(self, place: int) -> bytes:
        """Return the key of a server that a replica follows; raise `CannotStart` that names the file and the remedy."""
        return _file(self._base / f"upstream{place + 1}.pub", keyfiles.read_public, _NO_UPSTREAM)

    def is_peer(self, key: bytes) -> bool:
        """Return True if these 32 bytes are the peer's public key."""
        return bool(self._peer) and key == self._peer

    def read_peer_again(self) -> bool:
        """Read `peer.pub` again if it changed; return True if it has another key, which is the peer's from now on."""
        state = _state_of(self._of_peer)
        if not self._peer or state == self._peer_state:
            return False
        self._peer_state = state
        try:
            found = _file(self._of_peer, keyfiles.read_public, _NO_PEER)
        except CannotStart as wrong:
            log.limited("the peer's key is as before", why=str(wrong))
            return False
        if found in (self.peer, self.pair.public):
            return False
        self.peer, self._peer = found, keyfiles.decode(found.decode())
        log.warning("the peer has another key", key=keyfiles.shown(found))
        return True

    def user_of(self, key: bytes, now: float) -> str | None:
        """Return the user of a public key of 32 bytes, or None."""
        changed = self._state()
        if changed != self._changed or (key not in self._users and now >= self._read_at + AGAIN_S):
            self._read_again(changed, now)
        return self._users.get(key)

    def look(self, now: float) -> None:
        """Read the keys again, now and then, to find removed ones."""
        changed = self._state()
        if changed != self._changed or now >= self._read_at + AGAIN_S:
            self._read_again(changed, now)

    def admits(self, key: str, user: str) -> bool:
        """Return True if a connection of this user may go on; `key` is the text of the key that it has shown."""
        return not self.removals or self._admitted.get(key) == user

    def _state(self) -> int:
        return _state_of(self._clients)[0]

    def _read_again(self, changed: int, now: float) -> None:
        self._changed, self._read_at = changed, now
        before, self._users = self._users, self._read()
        if self._users != before:
            self._admitted = {keyfiles.encode(key).decode(): user for key, user in self._users.items()}
            gone = sorted({user for key, user in before.items() if self._users.get(key) != user})
            if gone:
                self.removals += 1
                log.warning("keys were removed", users=gone[:SAID_MAX])

    def _read(self) -> dict[bytes, str]:
        """Return the user of each key; if the directory can't be read now, the keys that were known before."""
        try:
            stamps = {entry.name: stamp for entry in os.scandir(self._clients) if (stamp := _stamp(entry))}
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            what = "no client is known" if gone else "the files of keys can't be read; those known before stay"
            log.limited(what, directory=str(self._clients), why=error.strerror or str(error))
            return {} if gone else self._users
        names = sorted(stamps)
        if len(names) > USERS_MAX:
            log.limited("too many files of keys", directory=str(self._clients), read=USERS_MAX, found=len(names))
        before, self._files = self._files, {}
        found: dict[bytes, str] = {}
        for name in names[:USERS_MAX]:
            stamp, one = before.get(name, (None, None))
            if stamp != stamps[name]:
                one = self._read_one(name)
            self._files[name] = stamps[name], one
            if one is not None and found.setdefault(one[1], one[0]) != one[0]:
                log.limited("a key of two users is the first one's", key=name, user=found[one[1]])
        return found

    def _read_one(self, name: str) -> Found | None:
        try:
            return _user(self._clients / name)
        except CannotStart as wrong:
            log.limited("a file of keys is not used", why=str(wrong))
            return None


_NO_SERVER = "run `chp keygen server` in that directory"
_NO_PEER = "copy the server.pub of the other server there; the two know each other by their keys"
_NO_UPSTREAM = "copy the server.pub there of that server, in the order of --upstream: upstream1.pub, upstream2.pub"
_NO_CLIENT = "copy the NAME.pub there that `chp keygen NAME` wrote"


def _state_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def _stamp(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        found = entry.stat()
    except OSError:
        # The file has gone meanwhile.
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _own(path: Path) -> KeyPair:
    pair = _file(path, keyfiles.read_secret, _NO_SERVER)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise CannotStart(Exit.USAGE, f"{path} can be read by others of this host; chmod 600 it, or make new keys")
    if zmq.curve_public(pair.secret) != pair.public:
        raise CannotStart(
            Exit.USAGE, f"{path}: the public key is not that of the secret one; make new ones: {_NO_SERVER}"
        )
    return pair


def _user(path: Path) -> Found:
    named = _USER.match(path.name)
    if named is None:
        raise CannotStart(Exit.USAGE, f"{path} is no NAME.pub with a name of letters, digits, '_' and '-'; rename it")
    if named[1] in RESERVED:
        raise CannotStart(
            Exit.USAGE,
            f"{path}: {named[1]!r} is how servers call {RESERVED[named[1]]}, and nobody's own name; rename the file",
        )
    return named[1], keyfiles.decode(_file(path, keyfiles.read_public, _NO_CLIENT).decode())


def _name_of(uid: int) -> str:
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _file(path: Path, read: Callable[[str], Read], remedy: str) -> Read:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(keyfiles.FILE_BYTES_MAX)
    except FileNotFoundError:
        raise CannotStart(Exit.USAGE, f"{path} is missing; {remedy}") from None
    except PermissionError as error:
        me = _name_of(os.geteuid())
        raise CannotStart(Exit.USAGE, f"{path} can't be read ({error.strerror}); `chown {me} {path}`") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CannotStart(Exit.USAGE, f"{path} can't be read ({why}); {remedy}") from None
    try:
        return read(text)
    except ValueError as error:
        raise CannotStart(Exit.USAGE, f"{path} {error}") from None
