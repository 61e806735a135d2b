"""The servers that an application means, and what a Clone of them holds.

    Clone()                                             the environment, or else the pair on this machine
    Clone("a:5556,b:5566")   Clone(["tcp://a:5556"])    these servers
    Clone("chp://a:5556,b:5566/rates/?codec=json")      the servers, the subtree and the codec in one text
    Clone(client_file="alice.toml")                     the servers of a client file, with their keys
    Clone("/=a:5556,b:5566 /rates/=c:5556,d:5566")      several pairs, each with a subtree; or a mapping of them

The variables `CHP_SERVERS` and `CHP_CLIENT_FILE` are read only if neither servers nor a client file is given. The value
of `CHP_SERVERS` may have any of these forms of text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chp import addresses
from chp.errors import BadInput

from . import checks, mount_table
from .clientfile import ClientFile
from .codecs import Codec
from .mount_table import Mounts

VARIABLE, CLIENT_VARIABLE = "CHP_SERVERS", "CHP_CLIENT_FILE"
_OLD_CLIENT_VARIABLE = "CHP_CLIENT"
Servers = str | Iterable[str] | Mounts
FilePath = str | os.PathLike[str]


class Target(NamedTuple):
    """The servers and the content of a Clone. The subtrees are not checked yet."""

    # The addresses. This is a `ClientFile` if a client file named them, which has the servers' keys.
    servers: Sequence[str]
    endpoints: list[tuple[str, str, str]]
    subtree: str | None
    codec: str | Codec | type[Any]


def target(
    servers: Servers | None,
    client_file: FilePath | None,
    subtree: str | None,
    codec: str | Codec | type[Any],
    *,
    several: bool,
) -> Target:
    """Return what the arguments of a Clone mean. `several` says that `subtrees` is given too.

    Raises `BadInput`.
    """
    named, variable = _named(servers, client_file)
    try:
        return _meant(named, subtree, codec, several)
    except BadInput as error:
        if not variable:
            raise
        raise BadInput(f"{variable}: {error}") from None


def servers_of(servers: Servers | None, client_file: FilePath | None, subtree: str | None = None) -> Sequence[str]:
    """Return the addresses that the arguments or the environment mean, as a `ClientFile` if a file names them.

    If they mean several pairs, the addresses are those of the mount that has the `subtree`. The subtree and the codec
    of a `chp://` URL are ignored: only a Clone uses them. Raises `BadInput`.
    """
    if subtree is not None and (mounts := mounts_of(servers, client_file)) is not None:
        return mounts.alone(subtree)
    return target(servers, client_file, "", "raw", several=False).servers


def mounts_of(servers: Servers | None, client_file: FilePath | None) -> Mounts | None:
    """Return the mounts that the arguments or the environment mean, or None for one pair. Raises `BadInput`."""
    named, variable = _named(servers, client_file)
    try:
        return _mounts(named)
    except BadInput as error:
        if not variable:
            raise
        raise BadInput(f"{variable}: {error}") from None


def _mounts(named: Servers) -> Mounts | None:
    if isinstance(named, ClientFile):
        return named.mounts
    if isinstance(named, Mounts):
        return named
    try:
        if isinstance(named, str):
            return Mounts.of_text(named) if mount_table.is_text(named) else None
        return Mounts.of_tables(named) if isinstance(named, Mapping) else None
    except ValueError as error:
        raise BadInput(f"{named!r:.200} {error}") from None


def _named(servers: Servers | None, client_file: FilePath | None) -> tuple[Servers, str]:
    """Return the servers as they were named, and the environment variable that named them ("" if none did)."""
    if client_file is not None:
        if servers is not None:
            raise BadInput("both servers and client_file are given; the file names the servers: leave servers out")
        return ClientFile.read(client_file), ""
    if servers is not None:
        return servers, ""
    text, path = os.environ.get(VARIABLE), os.environ.get(CLIENT_VARIABLE)
    if path and text:
        raise BadInput(f"both {VARIABLE} and {CLIENT_VARIABLE} are set; the file names the servers: unset {VARIABLE}")
    if not path and os.environ.get(_OLD_CLIENT_VARIABLE):
        raise BadInput(f"{_OLD_CLIENT_VARIABLE} is set, which is {CLIENT_VARIABLE} now; rename it")
    if path:
        return ClientFile.read(path), CLIENT_VARIABLE
    return (text, VARIABLE) if text else (addresses.LOCAL_PAIR, "")


def _meant(servers: Servers, subtree: str | None, codec: str | Codec | type[Any], several: bool) -> Target:
    if (mounts := _mounts(servers)) is not None:
        raise BadInput(
            f"several pairs are named ({mounts}), and this follows one pair; give it the servers of one mount"
        )
    if isinstance(servers, str) and addresses.is_url(servers):
        return _of_url(servers, subtree, codec, several)
    found = addresses.words(servers) if isinstance(servers, str) else checks.listed(servers)
    return _target(servers, [addresses.full(each) if isinstance(each, str) else each for each in found], subtree, codec)


def _target(given: Servers, named: Sequence[object], subtree: str | None, codec: str | Codec | type[Any]) -> Target:
    endpoints = checks.endpoints_of(named)
    servers = given if isinstance(given, ClientFile) else [endpoint[0] for endpoint in endpoints]
    return Target(servers, endpoints, subtree, codec)


def _of_url(text: str, subtree: str | None, codec: str | Codec | type[Any], several: bool) -> Target:
    try:
        url = addresses.parse_url(text)
    except ValueError as error:
        raise BadInput(f"{text!r} {error}") from None
    if url.subtree and (subtree != "" or several):
        raise BadInput(f"{text!r} names the subtree {url.subtree!r}, and another is given; leave one of them out")
    if url.codec and codec != "raw":
        raise BadInput(f"{text!r} names the codec {url.codec!r}, and another is given; leave one of them out")
    return _target(text, url.servers, url.subtree or subtree, url.codec or codec)
