"""A consumer whose process ends at once when it sees a bad message: python -m tests.process.dying_worker SERVERS WAY.

It publishes each handled message to the topic "done": in one record with the acknowledgement (WAY is commit), or from
a handler (WAY is run).
"""

from __future__ import annotations

import os
import sys

from chp_client import Clone, Message

TOPIC, GROUP, DONE, BAD = "numbers", "workers", "done", b"bad"


def main(servers: list[str], way: str) -> None:
    """Consume until the process is ended."""
    with Clone(servers, subtree=None) as clone, clone.topic(TOPIC).consumer(GROUP, ttl=1.5) as consumer:
        done = clone.topic(DONE)

        def handle(message: Message) -> None:
            if message.value == BAD:
                os._exit(1)
            if way == "run":
                done.publish(message.value).wait(30)

        if way == "run":
            consumer.run(handle)
        for batch in consumer:
            for message in batch:
                handle(message)
            batch.commit(publish={DONE: batch.values})


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2])
