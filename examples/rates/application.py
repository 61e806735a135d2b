"""An application that uses exchange rates: it reads them from a Clone, as from a dictionary.

    python -m examples.rates.application --servers tcp://127.0.0.1:5556,tcp://127.0.0.1:5566 --subtree /rates/EUR/

It prints its state when the state changes, and some rates every few seconds. On a leash (`--leash`) it takes
orders from standard input instead: `report` prints everything it holds as one line of JSON. The application prints a
key that ends in `.mark` when the key arrives; the demo measures the failover with such keys.
"""

import argparse
import json
import threading

from chp_client import Clone

from . import leash

MARK = ".mark"
EVERY_S = 0.25


def main(argv: list[str] | None = None) -> int:
    """Keep a Clone of a subtree until the parent says stop."""
    options = _options().parse_args(argv)
    orders = leash.orders(options.leash)
    with Clone(options.servers.split(","), subtree=options.subtree) as clone:
        marks = threading.Thread(target=_print_marks, args=(clone, options.subtree), name="marks", daemon=True)
        marks.start()
        _serve(clone, orders, shows_rates=not options.leash)
    return 0


def _serve(clone: Clone, orders: leash.Orders, shows_rates: bool) -> None:
    state, turn = None, 0
    while (order := leash.next_order(orders, EVERY_S)) != leash.STOP:
        if clone.state != state:
            state = clone.state
            _say(f"state {state}")
        if order == "report":
            _say("items " + json.dumps(held(clone)))
        if shows_rates and (turn := turn + 1) % 20 == 0:
            _say(f"{len(clone)} keys; " + ", ".join(f"{key} {value.decode()}" for key, value in some(clone)))


def held(clone: Clone) -> dict[str, str]:
    """Return everything that the application holds, as text."""
    return {key: value.decode() for key, value in clone.snapshot().items()}


def some(clone: Clone) -> list[tuple[str, bytes]]:
    """Return a few rates for a person to look at."""
    return [(key, value) for key, value in sorted(clone.snapshot().items()) if key.endswith(("/USD/last", "/GBP/last"))]


def _print_marks(clone: Clone, subtree: str) -> None:
    for change in clone.watch(subtree):
        if change.key.endswith(MARK) and change.value is not None:
            _say(f"mark {change.value.decode()}")


def _say(text: str) -> None:
    print(text, flush=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="application", description="Hold exchange rates in memory.")
    parser.add_argument("--servers", required=True, help="tcp://host:port,tcp://host:port")
    parser.add_argument("--subtree", default="/rates/", help="what to hold; default /rates/")
    parser.add_argument("--leash", action="store_true", help="take orders from standard input, and end when it does")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
