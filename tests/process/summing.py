"""A consumer that adds messages to sums in keys, until it is killed: sums, receipts and acknowledgement are one record.

    python -m tests.process.summing tcp://a:5556,tcp://b:5566 NAME

Each message is a number, and its key says which sum it belongs to. A receipt, its offset, goes to the topic `receipts`.
"""

from __future__ import annotations

import sys
import time

from chp.errors import ChpError
from chp_client import Clone, Fenced
from chp_client.topics.batch import Batch

TOPIC, GROUP, RECEIPTS, SUMS = "numbers", "sums", "receipts", "/sums/"
TTL_S = 1.5
AT_WORK_S = 0.01  # with messages in hand: that is when it is killed


def add(clone: Clone, batch: Batch) -> None:
    """One step: the sums behind these messages, a receipt for each, and that they are done."""
    clone.sync(60)  # what was committed before these messages were given to us
    sums: dict[str, int] = {}
    for message in batch:
        key = f"{SUMS}{message.key}"
        sums[key] = sums.get(key, int(clone.get(key, b"0"))) + int(message.value)
    time.sleep(AT_WORK_S)
    receipts = [b"%d" % offset for offset in batch.offsets]
    batch.commit({key: b"%d" % total for key, total in sums.items()}, publish={RECEIPTS: receipts}, timeout=60)


def main(servers: str, name: str) -> None:
    """Until it is killed."""
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
