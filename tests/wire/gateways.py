"""Gateways for tests: the server that `chp-gateway` runs, in a thread and on a free port of the loopback."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import httpx

from chp_client.gateway.gateway import Gateway
from chp_client.gateway.main import arguments, server_of
from chp_client.gateway.request_fields import RequestLimits
from tests.talk import join_all


class RunningGateway:
    """A running gateway. `servers` is a list, a text of mounts, or "" if the flags name a client file with the servers.

    `stop` ends it as SIGTERM does, and `client` is an HTTP client of it.
    """

    def __init__(self, servers: list[str] | str, *flags: str, limits: RequestLimits | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        named = servers if isinstance(servers, str) else ",".join(servers)
        given = [*(["--servers", named] if named else []), "--listen", f"127.0.0.1:{self.port}", *flags]
        self.servers = servers
        self.server = server_of(arguments().parse_args(given), limits)
        self.gateway: Gateway = self.server.config.app.gateway  # type: ignore[union-attr]
        self._thread = threading.Thread(target=self.server.run, args=([self._listener],), daemon=True)
        self._thread.start()
        # With `verify` a client would take 20 ms to read all certificates, and there is no TLS here.
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False)
        self._wait_ready()

    def _wait_ready(self) -> None:
        transport = httpx.HTTPTransport(retries=5, verify=False)
        with httpx.Client(base_url=self.url, transport=transport, timeout=30, trust_env=False, verify=False) as client:
            while client.get("/ready").status_code != 200:
                threading.Event().wait(0.05)

    def stop(self) -> None:
        """End the gateway; a second call does nothing."""
        self.client.close()
        self.server.handle_exit(15, None)
        join_all(self._thread)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
