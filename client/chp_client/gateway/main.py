"""The command line of `chp-gateway`, and its server. A bad flag ends the program with the remedy and exit code 2."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import uvicorn

from chp import keyfiles
from chp.errors import ChpError

from .. import target
from ..clientfile import ClientFile, credentials_of
from ..mount_table import Mounts, is_text
from .access.audit import STREAM, GatewayAudit
from .access.callers import AuthMethods
from .channels.connection import WebSocketConnection
from .gateway import Gateway
from .http.fast_path import FastPath
from .http.protocol import BoundedProtocol
from .middleware import LOOPBACK, Middleware
from .request_fields import RequestLimits

SERVERS = "tcp://127.0.0.1:5556,tcp://127.0.0.1:5566"
# A gateway that is stopped waits this long for the requests under way. Watches end at once.
STOP_S = 3
KEEP_ALIVE_S = 75
NO_TLS = "tokens and values can be read on the way; have a proxy with TLS before it, and let only that reach the port"


class Bounded(uvicorn.Server):
    """The server of uvicorn. When it is stopped, it first ends the watches: uvicorn waits for all open answers."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self.gateway = gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the watches and then the server; uvicorn calls this on SIGTERM or Ctrl-C."""
        self.gateway.closing.set()
        super().handle_exit(sig, frame)


EPILOG = """\
examples:
  chp-gateway                                        the pair of this host, at http://127.0.0.1:8080
  chp-gateway --servers tcp://a:5556,tcp://b:5566 --listen 127.0.0.1:9000
  chp-gateway --client-file /etc/chp/gateway.toml    a pair with keys: a caller shows a token of `chp access token`
  chp-gateway --servers '/=a:5556,b:5566 /rates/=c:5556,d:5566'    several pairs, each with a subtree
  chp-gateway --client-file gateway.toml --listen 0.0.0.0:8080 --audit /var/log/chp-gateway.jsonl
  chp-gateway --subtree /rates/ --write              a part only; the console may edit

where to look: / is the console, /openapi.json all paths, /metrics for Prometheus. /health answers 200 while the
process does, /ready while its copy is current (503 else): the second one is for balancers.

exit codes: 0 it was told to end, 1 a defect, 2 a flag or a file is wrong, 3 the port can't be listened on
"""


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        "chp-gateway",
        description="The shared dictionary by HTTP: keys, pages, batches, changes, topics, a console.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--servers", metavar="A,B", help=f"the pair (else CHP_SERVERS, else {SERVERS}); with a client file, which of it"
    )
    made.add_argument(
        "--client-file", metavar="PATH", help="the servers and keys that `chp keygen` wrote (else CHP_CLIENT_FILE)"
    )
    made.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="where; without a client file a loopback address (default %(default)s)",
    )
    made.add_argument(
        "--anonymous",
        default="",
        metavar="USER",
        help="with a client file, on a loopback: a request without a token is of this user, and held to its rules",
    )
    made.add_argument(
        "--user-header",
        default="",
        metavar="NAME",
        help="with a client file, on a loopback: a proxy there names the user in this header, and there are no tokens",
    )
    made.add_argument("--audit", default="", metavar="FILE|-", help="a JSON line for each new token and each denial")
    made.add_argument(
        "--subtree", action="append", metavar="/NAME/", help="serve this subtree only; may be given again (default all)"
    )
    made.add_argument("--write", action="store_true", help="let the console write; programs may anyway")
    made.add_argument("--log-level", default="warning", choices=["error", "warning", "info"], help="default warning")
    return made


def servers_of(given: argparse.Namespace) -> Sequence[str] | Mounts:
    """Return the servers: addresses, a client file or mounts. Raise `ValueError` or `ChpError` for bad flags."""
    path = given.client_file or os.environ.get(target.CLIENT_VARIABLE)
    if path and given.servers is not None:
        if is_text(given.servers):
            raise ValueError(
                f"--servers {given.servers}: the client file {path} has the keys, so its [mounts] name the mounts too; "
                "leave --servers out, or name servers of one pair"
            )
        return ClientFile.read(path).only([each.strip() for each in given.servers.split(",")])
    if (mounts := target.mounts_of(given.servers, given.client_file)) is not None:
        return mounts
    return target.servers_of(given.servers, given.client_file)


