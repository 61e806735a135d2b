"""The programs of the demo: shops publish orders, and clerks of one group handle them.

    python -m examples.orders.worker shop  --servers A,B --name shop-1 --orders 3000
    python -m examples.orders.worker clerk --servers A,B --name ann

A clerk publishes its results in the record that acknowledges the orders. So each order has one result, even if a clerk
or a server dies meanwhile. The order "poison" kills the clerk that handles it.
"""

import argparse
import os
from contextlib import suppress
from typing import Any

from chp_client import Batch, Clone, Fenced

CUSTOMERS, AT_ONCE = 100, 20
POISON = "poison"
ORDERS, DONE, GROUP = "orders", "done", "clerks"
TTL_S = 1.0


def shop(clone: Clone[Any], name: str, orders: int) -> None:
    """Publish orders of a hundred customers, a few at a time."""
    topic = clone.topic(ORDERS)
    for first in range(0, orders, AT_ONCE):
        keys = [f"{name}-customer-{i % CUSTOMERS}" for i in range(first, first + AT_ONCE)]
        topic.publish_many([{"shop": name, "n": i} for i in range(first, first + AT_ONCE)], keys).wait(60)
    print("published", flush=True)


def clerk(clone: Clone[Any], name: str) -> None:
    """Handle orders until the process is told to end, or meets the order that kills it."""
    with clone.topic(ORDERS).consumer(GROUP, ttl=TTL_S, name=name) as consumer:
        print("ready", flush=True)
        for batch in consumer:
            # If the pair took this clerk for dead, another clerk has its orders.
            with suppress(Fenced):
                handle(batch, name)


def handle(batch: Batch, name: str) -> None:
    """Do the orders of a batch, and acknowledge them with their results."""
    if POISON in batch.values:
        os._exit(1)
    results = [{"offset": message.offset, "key": message.key, "by": name} for message in batch]
    batch.commit(publish={DONE: results})


def main() -> None:
    """Run the program that the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("shop", "clerk"))
    parser.add_argument("--servers", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--orders", type=int, default=3000)
    args = parser.parse_args()
    with Clone(args.servers, None, codec="json", name=args.name) as clone:
        if args.role == "shop":
            shop(clone, args.name, args.orders)
        else:
            clerk(clone, args.name)


if __name__ == "__main__":
    main()
