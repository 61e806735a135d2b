"""The CHP/2 vectors of SPEC.md, byte for byte: what the page shows is what the programs say, and what they refuse.
covers: SPEC.md, Parts 2 to 4: the worked session, all vectors, what a parser refuses, ids, digests, Binary Star's table

A block marked `chp2` has a line a frame (`0: 02 03`, continued where it begins with blanks; `-` is no bytes), and one
that begins with `=`: what the last frame means, as Python literals. A block marked `chp2-refused PARSER VERDICT NAME`
is a message that is none. played.py makes them with the cores that run; `pytest --rewrite` puts them into the page.
"""

import ast
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack
import pytest

from chp.batch import decode_segment, packb
from chp.digest import link
from chp.headers import Heartbeat, Kthxbai, header_of
from chp.keys import public_session, session_topic
from chp_server.core.pair.binary_star import diagram
from tests.wire import played

PAGE = Path(__file__).parents[2] / "SPEC.md"
SPEC = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"```(chp2(?:-refused)?) ([a-z0-9 -]+)\n(.*?)```", re.S)
MADE = played.vectors()
REFUSED = played.refused()


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


VECTORS = {v.name: v for v in (_vector(n, text) for k, n, text in BLOCK.findall(SPEC) if k == "chp2")}
NONE = {v.name: v for v in (_vector(n, re.sub("(?m)^=.*$", "", text)) for k, n, text in BLOCK.findall(SPEC) if k[4:])}


def _rewritten(found: re.Match[str]) -> str:
    kind, name, _ = found.groups()
    if kind == "chp2":
        return f"```chp2 {name}\n{played.block(MADE[name])}```"
    parser, *_, message = name.split()
    frames = REFUSED[message][1]
    name = f"{parser} {played.verdict(parser, frames)} {message}"
    return f"```chp2-refused {name}\n{played.block(frames)}```"


def test_the_page_shows_what_the_programs_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(BLOCK.sub(_rewritten, SPEC), encoding="utf-8")
        return
    assert VECTORS.keys() == MADE.keys(), "each is in the page once: pytest --rewrite tests/wire/test_golden_chp2.py"
    assert {name.split()[-1] for name in NONE} == REFUSED.keys()
    different = [name for name, vector in VECTORS.items() if vector.frames != MADE[name]]
    assert not different, "review, then record: pytest --rewrite tests/wire/test_golden_chp2.py"


def test_no_vector_is_there_twice() -> None:
    assert len(BLOCK.findall(SPEC)) == len(VECTORS) + len(NONE)


@pytest.mark.parametrize("vector", VECTORS.values(), ids=lambda v: v.name)
def test_the_last_frame_means_what_is_written_beside_it(vector: Vector) -> None:
    assert msgpack.unpackb(vector.frames[-1]) == vector.meaning
    assert packb(vector.meaning) == vector.frames[-1], "msgpack in its shortest form, str and bin kept apart"


@pytest.mark.parametrize("name", [name for name in VECTORS if re.match("(session-6-)?kvset", name)])
def test_what_clients_send_is_read_and_written_alike(name: str) -> None:
    body = VECTORS[name].frames[-1]
    assert decode_segment(body).encode() == body


@pytest.mark.parametrize("vector", NONE.values(), ids=lambda v: v.name.split()[-1])
def test_what_is_none_is_refused_as_is_said(vector: Vector) -> None:
    parser, verdict, _ = vector.name.split()
    assert played.verdict(parser, vector.frames) == verdict


def test_what_is_taken_is_told_from_what_is_refused() -> None:
    assert played.verdict("kvset", VECTORS["session-6-kvset"].frames) == "taken"
    assert played.verdict("icanhaz", VECTORS["session-3-icanhaz-for-all"].frames) == "taken"
    assert played.verdict("update", VECTORS["session-7-batch"].frames) == "taken"


def test_what_is_said_of_a_session_is_its_public_id() -> None:
    session = VECTORS["kvset-of-two-keys"].frames[2]
    public = sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]
    assert public_session(session) == public and f"`{public.hex()}`" in SPEC
    assert VECTORS["ack-of-the-first-kvset-replicated"].frames[0] == session_topic(public)
    assert VECTORS["session-7-batch"].meaning[0][5] == [[public, 1]]
    assert VECTORS["session-3-icanhaz-for-all"].meaning["session"] == public


def test_the_table_of_binary_star_is_the_programs_own() -> None:
    rows = "\n".join("    " + line for line in diagram().splitlines())
    assert rows in SPEC


@pytest.mark.parametrize("name", ["session-9-heartbeat-that-shows-a-gap", "session-12-kthxbai-of-a-resume"])
def test_the_digest_goes_on_with_each_batch(name: str) -> None:
    batches = [VECTORS["session-7-batch"].frames[-1], VECTORS["session-11-records"].meaning[1]]
    digest = crc32(crc32(batches[0]).to_bytes(4, "big"))
    header = header_of(VECTORS[name].meaning[0])
    assert isinstance(header, Heartbeat | Kthxbai)
    assert header.digest == link(digest, crc32(packb(batches[1])))
