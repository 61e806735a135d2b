"""A program that takes part in one recipe again and again, until it is killed. It prints what it does.

    python -m tests.process.contender KIND tcp://a:5556,tcp://b:5566 NAME FILE

lock, election   It writes to a resource that checks fencing tokens: FILE, whose lines are `token name`. A line is
                 refused if its token is below the last one, as a database or a disk would do.
semaphore        It holds one of two places for a moment. The servers' log tells the holder of each moment.
counter          It adds 1 and writes the sum to FILE.
party            It joins, and joins again if its lease was lost.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable

from chp.errors import ChpError
from chp_client import ClientFile, Clone
from chp_client.recipes import Counter, Election, Lock, Party, Semaphore

TTL_S = 1.5
WRITES = 5
LIMIT = 2
PATH = "/recipe/it"
KEY = "/recipe/count"


def write(path: str, token: int, name: str) -> bool:
    """Write to the resource, and return True if it accepted the token."""
    with open(path, "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = [line.split() for line in file.read().splitlines()][-1:]
        if last and int(last[0][0]) > token:
            return False
        file.write(f"{token} {name}\n")
        return True


def note(path: str, text: str) -> None:
    """Append a whole line to the file."""
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{text}\n")


def fenced(clone: Clone, name: str, path: str, kind: type[Lock]) -> None:
    """Acquire the lock once, and write a few times while it is held."""
    lock = kind(clone, PATH, name, ttl=TTL_S)
    if not lock.acquire(5.0) or lock.token is None:
        return
    token = int(lock.token)
    for _ in range(WRITES):
        print("wrote" if write(path, token, name) else "refused", token, flush=True)
        time.sleep(0.01)
    lock.release()


def led(clone: Clone, name: str, path: str) -> None:
    """Lead once, and write a few times meanwhile."""
    election = Election(clone, PATH, name, ttl=TTL_S)

    def lead() -> None:
        assert election.token is not None, "it leads"
        for _ in range(WRITES):
            write(path, int(election.token), name)
            time.sleep(0.01)

    election.run(lead, 5.0)


def shared(clone: Clone, name: str, path: str) -> None:
    """Hold a place of the semaphore once."""
    place = Semaphore(clone, PATH, LIMIT, name, ttl=TTL_S)
    if place.acquire(5.0) and place.token is not None:
        note(path, f"{int(place.token)} {name}")
        time.sleep(0.03)
        place.release()


def counted(clone: Clone, name: str, path: str) -> None:
    """Add to the counter once."""
    note(path, f"{Counter(clone, KEY).add(timeout=30.0)} {name}")


def there(clone: Clone, name: str, path: str) -> None:
    """Join the party, and join again whenever the lease was lost."""
    party = Party(clone, PATH, name, ttl=TTL_S)
    while True:
        party.join(30.0)
        note(path, f"1 {name}")
        while party.key in clone or clone.state.value != "SYNCED":
            time.sleep(0.05)


TURNS: dict[str, Callable[[Clone, str, str], None]] = {
    "lock": lambda clone, name, path: fenced(clone, name, path, Lock),
    "election": led, "semaphore": shared, "counter": counted, "party": there,
}  # fmt: skip


def main(kind: str, servers: str, name: str, path: str) -> None:
    """Take part in the recipe until the process is killed."""
    where = ClientFile.read(servers) if servers.endswith(".toml") else servers.split(",")
    with Clone(where, "/recipe/") as clone:
        clone.wait_until_synced(60)
        while True:
            try:
                TURNS[kind](clone, name, path)
            except (ChpError, TimeoutError) as error:
                print("error", type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
