"""Requests and replies over topics: a client asks again until it has an answer, and each request is answered once.

    python -m examples.lazy_pirate

A client numbers its requests, waits for a while, asks again, and gives up after some tries. The pair does not take a
repeated request again (`once`), not even after a restart of the client. A server answers in the record that
acknowledges the request. A server that dies before that record has done nothing, and another server answers.
"""

import os
import signal
from contextlib import suppress
from multiprocessing import get_context
from typing import Any
from uuid import uuid4

from chp_client import Clone, Fenced

from .pair import servers

TIMEOUT_S, TRIES, TTL_S = 1.5, 30, 2.0


def serve(pair: list[str], requests: str, dies: bool) -> None:
    """Square numbers in a process of its own. If `dies`, the process dies at the fifth request, before it answers."""
    with Clone(pair, None, codec="json") as clone, clone.topic(requests).consumer("servers", ttl=TTL_S) as consumer:
        for batch in consumer:
            replies: dict[str, list[Any]] = {}
            for request in batch.values:
                reply = {"n": request["n"], "is": request["of"] ** 2}
                replies.setdefault(request["to"], []).append(reply)
                if dies and request["n"] == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
            # If the pair took this server for dead, it fences the server, and another server answers these requests.
            with suppress(Fenced):
                batch.commit(publish=replies)


class Client:
    """A client that keeps the number of its requests in a key, so that it goes on with the next one after a restart."""

    def __init__(self, clone: Clone, requests: str, name: str) -> None:
        self._clone, self._requests = clone, requests
        # `_to` is the topic of the replies. `_count` is the key that holds the number of the last request.
        self._to, self._count = f"{requests}.to.{name}", f"/{requests}/{name}"
        self._replies = clone.topic(self._to).consumer("client")
        self.made, self.tries = clone.get(self._count, 0), 0

    def ask(self, of: int) -> int:
        """Return the answer, or raise `TimeoutError` after some tries."""
        self.made += 1
        for _ in range(TRIES):
            self.tries += 1
            with self._clone.transaction() as t:
                t.once(self._to, self.made, strict=True)
                t.set(self._count, self.made)
                t.publish(self._requests, {"to": self._to, "n": self.made, "of": of}, key=self._to)
            while (message := self._replies.get(TIMEOUT_S)) is not None:
                # Other replies belong to an earlier run.
                if message.value["n"] == self.made:
                    return int(message.value["is"])
        raise TimeoutError(f"request {self.made} has no answer after {TRIES} tries")

    def answers(self) -> int:
        """Return the number of answers to all requests of this client."""
        return int(self._clone.topic(self._to).facts()["next"])

    def close(self) -> None:
        """Stop reading replies. The requests and their number stay."""
        self._replies.close()


def main() -> None:
    """Ask ten questions, with a restart of the client after seven and the death of a server at the fifth."""
    requests = f"requests.{uuid4().hex[:8]}"
    with servers() as pair, Clone(pair, f"/{requests}/", codec="json") as clone:
        clone.wait_until_synced(10)
        first, second = (
            get_context("spawn").Process(target=serve, args=(pair, requests, dies)) for dies in (True, False)
        )
        tries, right = 0, 0
        try:
            first.start()
            for numbers in (range(7), range(7, 10)):
                client = Client(clone, requests, "ann")
                for i in numbers:
                    if i == 4:
                        second.start()
                    right += client.ask(i) == i * i
                tries += client.tries
                client.close()
            first.join(10)
            died = "died" if first.exitcode == -signal.SIGKILL else "lives"
            print(f"asked {tries} times, and one server {died}")
            print(f"10 requests, {right} right, {client.answers()} answers")
        finally:
            for process in (first, second):
                if process.pid is not None:
                    process.kill()


if __name__ == "__main__":
    main()
