"""A registry of services: who is there says so under a lease, and is gone when its process is.

    python -m examples.services

All keys of a lease live by one refresh, which the Clone sends by itself. A service that ends takes its keys away at
once; one that dies, or is cut off, is gone from everybody's map a ttl later.
"""

from chp_client import Clone

from .pair import servers

TTL_S = 2.0


def main() -> None:
    """Two services, somebody who knows them, and what he sees when one dies and one ends."""
    with servers() as pair, Clone(pair, "/services/", codec="text") as client:
        mail, web = Clone(pair, None, codec="text"), Clone(pair, None, codec="text")
        mail.lease(TTL_S).set("/services/mail", "10.0.0.2:25").wait(10)
        here = web.lease(TTL_S)
        here.set_many({"/services/web/1": "10.0.0.1:80", "/services/web/2": "10.0.0.1:81"}).wait(10)
        with client.watch("/services/", start="snapshot") as changes:
            for _ in range(3):
                change = changes.get(timeout=10)
                print(change.key, "is at", change.value)
            mail.close()  # without a word about its lease, as if it had died
            print(changes.get(timeout=60).key, "is gone: its lease ran out")
            here.close()
            print(changes.get(timeout=10).key, "and", changes.get(timeout=10).key, "are gone: they ended")
        web.close()


if __name__ == "__main__":
    main()
