"""The arbiter's lease and set in etcd (`--arbiter etcd://host:2379/path`, `etcds://` by TLS).

    PATH/active     the name of the server that holds the lease; the key is bound to an etcd lease, and ends with it
    PATH/in_sync    the set, written by compare-and-set upon the key's `mod_revision`

It speaks to etcd's JSON gateway (/v3) with the standard library. A server asks one endpoint, and tries the next one if
that does not answer in a quarter of a lease.

The member of etcd that takes itself for the leader answers a keep-alive without asking the other members. A leader that
was cut off or stopped may answer wrongly. So after a keep-alive the server reads the key through a quorum. Only if both
answers are of one Raft term, the leader of that term has renewed the lease.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .lease_store import START_LOOK_S, START_TIMEOUT_S, ArbiterError

# etcd counts a lease in whole seconds.
LEASE_S_MIN = 2
# The part of a lease after which a server tries the next endpoint.
ENDPOINT_SHARE = 0.25
# A server reads at most this many bytes of an answer; the set or an error text has a few hundred.
ANSWER_BYTES_MAX = 1 << 20
# gRPC's codes of answers that another endpoint would give too: a bad request, a right that is missing, users that are
# not enabled, and a user or token that is not known.
REFUSALS = frozenset({3, 7, 9, 16})
INVALID_TOKEN = "invalid auth token"


class EtcdError(Exception):
    """The error of a request that etcd refuses (`refused`), or does not answer."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class EtcdStore:
    """A lease and a set below one path of an etcd; `user` is NAME:PASSWORD, or empty."""

    # A check may always be tried: there is no connection that has a state.
    connected = True

    def __init__(
        self, hosts: Sequence[str], base: str, name: str, session_s: float,
        *, user: str = "", tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self._hosts, self._user, self._tls = list(hosts), user, tls
        self._key, self._set_key, self._name = _text(base + "/active"), _text(base + "/in_sync"), name
        self.lease_s = float(max(LEASE_S_MIN, math.ceil(session_s)))
        # The lease of ours that etcd may still have.
        self._lease: str | None = None
        self._token = ""
        self._connection: http.client.HTTPConnection | None = None
        self._closed = threading.Event()

    def start(self, doubt: Callable[[str], None], look: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Wait for a first answer; raise `ArbiterError` if none comes in time, if etcd refuses, or on `stopping()`."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._range(self._key)
                return
            except EtcdError as error:
                if error.refused or stopping() or time.monotonic() > until:
                    where = ",".join(self._hosts)
                    raise ArbiterError(f"etcd at {where} can't be used: {error}; check --arbiter") from error
            self._closed.wait(START_LOOK_S)

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._disconnect()

    # -- the lease

    def hold(self) -> bool:
        """Renew our lease and prove that it lives, or take a new lease if the key is free."""
        if self._lease is not None:
            if self._renew() or self._renew():
                return True
            self._lease = None
        if self._range(self._key)[0] is not None:
            return False
        granted = self._ask("lease/grant", TTL=int(self.lease_s))
        self._lease = lease = str(granted["ID"])
        # etcd may grant a longer lease than was asked for; the shorter one counts.
        self.lease_s = min(self.lease_s, float(granted["TTL"]))
        taken = self._ask(
            "kv/txn",
            compare=[{"key": self._key, "target": "CREATE", "create_revision": "0"}],
            success=[{"request_put": {"key": self._key, "value": _text(self._name), "lease": lease}}],
            failure=[{"request_range": {"key": self._key}}],
        )
        # `_ask` may send the request twice. Then the second one finds the key that the first one put.
        return bool(taken.get("succeeded")) or _lease_of(taken["responses"][0]["response_range"]) == lease

    def _renew(self) -> bool:
        """Return True if the leader of one term renewed the lease, and the key is bound to it."""
        renewed = self._ask("lease/keepalive", ID=self._lease)["result"]
        if int(renewed.get("TTL", 0)) <= 0:
            return False
        found, term = self._range(self._key)
        if found is None or found.get("lease") != self._lease:
            return False
        return bool(renewed["header"]["raft_term"] == term)

    def release(self) -> bool:
        """Revoke the lease; the key goes with it."""
        lease, self._lease = self._lease, None
        if lease is None:
            return False
        try:
            self._ask("lease/revoke", ID=lease)
        except EtcdError:
            # The lease may still live, so the next check tries again.
            self._lease = lease
            raise
        return True

    # -- the set

    def read(self, *, current: bool) -> tuple[int, bytes] | None:
        """Return the set and its `mod_revision`. Each read is linearizable, so it is always current."""
        found, _ = self._range(self._set_key)
        return None if found is None else (int(found["mod_revision"]), base64.b64decode(found["value"]))

    def write(self, text: bytes, base: int) -> int | None:
        """Write the set if its key still has the revision `base`; return the new revision."""
        answer = self._ask(
            "kv/txn",
            compare=[{"key": self._set_key, "target": "MOD", "mod_revision": str(max(0, base))}],
            success=[{"request_put": {"key": self._set_key, "value": base64.b64encode(text).decode()}}],
        )
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    # -- requests

    def _range(self, key: str) -> tuple[dict[str, Any] | None, str]:
        """Return a key as etcd's quorum has it now, or None, and the Raft term of the answer."""
        answer = self._ask("kv/range", key=key)
        return next(iter(answer.get("kvs", [])), None), str(answer["header"]["raft_term"])

    def _ask(self, method: str, **fields: Any) -> dict[str, Any]:
        """Return etcd's answer; try each endpoint once, and authenticate if etcd wants it."""
        why: Exception | None = None
        # There is one try more than endpoints, because a connection that etcd has closed fails at its next request.
        for _ in range(len(self._hosts) + 1):
            try:
                if self._user and not self._token:
                    self._authenticate()
                return self._post(method, fields)
            except _Refused as error:
                # A token expires, and a member that has restarted may not know it.
                expired = bool(self._token) and INVALID_TOKEN in str(error)
                if error.code in REFUSALS and not expired:
                    raise EtcdError(str(error), refused=True) from error
                why, self._token = error, ""
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                why = error
            self._disconnect()
            self._hosts.append(self._hosts.pop(0))
        raise EtcdError(f"{type(why).__name__}: {why}" if not isinstance(why, _Refused) else str(why))

    def _authenticate(self) -> None:
        name, _, password = self._user.partition(":")
        self._token = str(self._post("auth/authenticate", {"name": name, "password": password})["token"])

    def _post(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        connection = self._connection or self._connect()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        connection.request("POST", f"/v3/{method}", json.dumps(fields), headers)
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES_MAX)
        try:
            answer = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._hosts[0]} answers {response.status}, and is no etcd 3.4 or newer") from error
        if response.status != http.HTTPStatus.OK:
            raise _Refused(str(answer.get("message") or answer.get("error") or response.reason), answer.get("code"))
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        host, _, port = self._hosts[0].rpartition(":")
        timeout = self.lease_s * ENDPOINT_SHARE
        if self._tls is None:
            self._connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
        else:
            self._connection = http.client.HTTPSConnection(
                host.strip("[]"), int(port), timeout=timeout, context=self._tls
            )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Refused(Exception):
    """A refusal, with the code of gRPC."""

    def __init__(self, text: str, code: object) -> None:
        super().__init__(text)
        self.code = code


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return what TLS needs; raise `ArbiterError` if a file can't be used."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (ca, cert, key) if name)
        raise ArbiterError(f"the arbiter's certificates ({files}) can't be used: {error}; give PEM files") from error
    return context


def _text(text: str) -> str:
    """Return a key or a value as the JSON gateway wants it."""
    return base64.b64encode(text.encode()).decode()


def _lease_of(answer: dict[str, Any]) -> str | None:
    """Return the lease of the first key of an answer."""
    return next((str(found.get("lease")) for found in answer.get("kvs", [])), None)
