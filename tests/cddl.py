"""A checker of objects against a schema in CDDL (RFC 8610). It understands the small part that spec/schema.cddl uses.

    Schema(text).check("segment", [["/a"], [b"1"], None])     -> None, or a Mismatch that says where

This part has rules, `[ ]`, `{ }`, `( )`, `/`, the occurrences `?`, `*`, `+` and `n*m`, ranges, `.size`, literals, and
the names uint, int, tstr, bstr, bool, float, nil and any. An array is matched from left to right, without backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

TOKEN = re.compile(
    r"""\s*(?:;[^\n]*\s*)*(?:
        (?P<word>[A-Za-z_][A-Za-z0-9_-]*) | (?P<range>-?\d+\.\.-?\d+) | (?P<number>-?\d+)
      | "(?P<text>[^"]*)" | '(?P<bytes>[^']*)' | (?P<sign>=>|\.size|[][{}()=/?*+,:]) )""",
    re.VERBOSE,
)
BUILT_IN: dict[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "nil": lambda thing: thing is None,
    "bool": lambda thing: type(thing) is bool,
    "true": lambda thing: thing is True,
    "false": lambda thing: thing is False,
    "uint": lambda thing: type(thing) is int and thing >= 0,
    "int": lambda thing: type(thing) is int,
    "float": lambda thing: type(thing) is float,
    "tstr": lambda thing: type(thing) is str,
    "bstr": lambda thing: type(thing) is bytes,
}
Check = Callable[[Any, str], None]


class Mismatch(Exception):
    """An error that says where an object differs from the schema."""


class Entry(NamedTuple):
    """An entry of an array or of a map."""

    least: int
    most: int
    # The key of a map's entry; "" stands for any text.
    key: str
    check: Check


