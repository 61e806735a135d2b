"""The checks of what an application passes in: addresses, subtrees, keys, values, times to live and callbacks.

A check runs before anything is sent. Its error names the argument, and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import repeat
from typing import Any

from chp import addresses
from chp.errors import BadInput, BadKey, BadTtl, BadValue
from chp.keys import check_key, check_subtree
from chp.limits import DEFAULT, Limits
from chp.numbers import Revision
from chp.properties import ttl_ms

_VALUE_MAX = DEFAULT.value_bytes_max
# A wait of more seconds than this counts as endless, because a lock can't wait for longer.
FOR_EVER_S = 1e9
# A time to live: a number of seconds, or a timedelta.
Ttl = float | timedelta


def endpoints_of(servers: str | Iterable[object]) -> list[tuple[str, str, str]]:
    """Return the three endpoints of each server.

    A server is `tcp://host:P`, `host:P` or `ipc://dir/P`. One text may name several, with commas between them.
    """
    given = servers.split(",") if isinstance(servers, str) else listed(servers)
    found = []
    for server in given:
        if not isinstance(server, str):
            raise BadInput(f"server {server!r:.60} is not text; give one such as tcp://a:5556")
        try:
            addresses.parse(address := addresses.full(server.strip()))
        except ValueError as error:
            raise BadInput(f"server {server!r} {error}; give one such as tcp://a:5556") from None
        found.append(tuple(addresses.beside(address, i) for i in range(3)))
    if not found:
        raise BadInput("no server is given; name one or two, such as ['tcp://a:5556', 'tcp://b:5566']")
    if len(found) > DEFAULT.servers_max:
        most = DEFAULT.servers_max
        raise BadInput(f"{len(found)} servers are given, more than {most}; name the two of a pair, and replicas of it")
    if len(set(found)) < len(found):
        twice = next(first for first, *_ in found if [each[0] for each in found].count(first) > 1)
        raise BadInput(f"server {twice} is given twice; name each server once")
    return [(a, b, c) for a, b, c in found]


def listed(servers: object) -> list[object]:
    """Return the given servers as a list."""
    if servers is None:
        return []
    return list(servers) if isinstance(servers, Iterable) and not isinstance(servers, bytes) else [servers]


def subtrees_of(subtree: str | None, subtrees: Sequence[str] | None) -> list[str]:
    """Return the subtrees to hold, none of them inside another. A write-only Clone has none."""
    if isinstance(subtrees, str):
        raise BadInput(f"subtrees is a list of texts; use subtree={subtrees!r} for one")
    if subtrees is not None and subtree:
        raise BadInput(f"both subtree and subtrees are given; put {subtree!r} into subtrees")
    if subtrees is not None and not isinstance(subtrees, Iterable):
        raise BadInput(f"subtrees is a list of texts, not {type(subtrees).__name__}")
    given = ([] if subtree is None else [subtree]) if subtrees is None else list(subtrees)
    if len(given) > DEFAULT.subtrees_max:
        raise BadInput(f"{len(given)} subtrees are more than {DEFAULT.subtrees_max}; hold one that contains them")
    checked = sorted({check_subtree(each) for each in given})
    outer: list[str] = []
    for each in checked:
        if not outer or not each.startswith(outer[-1]):
            outer.append(each)
    return outer


def limits_with(window_bytes: int | None) -> Limits:
    """Return the limits with this window size. None keeps the default."""
    if window_bytes is None:
        return DEFAULT
    if type(window_bytes) is not int or window_bytes < 1024:
        raise BadInput(f"window_bytes={window_bytes!r} is not a number of at least 1024")
    return replace(DEFAULT, window_bytes=window_bytes)


def seconds(name: str, value: float | None) -> float | None:
    """Return a positive number of seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise BadInput(f"{name}={value!r} is not a number of seconds above 0")
    return float(value)


