"""`chp-gateway`: the shared dictionary by HTTP, for programs that have no Clone (docs/gateway/).

    main         the command line, and its server           http/       connections, heads, and the fast path
    middleware   admission, dispatch and errors             access/     callers and their rights
    routes       the table of routes                        channels/   CHP/2 by WebSocket
    route        a row of the table, and the search for it  paths/      the handlers
    openapi      the document of the routes, with schemas   shared/     the parts that all requests share
    call         one request as a handler sees it           gateway     the Clone, and those parts
    answers      values as JSON, answers as bytes           problems    errors as problem+json
    console/     the page at /                              metrics     the counters for Prometheus

A gateway has an AsyncClone for each pair and no state of its own: any other gateway of the same pairs would give the
same answers. So any number of gateways may run behind a balancer, and any of them may die. A gateway needs starlette,
uvicorn and httptools, from the extra `gateway`. Only this module can be imported without them: it reports what is
missing.
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