class Schema:
    """The rules of a schema's text, by name."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Check] = {}
        # The keys of each rule that is a map.
        self.entries: dict[str, list[str]] = {}
        self._tokens = self._split(text)
        self._at = 0
        self._keys: list[str] = []
        while self._at < len(self._tokens):
            name = self._take("word")
            self._take("sign", "=")
            self._keys = []
            self.rules[name] = self._type()
            self.entries[name] = self._keys

    def check(self, rule: str, thing: Any) -> None:
        """Raise `Mismatch` unless the object follows the rule of this name."""
        self._named(rule)(thing, rule)

    @staticmethod
    def _split(text: str) -> list[tuple[str, str]]:
        found, at = [], 0
        text = text.rstrip()
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                assert re.fullmatch(r"\s*(;[^\n]*\s*)*", text[at:]), f"not understood: {text[at : at + 60]!r}"
                break
            assert match.lastgroup is not None
            found.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return found

    # -- reading

    def _next(self, ahead: int = 0) -> tuple[str, str]:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else ("end", "")

    def _take(self, kind: str, value: str = "") -> str:
        found = self._next()
        assert found[0] == kind and value in ("", found[1]), f"{value or kind} is due where {found[1]!r} stands"
        self._at += 1
        return found[1]

    def _is(self, sign: str) -> bool:
        if self._next() == ("sign", sign):
            self._at += 1
            return True
        return False

    def _type(self) -> Check:
        choices = [self._one()]
        while self._is("/"):
            choices.append(self._one())
        return choices[0] if len(choices) == 1 else lambda thing, where: _any_of(choices, thing, where)

    def _one(self) -> Check:
        kind, value = self._next()
        self._at += 1
        if kind == "word":
            return self._sized(value) if self._is(".size") else self._later(value)
        if kind == "range":
            low, high = map(int, value.split("..", 1))
            return _check(lambda thing: type(thing) is int and low <= thing <= high, value)
        if kind in ("number", "text", "bytes"):
            literal: Any = int(value) if kind == "number" else value.encode() if kind == "bytes" else value
            return _check(lambda thing: type(thing) is type(literal) and thing == literal, repr(literal))
        assert kind == "sign" and value in "[{(", f"a type is due where {value!r} stands"
        if value == "(":
            inner = self._type()
            self._take("sign", ")")
            return inner
        entries = self._group("]" if value == "[" else "}")
        return (lambda t, w: _array(entries, t, w)) if value == "[" else (lambda t, w: _map(entries, t, w))

    def _sized(self, name: str) -> Check:
        if self._is("("):
            low, high = map(int, self._take("range").split("..", 1))
            self._take("sign", ")")
        else:
            low = high = int(self._take("number"))

        def fits(thing: Any) -> bool:
            size = len(thing.encode()) if isinstance(thing, str) else len(thing)
            return low <= size <= high

        return _check(lambda thing: BUILT_IN[name](thing) and fits(thing), f"{name} of {low} to {high} bytes")

    def _group(self, end: str) -> list[Entry]:
        entries = []
        while not self._is(end):
            least, most = self._occurrence()
            key = ""
            following = self._next(1)
            if following == ("sign", ":"):
                key = self._take(self._next()[0])
                self._at += 1
            elif following == ("sign", "=>"):
                self._at += 2
            if key and end == "}":
                self._keys.append(key)
            entries.append(Entry(least, most, key, self._type()))
            self._is(",")
        return entries

    def _occurrence(self) -> tuple[int, int]:
        many = 1 << 62
        if self._is("?"):
            return 0, 1
        if self._is("*"):
            return 0, many
        if self._is("+"):
            return 1, many
        if self._next()[0] == "number" and self._next(1) == ("sign", "*"):
            least = int(self._take("number"))
            self._at += 1
            return least, int(self._take("number"))
        return 1, 1

    def _later(self, name: str) -> Check:
        """Return a check by a rule that the text may define further down."""

        def check(thing: Any, where: str) -> None:
            self._named(name)(thing, where)

        return check

    def _named(self, name: str) -> Check:
        if name in self.rules:
            return self.rules[name]
        return _check(BUILT_IN[name], name)


def _check(fits: Callable[[Any], bool], what: str) -> Check:
    def check(thing: Any, where: str) -> None:
        if not fits(thing):
            raise Mismatch(f"{where}: {thing!r:.60} is not {what}")

    return check


def _any_of(choices: list[Check], thing: Any, where: str) -> None:
    why = []
    for choice in choices:
        try:
            choice(thing, where)
            return
        except Mismatch as mismatch:
            why.append(str(mismatch))
    raise Mismatch(f"{where}: none of {len(choices)} fits: {'; '.join(why)}")


def _array(entries: list[Entry], thing: Any, where: str) -> None:
    if type(thing) is not list:
        raise Mismatch(f"{where}: {thing!r:.60} is not an array")
    at = 0
    for i, entry in enumerate(entries):
        taken = 0
        while at < len(thing) and taken < entry.most:
            try:
                entry.check(thing[at], f"{where}[{at}]{entry.key and ' ' + entry.key}")
            except Mismatch:
                if taken < entry.least or i == len(entries) - 1:
                    raise
                break
            at, taken = at + 1, taken + 1
        if taken < entry.least:
            raise Mismatch(f"{where}: {entry.key or 'an element'} is missing")
    if at < len(thing):
        raise Mismatch(f"{where}: {thing[at]!r:.60} is one too many")


def _map(entries: list[Entry], thing: Any, where: str) -> None:
    if type(thing) is not dict:
        raise Mismatch(f"{where}: {thing!r:.60} is not a map")
    known = {entry.key: entry for entry in entries if entry.key}
    others = [entry for entry in entries if not entry.key]
    for key, value in thing.items():
        entry = known.get(key) or next(iter(others), None)
        if entry is None or type(key) is not str:
            raise Mismatch(f"{where}: there is no {key!r:.40}")
        entry.check(value, f"{where}.{key}")
    for key, entry in known.items():
        if entry.least and key not in thing:
            raise Mismatch(f"{where}: {key} is missing")
