"""A program that forks while its Clone is at work. test_clients_fork.py runs it with the address of a server.

The child may read and is refused everything else. It makes its own Clone, and ends through `sys.exit`, with finalizers
and exit handlers. The parent's Clone must not notice. Child and parent each print their results as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from chp_client import Clone

WAIT_S = 60.0


def name_of(act: Callable[[], object]) -> str:
    """Return the name of the error that an act raises."""
    try:
        return f"returned {act()!r}"
    except BaseException as error:
        return type(error).__name__


def child(clone: Clone, address: str) -> None:
    """Try everything that a forked child may try."""
    watch, ticket, lease = HELD["watch"], HELD["ticket"], HELD["lease"]
    refused = {
        "set": lambda: clone.set("/x", b""), "set_many": lambda: clone.set_many({"/x": b""}),
        "delete": lambda: clone.delete("/x"), "flush": clone.flush, "watch": clone.watch,
        "next": lambda: next(watch), "wait": ticket.wait, "synced": clone.wait_until_synced,
        "lease": lambda: clone.lease(5), "lease.set": lambda: lease.set("/x", b""),
    }  # fmt: skip
    said: dict[str, object] = {name: name_of(act) for name, act in refused.items()}
    said["state"], said["read"] = str(clone.state), clone["/parent"].decode()
    clone.close()
    with Clone(address) as own:
        own.set("/child", b"1").wait(WAIT_S)
        own.wait_until_synced(WAIT_S)
        said["own"] = own["/parent"].decode()
    print(json.dumps(said), flush=True)


HELD: dict[str, Any] = {}


def main() -> None:
    """Fork under load of the parent's own sets, with a watch, a lease and an open ticket."""
    address = sys.argv[1]
    away = Clone("tcp://127.0.0.1:9")
    clone = Clone(address)
    clone.set("/parent", b"1").wait(WAIT_S)
    HELD.update(watch=clone.watch("/never/"), ticket=away.set("/never", b""), lease=clone.lease(3600))
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            clone.set("/load", b"x")

    thread = threading.Thread(target=load)
    thread.start()
    pid = os.fork()
    if pid == 0:
        child(clone, address)
        sys.exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    stop.set()
    thread.join()
    clone.set("/after", b"1").wait(WAIT_S)
    clone.flush(WAIT_S)
    print(json.dumps({"child": code, "saw": sorted(clone.keys()), "holes": clone.stats.get("holes", 0)}), flush=True)
    away.close(0)
    clone.close()


if __name__ == "__main__":
    main()
