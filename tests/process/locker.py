"""A program that takes a lock again and again, and writes to something that looks at fencing tokens.

    python -m tests.process.locker tcp://a:5556,tcp://b:5566 NAME FILE

The resource is a file: each line is `token name`, and a line whose token is below the last one's is refused, as a
database or a disk would do it. What was refused is told on standard output, as is each lock that was had.
"""

from __future__ import annotations

import fcntl
import sys
import time

from chp.errors import ChpError
from chp_client import Clone
from chp_client.recipes import Lock

TTL_S = 1.5
WRITES = 5


def write(path: str, token: int, name: str) -> bool:
    """Whether the resource took it."""
    with open(path, "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = [line.split() for line in file.read().splitlines()][-1:]
        if last and int(last[0][0]) > token:
            return False
        file.write(f"{token} {name}\n")
        return True


def main(servers: str, name: str, path: str) -> None:
    """Until it is killed."""
    with Clone(servers.split(","), "/locks/") as clone:
        clone.wait_until_synced(60)
        while True:
            lock = Lock(clone, "/locks/resource", name, ttl=TTL_S)
            try:
                if not lock.acquire(5.0) or lock.token is None:
                    continue
                token = int(lock.token)
                for _ in range(WRITES):
                    print("wrote" if write(path, token, name) else "refused", token, flush=True)
                    time.sleep(0.01)
                lock.release()
            except (ChpError, TimeoutError) as error:
                print("error", type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
