"""A Clone in asyncio: reads never wait, writes are awaited, and changes are an `async for`.

python -m examples.asynchronous
"""

import asyncio

from chp_client import AsyncClone

from .pair import servers

BIDS = {"alice": 100, "bob": 120, "carol": 110}


async def bids(pair: list[str]) -> None:
    """Let three bidders bid in an auction at the same time, and watch it."""
    async with AsyncClone(pair, "/auction/", codec="json") as clone:
        await clone.wait_until_synced(10)
        async with clone.watch("/auction/", start="snapshot") as changes:
            await asyncio.gather(*(clone.set(f"/auction/{who}", bid) for who, bid in BIDS.items()))
            async for change in changes:
                print(change.key, "bids", change.value)
                if change.key.endswith("carol"):
                    break
        print("the highest of", len(clone), "bids is", max(clone.values()))


def main() -> None:
    """Run the auction on a pair of servers."""
    with servers() as pair:
        asyncio.run(bids(pair))


if __name__ == "__main__":
    main()
