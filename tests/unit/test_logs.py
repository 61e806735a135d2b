"""Logs: one line a fact whatever the values are, two formats, and a bound on what others can make us write."""

import io
import json
import re
from collections.abc import Callable

import pytest

from chp_server import logs
from chp_server.logs import RateLimiter, get_log

Written = Callable[[], list[str]]


@pytest.fixture(params=["text", "json"])
def written(request: pytest.FixtureRequest) -> Written:
    stream = io.StringIO()
    logs.set_up(request.param, "info", "primary-5556", stream)
    return lambda: stream.getvalue().splitlines()


def text_lines(level: str = "info") -> Written:
    stream = io.StringIO()
    logs.set_up("text", level, "primary-5556", stream)
    return lambda: stream.getvalue().splitlines()


def json_lines() -> Written:
    stream = io.StringIO()
    logs.set_up("json", "info", "primary-5556", stream)
    return lambda: stream.getvalue().splitlines()


def test_a_log_line_in_text_format() -> None:
    lines = text_lines()
    get_log("chp_server.x").info("active", epoch=3, number=12, why="no peer", none=None, share=1 / 3)
    (line,) = lines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  primary-5556 active epoch=3 number=12 "
        r'why="no peer" none=null share=0\.333333',
        line,
    )


def test_a_log_line_in_json_format() -> None:
    lines = json_lines()
    get_log("chp_server.x").warning("refused", key="/a b", raw=b"\xff", counts={"x": 1}, ports=(1, 2))
    fact = json.loads(lines()[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fact.pop("time"))
    assert fact == {
        "level": "warning", "event": "refused", "key": "/a b", "raw": "b'\\xff'", "counts": {"x": 1},
        "ports": [1, 2], "server": "primary-5556",
    }  # fmt: skip


def test_control_characters_in_values_do_not_break_a_log_line(written: Written) -> None:
    log = get_log("chp_server.x")
    log.info("odd", key="a\nb\r\x1b[31m\u2028", frame=b"\n\n", event_like='x" y="1', empty="")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("a defect")
    assert len(written()) == 2
    assert all("\x1b" not in line and "\r" not in line for line in written())
    assert "ValueError: first" in written()[1]


def test_lines_below_the_level_are_not_written() -> None:
    lines = text_lines("warning")
    log = get_log("chp_server.x")
    log.debug("no")
    log.info("no")
    log.warning("yes")
    log.error("yes")
    assert [line.split()[1::2] for line in lines()] == [["WARN", "yes"], ["ERROR", "yes"]]


def test_repeating_lines_are_counted(written: Written) -> None:
    log = get_log("chp_server.x", RateLimiter(burst=3, window_s=3600))
    for _ in range(1237):
        log.limited("bad frame", port="collector")
    assert len(written()) == 3
    log.flush()
    assert len(written()) == 3, "the window has not ended"
    log.flush(everything=True)
    log.flush(everything=True)
    assert len(written()) == 4
    assert "(and 1234 more)" in written()[3] or json.loads(written()[3])["more"] == 1234


def test_the_limiter_reports_the_dropped_count_with_the_next_line() -> None:
    limiter = RateLimiter(burst=2, window_s=10)
    assert [limiter.admit("a", 0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert limiter.admit("b", 1.0) == 0, "each kind for itself"
    assert limiter.overdue(9.9) == []
    assert limiter.admit("a", 10.0) == 3
    assert [limiter.admit("a", 10.0) for _ in range(3)] == [0, None, None]
    assert limiter.overdue(20.0) == [("a", 2)]
    assert limiter.overdue(20.0) == []


def test_the_limiter_keeps_a_bounded_number_of_kinds() -> None:
    limiter = RateLimiter(burst=1, window_s=10, kinds_max=3)
    passed = [limiter.admit(str(i), 0.0) for i in range(100)]
    assert passed.count(0) == 4, "three kinds, and all others together"
    assert ("(other)", 96) in limiter.overdue(10.0)
    assert limiter.overdue(20.0) == []
    assert not limiter._windows
