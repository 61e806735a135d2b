"""Readers turn the text of a setting into its value: a duration, a size, an address, a word.

A reader returns the value, or raises `ValueError` with the remedy. Its caller puts the setting's name, the value and
the source in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

# A server uses four ports: snapshots P, updates P+1, collector P+2, peer P+3.
PORTS = 4
PORT_MAX = 65_535 - (PORTS - 1)
NEVER = "never"
_ENDPOINT = re.compile(r"tcp://(?P<host>\*|\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})\Z")
_SESSION = re.compile(r"[0-9]{1,4}(\.[0-9]+)?\Z")
_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.-]*")
_SIZE = re.compile(r"(?P<number>[0-9]+) ?(?P<unit>|[kKMGT]i?B?|B)\Z")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SWITCH = {**dict.fromkeys(("yes", "true", "on", "1"), True), **dict.fromkeys(("no", "false", "off", "0"), False)}
# A password ends at the last @, since it may have an @ and slashes itself.
_PASSWORD = re.compile(r"(://[^/@:?#\s]*:)\S*@")
_PASSWORD_OPTION = re.compile(r"((?:password|sslpassword)=)[^&\s'\"]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reader:
    """A function from text to a value, and the bounds of the value for people."""

    parse: Callable[[str], object]
    bounds: str = ""

    def __call__(self, text: str) -> object:
        """Return the value, or raise `ValueError` with the remedy."""
        return self.parse(text)


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return (host, port) of a checked endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def is_loopback(endpoint: str) -> bool:
    """Return True if only programs of this host reach an endpoint; host names are not resolved."""
    host, _ = split_endpoint(endpoint)
    return host in ("localhost", "[::1]") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def without_password(text: str) -> str:
    """Mask `user:password@` and `?password=` in a text with URLs, so that the text may be shown."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


def one_of(*words: str) -> Reader:
    """Return a reader of one of these words."""

    def parse(text: str) -> object:
        if text not in words:
            raise ValueError(f"give one of {', '.join(words)}")
        return text

    return Reader(parse, ", ".join(words))


def matching(pattern: str, remedy: str, bounds: str = "", parse: Callable[[str], object] = str) -> Reader:
    """Return a reader of text that a pattern matches as a whole."""

    def parse_matching(text: str) -> object:
        if not re.fullmatch(pattern, text):
            raise ValueError(remedy)
        return parse(text)

    return Reader(parse_matching, bounds)


def seconds(least: float, most: float) -> Reader:
    """Return a reader of a number of seconds within bounds."""
    bounds = f"{least:g} to {most:.12g}"

    def parse(text: str) -> object:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("give a number of seconds, such as 0.5") from None
        if not least <= number <= most:
            raise ValueError(f"give seconds from {bounds}")
        return number

    return Reader(parse, bounds)


def seconds_or_never(least: float, most: float) -> Reader:
    """Return a reader of a number of seconds within bounds, or of the word `never`, which is None."""
    number = seconds(least, most)

    def parse(text: str) -> object:
        if text.lower() == NEVER:
            return None
        try:
            return number(text)
        except ValueError as error:
            raise ValueError(f"{error}, or '{NEVER}'") from None

    return Reader(parse, f"{number.bounds}, or {NEVER}")


def size(least: int) -> Reader:
    """Return a reader of a number of bytes: 1000000, 64MiB, 1G (all powers of 1024)."""

    def parse(text: str) -> object:
        found = _SIZE.match(text)
        if not found:
            raise ValueError(
                "give a whole number of bytes, such as 67108864 or 64MiB; the units are K, M, G and T, also as KB or "
                "KiB, and all are powers of 1024"
            )
        number = int(found["number"]) << 10 * _UNITS[found["unit"][:1].lower().replace("b", "")]
        if number < least:
            raise ValueError(f"give at least {least} bytes")
        return number

    return Reader(parse, f"at least {least}")


