"""The shape of a command: what all of them take, and how words become values.

    @command()                                    --servers, --client-file, --timeout, --json, and help
    @click.argument("key")
    def history(settings: CliSettings, key: str) -> int | None:
        '''The text of --help; its first sentence stands in the list of commands.

        Examples:
            chp history /rates/EUR/USD
        '''

A command returns its exit code, or None for 0. The shared options stand before or after the command. If an option is
given twice, the later one wins. Without an option, CHP_CLIENT_FILE or CHP_SERVERS names the servers, else they are the
default pair of this machine. Only a command that needs servers and was given none reads the environment, so a wrong
variable does not stop any other command.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

import click

from chp import addresses
from chp.errors import BadInput
from chp.limits import DEFAULT

from .. import mount_table
from ..clientfile import ClientFile
from ..mount_table import Mounts
from ..starts import key_start, topic_start
from .faults import USAGE, Misused
from .out import Out
from .text import read_delay, read_duration, read_revision

DEFAULT_SERVERS = addresses.LOCAL_PAIR
TIMEOUT_S = 5.0
SERVERS_VARIABLE, FILE_VARIABLE, OLD_FILE_VARIABLE = "CHP_SERVERS", "CHP_CLIENT_FILE", "CHP_CLIENT"
_EXAMPLES = "\n\nExamples:\n"


@dataclass(slots=True)
class CliSettings:
    """The shared options of one command line."""

    servers: tuple[str, ...] = DEFAULT_SERVERS
    client_file: str = ""
    # True if the user named the servers.
    named: bool = False
    # The mounts, if several pairs are named. `servers` then has the servers of all these pairs.
    mounts: Mounts | None = None
    # The mount that the command is for, or "" for all of them.
    mount: str = ""
    timeout_s: float = TIMEOUT_S
    timeout_named: bool = False
    out: Out = field(default_factory=Out)

    @property
    def client(self) -> ClientFile | None:
        """The client file that was read, or None."""
        return self.servers if isinstance(self.servers, ClientFile) else None

    @property
    def pairs(self) -> Mounts | tuple[str, ...]:
        """The servers that a Clone follows: the mounts, or one pair."""
        return self.servers if self.mounts is None else self.mounts

    def each_pair(self) -> Iterator[tuple[str, CliSettings]]:
        """Yield the prefix of each mount, and the settings for this mount alone. For one pair the prefix is ""."""
        if self.mounts is None:
            yield "", self
            return
        for mount, servers in self.mounts.servers.items():
            named = servers if isinstance(servers, ClientFile) else tuple(servers)
            yield mount, replace(self, servers=named, mounts=None, mount=mount)

    def mount_of(self, key: str) -> str:
        """Return the mount of a key, or "" if there is one pair. One request can't have keys of two mounts."""
        if self.mounts is None:
            return ""
        try:
            return self.mounts.of_key(key)
        except BadInput as error:
            raise Misused(str(error)) from None

    def patience(self, otherwise_s: float) -> float:
        """Return the user's --timeout, or `otherwise_s` if the user gave none."""
        return self.timeout_s if self.timeout_named else otherwise_s

    def resolve(self, timeout_s: float = TIMEOUT_S) -> None:
        """Read the client file and the environment, and set the timeout of this command."""
        self.timeout_s = self.patience(timeout_s)
        text, path = os.environ.get(SERVERS_VARIABLE, ""), self.client_file
        if self.named and path:
            raise Misused(f"--servers and --client-file {path} both name servers; give only one of them")
        if not self.named and not path:
            path = os.environ.get(FILE_VARIABLE, "")
            if path and text:
                raise Misused(f"{SERVERS_VARIABLE} and {FILE_VARIABLE} both name servers; unset {SERVERS_VARIABLE}")
            if not path and os.environ.get(OLD_FILE_VARIABLE):
                raise Misused(f"{OLD_FILE_VARIABLE} is gone; use {FILE_VARIABLE}, which is always a path")
        try:
            if path:
                self.use(ClientFile.read(path))
            elif text and not self.named:
                self.use(read_pairs(text))
        except BadInput as error:
            raise Misused(str(error)) from None
        except ValueError as error:
            raise Misused(f"{SERVERS_VARIABLE}: {error}") from None
        self._choose()

    def use(self, found: tuple[str, ...] | Mounts) -> None:
        """Take servers that the user named."""
        self.named = True
        if isinstance(found, Mounts):
            self.mounts, self.servers = found, tuple(server for pair in found.servers.values() for server in pair)
        else:
            self.mounts, self.servers = found.mounts if isinstance(found, ClientFile) else None, found

    def _choose(self) -> None:
        """Leave only the mount that --mount names."""
        if not self.mount:
            return
        if self.mounts is None:
            raise Misused(f"--mount {self.mount}: the servers named are one pair; leave --mount out")
        for mount, settings in self.each_pair():
            if mount == self.mount:
                self.servers, self.mounts = settings.servers, None
                return
        raise Misused(f"--mount {self.mount} is no mount; the mounts are {', '.join(self.mounts.servers)}")

    def need_one_pair(self) -> None:
        """Raise a usage error if several pairs are named, for a command that asks one pair."""
        if self.mounts is not None:
            names = ", ".join(self.mounts.servers)
            raise Misused(f"several pairs are named, and this command is for one; add --mount with one of {names}")


