"""covers: js/chp, CHP/2 by WebSocket: the Clone in JavaScript, in Node and in Chromium, over cuts and a failover."""

from __future__ import annotations

import importlib.util
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone, Conflict
from chp_client.gateway.channels.connection import WebSocketConnection
from chp_server.testing import Pair
from tests.talk import join_all
from tests.wire.gateways import RunningGateway
from tests.wire.node import FOLDER, Program, node

CHROMIUM = shutil.which("chromium")
browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="NOT TESTED IN A BROWSER: install Debian's chromium, and playwright from the extra `browser`",
)
RAISE = """
const raise = async (clone, times) => {
  for (let i = 0; i < times;) {
    const entry = clone.entry("/js/n");
    try { await clone.set("/js/n", String(Number(entry.value) + 1), { ifRevision: entry.revision }); i++; }
    catch (error) { if (error.code !== "revision") throw error; }
  }
};
"""
SETS = """
const clone = await Clone.open(urls, { subtree: "/js/" });
const seen = [];
clone.watch(({ key, deleted }) => seen.push((deleted ? "-" : "+") + key));
const done = await clone.set("/js/a", new Uint8Array([255, 0]));
const there = [...clone.get("/js/a")].join();
const text = await clone.set("/js/b", "\\u00fc", { ttl: 60 });
let refused = "";
try { await clone.set("/js/b", "x", { ifRevision: null }); }
catch (error) { refused = `${error.code} ${error.revisions["/js/b"] === text.revision}`; }
await clone.batch([{ set: "/js/c", value: new Uint8Array([254]) }, { delete: "/js/a" }]);
const outside = (await clone.set("/else/where", "1")).durability;
while (clone.comparedAt !== clone.number) await new Promise((go) => setTimeout(go, 20));
const said = { there, durability: done.durability, newer: reaches(text.revision, done.revision), refused, outside,
  state: clone.state, b: clone.get("/js/b"), gone: clone.has("/js/a"), c: clone.get("/js/c")[0], seen: seen.slice(0, 4),
  same: clone.verify(), garbage: clone.stats.garbage, mismatches: clone.stats.mismatches };
clone.close();
"""
SAID: dict[str, Any] = {
    "there": "255,0", "durability": "replicated", "newer": True, "b": "ü", "refused": "revision true", "gone": False,
    "c": 254, "seen": ["+/js/a", "+/js/b", "+/js/c", "-/js/a"], "same": True, "state": "synced", "garbage": 0,
    "mismatches": 0, "outside": "replicated",
}  # fmt: skip


def cut(gateway: RunningGateway) -> int:
    """Abort all WebSockets of a gateway as a broken network does, and return their number."""
    lines = [each for each in list(gateway.server.server_state.connections) if isinstance(each, WebSocketConnection)]
    for line in lines:
        line.abort()
    return len(lines)


def raise_here(clone: Clone, times: int) -> None:
    """Raise the shared counter from Python."""
    while times:
        entry = clone.entry("/js/n")
        assert entry is not None
        try:
            clone.set("/js/n", str(int(entry.value) + 1).encode(), if_revision=entry.revision).wait(60)
            times -= 1
        except Conflict:
            pass


@node
@pytest.mark.slow
def test_the_js_clone_sets_and_watches_keys_in_node(pair: Pair, tmp_path: Path) -> None:
    with RunningGateway(pair.servers) as gateway:
        text = f"const urls = ['{gateway.url}'];{SETS}console.log(JSON.stringify(said));process.exit();"
        with Program(tmp_path, text) as program:
            assert program.hear() == SAID
        while "chp_gateway_lines 0" not in gateway.client.get("/metrics").text:
            threading.Event().wait(0.05)


@node
@pytest.mark.slow
def test_four_node_and_four_python_clones_raise_one_counter_exactly(pair: Pair, tmp_path: Path) -> None:
    with Clone(pair.servers, subtree="/js/") as clone, RunningGateway(pair.servers) as gateway:
        clone.set("/js/n", b"0").wait(10)
        text = f"""{RAISE}
        const clone = await Clone.open(["{gateway.url}"], {{ subtree: "/js/", timeoutMs: 120000 }});
        await raise(clone, 25);
        console.log(JSON.stringify(clone.stats));
        clone.close();"""
        programs = [Program(tmp_path, text, f"program{i}") for i in range(4)]
        clones = [Clone(pair.servers, subtree="/js/") for _ in range(4)]
        for each in clones:
            each.wait_until_synced(30)
        threads = [threading.Thread(target=raise_here, args=(each, 25)) for each in clones]
        for thread in threads:
            thread.start()
        for program in programs:
            assert program.hear()["garbage"] == 0
            program.close()
        join_all(*threads)
        for each in clones:
            each.close()
        clone.sync(timeout=30)
        assert clone["/js/n"] == b"200"