def wait_s(timeout: float | None, name: str = "timeout") -> float | None:
    """Return how many seconds to wait, or None to wait without a limit. Raise `BadInput` for a negative number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not (timeout > 0 or timeout <= 0):
        raise BadInput(f"{name}={timeout!r:.40} is not a number of seconds; give one, or None to wait for ever")
    if timeout < 0:
        raise BadInput(f"{name}={timeout!r:.40} is below 0; give 0 not to wait, or None to wait for ever")
    return None if timeout > FOR_EVER_S else float(timeout)


def flag(name: str, given: object) -> None:
    """Check that an argument is True or False."""
    if not isinstance(given, bool):
        raise BadInput(f"{name}={given!r:.60} is not True or False; give one of them")


def text_or_none(name: str, given: object) -> None:
    """Check that an argument is text or None."""
    if given is not None and not isinstance(given, str):
        raise BadInput(f"{name}={given!r:.60} is not text; give text, or leave it out")


def callback(what: str, given: Callable[..., object]) -> None:
    """Check that a callback can be called."""
    if not callable(given):
        raise BadInput(f"{what}={given!r:.60} can't be called; give a function")


def prefix_and_queue(prefix: object, queue_max: object, subtrees: tuple[str, ...], held: Mapping[str, Any]) -> None:
    """Check the prefix and the queue size of a watch. Raise `BadInput` for a bad one.

    A prefix that ends with "*" looks like a pattern. It is refused unless a held key begins with it.
    """
    prefix_held(prefix, subtrees, "watch")
    if isinstance(prefix, str) and prefix.endswith("*") and not any(map(str.startswith, list(held), repeat(prefix))):
        raise BadInput(f"no key here begins with {prefix!r:.80}; a watch is by prefix; use {prefix.rstrip('*')!r:.80}")
    if queue_max is not None and (type(queue_max) is not int or queue_max < 1):
        raise BadInput(f"queue_max={queue_max!r:.40} is not a number of at least 1; leave it out for the default")


def prefix_held(prefix: object, subtrees: tuple[str, ...], verb: str) -> None:
    """Check that this Clone may hold keys under a prefix. `verb` names the caller's action in errors ("watch")."""
    if not isinstance(prefix, str):
        raise BadInput(f"a prefix is text, not {type(prefix).__name__}")
    if not subtrees:
        raise BadInput(f"this Clone only writes, and has nothing to {verb}; make one that holds the subtree")
    if not prefix.startswith(subtrees) and not any(subtree.startswith(prefix) for subtree in subtrees):
        held = ", ".join(map(repr, subtrees))
        raise BadInput(f"nothing under {prefix!r:.80} is held here ({held}); {verb} it with a Clone that holds it")


def range_of(after: object, until: object) -> None:
    """Check that the ends of a range are keys or None."""
    for name, key in (("after", after), ("until", until)):
        if key is not None and not isinstance(key, str):
            raise BadInput(f"{name}={key!r:.60} is not a key; give text, or None")


def page(limit: object, after: str | None) -> tuple[int, str | None]:
    """Check the size of a page and the key after which it begins. Return both."""
    if type(limit) is not int or limit < 1:
        raise BadInput(f"limit={limit!r:.40} is not a number of at least 1")
    range_of(after, None)
    return limit, after


def items_of(items: object) -> tuple[list[str], list[Any]]:
    """Return the keys and the values of a mapping, or of a pair of columns."""
    if isinstance(items, Mapping):
        return list(items.keys()), list(items.values())
    if not isinstance(items, tuple) or len(items) != 2:
        kind = f"a tuple of {len(items)}" if isinstance(items, tuple) else type(items).__name__
        raise BadInput(f"items is a mapping, or (keys, values), not {kind}; make a dict of it")
    keys = keys_of(items[0])
    values = column("values", items[1], "use set for one")
    if len(keys) != len(values):
        raise BadInput(f"{len(keys)} keys came with {len(values)} values; give as many of each")
    return keys, values


