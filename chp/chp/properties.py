"""Properties: the small text in frame 3, and the ttl that travels in it (SPEC.md, sections 6 and 7).

    properties = *( name "=" value LF )          e.g.   b"ttl=5\\nsource=ecb\\n"

Only `ttl` has a meaning; all others are carried from the KVSET to the KVPUB as they came. A ttl travels in
three places and means two different things there:

    KVSET, KVPUB     seconds from now                   ttl=5   ttl=0.5   (ttl=0: none)
    KVSYNC           the moment itself, on the clock    ttl=1795196542190 (milliseconds, the C program)
                     of the server that sent it         ttl=1795196579.93 (seconds, the Python program)

The parser is strict about form and liberal about dialect: it understands what a classic program sends, and refuses
other text by a `BadFrame` or `BadTtl` that shows it. A missing last LF is accepted.
"""

import re

from .errors import BadFrame, BadTtl
from .limits import DEFAULT

# A ttl above this is a moment in seconds since 1970 (this one was in 2001) ...
ABSOLUTE_S = 1e9
# ... and above this, it is a moment in milliseconds.
ABSOLUTE_MS = 1e12
_NUMBER = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_NO_TTL = (b"", b"ttl=0\n")


def parse_properties(frame: bytes) -> dict[str, str]:
    """Return the properties in a frame, in their order; raise `BadFrame` if the frame is malformed."""
    if not frame:
        return {}
    if len(frame) > DEFAULT.properties_bytes_max:
        raise _too_long(frame)
    try:
        text = frame.decode()
    except UnicodeDecodeError:
        raise BadFrame(f"the properties {frame[:40]!r} are not UTF-8; send lines of name=value") from None
    found: dict[str, str] = {}
    for line in text.removesuffix("\n").split("\n"):
        name, equals, value = line.partition("=")
        _check_property(name, value, line if equals else None)
        if name in found:
            raise BadFrame(f"property {name!r} is given twice; give it once")
        found[name] = value
    return found


def _check_property(name: str, value: str, line: str | None) -> None:
    if line is None:
        raise BadFrame(f"property line {name[:40]!r} has no '='; send name=value and a line feed")
    if not name:
        raise BadFrame(f"property line {line[:40]!r} has no name; send name=value and a line feed")
    if len(name.encode()) + len(value.encode()) > DEFAULT.property_bytes_max:
        raise BadFrame(f"property {name[:40]!r} is over {DEFAULT.property_bytes_max} bytes; put it in the value")


def format_properties(properties: dict[str, str]) -> bytes:
    """Return the frame of properties; raise `BadFrame` for a name or value that could not be read back."""
    for name, value in properties.items():
        if not name or "=" in name or "\n" in name or "\n" in value:
            raise BadFrame(f"property {name[:40]!r}={value[:40]!r} can't be read back: leave '=' and LF out")
        _check_property(name, value, name)
    frame = "".join(f"{name}={value}\n" for name, value in properties.items()).encode()
    if len(frame) > DEFAULT.properties_bytes_max:
        raise _too_long(frame)
    return frame


def _too_long(frame: bytes) -> BadFrame:
    return BadFrame(f"the properties have {len(frame)} bytes; send at most {DEFAULT.properties_bytes_max}")


def ttl_ms_of(frame: bytes) -> int | None:
    """Return the relative ttl of a KVSET or KVPUB in ms, at least 1; None if there is no ttl."""
    if frame in _NO_TTL:
        return None
    text = parse_properties(frame).get("ttl")
    return None if text is None else ttl_ms(_number(text), shown=text)


def ttl_ms(ttl_s: float, shown: object = None) -> int | None:
    """Return a ttl in ms, at least 1, or None for 0 seconds; raise `BadTtl` for nan, a negative or too long ttl."""
    said = f"ttl={ttl_s if shown is None else shown}"
    # For nan this condition is True too.
    if not ttl_s >= 0:
        raise BadTtl(f"{said} is not a time to live; give seconds above 0, or 0 for none")
    if ttl_s > DEFAULT.ttl_s_max:
        raise BadTtl(f"{said} is above the maximum of {DEFAULT.ttl_s_max:.0f} s; leave the ttl out")
    if ttl_s == 0:
        return None
    return max(1, round(ttl_s * 1000))


def remaining_ttl_ms(frame: bytes, wall_now_s: float) -> int | None:
    """Return the ms left of the ttl of a KVSYNC, or of a KVPUB that deletes by ttl: 0 if over, None without ttl.

    The moment is by the sender's clock and `wall_now_s` by the local one, so the result is as exact as the clocks
    agree. It is shown to people; no program deletes a key by it.
    """
    if frame in _NO_TTL:
        return None
    text = parse_properties(frame).get("ttl")
    if text is None:
        return None
    number = _number(text)
    if number > ABSOLUTE_MS:
        return max(0, round(number - wall_now_s * 1000))
    if number > ABSOLUTE_S:
        return max(0, round((number - wall_now_s) * 1000))
    return ttl_ms(number, shown=text)


def with_ttl_s(frame: bytes, ttl_ms_left: int | None) -> bytes:
    """Return the properties with a relative ttl, as in a KVSET or KVPUB; without ttl if `ttl_ms_left` is None or 0."""
    if not frame and not ttl_ms_left:
        return frame
    return _with_ttl(frame, f"{ttl_ms_left / 1000:.15g}" if ttl_ms_left else None)


def with_ttl_until(frame: bytes, ttl_ms_left: int | None, wall_now_s: float) -> bytes:
    """Return the properties as our KVSYNC has them: the moment in whole ms since 1970, as from the C program."""
    if not frame and ttl_ms_left is None:
        return frame
    return _with_ttl(frame, None if ttl_ms_left is None else str(round(wall_now_s * 1000) + ttl_ms_left))


def _with_ttl(frame: bytes, text: str | None) -> bytes:
    properties = parse_properties(frame)
    if text is None:
        properties.pop("ttl", None)
    else:
        properties["ttl"] = text
    return format_properties(properties)


def _number(text: str) -> float:
    if len(text) > 32 or not _NUMBER.match(text):
        raise BadTtl(f"ttl={text[:40]!r} is not a number of seconds; send an integer or a decimal fraction")
    return float(text)
