"""Commands that other packages add to `chp`, by the entry point group `chp.commands`.

The client never imports the server. A command that needs the server's code, as `chp check` does, comes from there:

    [project.entry-points."chp.commands"]
    check = "chp_server.tools.check_command:check"

An entry point is a plain function `(args: list[str]) -> int`: it reads its own arguments (`--help` too), prints, and
returns the exit code. The function needs no click. The first line of its docstring stands in the list of commands. If
the user gives --json or --client-file before the command, the function gets these options first in `args`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

from .faults import RefusedByServer
from .settings import CliSettings

GROUP = "chp.commands"


def _found() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Return the names of all plug-ins, without loading any."""
    return list(_found())


def command(name: str) -> click.Command | None:
    """Return the plug-in as a click command that hands on all arguments unchanged; None if there is no such plug-in."""
    point = _found().get(name)
    return None if point is None else _wrap(point)


def _wrap(point: EntryPoint) -> click.Command:
    try:
        function = point.load()
    except Exception as error:
        # A plug-in that can't be loaded must not break the list of commands.
        return _broken(point, error)

    @click.pass_context
    def run(ctx: click.Context, args: tuple[str, ...]) -> None:
        settings = ctx.ensure_object(CliSettings)
        shared = ["--json"] if settings.out.json else []
        shared += ["--client-file", settings.client_file] if settings.client_file else []
        ctx.exit(function([*shared, *args]))

    return click.Command(
        point.name,
        callback=run,
        params=[click.Argument(["args"], nargs=-1, type=click.UNPROCESSED)],
        help=function.__doc__ or f"From {point.value}.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )


def _broken(point: EntryPoint, error: Exception) -> click.Command:
    text = f"the command {point.name!r} of {point.value} can't be loaded ({error}); reinstall the package it comes from"

    def fail(args: tuple[str, ...]) -> None:
        raise RefusedByServer(text)

    return click.Command(
        point.name, callback=fail, params=[click.Argument(["args"], nargs=-1, type=click.UNPROCESSED)],
        help="(can't be loaded)", context_settings={"ignore_unknown_options": True},
    )  # fmt: skip
