"""covers: two chp-gateways of one pair, each request to a random one, one killed: nothing is lost or doubled."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from chp_client import Clone
from chp_server.testing import Pair, free_port

WORKERS, EACH = 4, 40
PROGRAM = "from chp_client.gateway import main; main()"


@contextmanager
def gateway(servers: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a gateway as a process, and return it with its URL once it is ready."""
    listen = f"127.0.0.1:{free_port()}"
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, "--servers", ",".join(servers), "--listen", listen])
    try:
        with httpx.Client(base_url=f"http://{listen}", trust_env=False, verify=False) as client:
            for _ in range(600):
                try:
                    if client.get("/ready").status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                threading.Event().wait(0.05)
            else:
                raise AssertionError("no gateway")
        yield child, f"http://{listen}"
    finally:
        child.kill()
        child.wait()


class Balancer:
    """A client that sends each request to a random gateway, even to a gateway that did not answer before."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self._clients = [httpx.Client(base_url=url, timeout=30, trust_env=False, verify=False) for url in urls]
        self._chance = random.Random(seed)

    def ask(self, method: str, path: str, **rest: object) -> httpx.Response:
        """Ask until a gateway answers. All tries of a write have one Idempotency-Key."""
        headers = {"Idempotency-Key": str(uuid.uuid4()), **rest.pop("headers", {})}  # type: ignore[dict-item]
        while True:
            try:
                answer = self._chance.choice(self._clients).request(method, path, headers=headers, **rest)  # type: ignore[arg-type]
            except httpx.HTTPError:
                threading.Event().wait(0.01)
                continue
            if answer.status_code not in (429, 503):
                return answer

    def raise_by_one(self) -> None:
        """Raise the counter by one, by ETag."""
        while True:
            got = self.ask("GET", "/v1/keys/twice/n")
            done = self.ask(
                "PUT", "/v1/keys/twice/n", content=str(int(got.text) + 1), headers={"If-Match": got.headers["ETag"]}
            )
            if done.status_code == 200:
                return
            assert done.status_code == 412, done.text

    def close(self) -> None:
        for each in self._clients:
            each.close()


@pytest.mark.slow
def test_no_request_is_lost_or_doubled_if_a_gateway_is_killed() -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(heartbeat_s=0.1, peer_timeout_s=1.0))
        (left, one), (_, two) = (stack.enter_context(gateway(pair.servers)) for _ in range(2))
        first = Balancer([one, two], 0)
        assert first.ask("PUT", "/v1/keys/twice/n", content=b"0").status_code == 200
        # key -> revision
        done: dict[str, str] = {}

        def work(worker: int) -> None:
            balancer = Balancer([one, two], worker)
            for n in range(EACH):
                # The condition refuses the set if it is done a second time.
                row = {"set": f"/twice/{worker}/{n}", "value": "x", "if": "0"}
                kind = {"Content-Type": "application/x-ndjson"}
                answer = balancer.ask("POST", "/v1/batch", content=json.dumps(row), headers=kind)
                assert answer.status_code == 200, answer.text
                balancer.raise_by_one()
                done[str(row["set"])] = answer.json()["revision"]
            balancer.close()

        with ThreadPoolExecutor(WORKERS) as pool:
            working = [pool.submit(work, worker) for worker in range(WORKERS)]
            while len(done) < WORKERS * EACH // 3:
                threading.Event().wait(0.01)
            os.kill(left.pid, signal.SIGKILL)
            for each in working:
                each.result(120)
        with Clone(pair.servers, subtree="/twice/") as clone:
            clone.sync(timeout=10)
            assert clone["/twice/n"] == str(WORKERS * EACH).encode()
            held = {key: str(entry.revision) for key in done if (entry := clone.entry(key)) is not None}
            assert held == done and len(clone) == len(done) + 1 == WORKERS * EACH + 1
        first.close()
