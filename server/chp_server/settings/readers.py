"""How the text of a setting is read: a duration, a size, an address, a word.

A reader gets the text, whatever its source, and returns the value or raises `ValueError` with the remedy. Who
calls it puts the setting's name, the value and its source in front.
"""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

PORTS = 4  # snapshot P, updates P+1, collector P+2, peer P+3
PORT_MAX = 65_535 - (PORTS - 1)
NEVER = "never"
_ENDPOINT = re.compile(r"tcp://(?P<host>\*|\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})\Z")
_SESSION = re.compile(r"[0-9]{1,4}(\.[0-9]+)?\Z")
_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.-]*")
_SIZE = re.compile(r"(?P<number>[0-9]+) ?(?P<unit>|[kKMGT]i?B?|B)\Z")
_PASSWORD = re.compile(r"(://[^/@:?#\s]*:)\S*@")  # up to the last @: a password may have one, and slashes
_PASSWORD_OPTION = re.compile(r"((?:password|sslpassword)=)[^&\s'\"]+", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Reader = Callable[[str], object]


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """(host, port) of a checked endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def is_loopback(endpoint: str) -> bool:
    """Whether only programs of this host reach an endpoint, as far as the words tell."""
    host, _ = split_endpoint(endpoint)
    return host in ("localhost", "[::1]") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def without_password(text: str) -> str:
    """A text with URLs in it, as it may be shown: `user:password@` and `?password=` are masked."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


def one_of(*words: str) -> Reader:
    """A reader of one word out of these."""

    def read(text: str) -> object:
        if text not in words:
            raise ValueError(f"give one of {', '.join(words)}")
        return text

    return read


def seconds(least: float, most: float) -> Reader:
    """A reader of a number of seconds within bounds."""

    def read(text: str) -> object:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("give a number of seconds, such as 0.5") from None
        if not least <= number <= most:
            raise ValueError(f"give seconds from {least:g} to {most:.12g}")
        return number

    return read


def seconds_or_never(least: float, most: float) -> Reader:
    """The same, or the word `never`, which is None."""
    number = seconds(least, most)

    def read(text: str) -> object:
        if text.lower() == NEVER:
            return None
        try:
            return number(text)
        except ValueError as error:
            raise ValueError(f"{error}, or '{NEVER}'") from None

    return read


def switch(text: str) -> object:
    """yes or no, in the words that the three sources have for it."""
    if text.lower() in ("yes", "true", "on", "1"):
        return True
    if text.lower() in ("no", "false", "off", "0"):
        return False
    raise ValueError("give yes or no")


def size(least: int) -> Reader:
    """A reader of a number of bytes: 1000000, 64MiB, 1G (all powers of 1024)."""

    def read(text: str) -> object:
        found = _SIZE.match(text)
        if not found:
            raise ValueError("give a number of bytes, such as 67108864 or 64MiB")
        number = int(found["number"]) << 10 * _UNITS[found["unit"][:1].lower().replace("b", "")]
        if number < least:
            raise ValueError(f"give at least {least} bytes")
        return number

    return read


def count(text: str) -> object:
    """A number of things; 0 is no bound."""
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise ValueError("give a number, such as 1000000; 0 is no bound")
    return int(text)


def endpoint(*, wildcard: bool) -> Reader:
    """A reader of tcp://host:P, which stands for the ports P to P+3; `wildcard` says if the host may be *."""

    def read(text: str) -> object:
        found = _ENDPOINT.match(text)
        if not found:
            raise ValueError("give tcp://HOST:PORT" + (", such as tcp://*:5556" if wildcard else ""))
        if not 1 <= int(found["port"]) <= PORT_MAX:
            raise ValueError(f"give a port from 1 to {PORT_MAX}, since the three after it are used too")
        if not wildcard and found["host"] in ("*", "0.0.0.0", "[::]"):
            raise ValueError("give the peer's own host name or address; a wildcard can't be connected to")
        return f"tcp://{found['host']}:{int(found['port'])}"

    return read


def store(text: str) -> object:
    """memory:, sqlite:PATH or a PostgreSQL URL."""
    scheme, _, rest = text.partition(":")
    if scheme == "memory" and not rest.strip("/"):
        return "memory:"
    if scheme == "sqlite" and rest:
        return text
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return text
    raise ValueError("give memory:, sqlite:PATH or postgresql://USER@HOST/DATABASE")


def arbiter(text: str) -> object:
    """zk://host:port[,host:port...]/path."""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    hosts = [host.rpartition(":") for host in parts.netloc.split(",")]
    if parts.scheme != "zk" or len(parts.path) < 2 or not all(h and p.isdigit() for h, _, p in hosts):
        raise ValueError("give zk://HOST:PORT/PATH, such as zk://localhost:2181/chp, or several HOST:PORT with commas")
    for option, _, value in (word.partition("=") for word in parts.query.split("&") if word):
        if option != "session_s" or not _SESSION.match(value) or not float(value):
            raise ValueError("behind the path only ?session_s=SECONDS may stand, such as ?session_s=5")
    return text


def metrics(text: str) -> object:
    """A port on loopback, or host:port."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 1 <= int(port) <= 65_535 or not _HOST.fullmatch(host):
        raise ValueError("give a port such as 9556 (on loopback only), or HOST:PORT such as 0.0.0.0:9556")
    return f"{host or '127.0.0.1'}:{int(port)}"


def name(text: str) -> object:
    """A name that fits a log line and a file name."""
    if not re.match(r"[A-Za-z0-9_.-]{1,64}\Z", text):
        raise ValueError("give 1 to 64 letters, digits, '_', '.' or '-'")
    return text


def directory(text: str) -> object:
    """A directory that addresses can name: absolute, without blanks and commas."""
    if not re.match(r"/[^\s,\0]*\Z", text):
        raise ValueError("give a directory from / on, without blanks and commas, such as /run/chp")
    return "/" + text.strip("/") if text.strip("/") else text


def audit(text: str) -> object:
    """A file to add to, or - for standard error."""
    if not text.strip() or "\0" in text or text.endswith("/"):
        raise ValueError("give a file such as /var/log/chp/audit.jsonl, or - for standard error")
    return text


def path(text: str) -> object:
    """A directory; whether it can be written is found out when it is opened."""
    if not text.strip():
        raise ValueError("give a directory, or leave the setting out for the default")
    if "\0" in text:
        raise ValueError("give a path without a NUL character")
    return text
