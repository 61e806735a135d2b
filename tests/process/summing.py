"""A consumer that adds messages to sums in keys until it is killed. One record has sums, receipts and acknowledgement.

    python -m tests.process.summing tcp://a:5556,tcp://b:5566 NAME

Each message is a number, and its key names its sum. A receipt with its offset goes to the topic `receipts`.
"""

from __future__ import annotations

import sys
import time

from chp.errors import ChpError
from chp_client import Clone, Fenced
from chp_client.topics.batch import Batch

TOPIC, GROUP, RECEIPTS, SUMS = "numbers", "sums", "receipts", "/sums/"
TTL_S = 1.5
# The consumer works this many seconds with messages in hand, so that a kill can hit it at work.
AT_WORK_S = 0.01


def add(clone: Clone, batch: Batch) -> None:
    """Commit the new sums of some messages, a receipt for each, and their acknowledgement."""
    # The copy must hold what was committed before these messages were delivered.
    clone.sync(60)
    sums: dict[str, int] = {}
    for message in batch:
        key = f"{SUMS}{message.key}"
        sums[key] = sums.get(key, int(clone.get(key, b"0"))) + int(message.value)
    time.sleep(AT_WORK_S)
    receipts = [b"%d" % offset for offset in batch.offsets]
    batch.commit({key: b"%d" % total for key, total in sums.items()}, publish={RECEIPTS: receipts}, timeout=60)


def main(servers: str, name: str) -> None:
    """Consume until the process is killed."""
    with Clone(servers.split(","), SUMS) as clone:
        clone.wait_until_synced(60)
        while True:
            try:
                with clone.topic(TOPIC).consumer(GROUP, ttl=TTL_S, name=name) as consumer:
                    for batch in consumer:
                        try:
                            add(clone, batch)
                        except Fenced:
                            print("fenced", flush=True)
            except (ChpError, TimeoutError) as error:
                print("error", repr(error), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
