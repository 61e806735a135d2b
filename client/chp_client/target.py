"""Whom a Clone follows and what it holds, from what it was given.

    Clone()                                             CHP_SERVERS, or else the pair of this machine
    Clone("a:5556,b:5566")   Clone(["tcp://a:5556"])    these servers
    Clone("chp://a:5556,b:5566/rates/?codec=json")      servers, subtree and codec in one text

The environment is read here and nowhere else; a text of it may have each of these forms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from chp import addresses
from chp.errors import BadInput

from . import checks
from .codecs import Codec

VARIABLE = "CHP_SERVERS"


class Target(NamedTuple):
    """What a Clone connects to and holds; the subtrees are not checked yet."""

    endpoints: list[tuple[str, str, str]]
    subtree: str | None
    codec: str | Codec | type[Any]


def target(
    servers: str | Iterable[str] | None, subtree: str | None, codec: str | Codec | type[Any], *, several: bool
) -> Target:
    """What is meant by these arguments; `several`: subtrees are given too. Raises `BadInput`."""
    if servers is not None:
        return _meant(servers, subtree, codec, several)
    text = os.environ.get(VARIABLE)
    if not text:
        return Target(checks.endpoints_of(addresses.LOCAL_PAIR), subtree, codec)
    try:
        return _meant(text, subtree, codec, several)
    except BadInput as error:
        raise BadInput(f"{VARIABLE}: {error}") from None


def _meant(servers: str | Iterable[str], subtree: str | None, codec: str | Codec | type[Any], several: bool) -> Target:
    if isinstance(servers, str) and addresses.is_url(servers):
        return _of_url(servers, subtree, codec, several)
    found = addresses.words(servers) if isinstance(servers, str) else checks.listed(servers)
    named = [addresses.full(each) if isinstance(each, str) else each for each in found]
    return Target(checks.endpoints_of(named), subtree, codec)


def _of_url(text: str, subtree: str | None, codec: str | Codec | type[Any], several: bool) -> Target:
    try:
        url = addresses.parse_url(text)
    except ValueError as error:
        raise BadInput(f"{text!r} {error}") from None
    if url.subtree and (subtree != "" or several):
        raise BadInput(f"{text!r} names the subtree {url.subtree!r}, and another is given; leave one of them out")
    if url.codec and codec != "raw":
        raise BadInput(f"{text!r} names the codec {url.codec!r}, and another is given; leave one of them out")
    return Target(checks.endpoints_of(url.servers), url.subtree or subtree, url.codec or codec)
