"""`chp-gateway`: the shared dictionary by HTTP, for programs that have no Clone (docs/gateway/).

    main         the command line, and its server           http/       connections, heads, and the fast path
    middleware   admission, dispatch and errors             access/     callers and their rights
    routes       the table of routes                        channels/   CHP/2 by WebSocket
    route        a row of the table, and how it is found    paths/      the handlers
    openapi      the document of the routes, with schemas   shared/     the parts that all requests share
    call         one request as a handler sees it           gateway     the Clone, and those parts
    answers      values as JSON, answers as bytes           problems    errors as problem+json
    console/     the page at /                              metrics     the counters for Prometheus

The gateway is one AsyncClone and has no state of its own: any other gateway of the pair would give the same answers.
So any number of them may run behind a balancer, and any may die. It needs starlette and uvicorn, from the extra
`gateway`. This module alone can be imported without them, to say so.
"""

import sys
from importlib.util import find_spec

NEEDED = ("starlette", "uvicorn", "httptools")


def main() -> None:
    """Run `chp-gateway` as its command line says, and leave with its exit code."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"chp-gateway: {' and '.join(missing)} not installed; run: pip install 'chp-clone[gateway]'\n")
        sys.exit(2)
    from .main import run

    sys.exit(run(sys.argv[1:]))
