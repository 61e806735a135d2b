"""Logs: one line a fact, for people (text) or machines (json), on standard error.

    2026-11-21T06:30:00.123Z INFO  active epoch=3 number=12
    {"time":"2026-11-21T06:30:00.123Z","level":"info","event":"active","epoch":3,"number":12,"server":"b"}

A fact is an event in a few fixed words, and named values; so a line can be searched for, and counted. Events that
clients can cause again and again (bad frames, refusals) go through `Log.limited`: the first few of an event in a window
are written, and the rest are counted. The next line has the count ("and 1234 more"), or `flush` writes it. Values are
quoted, so no message that arrives can break a line.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

ROOT = "chp_server"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_WORDS = {logging.WARNING: "WARN"}


class RateLimiter:
    """A limiter that lets `burst` events of a kind pass in each window, and counts the rest. Callers pass the time."""

    def __init__(self, burst: int = 5, window_s: float = 10.0, kinds_max: int = 1024) -> None:
        self._burst, self._window_s, self._kinds_max = burst, window_s, kinds_max
        # The window of each kind: [its start, passed in it, held back so far].
        self._windows: dict[str, list[float]] = {}

    def admit(self, kind: str, now: float) -> int | None:
        """Return None if an event is to be held back; else the number of events held back since one passed."""
        if kind not in self._windows and len(self._windows) >= self._kinds_max:
            kind = "(other)"
        window = self._windows.setdefault(kind, [now, 0, 0])
        if now - window[0] >= self._window_s:
            window[0], window[1] = now, 0
        if window[1] >= self._burst:
            window[2] += 1
            return None
        window[1] += 1
        held, window[2] = int(window[2]), 0
        return held

    def overdue(self, now: float, *, everything: bool = False) -> list[tuple[str, int]]:
        """Return (kind, count) of the events held back in ended windows, or in all; each event is reported once."""
        found = []
        for kind, window in list(self._windows.items()):
            ended = now - window[0] >= self._window_s
            if window[2] and (ended or everything):
                found.append((kind, int(window[2])))
                window[2] = 0
            elif ended and not window[2]:
                del self._windows[kind]
        return found


class Log:
    """A log of facts: `log.info("active", epoch=3)`. Each module has one, by `get_log`."""

    def __init__(self, logger: logging.Logger, limiter: RateLimiter) -> None:
        self._logger, self._limiter = logger, limiter

    def debug(self, event: str, **facts: object) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Write an error with the trace of the present exception, still on one line."""
        self._logger.log(logging.ERROR, event, exc_info=True, extra={"facts": facts})

    def limited(self, event: str, level: str = "warning", /, **facts: object) -> None:
        """Write an event that clients can cause at will: the first of a kind are written, the rest counted."""
        held = self._limiter.admit(event, time.monotonic())
        if held is not None:
            self._write(_LEVELS[level], event, facts | {"more": held} if held else facts)

    def flush(self, *, everything: bool = False) -> None:
        """Write how many events were held back; call it now and then, and with `everything` at the end."""
        for event, held in self._limiter.overdue(time.monotonic(), everything=everything):
            self._write(logging.WARNING, event, {"more": held})

    def _write(self, level: int, event: str, facts: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"facts": facts})


def get_log(module: str, limiter: RateLimiter | None = None) -> Log:
    """Return the log of a module (`get_log(__name__)`), below the root that `set_up` configures."""
    name = module if module == ROOT or module.startswith(ROOT + ".") else f"{ROOT}.{module}"
    return Log(logging.getLogger(name), limiter or RateLimiter())


def set_up(log_format: str, log_level: str, server: str, stream: TextIO | None = None) -> None:
    """Write all facts of this process in this format, from this level up; an earlier set-up is replaced."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(server) if log_format == "json" else TextLines(server))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[log_level])
    root.propagate = False


class TextLines(logging.Formatter):
    """The format `time LEVEL server event name=value ...`; values with spaces or control characters are quoted."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        facts = dict(_facts(record))
        more = facts.pop("more", 0)
        words = [
            stamp(record.created),
            f"{_WORDS.get(record.levelno, record.levelname):<5}",
            self._server,
            _plain_event(record.getMessage()),
        ]
        words += [f"{name}={_quoted(value)}" for name, value in facts.items()]
        return " ".join(words) + (f" (and {more} more)" if more else "")


class JsonLines(logging.Formatter):
    """A format of one JSON object a line: time, level, event, the facts, and the server."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: _jsonable(value) for name, value in _facts(record).items()}
        return _dumped({**line, "server": self._server}, separators=(",", ":"))


def _facts(record: logging.LogRecord) -> dict[str, object]:
    facts: dict[str, object] = dict(getattr(record, "facts", {}))
    if record.exc_info:
        facts["trace"] = logging.Formatter().formatException(record.exc_info)
    return facts


def stamp(created: float) -> str:
    """Return a time as logs write it."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def _plain_event(event: str) -> str:
    return event if event.isprintable() else _dumped(event)


def _dumped(value: object, separators: tuple[str, str] | None = None) -> str:
    """Return readable JSON without any character that some reader takes for the end of a line."""
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    return text if text.isprintable() else json.dumps(value, separators=separators)


def _quoted(value: object) -> str:
    value = _jsonable(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else _dumped(value)
    plain = text and text.isprintable() and not set(text) & {" ", '"', "="}
    return text if plain or not isinstance(value, str) else _dumped(text)


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return repr(value[:80])
    if isinstance(value, Mapping):
        return {str(name): _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return str(value)
