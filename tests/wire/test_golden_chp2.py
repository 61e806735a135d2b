"""Tests of the vectors of CHP/2, byte for byte. spec/vectors has messages of our programs, and messages they refuse.
covers: spec/vectors, the worked session of the page, what a parser refuses, ids, digests, Binary Star's table

played.py makes the vectors with running cores. `pytest --rewrite` writes the files, and the session into its page.
There a block marked `chp2` has a line for each frame, such as `0: 02 03`. A line that begins with blanks continues the
one before, and `-` is an empty frame. The line that begins with `=` has the decoded last frame as Python literals.
"""

import re
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import msgpack
import pytest

from chp.batch import decode_segment, packb
from chp.digest import link
from chp.headers import Heartbeat, Kthxbai, header_of
from chp.keys import public_session, session_topic
from chp_server.core.pair.binary_star import diagram
from tests.wire import played
from tests.wire.vectors import FOLDER, Vector, load, save

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "SPEC.md", *sorted((ROOT / "spec").glob("*.md"))]
SPEC = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
BLOCK = re.compile(r"```chp2 ([a-z0-9-]+)\n(.*?)```", re.S)
MADE = played.files()
FILES = {file: load(file) for file in MADE if (FOLDER / file).exists()}
NONE = FILES.get("refused.json", {})
VECTORS = {name: vector for vectors in FILES.values() for name, vector in vectors.items() if name not in NONE}


def _shown(found: re.Match[str]) -> str:
    vector = next(v for v in MADE["session.json"] if v.name == found[1])
    return f"```chp2 {vector.name}\n{played.block(vector.frames)}```"


def test_the_vector_files_match_the_messages_of_the_programs(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        for file, vectors in MADE.items():
            save(file, vectors)
        for page in PAGES:
            page.write_text(BLOCK.sub(_shown, page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for file, vectors in MADE.items():
        assert FILES[file].keys() == {v.name for v in vectors}, (
            f"{file}: pytest --rewrite tests/wire/test_golden_chp2.py"
        )
        different = [v.name for v in vectors if FILES[file][v.name] != v]
        assert not different, "review, then record: pytest --rewrite tests/wire/test_golden_chp2.py"


def test_vector_names_are_unique_over_all_files() -> None:
    assert len(VECTORS) + len(NONE) == sum(map(len, MADE.values()))


def test_the_specification_shows_the_worked_session_of_the_vector_file() -> None:
    blocks = BLOCK.findall(SPEC)
    assert [name for name, _ in blocks] == list(FILES["session.json"])
    assert [text for _, text in blocks] == [played.block(vector.frames) for vector in FILES["session.json"].values()]


def test_every_vector_that_a_page_names_exists() -> None:
    known = VECTORS.keys() | NONE.keys() | load("chp1.json").keys()
    named = set(re.findall(r"`([a-z][a-z0-9]*(?:-[a-z0-9]+)+)`", " ".join(re.findall(r"Vectors?: [^\n]*", SPEC))))
    assert named and named - known == set()


@pytest.mark.parametrize("vector", VECTORS.values(), ids=lambda v: v.name)
def test_the_last_frame_of_each_vector_matches_its_decoded_value(vector: Vector) -> None:
    assert msgpack.unpackb(vector.frames[-1]) == vector.decoded
    assert packb(vector.decoded) == vector.frames[-1], "msgpack in its shortest form, str and bin kept apart"


@pytest.mark.parametrize("name", [name for name, v in VECTORS.items() if v.message == "KVSET"])
def test_a_decoded_kvset_body_encodes_to_its_original_bytes(name: str) -> None:
    body = VECTORS[name].frames[-1]
    assert decode_segment(body).encode() == body


@pytest.mark.parametrize("vector", NONE.values(), ids=lambda v: v.name)
def test_each_refused_vector_gets_its_recorded_verdict(vector: Vector) -> None:
    assert vector.verdict != "taken" and played.verdict(vector.message.lower(), vector.frames) == vector.verdict


@pytest.mark.parametrize(
    "name",
    [
        "kvset-with-something-in-frame-3",
        "kvset-of-a-session-whose-count-begins-with-ff",
        "kvset-a-delete-with-a-value",
    ],
)
def test_an_unusual_kvset_is_still_taken(name: str) -> None:
    assert played.verdict("kvset", VECTORS[name].frames) == "taken"


def test_messages_of_the_worked_session_are_taken() -> None:
    assert played.verdict("kvset", VECTORS["session-6-kvset"].frames) == "taken"
    assert played.verdict("icanhaz", VECTORS["session-3-icanhaz-for-all"].frames) == "taken"
    assert played.verdict("update", VECTORS["session-7-update"].frames) == "taken"


def test_messages_about_a_session_name_its_public_id() -> None:
    session = VECTORS["kvset-of-two-keys"].frames[2]
    public = sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]
    assert public_session(session) == public and f"`{public.hex()}`" in SPEC
    assert VECTORS["ack-of-the-first-kvset-replicated"].frames[0] == session_topic(public)
    assert VECTORS["session-7-update"].decoded[0][5] == [[public, 1]]
    assert VECTORS["session-3-icanhaz-for-all"].decoded["session"] == public


def test_the_specification_shows_the_binary_star_table_of_the_program() -> None:
    rows = "\n".join("    " + line for line in diagram().splitlines())
    assert rows in SPEC


@pytest.mark.parametrize("name", ["session-9-heartbeat-that-shows-a-gap", "session-12-kthxbai-of-a-resume"])
def test_the_digest_links_each_batch_to_the_previous_ones(name: str) -> None:
    batches = [VECTORS["session-7-update"].frames[-1], VECTORS["session-11-records"].decoded[1]]
    digest = crc32(crc32(batches[0]).to_bytes(4, "big"))
    header = header_of(VECTORS[name].decoded[0])
    assert isinstance(header, Heartbeat | Kthxbai)
    assert header.digest == link(digest, crc32(packb(batches[1])))
