"""The command line of `chp-server`: the flags and the help, made from the settings in `config.py`.

Flags are only gathered here, as text; reading and checking is the same for all sources, and is done in `sources.py`.
An unknown flag is reported with the nearest known one, together with all else that is wrong.
"""

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, NoReturn

from ..exits import MEANING
from .config import PREFIX, SETTINGS, Setting
from .readers import without_password

FILE_VARIABLE = f"{PREFIX}CONFIG"
_DESCRIPTION = """\
One server of a pair that keeps a shared dictionary (CHP, RFC 12). Clients hold their part of it in their own
memory; every change reaches all of them in one order; either server may die."""
_EXAMPLES = """\
examples:
  chp-server                                         alone; ports 5556 to 5558
  chp-server --primary --peer tcp://127.0.0.1:5566   the pair on one host, with
  chp-server --backup --peer tcp://127.0.0.1:5556    this beside it; on two:
  chp-server --primary --bind 'tcp://*:5556' --peer tcp://b:5566 --insecure
  chp-server --store memory: --bind tcp://127.0.0.1:7000
  chp-server --config /etc/chp.toml --show-config    what would be used
"""
_SPELLINGS = """\
Every setting is a flag, an environment variable and a key of the TOML file, with the same name:
--heartbeat-s 0.5, CHP_SERVER_HEARTBEAT_S=0.5, heartbeat_s=0.5. A flag wins over the environment, that over
the file, and that over the default."""
_WIDTH_MAX = 100


class Flags(NamedTuple):
    """The content of a command line: settings as (text, flag), the file, and True for --show-config."""

    given: dict[str, tuple[str, str]]
    config: str | None
    show_config: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse_flags(argv: Sequence[str], problems: list[str]) -> Flags:
    """Return the flags, and add what can't be understood to `problems`."""
    parser = build_parser()
    try:
        found, unknown = parser.parse_known_args(argv)
    except ValueError as error:
        problems.append(f"{without_password(str(error))}; see chp-server --help")
        return Flags({}, None, False)
    problems += [_unknown(word, parser) for word in unknown if word.startswith("-")]
    if unknown and not any(word.startswith("-") for word in unknown):
        said = without_password(" ".join(unknown))
        problems.append(f"{said!r} is not expected here; every setting is a --flag, see --help")
    given = {
        setting.name: (getattr(found, setting.name), setting.flag)
        for setting in SETTINGS
        if getattr(found, setting.name) is not None
    }
    if found.role_flag:
        if "role" in given:
            problems.append(f"--role and --{found.role_flag} are both given; give one")
        given["role"] = (found.role_flag, f"--{found.role_flag}")
    return Flags(given, found.config, found.show_config)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser, with a help that is grouped by what an operator looks for."""
    width = min(_WIDTH_MAX, shutil.get_terminal_size().columns)
    parser = _Parser(
        prog="chp-server",
        usage="chp-server [--primary | --backup] [--bind URL] [--peer URL] ...",
        description=textwrap.fill(_DESCRIPTION, width),
        epilog=f"{_EXAMPLES}\n{textwrap.fill(_SPELLINGS, width)}\n\n{_exit_codes(width)}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width),
        add_help=False,
        allow_abbrev=False,
    )
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(s.group for s in SETTINGS)}
    pair = groups["the pair"].add_mutually_exclusive_group()
    pair.add_argument("--primary", dest="role_flag", action="store_const", const="primary",
                      help="serve, unless the backup does; binds tcp://127.0.0.1:5556")  # fmt: skip
    pair.add_argument("--backup", dest="role_flag", action="store_const", const="backup",
                      help="follow, and take over when the primary is gone; binds tcp://127.0.0.1:5566")  # fmt: skip
    for setting in SETTINGS:
        switch: dict[str, Any] = {"nargs": "?", "const": "yes"} if setting.is_switch else {}
        groups[setting.group].add_argument(
            setting.flag, dest=setting.name, metavar=setting.metavar, help=_help(setting), **switch
        )
    other = parser.add_argument_group("this program")
    other.add_argument("--config", metavar="FILE", help=f"read a TOML file of settings (or {FILE_VARIABLE})")
    other.add_argument("--show-config", action="store_true", help="print the settings, their sources, and end")
    other.add_argument("--version", action="version", version=f"chp-server {program_version()}", help="print it")
    other.add_argument("-h", "--help", action="help", help="print this")
    return parser


def _help(setting: Setting) -> str:
    return f"{setting.help} [{setting.default_shown}]".replace("%", "%%")


def _exit_codes(width: int) -> str:
    lines = [textwrap.fill(f"  {int(code):<4} {text}", width, subsequent_indent=" " * 7)
             for code, text in MEANING.items()]  # fmt: skip
    return "\n".join(["exit codes:", *lines])


def _unknown(word: str, parser: argparse.ArgumentParser) -> str:
    flag = word.partition("=")[0]
    known = [option for action in parser._actions for option in action.option_strings]
    return f"unknown flag {flag}{suggest(flag, known) or '; see chp-server --help'}"


def suggest(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean X?` for the nearest known word, or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def program_version() -> str:
    """Return the version of the installed distribution; a checkout has none."""
    try:
        return version("chp-clone")
    except PackageNotFoundError:
        return "(not installed)"
