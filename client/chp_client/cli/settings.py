"""What every command takes: --servers, --timeout, --json; and how words become values.

The three stand before or after the command, whichever comes to the fingers: the nearest to the end wins, then the
environment variable CHP_SERVERS, then the default pair of this machine. The variable is read only by a command that
needs servers and was given none, so a wrong one stands in nobody else's way.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from chp import addresses
from chp.errors import BadInput

from ..clientfile import ClientFile
from .faults import Misused
from .out import Out
from .text import read_duration, read_revision

DEFAULT_SERVERS = addresses.LOCAL_PAIR
TIMEOUT_S = 5.0
SERVERS_MAX = 2
VARIABLE, CLIENT_VARIABLE = "CHP_SERVERS", "CHP_CLIENT"
AS = "as:"  # how `chp bench` hands a client file on
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class CliSettings:
    """The shared options of one command line."""

    servers: tuple[str, ...] = DEFAULT_SERVERS
    client_name: str = ""  # or a path: that of --as
    named: bool = False  # whether the user said which servers, rather than the default
    timeout_s: float = TIMEOUT_S
    timeout_named: bool = False
    out: Out = field(default_factory=Out)

    def patience(self, otherwise_s: float) -> float:
        """The user's --timeout, or what suits the command if there is none."""
        return self.timeout_s if self.timeout_named else otherwise_s

    @property
    def client(self) -> ClientFile | None:
        """The client file, if there is one."""
        return self.servers if isinstance(self.servers, ClientFile) else None

    def take_environment(self) -> None:
        """The client file, of --as or the environment, or the servers of the environment if none were named."""
        if name := self.client_name or os.environ.get(CLIENT_VARIABLE):
            try:
                found = ClientFile.read(path_of(name))
                self.servers = found.only(self.servers) if self.named else found
                self.named = True
            except BadInput as error:
                raise Misused(str(error)) from None
            return
        text = os.environ.get(VARIABLE)
        if self.named or not text:
            return
        try:
            self.servers, self.named = read_servers(text), True
        except ValueError as error:
            raise Misused(f"{VARIABLE}: {error}") from None


def path_of(name: str) -> Path:
    """Where a client file is: a path, or a name in the user's folder for them."""
    if "/" in name or name.endswith(".toml"):
        return Path(name)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "chp" / f"{name}.toml"


def read_servers(text: str) -> tuple[str, ...]:
    """One or two endpoints, comma-separated; `tcp://` may be left out; ValueError with the remedy."""
    found = []
    for endpoint in _endpoints(text):
        try:
            addresses.parse(endpoint)
        except ValueError as error:
            word = endpoint.removeprefix("tcp://")
            raise ValueError(f"{word!r} {error}; name a server's first port, as {DEFAULT_SERVERS[0]}") from None
        found.append(endpoint)
    if not 1 <= len(found) <= SERVERS_MAX:
        raise ValueError(f"{len(found)} servers named; name one, or the two of a pair: {','.join(DEFAULT_SERVERS)}")
    if len(set(found)) < len(found):
        raise ValueError(f"{found[0]} is named twice; name it once, or the two of a pair")
    return tuple(found)


def _endpoints(text: str) -> list[str]:
    """The servers of a text; of a `chp://` URL too, whose subtree and codec are a Clone's and left."""
    if not addresses.is_url(text):
        return addresses.words(text)
    try:
        return addresses.parse_url(text).servers
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


# Before click 8.4 a type of parameters takes no argument, at runtime.
class _Word(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A parameter read by a function that raises ValueError with the remedy."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}" if not str(error).startswith(repr(value)) else str(error), param, ctx)


DURATION = _Word("duration", read_duration)
REVISION = _Word("revision", read_revision)
SERVERS = _Word("servers", read_servers)


def _settings(ctx: click.Context) -> CliSettings:
    return ctx.ensure_object(CliSettings)


def _note_servers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...] | None) -> None:
    if value is not None:
        _settings(ctx).servers, _settings(ctx).named = value, True


def _note_client(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        _settings(ctx).client_name = value


def _note_timeout(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    if value is not None:
        _settings(ctx).timeout_s, _settings(ctx).timeout_named = value, True


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        _settings(ctx).out.json = True


_SERVERS = click.option(
    "--servers", type=SERVERS, metavar="URL[,URL]", expose_value=False, callback=_note_servers,
    help="The server, or the two of the pair (or CHP_SERVERS).  [default: local ports 5556 and 5566]",
)  # fmt: skip
_AS = click.option(
    "--as", "client", metavar="NAME|PATH", expose_value=False, callback=_note_client,
    help="The client file with servers and keys (or CHP_CLIENT); NAME is ~/.config/chp/NAME.toml.",
)  # fmt: skip
_JSON = click.option("--json", is_flag=True, expose_value=False, callback=_note_json, help="Answer in JSON lines.")


def pass_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its settings as the first argument."""

    @click.pass_context
    def run(ctx: click.Context, *args: Any, **options: Any) -> Any:
        settings = _settings(ctx)
        settings.take_environment()
        return ctx.invoke(command, settings, *args, **options)

    return functools.update_wrapper(run, command)


def shared(command: F) -> F:
    """Give a command the shared options."""
    return shared_for(TIMEOUT_S)(command)


def shared_for(timeout_s: float) -> Callable[[F], F]:
    """The same for a command that waits so long if it is not told otherwise (see `CliSettings.patience`)."""
    timeout = click.option(
        "--timeout", type=DURATION, metavar="DURATION", expose_value=False, callback=_note_timeout,
        help=f"How long to look for a server, or wait for its answer.  [default: {timeout_s:g}s]",
    )  # fmt: skip
    return lambda command: _SERVERS(_AS(timeout(_JSON(command))))


def examples(text: str) -> str:
    """An epilog of examples that click leaves as it is written."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
