"""The command line of `chp-gateway`, and the server that it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import uvicorn

from chp.errors import ChpError

from .. import checks
from .app import application
from .asked import Limits
from .door import LOOPBACK
from .gateway import Gateway
from .http import BoundedProtocol
from .paths.quick import Quick

SERVERS = "tcp://127.0.0.1:5556,tcp://127.0.0.1:5566"
STOP_S = 3  # for requests under way when it is stopped; watches end at once
KEEP_ALIVE_S = 75


class Bounded(uvicorn.Server):
    """uvicorn's server; watches are told first that it ends, for it waits for them."""

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM or Ctrl-C."""
        app = self.config.app
        app.gateway.closing.set()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser("chp-gateway", description="The shared dictionary by HTTP, on this machine only.")
    made.add_argument("--servers", default=os.environ.get("CHP_SERVERS", SERVERS), help="the pair (or CHP_SERVERS)")
    made.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="a loopback address")
    made.add_argument(
        "--subtree", action="append", metavar="/NAME/", help="serve this subtree only; may be given again (default all)"
    )
    made.add_argument("--write", action="store_true", help="let the console write; programs may anyway")
    made.add_argument("--log-level", default="warning", choices=["error", "warning", "info"], help="default warning")
    return made


def listen_of(text: str) -> tuple[str, int]:
    """Host and port; `ValueError` with the remedy."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if host not in LOOPBACK:
        raise ValueError(
            f"--listen {text}: a gateway has no access control yet and listens on 127.0.0.1, [::1] or localhost only; "
            "put a proxy that has it before it"
        )
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"--listen {text}: give HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def server_of(given: argparse.Namespace, limits: Limits | None = None) -> uvicorn.Server:
    """The server that was asked for, not started; `ValueError` or `ChpError` for what can't be."""
    host, port = listen_of(given.listen)
    servers = [each.strip() for each in given.servers.split(",")]
    checks.endpoints_of(servers)
    gateway = Gateway(servers, given.subtree or [""], write=given.write, limits=limits)
    app = application(gateway)
    quick = Quick(gateway, frozenset(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")))
    protocol = type("Protocol", (BoundedProtocol,), {"bounds": gateway.limits, "quick": quick})
    config = uvicorn.Config(
        app,
        host,
        port,
        http=protocol,
        ws="none",
        log_level=given.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    return Bounded(config)


def run(args: Sequence[str]) -> int:
    """Serve until SIGTERM; the exit code: 2 for what can't be run so."""
    given = arguments().parse_args(args)
    try:
        server = server_of(given)
    except (ValueError, ChpError) as error:
        sys.stderr.write(f"chp-gateway: {error}\n")
        return 2
    sys.stderr.write(f"chp-gateway: http://{given.listen} serves {given.servers}\n")
    server.run()
    return 0 if server.started else 1
