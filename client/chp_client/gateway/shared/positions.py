"""Positions: texts that say how far copies are. A position has the number of a pair, or the number of each mount.

    1.42                     of a gateway of one pair
    /rates/=2.7              of a gateway of several pairs: one mount and its number
    /=1.42 /rates/=2.7       of a gateway of several pairs: two mounts and their numbers

Prefixes are percent-encoded, so that no blank and no equals sign lies within one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from chp.errors import BadInput
from chp.numbers import Revision, describe

Position = Mapping[str, Revision]


def named(prefix: str, number: int) -> str:
    """Return the position within one mount, whose prefix is "" if there is one pair."""
    return f"{quote(prefix)}={describe(number)}" if prefix else describe(number)


def text_of(numbers: Iterable[tuple[str, int]]) -> str:
    """Return the position over some mounts."""
    return " ".join(named(prefix, number) for prefix, number in numbers)


def read(text: str, prefixes: Sequence[str]) -> Position | None:
    """Return the number of each of these mounts; None if the position is of other mounts.

    A number without a prefix is that of the only mount. Raise `BadInput` for a text that is no position, and for a
    number without a prefix if there are several mounts.
    """
    if "=" not in text or list(prefixes) == [""]:
        number = Revision(text)
        if len(prefixes) > 1:
            raise BadInput(
                f"{text!r:.60} is a number of one mount, and this spans {prefixes[0]!r} and {prefixes[1]!r}; give the "
                "position that an answer or an event has, or name a prefix of one mount"
            )
        return {prefixes[0]: number}
    found: dict[str, Revision] = {}
    for word in text.split():
        prefix, _, number_text = word.partition("=")
        found[unquote(prefix)] = Revision(number_text)
    return found if found.keys() == set(prefixes) else None
