"""`chp`, the command line client: to look at a shared dictionary and to act on it (docs/operations.md).

    faults     errors and exit codes        settings   --servers, --json, --timeout, and how words are read
    text       how things are shown; pure   out        bytes to a pipe, lines and colour to a terminal
    store      what commands need of Clone  app        the group: help, did-you-mean, errors in one line, plug-ins
    read write watching transfer            get ls, set del, watch, dump load
    pair probe status operate bench         status top, switch backup restore, bench

For people and for pipes: standard output carries the answer and nothing else, and is the same wherever it goes unless
it is a terminal, which also gets colour and aligned columns. What is said about the work goes to standard error.

Needs click and rich, from the extra `cli`. This module alone can be imported without them, to say so.
"""

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")


def main() -> None:
    """The entry point of `chp`: run the command line given, and leave with its exit code."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"chp: {' and '.join(missing)} not installed; run: pip install 'chp-clone[cli]'\n")
        sys.exit(2)
    from .app import chp

    chp(prog_name="chp")
