"""covers: js/chp/core.js and msgpack.js: in Node they read and write all vectors and the worked session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chp.batch import packb
from tests.wire.node import Program, node
from tests.wire.test_golden_chp2 import NONE, VECTORS

pytestmark = [node, pytest.mark.slow]
SESSION = bytes(range(12)) + bytes(4)
HELPERS = """
const bytes = (text) => Uint8Array.from(text.match(/../g) ?? [], (each) => parseInt(each, 16));
const hex = (some) => Array.from(some, (each) => each.toString(16).padStart(2, "0")).join("");
const plain = (one) => {
  if (one instanceof Uint8Array) return { bin: hex(one) };
  if (typeof one === "number" || typeof one === "bigint") return { int: String(one) };
  if (Array.isArray(one)) return one.map(plain);
  return one && typeof one === "object" ? { map: Object.entries(one).map(([k, v]) => [k, plain(v)]) } : one;
};
const say = (what) => console.log(JSON.stringify(what));
const lines = (await import("node:readline")).createInterface({ input: process.stdin });
const told = [];
let wake = () => {};
lines.on("line", (line) => { told.push(JSON.parse(line)); wake(); });
const hear = async () => { while (!told.length) await new Promise((go) => { wake = go; }); return told.shift(); };
"""


def plain(one: Any) -> Any:
    """Return an object in the form in which the program in Node prints it."""
    if isinstance(one, bytes):
        return {"bin": one.hex()}
    if isinstance(one, bool) or one is None or isinstance(one, str):
        return one
    if isinstance(one, int):
        return {"int": str(one)}
    if isinstance(one, dict):
        return {"map": [[str(key), plain(value)] for key, value in one.items()]}
    return [plain(each) for each in one]


def has_float(one: Any) -> bool:
    """Return True if an object has a float, which only servers' records and operators' answers have."""
    if isinstance(one, dict):
        return any(map(has_float, one.values()))
    return isinstance(one, float) or (isinstance(one, list) and any(map(has_float, one)))


def frames(name: str) -> list[str]:
    return [frame.hex() for frame in VECTORS[name].frames]


def test_the_js_codec_reads_and_writes_each_vector_without_floats(tmp_path: Path) -> None:
    bodies = {name: vector for name, vector in VECTORS.items() if not has_float(vector.decoded)}
    text = HELPERS + (
        "for (const [name, body] of await hear()) "
        "say([name, plain(unpack(bytes(body))), hex(pack(unpack(bytes(body))))]);\nprocess.exit();"
    )
    with Program(tmp_path, text) as program:
        program.tell([[name, vector.frames[-1].hex()] for name, vector in bodies.items()])
        assert len(bodies) > 30
        for name, vector in bodies.items():
            assert program.hear() == [name, plain(vector.decoded), vector.frames[-1].hex()], name


CORE = (
    HELPERS
    + """
const [session, publicId] = (await hear()).map(bytes);
const text = (some) => new TextDecoder().decode(some);
const core = new Core({ session, publicId, subtree: "/r/" });
const sent = () => core.take().send.map(([server, port, frames]) => [server, port, ...frames.map(hex)]);
core.opened(1, 0);
say(sent());
for (;;) {
  const [port, ...frames] = await hear();
  if (port === "set") core.submit(frames[0], frames[0].map(() => new TextEncoder().encode(frames[1])), null, {}, 0);
  else core.receive(0, port, frames.map(bytes), 0);
  say({ sent: sent(), state: core.state, at: String(core.at), garbage: core.stats.garbage, gaps: core.stats.gaps,
        held: [...core.entries].map(([key, each]) => [key, text(each.bytes), String(each.revision)]) });
}
"""
)


def test_the_js_core_goes_through_the_worked_session(tmp_path: Path) -> None:
    public = VECTORS["session-3-icanhaz-for-all"].decoded["session"]
    with Program(tmp_path, CORE) as program:

        def told(port: int | str, *rest: Any) -> Any:
            program.tell([port, *rest])
            return program.hear()

        program.tell([SESSION.hex(), public.hex()])
        channel, own = (
            VECTORS["session-2-greeting-of-the-subtree"].frames[0],
            VECTORS["session-1-greeting-of-our-own-channel"].frames[0],
        )
        # The core shows the owner of its own channel, because the gateway asks for it (section 37).
        shown = "01" + own.hex(), SESSION.hex()
        assert program.hear() == [[0, 1, "01" + channel.hex()], [0, 1, *shown]]
        names = sorted(
            (name for name in VECTORS if name.startswith("session-")), key=lambda name: int(name.split("-")[1])
        )
        by_number = {int(name.split("-")[1]): name for name in names}
        assert sorted(by_number) == list(range(1, 13))
        told(2, "01")
        assert told(1, *frames(by_number[1]))["sent"] == []
        assert told(1, *frames(by_number[2]))["sent"] == [[0, 0, *frames(by_number[3])]], "the ICANHAZ, byte for byte"
        assert told(0, *frames(by_number[4]))["state"] == "connecting"
        said = told(0, *frames(by_number[5]))
        assert said["state"] == "synced" and [row[0] for row in said["held"]] == ["/r/a"]
        (set_key,), (set_value,), *_ = VECTORS[by_number[6]].decoded
        assert told("set", [set_key], set_value.decode())["sent"] == [[0, 2, *frames(by_number[6])]], "the KVSET too"
        held = told(1, *frames(by_number[7]))["held"]
        assert [row[:2] for row in held] == [["/r/a", "1"], [set_key, set_value.decode()]]
        told(1, *frames(by_number[8]))
        said = told(1, *frames(by_number[9]))
        assert said["gaps"] == 1 and said["sent"] == [[0, 0, *frames(by_number[10])]], (
            "it notices the gap, and asks as is shown"
        )
        told(0, *frames(by_number[11]))
        said = told(0, *frames(by_number[12]))
        kthxbai = VECTORS[by_number[12]].decoded[0]
        assert said["state"] == "synced" and said["at"] == str(kthxbai[2]) and len(said["held"]) == kthxbai[3]
        assert sum(int(row[2]) for row in said["held"]) % (1 << 64) == kthxbai[4] and said["garbage"] == 0


def test_refused_updates_change_nothing_in_the_js_core(tmp_path: Path) -> None:
    updates = {name: vector for name, vector in NONE.items() if vector.message == "UPDATE"}
    with Program(tmp_path, CORE) as program:
        program.tell([SESSION.hex(), bytes(16).hex()])
        program.hear()
        for name, vector in updates.items():
            program.tell([1, *(frame.hex() for frame in vector.frames)])
            said = program.hear()
            assert said["sent"] == [] and said["held"] == [] and said["state"] == "connecting", name
        assert len(updates) >= 5 and said["garbage"] >= 2


def test_the_js_digest_equals_the_digest_of_the_worked_session(tmp_path: Path) -> None:
    bodies = [VECTORS["session-7-update"].frames[-1], packb(VECTORS["session-11-records"].decoded[1])]
    text = "say((await hear()).map(bytes).reduce((digest, each) => linked(digest, each), 0));\nprocess.exit();"
    with Program(tmp_path, HELPERS + text) as program:
        program.tell([each.hex() for each in bodies])
        assert program.hear() == VECTORS["session-9-heartbeat-that-shows-a-gap"].decoded[0][9]
