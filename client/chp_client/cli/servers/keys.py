"""`chp keygen`: a pair of keys as two files, or the keys of both servers and of an operator.

The command asks no server. It never overwrites a file, because the owner of the keys in it would be locked out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import click
import zmq

from chp import addresses, keyfiles
from chp.keyfiles import KeyPair

from ... import clientfile
from ..faults import Misused
from ..settings import CliSettings, command, read_servers

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_.-]{1,64})?\Z")
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")
# The folders of a server's keys and of its data, on the server's host.
KEYS, DATA = "/etc/chp/keys", "/var/lib/chp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# A server takes the ports P to P+3.
PORTS = 4


@command(servers=False)
@click.argument("name", metavar="NAME|DIR")
@click.option(
    "--server", "servers", multiple=True, metavar="ADDRESS=FILE.pub",
    help="Write NAME.toml, a client file for this server (twice: for a pair), in place of NAME.secret.",
)  # fmt: skip
@click.option("--pair", metavar="URL,URL", help="Write the keys of a primary and a backup, and of an operator, to DIR.")
@click.option("--admin", metavar="NAME", help="With --pair: the name of the operator.  [default: root]")
def keygen(settings: CliSettings, name: str, servers: tuple[str, ...], pair: str | None, admin: str | None) -> None:
    """Make a pair of keys, or all keys of a pair of servers.

    Write NAME.secret, for its owner alone, and NAME.pub, which others may have. NAME may begin with a directory. With
    --server the secret goes into a client file, NAME.toml, for `chp --client-file` and `Clone(client_file=)`.

    With --pair DIR gets a client file for the operator, and a folder for each server. A folder has the server's secret
    key, and the public keys of its peer and of the operator. The answer says what to copy, and how to start the
    servers.

    Examples:
        chp keygen --pair tcp://a:5556,tcp://b:5566 keys   # all that a pair needs
        chp keygen /etc/chp/keys/server   # for chp-server --keys /etc/chp/keys
        chp keygen alice                  # alice.pub is for the servers' clients/
    """
    if pair is not None:
        if servers:
            raise Misused("--pair makes the servers' keys, and --server takes those that exist; give only one of them")
        _make_pair(Path(name), pair, admin or "root")
        return
    if admin is not None:
        raise Misused("--admin is for --pair; without it NAME is the owner of the keys")
    path = Path(name)
    _check_name(path.name, name)
    public, secret = (path.with_name(path.name + end) for end in (".pub", ".toml" if servers else ".secret"))
    known = dict(map(_server, servers))
    _must_be_new(public, secret)
    made = make_keys()
    write_new(secret, clientfile.text_of(path.name, made, known), 0o600)
    write_new(public, keyfiles.public_text(path.name, made.public), 0o644)
    click.echo(f"{secret} stays here, {public} is for others; its key is {made.public.decode()}")


def _check_name(name: str, shown: str) -> None:
    if not _NAME.match(name) or name.endswith((".pub", ".secret")):
        raise Misused(
            f"{shown!r} can't be the name of keys; give letters, digits, '_' and '-', such as alice or server"
        )


def _must_be_new(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise Misused(f"{file} is there already; give another name, or move it away")


def _server(word: str) -> tuple[str, bytes]:
    """Return the address and the public key that ADDRESS=FILE.pub names."""
    address, _, name = word.partition("=")
    try:
        addresses.parse(address)
        return address, keyfiles.read_public(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise Misused(f"--server {word}: {name} {error.strerror}; copy the server's server.pub there") from None
    except ValueError as error:
        what = address if "://" not in address or not name else name
        raise Misused(f"--server {word}: {what} {error}; give tcp://HOST:PORT=FILE.pub") from None


def make_keys() -> KeyPair:
    """Return new keys."""
    return KeyPair(*zmq.curve_keypair())


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a new file, created with this mode. Raise a usage error if the file exists or can't be written."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise Misused(f"{path} can't be written ({error.strerror}); give another name") from None
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


# -- a pair of servers


@dataclass(frozen=True, slots=True)
class _ServerKeys:
    """A server of the pair, and the folder with its keys."""

    role: str
    address: str
    folder: Path
    keys: KeyPair
    # The subfolder of KEYS and DATA for this server; "" if the other server is on another host.
    below: str

    @property
    def host(self) -> str:
        """The host of the address."""
        return addresses.parse(self.address)[0]

    @property
    def port(self) -> int:
        """The first port of the server."""
        return addresses.parse(self.address)[1]

    @property
    def here(self) -> bool:
        """True if the server is to run on this host, so that nothing is copied."""
        return self.host in LOOPBACK

    def copy(self) -> str:
        """Return the command that copies the folder to the host."""
        there, keys = f"root@{self.host}", Path(KEYS, self.below)
        return (
            f"ssh {there} mkdir -p {keys.parent} && scp -r {self.folder} {there}:{keys} && "
            f"ssh {there} chown -R chp: {keys}"
        )

    def start(self, peer: str) -> str:
        """Return the command that starts the server."""
        bind = self.address if self.here else f"'tcp://*:{self.port}'"
        folders = (self.folder, self.folder / "data") if self.here else (Path(KEYS, self.below), Path(DATA, self.below))
        keys, data = folders
        before = "" if self.here else f"{self.host}$ runuser -u chp -- "
        return f"{before}chp-server --{self.role} --bind {bind} --peer {peer} --data {data} --keys {keys}"


def _make_pair(base: Path, text: str, admin: str) -> None:
    """Write the keys of two servers and of an operator, and print what to do with them."""
    _check_name(admin, admin)
    a, b = pair = _pair_of(base, text)
    operator, known = make_keys(), {each.address: each.keys.public for each in pair}
    file = base / f"{admin}.toml"
    _must_be_new(a.folder, b.folder, file)
    for own, peer in ((a, b), (b, a)):
        (own.folder / "clients").mkdir(mode=0o700, parents=True)
        own.folder.chmod(0o700)
        write_new(own.folder / "server.secret", keyfiles.secret_text("server", own.keys), 0o600)
        for path, public in (("server.pub", own.keys), ("peer.pub", peer.keys), (f"clients/{admin}.pub", operator)):
            write_new(own.folder / path, keyfiles.public_text(Path(path).stem, public.public), 0o644)
    write_new(file, clientfile.text_of(admin, operator, known), 0o600)
    known_as = " ".join(f"--server {each.address}={each.folder / 'server.pub'}" for each in pair)
    copies = [each.copy() for each in pair if not each.here]
    lines = [
        *(["Copy the keys to the hosts; the folders have secrets, so remove them here afterwards:", *copies]
          if copies else []),
        "Start the servers:", a.start(b.address), b.start(a.address),
        f"Ask them as {admin}:", f"chp --client-file {file} status",
        "Make keys for another user; NAME.pub goes into clients/ of both servers:", f"chp keygen NAME {known_as}",
    ]  # fmt: skip
    click.echo("\n".join(line if line.endswith(":") else f"    {line}" for line in lines))


def _pair_of(base: Path, text: str) -> tuple[_ServerKeys, _ServerKeys]:
    """Return both servers; their folders are named after the hosts if these differ, else a and b."""
    try:
        found = read_servers(text)
    except ValueError as error:
        raise Misused(f"--pair {error}") from None
    if len(found) != len(("primary", "backup")) or any(map(addresses.is_file, found)):
        raise Misused(
            f"--pair {text}: give the addresses of the primary and of the backup, as tcp://a:5556,tcp://b:5566"
        )
    hosts = [addresses.parse(address)[0] for address in found]
    same_host = hosts[0] == hosts[1]
    names = hosts if not same_host and all(map(_HOST.match, hosts)) else ["a", "b"]
    first, second = (
        _ServerKeys(role, address, base / name, make_keys(), role if same_host else "")
        for role, address, name in zip(("primary", "backup"), found, names, strict=True)
    )
    if (same_host or (first.here and second.here)) and abs(first.port - second.port) < PORTS:
        raise Misused(
            f"--pair {text}: a server takes its port and the {PORTS - 1} after it, and those of the two overlap; "
            f"give ports {PORTS} apart, or further"
        )
    return first, second


COMMANDS = (keygen,)
