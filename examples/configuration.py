"""Configuration that programs read from memory and follow. No read asks a server, and no program has to restart.

    python -m examples.configuration

One program changes a limit. Another program reads the limit at every request, and is told of the change.
"""

from chp_client import Clone

from .pair import servers


def main() -> None:
    """Run two programs, here as two Clones of one process."""
    with servers() as pair, Clone(pair, "/config/", codec="json") as admin:
        admin.set_many({"/config/web/limit": 10, "/config/web/motd": "hello"}).wait(10)
        with Clone(pair, "/config/web/", codec="json") as web:
            web.wait_until_synced(10)
            print("12 requests:", serve(web, 12))
            # The watch begins now.
            with web.watch("/config/web/") as changes:
                admin["/config/web/limit"] = 20
                change = changes.get(timeout=10)
            print("changed:", change.key, "is", change.value)
            print("12 requests:", serve(web, 12))


def serve(web: Clone, requests: int) -> str:
    """Return "served", or a refusal if there are more requests than the limit."""
    # This is a dict lookup, without a round trip.
    limit = web["/config/web/limit"]
    return "served" if requests <= limit else f"refused, the limit is {limit}"


if __name__ == "__main__":
    main()
