"""A counter that many raise at the same time, and no raise is lost: a set on the condition that nobody was faster.

python -m examples.counter
"""

from concurrent.futures import ThreadPoolExecutor

from chp_client import Clone, Conflict

from .pair import servers

KEY = "/counters/visits"


def raise_by_one(clone: Clone) -> int:
    """Read, add one, and set that if the key is still what was read. Returns how often somebody was faster."""
    for lost in range(10_000):
        entry = clone.entry(KEY)  # its value and revision, from memory
        count, revision = (entry.value, entry.revision) if entry else (0, 0)  # revision 0: only if there is none
        try:
            clone.set(KEY, count + 1, if_revision=revision).wait(10)
        except Conflict:
            continue
        return lost
    raise RuntimeError("others were faster ten thousand times")


def program(pair: list[str]) -> int:
    """Raise it 25 times."""
    with Clone(pair, "/counters/", codec="json") as clone:
        clone.wait_until_synced(10)
        return sum(raise_by_one(clone) for _ in range(25))


def main() -> None:
    """Four programs, here threads with a Clone each."""
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
