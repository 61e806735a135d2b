"""Directories of keys for servers in tests, and sockets with or without a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from chp import keyfiles
from chp.keyfiles import KeyPair
from chp_client.clientfile import text_of
from chp_server.testing import Pair

Socket = zmq.Socket[bytes]


def new_pair() -> KeyPair:
    """Make a key pair of a user or server."""
    return KeyPair(*zmq.curve_keypair())


ALICE = new_pair()


def write(path: Path, name: str, pair: KeyPair) -> None:
    """Write NAME.secret and NAME.pub as `chp keygen` does."""
    path.mkdir(parents=True, exist_ok=True)
    secret = path / f"{name}.secret"
    secret.touch(mode=0o600)
    secret.write_text(keyfiles.secret_text(name, pair))
    (path / f"{name}.pub").write_text(keyfiles.public_text(name, pair.public))


def admit(directory: Path, user: str, pair: KeyPair) -> None:
    """Admit a user. The key file is moved into place, so that a server never reads a part of it."""
    clients = directory / "clients"
    clients.mkdir(parents=True, exist_ok=True)
    new = directory / "moving.pub"
    new.write_text(keyfiles.public_text(user, pair.public))
    new.rename(clients / f"{user}.pub")


def replace(path: Path, text: str) -> None:
    """Replace a file by a move, so that it is whole at each moment."""
    new = path.with_suffix(".moving")
    new.write_text(text)
    new.rename(path)


def pair_of_directories(base: Path, *users: tuple[str, KeyPair]) -> tuple[Path, Path]:
    """Return the `--keys` directories of two servers that know each other and these users."""
    a, b = base / "a", base / "b"
    keys = {a: new_pair(), b: new_pair()}
    for mine, other in ((a, b), (b, a)):
        write(mine, "server", keys[mine])
        (mine / "peer.pub").write_text(keyfiles.public_text("peer", keys[other].public))
        for user, pair in users:
            admit(mine, user, pair)
    return a, b


def pair_with_keys(base: Path, *users: tuple[str, KeyPair], **settings: Any) -> Pair:
    """Return two servers, not started yet, that know each other and these users. Backups go to BASE/backups."""
    pair = Pair(**settings)
    for server, folder in zip((pair.primary, pair.backup), pair_of_directories(base, *users), strict=True):
        server.config = dataclasses.replace(server.config, keys=str(folder), backup_dir=str(base / "backups"))
    return pair


def of_replica(folder: Path, own: KeyPair, pair: Pair, *users: tuple[str, KeyPair]) -> Path:
    """Write and return the `--keys` directory of a replica that follows a pair and knows these users."""
    write(folder, "server", own)
    for user, key in users:
        admit(folder, user, key)
    for place, public in enumerate(known(pair).values(), 1):
        (folder / f"upstream{place}.pub").write_text(keyfiles.public_text("server", public))
    return folder


def public_of(directory: Path) -> bytes:
    """Return a server's public key."""
    return keyfiles.read_public((directory / "server.pub").read_text())


def known(pair: Pair) -> dict[str, bytes]:
    """Return the public keys of both servers by their addresses."""
    return {server.address: public_of(Path(str(server.config.keys))) for server in (pair.primary, pair.backup)}


@contextmanager
def socket(context: zmq.Context[Socket], kind: int, pair: KeyPair | None, server: bytes) -> Iterator[Socket]:
    """Open a socket that shows a key and expects the server's key, or one without any key if `pair` is None."""
    made = context.socket(kind)
    made.linger = 0
    if pair is not None:
        made.curve_publickey, made.curve_secretkey, made.curve_serverkey = pair.public, pair.secret, server
    try:
        yield made
    finally:
        made.close()


def client_file(path: Path, pair: KeyPair, servers: Mapping[str, bytes]) -> Path:
    """Write a client file that has the public key of each server."""
    path.touch(mode=0o600)
    path.write_text(text_of(path.stem, pair, dict(servers)))
    return path
