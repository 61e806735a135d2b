"""A program that takes part in one recipe again and again, until it is killed; what it did it says on standard output.

    python -m tests.process.contender KIND tcp://a:5556,tcp://b:5566 NAME FILE

lock, election   write to a resource that looks at fencing tokens: FILE, whose lines are `token name`. A line whose
                 token is below the last one's is refused, as a database or a disk would do it
semaphore        hold one of two places for a moment; who held when is in the servers' log
counter          add 1 and write the sum to FILE
party            be there, again if the lease was lost
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
    """Whether the resource took it."""
    with open(path, "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = [line.split() for line in file.read().splitlines()][-1:]
        if last and int(last[0][0]) > token:
            return False
        file.write(f"{token} {name}\n")
        return True


def note(path: str, text: str) -> None:
    """A line of the file, whole."""
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{text}\n")


def fenced(clone: Clone, name: str, path: str, kind: type[Lock]) -> None:
    """One turn of a lock: a few writes while it is held."""
    lock = kind(clone, PATH, name, ttl=TTL_S)
    if not lock.acquire(5.0) or lock.token is None:
        return
    token = int(lock.token)
    for _ in range(WRITES):
        print("wrote" if write(path, token, name) else "refused", token, flush=True)
        time.sleep(0.01)
    lock.release()


def led(clone: Clone, name: str, path: str) -> None:
    """One turn as a leader."""
    election = Election(clone, PATH, name, ttl=TTL_S)

    def lead() -> None:
        assert election.token is not None, "it leads"
        for _ in range(WRITES):
            write(path, int(election.token), name)
            time.sleep(0.01)

    election.run(lead, 5.0)


def shared(clone: Clone, name: str, path: str) -> None:
    """One turn of a semaphore."""
    place = Semaphore(clone, PATH, LIMIT, name, ttl=TTL_S)
    if place.acquire(5.0) and place.token is not None:
        note(path, f"{int(place.token)} {name}")
        time.sleep(0.03)
        place.release()


def counted(clone: Clone, name: str, path: str) -> None:
    """One addition."""
    note(path, f"{Counter(clone, KEY).add(timeout=30.0)} {name}")


def there(clone: Clone, name: str, path: str) -> None:
    """A member for as long as its lease lives, and again."""
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
    """Until it is killed."""
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