def read_pairs(text: str) -> tuple[str, ...] | Mounts:
    """Return the servers of a pair, or the mounts, that a text names. Raise ValueError with the remedy."""
    if not mount_table.is_text(text):
        return read_servers(text)
    try:
        return Mounts.of_text(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


def read_servers(text: str) -> tuple[str, ...]:
    """Return the endpoints of a comma-separated text; `tcp://` may be left out. Raise ValueError with the remedy."""
    found = []
    for endpoint in _endpoints(text):
        try:
            addresses.parse(endpoint)
        except ValueError as error:
            word = endpoint.removeprefix("tcp://")
            raise ValueError(f"{word!r} {error}; name a server's first port, as {DEFAULT_SERVERS[0]}") from None
        found.append(endpoint)
    if not found:
        raise ValueError(f"0 servers named; name one, or the two of a pair: {','.join(DEFAULT_SERVERS)}")
    if len(found) > DEFAULT.servers_max:
        raise ValueError(
            f"{len(found)} servers named, more than {DEFAULT.servers_max}; name the two of a pair, and replicas of it"
        )
    if len(set(found)) < len(found):
        twice = next(each for each in found if found.count(each) > 1)
        raise ValueError(f"{twice} is named twice; name each server once")
    return tuple(found)


def _endpoints(text: str) -> list[str]:
    """Return the servers of a text. Ignore the subtree and the codec of a `chp://` URL, which only a Clone needs."""
    if not addresses.is_url(text):
        return addresses.words(text)
    try:
        return addresses.parse_url(text).servers
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


# -- types of options


class _Word(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # it takes no argument before click 8.4
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
            text = str(error).removeprefix("start=")
            self.fail(text if text.startswith(repr(value)) else f"{value!r}: {text}", param, ctx)


def _topic_start(text: str) -> str | int:
    start = int(text) if text.isascii() and text.isdigit() else text
    topic_start(start)
    return start


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("give a time such as 2027-01-31T09:00:00Z, or use --in with a duration") from None
    if found.tzinfo is None:
        raise ValueError("give a time zone too, such as 2027-01-31T09:00:00Z")
    return found


def _whole_seconds(text: str) -> int:
    seconds = read_duration(text)
    if seconds != int(seconds):
        raise ValueError("a fraction of a second can't be kept here; give whole seconds, such as 30, 5m, 2h or 1d")
    return int(seconds)


DURATION = _Word("duration", read_duration)
DELAY = _Word("duration", read_delay)
WHOLE_SECONDS = _Word("duration", _whole_seconds)
REVISION = _Word("revision", read_revision)
SERVERS = _Word("servers", read_pairs)
KEY_START = _Word("start", key_start)
TOPIC_START = _Word("start", _topic_start)
TIME = _Word("time", _time)

YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def duration(*names: str, help: str, default: str | None = None, whole: bool = False) -> Callable[[Any], Any]:
    """Return an option whose value is a duration; with `whole` it takes whole seconds only."""
    shown = f"{help}  [default: {default}]" if default else help
    return click.option(
        *names, type=WHOLE_SECONDS if whole else DURATION, default=default, metavar="DURATION", help=shown
    )


def at_least_1(*names: str, help: str, default: int | None = None, most: int | None = None) -> Callable[[Any], Any]:
    """Return an option whose value is a number from 1 to `most`."""
    shown = f"{help}  [default: {default}]" if default else help
    return click.option(*names, type=click.IntRange(1, most), default=default, metavar="N", help=shown)


def moved(old: str, new: str) -> Callable[[Any], Any]:
    """Return a hidden option that refuses the old name of an option, and tells the user the new name."""

    def tell(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise Misused(f"{old} is gone; use {new}")

    return click.option(old, "moved_" + old.strip("-"), hidden=True, expose_value=False, is_eager=True, callback=tell)


# -- the shared options


def _noting(note: Callable[[CliSettings, Any], None]) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback of click that keeps an option's value in the settings."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            note(ctx.ensure_object(CliSettings), value)

    return callback


def _note_servers(settings: CliSettings, value: tuple[str, ...] | Mounts) -> None:
    settings.use(value)


def _note_mount(settings: CliSettings, value: str) -> None:
    settings.mount = value


def _note_file(settings: CliSettings, value: str) -> None:
    settings.client_file = value


def _note_timeout(settings: CliSettings, value: float) -> None:
    settings.timeout_s, settings.timeout_named = value, True


def _note_json(settings: CliSettings, value: bool) -> None:
    settings.out.json = value


def shared(timeout_s: float = TIMEOUT_S) -> Callable[[Any], Any]:
    """Return a decorator that adds the shared options."""
    options = [
        click.option(
            "--servers", type=SERVERS, metavar="URL[,URL]", expose_value=False, callback=_noting(_note_servers),
            help=f"The server, or the two of the pair (or {SERVERS_VARIABLE}).  [default: local ports 5556 and 5566]",
        ),
        click.option(
            "--client-file", metavar="PATH", expose_value=False, callback=_noting(_note_file),
            help=f"The file with servers and keys that `chp keygen` wrote (or {FILE_VARIABLE}).",
        ),
        click.option(
            "--mount", metavar="PREFIX", expose_value=False, callback=_noting(_note_mount),
            help="The pair of this mount, if several pairs are named.",
        ),
        click.option(
            "--timeout", type=DURATION, metavar="DURATION", expose_value=False, callback=_noting(_note_timeout),
            help=f"How long to look for a server, or wait for its answer.  [default: {timeout_s:g}s]",
        ),
        click.option(
            "--json", is_flag=True, expose_value=False, callback=_noting(_note_json), help="Answer in JSON lines.",
        ),
        moved("--as", "--client-file PATH"),
    ]  # fmt: skip
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


def command(
    group: click.Group | None = None,
    *,
    name: str | None = None,
    timeout_s: float = TIMEOUT_S,
    servers: bool = True,
    mounts: bool = False,
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function a command; `servers=False` leaves out the shared options.

    A command with `mounts` works over several pairs. Any other one is refused if several pairs are named.
    """

    def make(function: Callable[..., int | None]) -> click.Command:
        @click.pass_context
        def run(ctx: click.Context, /, **options: Any) -> None:
            settings = ctx.ensure_object(CliSettings)
            if servers:
                settings.resolve(timeout_s)
                if not mounts:
                    settings.need_one_pair()
            if code := ctx.invoke(function, settings, **options):
                ctx.exit(code)

        made = click.Command(
            name or function.__name__.rstrip("_"), callback=run,
            params=[*_params(function), *(_params(shared(timeout_s)(lambda: None)) if servers else ())],
            **help_of(function),
        )  # fmt: skip
        if group is not None:
            group.add_command(made)
        return made

    return make


def _params(function: Any) -> list[click.Parameter]:
    """Return the parameters that click's decorators have put on a function, in the order of the help page."""
    return list(reversed(getattr(function, "__click_params__", [])))


def help_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parts of a docstring as click wants them."""
    text, _, lines = inspect.cleandoc(function.__doc__ or "").partition(_EXAMPLES)
    first = text.partition("\n\n")[0].partition(". ")[0]
    # The mark \b keeps click from filling the lines of a paragraph.
    examples = "\b\nExamples:\n" + textwrap.indent(textwrap.dedent(lines), "  ") if lines else None
    return {"help": text, "short_help": first.replace("\n", " ").rstrip(".") + ".", "epilog": examples}


class CommandGroup(click.Group):
    """A group that names the nearest command to a misspelt one, and shows its help if no command is given."""

    # Names of commands that users know from other tools, with the name of our command for each.
    habits: ClassVar[dict[str, str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the user named, or raise a usage error that names the nearest command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(f"no command {name!r}; {self._meant(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> str:
        near = difflib.get_close_matches(name, [*self.list_commands(ctx), *self.habits], n=1, cutoff=0.5)
        if not near:
            return f"`{ctx.command_path} --help` lists them"
        return f"did you mean `{ctx.command_path} {self.habits.get(near[0], near[0])}`?"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words of the command line; without any, show the help."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)


def group(**attributes: Any) -> Callable[[Callable[[], None]], click.Group]:
    """Make a function a group of commands."""
    return lambda function: click.group(**{"cls": CommandGroup, **attributes}, **help_of(function))(function)
