"""A client file: the servers of a pair, their public keys, and the keys of this client (SPEC.md, section 25).

    public = "..."
    secret = "..."
    [[servers]]
    address = "tcp://a:5556"
    keys = ["..."]               # the server's public key; during a change of keys, the new one too

A file may have several pairs, with a table `[mounts]` that says which pair has which subtree, and `[topics]`
(mount_table.py). Each address there is one of the file's servers.

`Clone(client_file=path)` reads a client file. `ClientFile.read(path)` returns a tuple of the addresses, which a Clone
takes as its servers: `Clone(ClientFile.read(path).only([one]))`. The repr of a ClientFile shows no secret. A ClientFile
is pickled as its path, so another process, such as a worker of Spark, reads the file itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import zmq

from chp import addresses, keyfiles
from chp.errors import BadInput
from chp.keyfiles import KeyPair

from .mount_table import Mounts

# A client file has at most this many keys of a server: the present key, and the next one during a change of keys.
SERVER_KEYS_MAX = 2
_KNOWN = {"public", "secret", "servers", "mounts", "topics"}
_REMEDY = "`chp keygen NAME --server ADDRESS=SERVER.pub` writes such a file"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that a connection to one server needs: this client's pair, and the server's public keys."""

    pair: KeyPair
    server_keys: tuple[bytes, ...]

    def put_on(self, socket: zmq.Socket[bytes], turn: int = 0) -> None:
        """Set the keys on a socket, for its next connections. Each next `turn` takes the next of the server's keys."""
        socket.curve_publickey, socket.curve_secretkey = self.pair.public, self.pair.secret
        socket.curve_serverkey = self.server_keys[turn % len(self.server_keys)]


class ClientFile(tuple[str, ...]):
    """The addresses of a client file, with the keys that these servers ask for."""

    path: str
    credentials: dict[str, Credentials]
    # The mounts. The servers of each mount are a `ClientFile` too. None if the file has one pair.
    mounts: Mounts | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a client file. `BadInput` names the file, what is wrong with it, and what to do."""
        if not isinstance(path, str | os.PathLike):
            raise BadInput(f"client_file={path!r:.60} is not the path of a file; give text, or a pathlib.Path")
        credentials, mounts = _read(Path(path))
        made = cls._of(str(path), credentials)
        made.mounts = None if mounts is None else mounts.with_servers(made.only)
        return made

    @classmethod
    def _of(cls, path: str, credentials: dict[str, Credentials]) -> Self:
        made = cls(credentials)
        made.path, made.credentials, made.mounts = path, credentials, None
        return made

    def only(self, servers: Iterable[str]) -> Self:
        """Return a ClientFile with some of its servers, without mounts. Raise `BadInput` for any other server."""
        chosen = list(servers)
        for server in chosen:
            if server not in self.credentials:
                raise BadInput(f"{server} is no server of the client file {self.path}, which has {', '.join(self)}")
        return self._of(self.path, {server: self.credentials[server] for server in chosen})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientFile) or (self.mounts is None) != (other.mounts is None):
            return False
        return self.path == other.path and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        # Without this method, `!=` would be that of a tuple.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.path, tuple(self)))

    def __repr__(self) -> str:
        return f"<ClientFile {self.path}: {', '.join(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.path, None if self.mounts is not None else tuple(self))


def _again(path: str, servers: tuple[str, ...] | None) -> ClientFile:
    found = ClientFile.read(path)
    return found if servers is None else found.only(servers)


def credentials_of(servers: object) -> dict[str, Credentials]:
    """Return the credentials for each address, or none if no client file was given."""
    return servers.credentials if isinstance(servers, ClientFile) else {}


def text_of(name: str, pair: KeyPair, servers: dict[str, bytes]) -> str:
    """Return the text of a client file."""
    lines = [keyfiles.secret_text(name, pair)]
    for address, key in servers.items():
        lines.append(f'\n[[servers]]\naddress = "{address}"\nkeys = ["{key.decode()}"]\n')
    return "".join(lines)


def _read(path: Path) -> tuple[dict[str, Credentials], Mounts | None]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(keyfiles.FILE_BYTES_MAX)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(f"the client file {path} can't be read ({why}); {_REMEDY}") from None
    if mode & 0o077:
        raise BadInput(f"the client file {path} can be read by others of this host; chmod 600 it, or make new keys")
    try:
        table = keyfiles.read_table(text)
        found = _parsed(table)
        return found, _mounts(table, found)
    except ValueError as error:
        raise BadInput(f"the client file {path} {error}") from None


def _parsed(table: dict[str, object]) -> dict[str, Credentials]:
    if unknown := sorted(table.keys() - _KNOWN):
        raise ValueError(f"has {unknown[0]!r}, which is not known; it may have {', '.join(sorted(_KNOWN))}")
    pair = KeyPair(keyfiles.key_of(table, "public"), keyfiles.key_of(table, "secret"))
    if zmq.curve_public(pair.secret) != pair.public:
        raise ValueError(f"has a public key that does not belong to its secret key; {_REMEDY}")
    servers = table.get("servers")
    if not isinstance(servers, list) or not servers:
        raise ValueError(f"names no server: it has no [[servers]] with address and keys; {_REMEDY}")
    found: dict[str, Credentials] = {}
    for each in servers:
        address, keys = _server(each)
        if address in found:
            raise ValueError(f"has the server {address} twice; put both of its keys into one keys = [...]")
        found[address] = Credentials(pair, keys)
    return found


def _mounts(table: dict[str, object], servers: dict[str, Credentials]) -> Mounts | None:
    if "mounts" not in table:
        if "topics" in table:
            raise ValueError("has [topics] without [mounts]; say which pair has which subtree too")
        return None
    mounts = Mounts.of_tables(table["mounts"], table.get("topics"))
    for prefix, addressed in mounts.servers.items():
        _check_known(prefix, addressed, servers)
    return mounts


def _check_known(prefix: str, addressed: Sequence[str], servers: dict[str, Credentials]) -> None:
    for address in addressed:
        if address not in servers:
            known = ", ".join(servers)
            raise ValueError(
                f"has the server {address} in the mount {prefix!r}, and no [[servers]] with that address; "
                f"add one with its keys, or name one of {known}"
            )


def _server(table: object) -> tuple[str, tuple[bytes, ...]]:
    if not isinstance(table, dict) or not isinstance(address := table.get("address"), str):
        raise ValueError('has a [[servers]] entry without a line address = "tcp://HOST:PORT"')
    try:
        addresses.parse(address)
    except ValueError as error:
        raise ValueError(f"has the address {address!r}, which {error}") from None
    keys = table.get("keys")
    if not isinstance(keys, list) or not 1 <= len(keys) <= SERVER_KEYS_MAX:
        raise ValueError(f'has no keys = ["..."] for {address}; copy one or two keys from its server.pub')
    return address, tuple(keyfiles.key_of({"server's": key}, "server's") for key in keys)
