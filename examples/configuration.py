"""Configuration that is read from memory, and followed: nobody asks a server, and nobody has to restart.

    python -m examples.configuration

One program changes a limit; another, which reads it at every request, goes by the new one, and is told of the change.
"""

from chp_client import Clone

from .pair import servers


def main() -> None:
    """Two programs, here as two Clones of one process."""
    with servers() as pair, Clone(pair, "/config/", codec="json") as admin:
        admin.set_many({"/config/web/limit": 10, "/config/web/motd": "hello"}).wait(10)
        with Clone(pair, "/config/web/", codec="json") as web:
            web.wait_until_synced(10)
            print("12 requests:", serve(web, 12))
            with web.watch("/config/web/") as changes:  # from now on
                admin["/config/web/limit"] = 20
                change = changes.get(timeout=10)
            print("changed:", change.key, "is", change.value)
            print("12 requests:", serve(web, 12))


def serve(web: Clone, requests: int) -> str:
    """Whether so many requests are within the limit."""
    limit = web["/config/web/limit"]  # no round trip: it is a dict's
    return "served" if requests <= limit else f"refused, the limit is {limit}"


if __name__ == "__main__":
    main()
