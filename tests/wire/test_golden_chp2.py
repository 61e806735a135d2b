"""The CHP/2 vectors of SPEC.md, byte for byte: what we read from them, and what we write.

A block marked `chp2` has a line a frame (`0: 02 03`, continued where it begins with blanks; `-` is no bytes), and one
that begins with `=`: what the last frame means, as Python literals.
"""

import ast
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack
import pytest

from chp.batch import decode_segment, join, packb, segment_of, split
from chp.digest import link
from chp.headers import Heartbeat, Kthxbai, header_of
from chp.keys import public_session, session_topic
from chp_server.core.pair.binary_star import diagram

SPEC = (Path(__file__).parents[2] / "SPEC.md").read_text(encoding="utf-8")


class Vector(NamedTuple):
    name: str
    frames: list[bytes]
    meaning: Any


def _vector(name: str, text: str) -> Vector:
    frames: list[str] = []
    meaning = None
    for line in text.strip().splitlines():
        if line.startswith("="):
            meaning = ast.literal_eval(line[1:].strip())
        elif line.startswith(" "):
            frames[-1] += line
        else:
            frames.append(line.split(":", 1)[1])
    return Vector(name, [b"" if f.strip() == "-" else bytes.fromhex(f) for f in frames], meaning)


VECTORS = [_vector(name, text) for name, text in re.findall(r"```chp2 ([a-z0-9-]+)\n(.*?)```", SPEC, re.S)]


def test_the_specification_has_vectors() -> None:
    assert len(VECTORS) >= 14


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.name)
def test_the_last_frame_means_what_is_written_beside_it(vector: Vector) -> None:
    assert msgpack.unpackb(vector.frames[-1]) == vector.meaning


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.name)
def test_we_write_the_same_bytes(vector: Vector) -> None:
    body = vector.frames[-1]
    if vector.name.startswith("kvset"):
        assert decode_segment(body).encode() == body
    elif vector.name.startswith("icanhaz"):
        assert packb(vector.meaning) == body
    else:
        header, *items = split(body)
        assert join(header, [segment_of(item).encode() for item in items]) == body


def test_what_is_said_of_a_session_is_its_public_id() -> None:
    by_name = {vector.name: vector for vector in VECTORS}
    session = by_name["kvset-of-two-keys"].frames[2]
    public = sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]
    assert public_session(session) == public and f"`{public.hex()}`" in SPEC
    assert by_name["ack-of-the-first-kvset-replicated"].frames[0] == session_topic(public)
    assert by_name["batch-of-the-first-kvset"].meaning[0][5] == [[public, 1]]
    assert by_name["icanhaz-for-all-8-chunks-of-credit"].meaning["session"] == public


def test_the_table_of_binary_star_is_the_programs_own() -> None:
    rows = "\n".join("    " + line for line in diagram().splitlines())
    assert rows in SPEC


@pytest.mark.parametrize("name", ["heartbeat-after-it", "kthxbai"])
def test_the_digest_is_that_of_the_only_batch(name: str) -> None:
    vectors = {v.name: v for v in VECTORS}
    published = vectors["batch-of-the-first-kvset"].frames[-1]
    header = header_of(vectors[name].meaning[0])
    assert isinstance(header, Heartbeat | Kthxbai)
    since, digest = header.since, header.digest
    assert since == 1 << 48 | 1 and digest == crc32(crc32(published).to_bytes(4, "big")) == link(0, crc32(published))