def endpoint(*, wildcard: bool) -> Reader:
    """Return a reader of tcp://HOST:P, which stands for the ports P to P+3; `wildcard` allows * as the host."""

    def parse(text: str) -> object:
        found = _ENDPOINT.match(text)
        if not found:
            raise ValueError("give tcp://HOST:PORT" + (", such as tcp://*:5556" if wildcard else ""))
        if not 1 <= int(found["port"]) <= PORT_MAX:
            raise ValueError(f"give a port from 1 to {PORT_MAX}, since the three after it are used too")
        if not wildcard and found["host"] in ("*", "0.0.0.0", "[::]"):
            raise ValueError("give the peer's own host name or address; a wildcard can't be connected to")
        return f"tcp://{found['host']}:{int(found['port'])}"

    return Reader(parse, f"a port from 1 to {PORT_MAX}")


# A replica asks at most this many servers, one after the other, and each request is a vote. A pair has two servers.
UPSTREAMS_MAX = 8


def _upstream(text: str) -> object:
    one = endpoint(wildcard=False)
    found = [str(one(each.strip())) for each in text.split(",")]
    if len(found) != len(set(found)):
        raise ValueError("give each server once")
    if len(found) > UPSTREAMS_MAX:
        raise ValueError(f"give at most {UPSTREAMS_MAX} servers: those of the pair, or replicas nearer to it")
    return ",".join(found)


upstream = Reader(_upstream, f"1 to {UPSTREAMS_MAX} servers")


def _parse_switch(text: str) -> object:
    if text.lower() not in _SWITCH:
        raise ValueError("give yes or no")
    return _SWITCH[text.lower()]


def _parse_store(text: str) -> object:
    scheme, _, rest = text.partition(":")
    if scheme == "memory" and not rest.strip("/"):
        return "memory:"
    if (scheme == "sqlite" and rest) or (scheme in ("postgresql", "postgres") and rest.startswith("//")):
        return text
    raise ValueError("give memory:, sqlite:PATH or postgresql://USER@HOST/DATABASE")


def _parse_arbiter(text: str) -> object:
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    user, at, netloc = parts.netloc.rpartition("@")
    hosts = [host.rpartition(":") for host in netloc.split(",")]
    if (
        parts.scheme not in ("zk", "etcd", "etcds")
        or len(parts.path) < 2
        or not all(h and p.isdigit() and 1 <= int(p) <= 65_535 for h, _, p in hosts)
    ):
        raise ValueError(
            "give zk://HOST:PORT/PATH or etcd://HOST:PORT/PATH, such as etcd://localhost:2379/chp, "
            "or several HOST:PORT with commas"
        )
    if at and (parts.scheme == "zk" or not all(user.partition(":"))):
        raise ValueError("only etcd:// and etcds:// take a user, as USER:PASSWORD@ before the first host")
    for option, _, value in (word.partition("=") for word in parts.query.split("&") if word):
        if option != "session_s" or not _SESSION.match(value) or not float(value):
            raise ValueError("behind the path only ?session_s=SECONDS may stand, such as ?session_s=5")
    return text


def _parse_metrics(text: str) -> object:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 1 <= int(port) <= 65_535 or not _HOST.fullmatch(host):
        raise ValueError("give a port such as 9556 (on loopback only), or HOST:PORT such as 0.0.0.0:9556")
    return f"{host or '127.0.0.1'}:{int(port)}"


def _parse_path(text: str) -> object:
    if not text.strip():
        raise ValueError("give a directory, or leave the setting out for the default")
    if "\0" in text:
        raise ValueError("give a path without a NUL character")
    return text


switch = Reader(_parse_switch, "yes, no")
count = matching(r"[0-9]{1,15}", "give a number, such as 1000000; 0 is no bound", "at least 0", int)
copies = matching(r"[0-9]{1,3}", "give 2 to 8: a pair has 2, and each replica that confirms is one more", "2 to 8", int)
store, arbiter, metrics = Reader(_parse_store), Reader(_parse_arbiter), Reader(_parse_metrics)
name = matching(r"[A-Za-z0-9_.-]{1,64}", "give 1 to 64 letters, digits, '_', '.' or '-'", "1 to 64 characters")
audit = matching(r"(?s)(?=.*\S)[^\0]*[^\0/]", "give a file such as /var/log/chp/audit.jsonl, or - for standard error")
# A `directory` is a part of addresses, so it is absolute and has no blanks and commas. A `path` is checked when it is
# opened.
directory = matching(
    r"/[^\s,\0]*",
    "give a directory from / on, without blanks and commas, such as /run/chp",
    parse=lambda text: "/" + text.strip("/") if text.strip("/") else text,
)
path = Reader(_parse_path)
