"""A consumer that gets messages one by one with `ack="before"`, and writes each to a file, until it is killed.

    python -m tests.process.getting tcp://a:5556,tcp://b:5566 FILE

Other words behind FILE are options of the consumer, such as ack=after.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from chp.errors import ChpError
from chp_client import Clone

TOPIC, GROUP = "news", "subscriber"
TTL_S = 1.5
# The consumer works this many seconds on each message, so that a kill can hit it at work.
AT_WORK_S = 0.005


def main(servers: str, path: str, *options: str) -> None:
    """Get messages until the process is killed."""
    given: dict[str, Any] = {"ack": "before", **dict(option.split("=") for option in options)}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Clone(servers.split(","), subtree=None) as clone:
        while True:
            try:
                with clone.topic(TOPIC).consumer(GROUP, ttl=TTL_S, prefetch=1, **given) as consumer:
                    while True:
                        message = consumer.get(60)
                        if message is not None:
                            os.write(file, message.value + b"\n")
                            time.sleep(AT_WORK_S)
            except (ChpError, TimeoutError) as error:
                print("error", repr(error), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
