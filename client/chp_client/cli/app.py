"""The group `chp`: its commands, did-you-mean, errors in one line, exit codes, and commands of other packages.

A command ends in one of four ways, and this is the one place that turns them into an exit code: it returns its exit
code or None, it raises a `Fault` or a usage error (one line on standard error), the reader of its output closes the
pipe (exit code 141, no message), or the user presses Ctrl-C (exit code 130, no message).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import click

from . import completion, plugins
from .data import lock, read, record, transfer, watch, write
from .faults import INTERRUPTED, NOT_FOUND, PIPE_CLOSED, USAGE
from .out import show_warnings
from .servers import access, bench, dev, doctor, keys, operate, status
from .settings import CommandGroup, group, shared
from .topics import messages, topic

# The help lists the commands in this order: those that users need first come first.
ORDER = (
    "get", "set", "del", "ls", "du", "watch", "history", "pub", "sub", "topic", "lock", "elect", "dump", "load",
    "record", "replay", "status", "doctor", "top", "clients", "bench", "switch", "leases", "backup", "restore",
    "access", "keygen", "dev", "completion",
)  # fmt: skip


class ChpGroup(CommandGroup):
    """The group `chp`, which shows each error as one line."""

    habits: ClassVar[dict[str, str]] = {
        "put": "set", "rm": "del", "delete": "del", "list": "ls", "keys": "ls", "subscribe": "watch", "publish": "pub",
        "export": "dump", "import": "load", "info": "status", "failover": "switch", "benchmark": "bench",
        "verify": "check",
    }  # fmt: skip

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the built-in commands in `ORDER`, then those of the plug-ins."""
        return [*(n for n in ORDER if n in self.commands), *sorted(set(plugins.names()) - set(ORDER))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the built-in command of this name, or else the plug-in; None if there is neither."""
        return self.commands.get(cmd_name) or plugins.command(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Exit without a message if the reader of its output has closed the pipe."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _forget_stdout()
            ctx.exit(PIPE_CLOSED)
        except OSError as error:
            # The disk is full, for example, or the user may not write to the directory.
            _forget_stdout()
            where = error.filename or "the answer can't be written"
            click.echo(f"chp {ctx.invoked_subcommand}: {where}: {error.strerror or error}", err=True)
            ctx.exit(NOT_FOUND)

    def main(  # type: ignore[override]  # click's own has overloads for standalone_mode, which is always off here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command line and leave with its exit code."""
        extra["standalone_mode"] = False
        _open_what_is_closed()
        show_warnings()
        try:
            code = super().main(args, prog_name, **extra)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except click.UsageError as error:
            _say(error, _hint(error) + f"; see `{_path(error)} --help`" if _wants_help(error) else "")
            sys.exit(USAGE)
        except click.ClickException as error:
            _say(error)
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


def _say(error: click.ClickException, remedy: str = "") -> None:
    text = error.format_message().strip().rstrip(".").replace("\n", " ")
    click.echo(f"{_path(error)}: {text}{remedy}", err=True)


def _path(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return ctx.command_path if ctx else "chp"


def _hint(error: click.UsageError) -> str:
    """Return the remedy for `chp set /balance -5`, where click takes -5 for an option."""
    word = error.option_name if isinstance(error, click.NoSuchOption) else ""
    return "; if it is a value, put -- before it" if word[1:2].isdigit() else ""


def _wants_help(error: click.UsageError) -> bool:
    return "--help" not in error.format_message() and "did you mean" not in error.format_message()


def _open_what_is_closed() -> None:
    """Replace standard output and error by /dev/null if the calling program has closed them (`>&-`)."""
    # No `with` here: both files stay open until the process ends.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _forget_stdout() -> None:
    """Point standard output to /dev/null, so that the interpreter's last flush can't fail a second time."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        # Standard output is not a real file, so there is nothing to flush.
        pass


def _version() -> str:
    try:
        return version("chp-clone")
    except PackageNotFoundError:
        return "(not installed)"


@group(cls=ChpGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_version(), prog_name="chp", message="%(prog)s %(version)s")
@shared()
def chp() -> None:
    """Look at a shared dictionary of a CHP pair, and act on it.

    Answers go to standard output, as JSON lines with --json. Exit codes: 0 done, 1 not found or degraded, 2 used
    wrongly, 3 no server within --timeout, 4 refused.

    Examples:
        chp dev                             # a pair to try things on
        chp set /config/motd hello          # set a key, acknowledged by the pair
        chp get /config/motd
        chp watch /rates/                   # every change, as it happens
        chp dump /rates/ -o rates.jsonl     # and back: chp load rates.jsonl
        chp status                          # both servers at a glance
        chp --servers tcp://a:5556,tcp://b:5566 status --json
    """


_MODULES = (
    read, write, watch, messages, topic, lock, transfer, record, status, doctor, operate, bench, access, keys, dev,
    completion,
)  # fmt: skip
for _module in _MODULES:
    for _command in _module.COMMANDS:
        chp.add_command(_command)