def column(name: str, given: object, remedy: str) -> list[Any]:
    """Return a column as a list. Raise `BadInput` for text, bytes and a mapping: an iteration would take them apart."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadInput(f"{name} is a list, not {type(given).__name__}; {remedy}")
    return list(given)


def message_columns(values: object, keys: object, headers: object) -> tuple[list[Any], list[Any] | None, list[Any]]:
    """Return the values, the keys and the headers of messages that are published together.

    Without keys the second column is None. Without headers the third column has None for each message.
    """
    found = column("values", values, "use publish for one")
    names = None if keys is None else column("keys", keys, "give a key for each message, or none at all")
    if names is not None and len(names) != len(found):
        raise BadInput(f"{len(names)} keys for {len(found)} messages; give one for each, or none at all")
    if headers is None:
        return found, names, [None] * len(found)
    notes = column("headers", headers, "give headers or None for each message")
    if len(notes) != len(found):
        raise BadInput(f"{len(notes)} headers for {len(found)} messages; give some for each, or none at all")
    return found, names, notes


def keys_of(keys: object) -> list[str]:
    """Return the keys as a list."""
    if isinstance(keys, str):
        raise BadInput(f"keys is a list of texts, not str; use delete({keys!r:.60}) for one, or set")
    if not isinstance(keys, Iterable):
        raise BadInput(f"keys is a list of texts, not {type(keys).__name__}")
    return list(keys)


def ttl_in_ms(ttl: Ttl | None, endless: str = ", or None for a key that stays") -> int | None:
    """Return a time to live in ms, or None if `ttl` is None. Raise `BadTtl` unless it is above 0 and within the limits.

    `endless` ends the error's text. It tells how to make a key that stays, and is empty if the caller needs a ttl.
    """
    if ttl is None:
        return None
    ttl = ttl_s(ttl)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise BadTtl(f"ttl={ttl!r:.40} is no number of seconds and no timedelta; give one above 0, or None")
    if not ttl > 0:
        raise BadTtl(f"ttl={ttl!r} is no time to live; give seconds above 0{endless}")
    if ttl > DEFAULT.ttl_s_max:
        raise BadTtl(f"ttl={ttl!r} is above the maximum of {DEFAULT.ttl_s_max:.0f} s; give at most that{endless}")
    return ttl_ms(ttl)


def lease_ttl_in_ms(ttl: Ttl | None) -> int:
    """Return the time to live of a lease in ms; `BadTtl` if there is none, or it is not within the limits."""
    ms = ttl_in_ms(ttl, "")
    if ms is None:
        raise BadTtl("a lease needs a ttl: the seconds its keys outlive a process that is gone")
    return ms


def ttl_s(ttl: Ttl) -> Any:
    """Return a time to live in seconds; it is not checked."""
    return ttl.total_seconds() if isinstance(ttl, timedelta) else ttl


def revision(name: str, given: object) -> Revision:
    """Return a revision, which is given as a number or as text such as 1.42."""
    if isinstance(given, str):
        return Revision(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 63:
        raise BadInput(f"{name}={given!r:.40} is not a revision; take it from entry(key).revision, or 0")
    return Revision(given)


def value_bytes(value: object) -> bytes:
    """Return a value as bytes. Raise `BadValue` if it is larger than the limit."""
    if type(value) is not bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise BadValue(f"a value is bytes, not {type(value).__name__}; encode it, or use codec='text' or 'json'")
        value = bytes(value)
    if len(value) > _VALUE_MAX:
        raise BadValue(f"the value has {len(value)} bytes; at most {_VALUE_MAX} are allowed; split it")
    return value


def batch_body(body: bytes) -> bytes:
    """Return the body of a batch. Raise `BadInput` if it is larger than the limit.

    The limit allows 16 MiB of values, and almost one more MiB for keys and everything else.
    """
    if len(body) > DEFAULT.body_bytes_max:
        most = f"{DEFAULT.body_bytes_max:,} bytes as it is sent"
        raise BadInput(f"one batch may have at most {most}, and this one has {len(body):,}; do it in parts")
    return body


def value_column(values: list[bytes]) -> tuple[list[bytes], int]:
    """Return a column of values and the length of the longest.

    C-level loops check plain bytes. Other values are converted one by one.
    """
    if set(map(type, values)) <= {bytes}:
        longest = max(map(len, values), default=0)
        if longest <= _VALUE_MAX:
            return values, longest
    values = [value_bytes(value) for value in values]
    return values, max(map(len, values))


def held_key(key: object, subtrees: tuple[str, ...], *, read: bool = False) -> str:
    """Check that a key lies in one of the held subtrees, and return it. A write-only Clone takes any key.

    `read` says that the caller reads the key too. Then the error does not propose a write-only Clone.
    """
    checked = check_key(key)
    if subtrees and not checked.startswith(subtrees):
        raise not_held(checked, subtrees, read=read)
    return checked


def held_column(keys: list[str], subtrees: tuple[str, ...]) -> None:
    """Check that all keys of a column lie in the held subtrees.

    If there is one subtree, the check of the lowest and the highest key is enough.
    """
    if not subtrees or not keys or "" in subtrees:
        return
    if len(subtrees) == 1 and min(keys).startswith(subtrees) and max(keys).startswith(subtrees):
        return
    for key in keys:
        if not key.startswith(subtrees):
            raise not_held(key, subtrees)


def not_held(key: str, subtrees: tuple[str, ...], *, read: bool = False) -> BadKey:
    """Return the error for a key outside the held subtrees. `read` says that the caller reads the key too."""
    held = ", ".join(map(repr, subtrees))
    writer = "" if read else "a Clone with subtree=None, which only writes, or "
    return BadKey(f"key {key!r:.80} is outside what this Clone holds ({held}); use {writer}one that holds it")
