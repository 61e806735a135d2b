"""`chp check DIR|URL`: verify a journal, from outside, and say what was found.

The command belongs to `chp`, and its work to the server's code; the client imports none of that. So it is offered by
the entry point group `chp.commands`, as a plain function of the arguments that returns the exit code:

    0  sound          1  damaged, or not there to look at          2  used wrongly

Nothing is changed, and the server may be running: what it has committed is read as of one moment.
"""

import argparse
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

SOUND, DAMAGED, USAGE = range(3)
_EXAMPLES = """examples:
  chp check /var/lib/chp                        # the --data directory of a server
  chp check sqlite:/var/backups/chp.db          # a backup
  chp check postgresql://host/db?schema=chp
"""


def check(args: list[str]) -> int:
    """Verify a journal."""
    parser = argparse.ArgumentParser(
        "chp check",
        description="Verify a journal: read all of it as a start would, change nothing. It may be in use.",
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
    from chp.numbers import describe

    from .journal_tools import verify  # here, so that the list of commands loads no store

    if url.startswith("sqlite:") and not Path(url.removeprefix("sqlite:")).exists():
        print(f"chp check: {url} does not exist; name a server's --data directory, or its --store", file=sys.stderr)
        return DAMAGED
    report = verify(url)
    if as_json:
        fields = {
            "url": url, "sound": report.ok, "problems": report.problems, "store_id": report.store_id,
            "number": describe(report.number), "rows": report.rows, "bytes": report.bytes,
            "snapshot_number": describe(report.snapshot_number), "snapshot_bytes": report.snapshot_bytes,
        }  # fmt: skip
        print(json.dumps(fields))
    else:
        print(report.line())
    return SOUND if report.ok else DAMAGED
