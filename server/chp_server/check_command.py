"""`chp check DIR|URL`: verify a journal, from outside, and say what was found.

The command belongs to `chp`, and its work to the server's code; the client imports none of that. So it is offered by
the entry point group `chp.commands`, as a plain function of the arguments that returns the exit code:

    0  sound          1  damaged, or can't be looked at          2  used wrongly

Nothing is changed, and the server may be running: what it has committed is read as of one moment.
"""

import argparse
import json
import sys
from typing import NoReturn
from urllib.parse import urlsplit

from chp.numbers import describe

from .journal import Report

SOUND, DAMAGED, USAGE = range(3)
_EXAMPLES = """examples:
  chp check /var/lib/chp             # the --data directory of a server
  chp check /var/backups/chp.db      # a backup
  chp check 'postgresql://host/db?schema=chp'

exit codes:
  0  sound    1  damaged, or can't be looked at    2  used wrongly
"""


_SCHEMES = ("sqlite", "postgresql", "postgres")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"chp check: {message}; see `chp check --help`\n")


def check(args: list[str]) -> int:
    """Verify a journal."""
    parser = _Parser(
        "chp check",
        description="Verify a journal: read all of it as a start would, and change nothing.\nIt may be in use.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("where", metavar="DIR|URL", nargs="+", help="a data directory, a file, or the URL of a store")
    parser.add_argument("--json", action="store_true", help="answer in JSON lines")
    try:
        asked = parser.parse_args(args)
    except SystemExit as done:  # --help, or used wrongly: argparse has said so
        return SOUND if not done.code else USAGE
    return max([_check_one(store_url(where), asked.json) for where in asked.where])


def store_url(where: str) -> str:
    """A directory or file as the URL of the store in it; a URL as it is."""
    return where if len(urlsplit(where).scheme) > 1 else f"sqlite:{where}"


def _check_one(url: str, as_json: bool) -> int:
    from .config import without_password
    from .journal_tools import verify  # here, so that the list of commands loads no store
    from .sqlite_files import database_path

    shown, scheme = without_password(url), urlsplit(url).scheme
    if scheme not in _SCHEMES:
        print(f"chp check: {shown} is no store that can be checked; give a directory, a file, sqlite:PATH "
              "or postgresql://...", file=sys.stderr)  # fmt: skip
        return USAGE
    if scheme == "sqlite" and not database_path(url).exists():
        print(f"chp check: {database_path(url)} does not exist; name a server's --data directory, or its --store",
              file=sys.stderr)  # fmt: skip
        return DAMAGED
    report = verify(url)
    report.url = shown
    print(json.dumps(_fields(report)) if as_json else report.line())
    return SOUND if report.ok else DAMAGED


def _fields(report: Report) -> dict[str, object]:
    return {
        "url": report.url, "sound": report.ok, "problems": report.problems, "store_id": report.store_id,
        "number": describe(report.number), "rows": report.rows, "bytes": report.bytes,
        "snapshot_number": describe(report.snapshot_number), "snapshot_bytes": report.snapshot_bytes,
    }  # fmt: skip
