"""`chp check DIR|URL`: verify a journal, from outside; and compare its contents with those of a running server.

The command belongs to `chp`, but its work needs the server's code, which the client does not import. So the entry point
group `chp.commands` offers it, as a plain function that takes the arguments and returns the exit code:

    0  sound, and equal     1  damaged, different, or can't be looked at     2  used wrongly

The command changes nothing, and the server may be running: its committed records are read as they are at one moment.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from chp.errors import ChpError
from chp.numbers import describe

from ..core.state.journal import Report
from ..settings.readers import without_password

if TYPE_CHECKING:
    from .against import Compared, Contents

SOUND, DAMAGED, USAGE = range(3)
# At most this many differing keys are named.
NAMED_MAX = 100
_EXAMPLES = """examples:
  chp check /var/lib/chp             # the --data directory of a server
  chp check /var/backups/chp.db      # a backup
  chp check 'postgresql://host/db?schema=chp'
  chp check /var/lib/chp --against tcp://b:5566          # does it hold what that server holds?
  chp check tcp://a:5556 --against tcp://b:5566          # do two servers hold the same?

exit codes:
  0  sound, and equal    1  damaged, different, or can't be looked at    2  used wrongly
"""


_SCHEMES = ("sqlite", "postgresql", "postgres")


class _CheckParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"chp check: {message}; see `chp check --help`\n")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def check(args: list[str]) -> int:
    """Verify a journal."""
    parser = _CheckParser(
        "chp check",
        description="Verify a journal: read all of it as a start would, and change nothing. It may be in use.\n"
        "With --against, compare its contents, or a server's, with a running server's; keys that differ are named.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "where",
        metavar="DIR|URL",
        nargs="+",
        help="a data directory, a file, the URL of a store; with --against a server too",
    )
    parser.add_argument("--against", metavar="SERVER", help="compare with this server, such as tcp://127.0.0.1:5556")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="without a word of a server, or a connection; 10",
    )
    parser.add_argument(
        "--client-file",
        dest="client",
        metavar="PATH",
        default=os.environ.get("CHP_CLIENT_FILE") or None,
        help="the client file to show servers that have keys (CHP_CLIENT_FILE); read of everything is needed",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON lines")
    try:
        if any(word == "--as" or word.startswith("--as=") for word in args):
            parser.error("--as is gone; use --client-file PATH")
        asked = parser.parse_args(args)
    # argparse has written the reason, after --help or wrong arguments.
    except SystemExit as done:
        return SOUND if not done.code else USAGE
    return max([_check(where, asked) for where in asked.where])


def _check(where: str, asked: argparse.Namespace) -> int:
    if _is_server(where):
        if not asked.against:
            print(
                f"chp check: {where} is a server; say with --against which other one to compare it with",
                file=sys.stderr,
            )
            return USAGE
        return _compare(where, asked)
    url = store_url(where)
    return _check_one(url, asked.json) or (_compare(url, asked) if asked.against else SOUND)


def _is_server(where: str) -> bool:
    return where.startswith(("tcp://", "ipc://"))


def _compare(where: str, asked: argparse.Namespace) -> int:
    from . import against

    shown = without_password(where)
    try:
        other = against.of_server(asked.against, asked.timeout, asked.client)
        server = _is_server(where)
        one = (
            against.of_server(where, asked.timeout, asked.client) if server else against.of_journal(where, other.number)
        )
        found = against.compared(one, other, lambda: against.of_server(asked.against, asked.timeout, asked.client))
    except ChpError as error:
        print(f"chp check: {shown} can't be compared: {error}", file=sys.stderr)
        return DAMAGED
    _show(shown, asked, one, other, found)
    return DAMAGED if found.differing else SOUND


def _show(shown: str, asked: argparse.Namespace, one: Contents, other: Contents, found: Compared) -> None:
    named = found.differing[:NAMED_MAX]
    if asked.json:
        fields = {
            "url": shown, "against": asked.against, "number": describe(one.number),
            "against_number": describe(other.number), "compared": found.keys, "left_out": found.left_out,
            "differences": len(found.differing), "differing": dict(named),
        }  # fmt: skip
        print(json.dumps(fields))
        return
    numbers = describe(one.number), describe(other.number)
    print(f"{shown} at {numbers[0]}: {found.keys:,} keys compared with {asked.against} at {numbers[1]}, "
          f"{len(found.differing):,} differ, {found.left_out:,} left out, as they were changed meanwhile")  # fmt: skip
    for key, how in named:
        print(f"  {key!r}: {how}")
    if len(found.differing) > len(named):
        print(f"  and {len(found.differing) - len(named):,} more")


def store_url(where: str) -> str:
    """Return the URL of the store in a directory or file; a URL stays as it is."""
    return where if len(urlsplit(where).scheme) > 1 else f"sqlite:{where}"


def _check_one(url: str, as_json: bool) -> int:
    from ..settings.readers import without_password
    from ..store.sql.sqlite_files import database_path
    from .journal_tools import verify

    shown, scheme = without_password(url), urlsplit(url).scheme
    if scheme not in _SCHEMES:
        print(f"chp check: {shown} is no store that can be checked; give a directory, a file, sqlite:PATH "
              "or postgresql://...", file=sys.stderr)  # fmt: skip
        return USAGE
    if scheme == "sqlite" and not database_path(url).exists():
        print(f"chp check: {_missing(database_path(url))}", file=sys.stderr)
        return DAMAGED
    report = verify(url)
    report.url = shown
    print(json.dumps(_fields(report)) if as_json else report.line())
    return SOUND if report.ok else DAMAGED


def _missing(path: Path) -> str:
    """Return a text about a database that is missing; it says whether there was one."""
    beside = [found.name for end in ("-wal", ".mark") if (found := Path(f"{path}{end}")).exists()]
    if not beside:
        return f"{path} does not exist; name a server's --data directory, or its --store"
    return (
        f"{path} is gone, and {' and '.join(beside)} beside it tell that there was one: put it back, let the other "
        "server send its state, or restore a backup; one start with --recover prefix goes on without it"
    )


def _fields(report: Report) -> dict[str, object]:
    return {
        "url": report.url, "sound": report.ok, "problems": report.problems, "store_id": report.store_id,
        "number": describe(report.number), "rows": report.rows, "bytes": report.bytes,
        "snapshot_number": describe(report.snapshot_number), "snapshot_bytes": report.snapshot_bytes,
    }  # fmt: skip
