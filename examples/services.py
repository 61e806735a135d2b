"""A registry of services: each service registers under a lease, and its entry disappears when its process ends.

    python -m examples.services

One refresh keeps all keys of a lease alive, and the Clone sends it by itself. A service that ends removes its keys at
once. The keys of a service that dies, or is cut off, expire one ttl later.
"""

from chp_client import Clone

from .pair import servers

TTL_S = 2.0


def main() -> None:
    """Register two services, and show what a client sees when one dies and one ends."""
    with servers() as pair, Clone(pair, "/services/", codec="text") as client:
        mail, web = Clone(pair, None, codec="text"), Clone(pair, None, codec="text")
        mail.lease(TTL_S).set("/services/mail", "10.0.0.2:25").wait(10)
        here = web.lease(TTL_S)
        here.set_many({"/services/web/1": "10.0.0.1:80", "/services/web/2": "10.0.0.1:81"}).wait(10)
        with client.watch("/services/", start="snapshot") as changes:
            for _ in range(3):
                change = changes.get(timeout=10)
                print(change.key, "is at", change.value)
            # Close the Clone without ending its lease, as if the program had died.
            mail.close()
            print(changes.get(timeout=60).key, "is gone: its lease ran out")
            here.close()
            print(changes.get(timeout=10).key, "and", changes.get(timeout=10).key, "are gone: they ended")
        web.close()


if __name__ == "__main__":
    main()
