"""A counter that many programs raise at the same time, by conditional sets. No raise is lost.

python -m examples.counter
"""

from concurrent.futures import ThreadPoolExecutor

from chp_client import Clone, Conflict

from .pair import servers

KEY = "/counters/visits"


def raise_by_one(clone: Clone) -> int:
    """Add one, on condition that the key is still as it was read. Return how often another program was faster."""
    for lost in range(10_000):
        # The entry comes from memory.
        entry = clone.entry(KEY)
        # Revision 0 means: only if the key is absent.
        count, revision = (entry.value, entry.revision) if entry else (0, 0)
        try:
            clone.set(KEY, count + 1, if_revision=revision).wait(10)
        except Conflict:
            continue
        return lost
    raise RuntimeError("others were faster ten thousand times")


def program(pair: list[str]) -> int:
    """Raise the counter 25 times."""
    with Clone(pair, "/counters/", codec="json") as clone:
        clone.wait_until_synced(10)
        return sum(raise_by_one(clone) for _ in range(25))


def main() -> None:
    """Run four programs, here as threads with a Clone each."""
    with servers() as pair:
        with Clone(pair, None) as clone:
            clone.delete(KEY).wait(10)
        with ThreadPoolExecutor(4) as pool:
            faster = sum(pool.map(program, [pair] * 4))
        with Clone(pair, "/counters/", codec="json") as clone:
            clone.wait_until_synced(10)
            print(f"100 raises, {faster} times another was faster: the counter is {clone[KEY]}")


if __name__ == "__main__":
    main()
