"""`chp-gateway`: the shared dictionary by HTTP, for programs that have no Clone (docs/gateway.md).

    main        the command line, and the server that it runs        http/      connections and heads, bounded
    app         the routes, and the life of the Clone behind them    door       what every request has to pass
    asked       what a request says: names, numbers, conditions, bodies; and problems, what is wrong with it
    keys        one key, pages of keys                               pages      the keys in order
    quick       a GET that needs no task                             writing    writes on their way, a key in one hand
    batches     many sets and deletes in one record                  once       Idempotency-Key
    watching    changes by server-sent events                        events     what one looks like
    topics      logs of messages, without groups                     channels/  CHP/2 by WebSocket
    fanout      what readers of a prefix have in common              metrics    for Prometheus
    pair        the servers and their epochs                         openapi    the same, for machines to read
    console/    the page at /, and what it is made of       access/     who asks, and what the rules let that user do

It is one AsyncClone and no state of its own: whatever it answers, another gateway of the pair could have. So any number
of them may run behind a balancer, and any may die. Needs starlette and uvicorn, from the extra `gateway`; this module
alone can be imported without them, to say so.
"""

import sys
from importlib.util import find_spec

NEEDED = ("starlette", "uvicorn", "httptools")


def main() -> None:
    """The entry point of `chp-gateway`: run it as the command line says, and leave with its exit code."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"chp-gateway: {' and '.join(missing)} not installed; run: pip install 'chp-clone[gateway]'\n")
        sys.exit(2)
    from .main import run

    sys.exit(run(sys.argv[1:]))
