"""covers: js/chp. The Clone in JavaScript, in Node and in Chromium where they are: sets, restarts, a failover."""

import importlib.util
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone, Conflict
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

MODULE = Path(__file__).parents[2] / "js" / "chp" / "chp.js"
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
node = pytest.mark.skipif(NODE is None, reason="NOT TESTED IN NODE: install Node 18 or newer")
browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="NOT TESTED IN A BROWSER: install Debian's chromium, and playwright from the extra `browser`",
)
RAISE = """
const raise = async (clone, times) => {
  for (let i = 0; i < times;) {
    const entry = clone.entry("/js/n");
    try { await clone.set("/js/n", String(Number(entry.value) + 1), { ifRevision: entry.revision }); i++; }
    catch (error) { if (error.code !== "revision") throw error; await new Promise((go) => setTimeout(go, 2)); }
  }
};
"""
SETS = """
const clone = await Clone.open(urls, { prefix: "/js/" });
const seen = [];
clone.watch(({ key, deleted }) => seen.push((deleted ? "-" : "+") + key));
const done = await clone.set("/js/a", new Uint8Array([255, 0]));
const there = [...clone.get("/js/a")].join();
const text = await clone.set("/js/b", "\\u00fc", { ttl: 60 });
let refused = "";
try { await clone.set("/js/b", "x", { ifRevision: null }); }
catch (error) { refused = `${error.code} ${error.now.value}`; }
await clone.batch([{ set: "/js/c", value: new Uint8Array([254]) }, { delete: "/js/a" }]);
const raising = await Promise.all([1, 2].map(() => Clone.open(urls, { prefix: "/js/" })));
await Promise.all(raising.map((each) => raise(each, 20)));
for (const each of raising) each.close();
const said = { there, durability: done.durability, newer: reaches(text.revision, done.revision), refused,
  state: clone.state, b: clone.get("/js/b"), gone: clone.has("/js/a"), c: clone.get("/js/c")[0], seen: seen.slice(0, 4),
  differ: await clone.verify() };
clone.close();
"""
SAID: dict[str, Any] = {
    "there": "255,0", "durability": "replicated", "newer": True, "b": "ü", "refused": "revision ü", "gone": False,
    "c": 254, "seen": ["+/js/a", "+/js/b", "+/js/c", "-/js/a"], "differ": [], "state": "synced",
}  # fmt: skip


class Node:
    """A program in Node; `hear` is its next line."""

    def __init__(self, folder: Path, program: str) -> None:
        path = folder / "program.mjs"
        path.write_text(f'import {{ Clone, reaches }} from "{MODULE.as_uri()}";\n{program}')
        self.child = subprocess.Popen([str(NODE), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def hear(self) -> Any:
        assert self.child.stdout is not None and self.child.stderr is not None
        line = self.child.stdout.readline()
        assert line, self.child.stderr.read()
        return json.loads(line)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.fixture
def lasting() -> Iterator[Pair]:
    """A pair that keeps its log long enough."""
    with Pair(heartbeat_s=0.1, peer_timeout_s=1.0) as pair:
        yield pair


def raise_here(clone: Clone, times: int) -> None:
    """The same by Python, with the same key."""
    while times:
        entry = clone.entry("/js/n")
        assert entry is not None
        try:
            clone.set("/js/n", str(int(entry.value) + 1).encode(), if_revision=entry.revision).wait(30)
            times -= 1
        except Conflict:
            pass


@node
@pytest.mark.slow
def test_sets_in_node_and_in_python_raise_one_counter_exactly(lasting: Pair, tmp_path: Path) -> None:
    with Clone(lasting.servers, subtree="/js/") as clone, RunningGateway(lasting.servers) as gateway:
        clone.set("/js/n", b"0").wait(10)
        program = Node(tmp_path, f"const urls = ['{gateway.url}'];{RAISE}{SETS}console.log(JSON.stringify(said));")
        here = threading.Thread(target=raise_here, args=(clone, 20))
        here.start()
        said = program.hear()
        here.join(60)
        program.close()
        said["seen"] = [each for each in said["seen"] if each != "+/js/n"]
        assert {**said, "seen": SAID["seen"][: len(said["seen"])]} == {**SAID, "seen": said["seen"]}
        clone.sync(timeout=10)
        assert clone["/js/n"] == b"60"


FOLLOW = """
const clone = await Clone.open(urls, { prefix: "/w/" });
console.log(JSON.stringify("begun"));
const order = [];
clone.watch(({ key, value }) => { if (key === "/w/last") order.push(value); });
while (clone.get("/w/last") !== "end") await new Promise((go) => setTimeout(go, 10));
const held = clone.keys().map((key) => [key, clone.get(key), clone.entry(key).revision]);
console.log(JSON.stringify({ held, order }));
clone.close();
"""


@node
@pytest.mark.slow
def test_it_misses_nothing_over_a_gateway_that_dies_and_a_failover(lasting: Pair, tmp_path: Path) -> None:
    first, second = RunningGateway(lasting.servers), RunningGateway(lasting.servers)
    with Clone(lasting.servers, subtree="/w/") as clone, second:
        program = Node(tmp_path, f"const urls = ['{first.url}', '{second.url}'];{FOLLOW}")
        assert program.hear() == "begun"
        for n in range(300):
            clone.set_many({f"/w/{(n * 7 + i) % 500}": b"%d" % n for i in range(10)} | {"/w/last": b"%d" % n}).wait(30)
            if n % 50 == 9:
                clone.delete(f"/w/{n}").wait(30)
            if n == 100:
                first.stop()
            if n == 200:
                lasting.primary.kill()
        clone.set("/w/last", b"end").wait(30)
        said = program.hear()
        program.close()
        entries = [clone.entry(key) for key in clone]
        assert sorted(said["held"]) == sorted(
            [e.key, e.value.decode(), str(e.revision)] for e in entries if e is not None
        )
        assert said["order"] == [*map(str, range(300)), "end"], "each once, in the servers' order"


@browser
@pytest.mark.slow
def test_the_same_in_a_browser(lasting: Pair) -> None:
    from playwright.sync_api import sync_playwright

    with (
        Clone(lasting.servers) as clone,
        RunningGateway(lasting.servers, "--write") as gateway,
        sync_playwright() as play,
    ):
        clone.set("/js/n", b"0").wait(10)
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_context(bypass_csp=True).new_page()
        page.goto(f"{gateway.url}/health")
        code = f"""async ({{ source, urls }}) => {{
          const address = URL.createObjectURL(new Blob([source], {{ type: "text/javascript" }}));
          const {{ Clone, reaches }} = await import(address);
          {RAISE}{SETS}
          return said;
        }}"""
        said = page.evaluate(code, {"source": MODULE.read_text(), "urls": [gateway.url]})
        chromium.close()
        assert said == SAID
        assert gateway.client.get("/v1/keys/js/n").text == "40"


def test_the_types_name_what_the_module_has() -> None:
    code, types = MODULE.read_text(), MODULE.with_suffix(".d.ts").read_text()
    for name in ("open", "synced", "get", "has", "entry", "keys", "watch", "set", "delete", "batch", "verify", "close"):
        assert f" {name}(" in code and f" {name}(" in types, name
    assert MODULE.stat().st_size < 20_000 and not re.search(r"^import |require\(|import\(", code, re.M), "no library"
