"""`chp keygen`: a pair of keys, as two files.

It asks no server. A file that is there is never written over: whoever has its keys would be locked out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import zmq

from chp import addresses, keyfiles
from chp.keyfiles import KeyPair

from ... import clientfile
from ..faults import Misused
from ..settings import examples

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_.-]{1,64})?\Z")


@click.command(short_help="Make a pair of keys.", epilog=examples("""
    chp keygen /etc/chp/keys/server   # for chp-server --keys /etc/chp/keys
    chp keygen alice                  # alice.pub is for the servers' clients/
"""))  # fmt: skip
@click.argument("name")
@click.option(
    "--server", "servers", multiple=True, metavar="ADDRESS=FILE.pub",
    help="Write NAME.toml, a client file for this server (twice: for a pair), in place of NAME.secret.",
)  # fmt: skip
def keygen(name: str, *, servers: tuple[str, ...]) -> None:
    """Write NAME.secret, for its owner alone, and NAME.pub, which others may have. NAME may begin with a directory.

    With --server the secret goes into a client file, NAME.toml, for `chp --as` and `Clone(client_file=)`.
    """
    path = Path(name)
    if not _NAME.match(path.name) or path.name.endswith((".pub", ".secret")):
        raise Misused(f"{name!r} can't be the name of keys; give letters, digits, '_' and '-', such as alice or server")
    public, secret = (path.with_name(path.name + end) for end in (".pub", ".toml" if servers else ".secret"))
    known = dict(map(_server, servers))
    for file in (public, secret):
        if file.exists():
            raise Misused(f"{file} is there already; give another name, or move it away")
    pair = make_pair()
    write_new(secret, clientfile.text_of(path.name, pair, known), 0o600)
    write_new(public, keyfiles.public_text(path.name, pair.public), 0o644)
    click.echo(f"{secret} stays here, {public} is for others; its key is {pair.public.decode()}")


def _server(word: str) -> tuple[str, bytes]:
    """An address, and the key in a file."""
    address, _, name = word.partition("=")
    try:
        addresses.parse(address)
        return address, keyfiles.read_public(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise Misused(f"--server {word}: {name} {error.strerror}; copy the server's server.pub there") from None
    except ValueError as error:
        what = address if "://" not in address or not name else name
        raise Misused(f"--server {word}: {what} {error}; give tcp://HOST:PORT=FILE.pub") from None


def make_pair() -> KeyPair:
    """New keys."""
    return KeyPair(*zmq.curve_keypair())


def write_new(path: Path, text: str, mode: int) -> None:
    """A file that was not there, with this mode from the first moment on."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise Misused(f"{path} can't be written ({error.strerror}); give another name") from None
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


COMMANDS = [keygen]
