"""`chp`, the command line client: it shows a shared dictionary and acts on it (docs/operations.md).

    settings   the shape of a command    out        the answer as JSON, lines or columns
    text       values as text; pure      faults     errors and exit codes
    store      a Clone for commands      pair, probe    both servers at a glance
    app        the group `chp`           data/, topics/, servers/    the commands

Standard output carries the answer and nothing else. The answer is the same wherever it goes, but a terminal also gets
colour and aligned columns. Remarks about the work go to standard error.

The command line needs click and rich, from the extra `cli`. Only this module can be imported without them; `main` then
names the missing packages and says how to install them.
"""

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line and leave with its exit code. This is the entry point of `chp`."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"chp: {' and '.join(missing)} not installed; run: pip install 'chp-clone[cli]'\n")
        sys.exit(2)
    from .app import chp

    chp(prog_name="chp")