FOLLOW = """
const clone = await Clone.open(urls, { subtree: "/w/", timeoutMs: 60000 });
console.log(JSON.stringify("begun"));
const order = [];
clone.watch(({ key, value }) => { if (key === "/w/last") order.push(value); });
while (clone.get("/w/last") !== "end") await new Promise((go) => setTimeout(go, 10));
while (clone.comparedAt !== clone.number) await new Promise((go) => setTimeout(go, 20));
const held = clone.keys().map((key) => [key, clone.get(key), clone.entry(key).revision]);
console.log(JSON.stringify({ held, order, same: clone.verify(), stats: clone.stats }));
clone.close();
"""


@node
@pytest.mark.slow
def test_the_js_clone_equals_a_python_clone_after_cuts_and_a_failover(pair: Pair, tmp_path: Path) -> None:
    first, second = RunningGateway(pair.servers), RunningGateway(pair.servers)
    with first, second, Clone(pair.servers, subtree="/w/") as clone:
        with Program(tmp_path, f"const urls = ['{first.url}', '{second.url}'];{FOLLOW}") as program:
            assert program.hear() == "begun"
            for n in range(1000):
                values = {f"/w/{(n * 97 + i) % 5000}": b"%d" % n for i in range(99)}
                clone.set_many(values | {"/w/last": b"%d" % n}).wait(60)
                if n % 50 == 9:
                    clone.delete(f"/w/{n}").wait(60)
                if n in (200, 400):
                    assert cut(first) + cut(second) == 1
                if n == 700:
                    pair.primary.kill()
            clone.set("/w/last", b"end").wait(60)
            said = program.hear()
        entries = [clone.entry(key) for key in clone]
        here = sorted([e.key, e.value.decode(), str(e.revision)] for e in entries if e is not None)
        assert sorted(said["held"]) == here and said["same"] and len(here) > 4900
        assert said["order"][-1] == "end" and said["stats"]["failovers"] == 1
        assert said["stats"]["resumes"] + said["stats"]["snapshots"] >= 3 and said["stats"]["garbage"] == 0
        order = [int(each) for each in said["order"][:-1]]
        assert order == sorted(order), "in the servers' order"


def serve(route: Any) -> None:
    """Serve a file of js/chp from the gateway's origin."""
    name = route.request.url.rpartition("/")[2]
    route.fulfill(path=FOLDER / name, content_type="text/javascript")


@browser
@pytest.mark.slow
def test_the_js_clone_sets_and_watches_keys_in_a_browser(pair: Pair) -> None:
    from playwright.sync_api import sync_playwright

    with RunningGateway(pair.servers, "--write") as gateway, sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_context(bypass_csp=True).new_page()
        page.route("**/js/*.js", serve)
        page.goto(f"{gateway.url}/health")
        code = f"async (urls) => {{ const {{ Clone, reaches }} = await import('/js/chp.js'); {SETS} return said; }}"
        said = page.evaluate(code, [gateway.url])
        chromium.close()
        assert said == SAID


@browser
@pytest.mark.slow
def test_a_read_only_gateway_refuses_writes_of_a_page(pair: Pair) -> None:
    from playwright.sync_api import sync_playwright

    with RunningGateway(pair.servers) as gateway, sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_context(bypass_csp=True).new_page()
        page.route("**/js/*.js", serve)
        page.goto(f"{gateway.url}/health")
        code = """async (urls) => { const { Clone } = await import('/js/chp.js');
          const clone = await Clone.open(urls, { subtree: "/js/" });
          try { await clone.set("/js/a", "1"); return "set"; }
          catch (error) { return `${error.code}: ${error.message}`; } }"""
        said = page.evaluate(code, [gateway.url])
        chromium.close()
        assert (
            said.startswith("access: refused (access): read-only")
            and gateway.client.get("/v1/keys/js/a").status_code == 404
        )


def test_the_js_module_matches_its_types_and_needs_no_library() -> None:
    code, types = (FOLDER / "chp.js").read_text(), (FOLDER / "chp.d.ts").read_text()
    for name in ("open", "synced", "get", "has", "entry", "keys", "watch", "set", "delete", "batch", "verify", "close"):
        assert f" {name}(" in code and f" {name}(" in types, name
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert not re.search(r'^import .* from "[^.]|require\(|import\(', text, re.M), f"{path.name}: no library"
        assert path.stat().st_size < 32_000
    core = (FOLDER / "core.js").read_text() + (FOLDER / "msgpack.js").read_text()
    assert not re.search(r"WebSocket\(|Date\.|performance\.|Math\.random|setTimeout|crypto\.", core), "the core is pure"