def listen_of(text: str) -> tuple[str, int]:
    """Return the host and the port; raise `ValueError` with the remedy."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"--listen {text}: give HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def ways_of(given: argparse.Namespace, *, keyed: bool) -> AuthMethods:
    """Return how callers are known; raise `ValueError` for flags that would admit every caller."""
    local = listen_of(given.listen)[0] in LOOPBACK
    for flag, said in (("--anonymous", given.anonymous), ("--user-header", given.user_header)):
        if said and not (keyed and local):
            raise ValueError(
                f"{flag} {said}: that needs a client file, as users and rules are those of a pair with keys, and a "
                "--listen on 127.0.0.1, [::1] or localhost, as every program that reaches the port is believed"
            )
    if given.anonymous and given.user_header:
        raise ValueError(
            "--anonymous and --user-header: give one of them; a request that the proxy gives no user is refused"
        )
    if not keyed and not local:
        raise ValueError(
            f"--listen {given.listen}: a gateway of a pair without keys can't tell users apart, and listens on "
            "127.0.0.1, [::1] or localhost only; give the pair keys and the gateway a --client-file"
        )
    header = given.user_header.lower()
    if header and not (header.isascii() and header.replace("-", "").isalnum()):
        raise ValueError(f"--user-header {given.user_header}: that is no header; give a name such as X-Remote-User")
    return AuthMethods(keyed, header.encode(), given.anonymous)


def audit_of(given: argparse.Namespace, servers: Sequence[str] | Mounts) -> GatewayAudit:
    """Return the audit; raise `ValueError` if its file can't be written."""
    first = next(iter(servers.servers.values())) if isinstance(servers, Mounts) else servers
    known = list(credentials_of(first).values())
    try:
        return GatewayAudit(given.audit, known[0].pair.public[: keyfiles.SHOWN].decode() if known else "")
    except OSError as error:
        raise ValueError(f"--audit {given.audit}: {error.strerror}; give a file, or {STREAM}") from None


def server_of(given: argparse.Namespace, limits: RequestLimits | None = None) -> Bounded:
    """Return the server, not started; raise `ValueError` or `ChpError` for bad flags."""
    host, port = listen_of(given.listen)
    servers = servers_of(given)
    pairs = servers.servers.values() if isinstance(servers, Mounts) else [servers]
    ways = ways_of(given, keyed=any(isinstance(each, ClientFile) for each in pairs))
    gateway = Gateway(
        servers,
        given.subtree or [""],
        write=given.write,
        limits=limits,
        ways=ways,
        audit=audit_of(given, servers),
    )
    app = Middleware(gateway)
    named = {"bounds": gateway.limits, "fast_path": FastPath(gateway)}
    config = uvicorn.Config(
        app,
        host,
        port,
        http=type("Protocol", (BoundedProtocol,), named),
        ws=type("Line", (WebSocketConnection,), {"admission": app}),
        log_level=given.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    return Bounded(config, gateway)


def run(args: Sequence[str]) -> int:
    """Serve until SIGTERM; return the exit code: 2 for bad flags, 3 for a port that can't be listened on."""
    given = arguments().parse_args(args)
    try:
        server = server_of(given)
    except (ValueError, ChpError) as error:
        sys.stderr.write(f"chp-gateway: {error}\n")
        return 2
    try:
        listener = socket.create_server(
            listen_of(given.listen), family=socket.AF_INET6 if "[" in given.listen else socket.AF_INET
        )
    except OSError as error:
        text = f"--listen {given.listen}: {error.strerror}; end what listens there, or give another port"
        sys.stderr.write(f"chp-gateway: {text}\n")
        return 3
    with listener:
        served = server.gateway.servers
        shown = str(served) if isinstance(served, Mounts) else ", ".join(served)
        sys.stderr.write(f"chp-gateway: http://{given.listen} serves {shown}\n")
        if listen_of(given.listen)[0] not in LOOPBACK:
            sys.stderr.write(f"chp-gateway: {NO_TLS}\n")
        server.run([listener])
    return 0 if server.started else 1
