"""A reader and writer of spec/vectors: the messages of the specification as files, for programs in any language.

    [{"name": "kvset-of-two-keys", "message": "KVSET", "port": "P+2", "direction": "client to server",
      "frames": ["0203", "0000000000000001", ...], "decoded": [["/a", "/b"], ...], "verdict": "taken"}, ...]

Frames are hexadecimal. `decoded` is the last frame as msgpack decodes it. A message of CHP/1 has its fields by name.
JSON has no bytes and no large numbers: `{"$bin": "c0ff"}` is bytes, `{"$int": "281474976710658"}` a number from 2^53
on, and `{"$float": "0.25"}` a float. `verdict` is `taken`, or says what becomes of an invalid message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "spec" / "vectors"
SAFE = 1 << 53
TAGS: dict[str, Callable[[str], Any]] = {
    "$bin": bytes.fromhex,
    "$int": int,
    "$float": float,
}


class Vector(NamedTuple):
    """A message, its meaning, and the verdict of its reader."""

    name: str
    message: str
    port: str
    direction: str
    frames: list[bytes]
    decoded: Any
    verdict: str


def to_json(thing: Any) -> Any:
    """Return an object of msgpack in its JSON form."""
    if isinstance(thing, bytes):
        return {"$bin": thing.hex()}
    if isinstance(thing, float):
        return {"$float": repr(thing)}
    if type(thing) is int and abs(thing) >= SAFE:
        return {"$int": str(thing)}
    if isinstance(thing, dict):
        return {key: to_json(value) for key, value in thing.items()}
    return [to_json(each) for each in thing] if isinstance(thing, list | tuple) else thing


def from_json(thing: Any) -> Any:
    """Undo `to_json`."""
    if isinstance(thing, dict):
        if len(thing) == 1 and (tag := next(iter(thing))) in TAGS:
            return TAGS[tag](thing[tag])
        return {key: from_json(value) for key, value in thing.items()}
    return [from_json(each) for each in thing] if isinstance(thing, list) else thing


def load(file: str) -> dict[str, Vector]:
    """Return the vectors of a file by name, and check that no name is there twice."""
    rows = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    found = [
        Vector(**{**row, "frames": list(map(bytes.fromhex, row["frames"])), "decoded": from_json(row["decoded"])})
        for row in rows
    ]
    by_name = {vector.name: vector for vector in found}
    assert len(by_name) == len(found), f"{file} has a name twice"
    return by_name


def save(file: str, vectors: list[Vector]) -> None:
    """Write a file of vectors, one field on each line."""
    rows = []
    for vector in vectors:
        fields = {**vector._asdict(), "frames": [f.hex() for f in vector.frames], "decoded": to_json(vector.decoded)}
        lines = (f'  "{name}": {json.dumps(value, ensure_ascii=True)}' for name, value in fields.items())
        rows.append("{\n" + ",\n".join(lines) + "\n}")
    (FOLDER / file).write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
