"""covers: the gateway's console: its files and their policy, and the page in a real Chromium, where there is one."""

import importlib.util
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from chp_client import Clone
from chp_client.gateway.console import FOLDER, POLICY
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

CHROMIUM = shutil.which("chromium")
browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="NOT TESTED IN A BROWSER: install Debian's chromium, and playwright from the extra `browser`",
)


def test_it_is_small_and_asks_nobody_else() -> None:
    files = list(FOLDER.iterdir())
    assert sum(path.stat().st_size for path in files) < 250_000
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|innerHTML|\beval\b|<style|<script>|style=\"", text), path


def test_its_files_come_with_a_policy_and_no_other_file_does(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway:
        page = gateway.client.get("/")
        assert page.headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
        for name in re.findall(r'(?:href|src)="(/[^"]+)"', page.text):
            assert gateway.client.get(name).status_code == 200, name
        for name in ("/console/index.html", "/console/", "/console/../console.py", "/console/%2e%2e/app.py"):
            assert gateway.client.get(name).status_code == 404, name
        assert gateway.client.get("/v1/keys").headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.fixture
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@browser
@pytest.mark.slow
def test_it_shows_what_changes_and_refuses_to_overwrite(pair: Pair, chromium: Any) -> None:
    with Clone(pair.servers) as clone, RunningGateway(pair.servers, "--write") as gateway:
        clone.set_many({f"/bulk/{n:05}": b"%d" % n for n in range(20_000)}).wait(20)
        clone.set("/rates/USD", b"1").wait(10)
        page, errors = chromium.new_page(viewport={"width": 1400, "height": 800}), []
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(gateway.url)
        page.wait_for_function("() => document.querySelector('#title').textContent.includes('20,001')")
        assert page.locator(".row").count() < 100, "only rows that can be seen are there"
        page.keyboard.press("/")
        page.keyboard.type("rates")
        page.wait_for_selector('.row >> text="/rates/USD"')
        clone.set("/rates/USD", b"<b>2</b>").wait(10)
        page.wait_for_selector(".flash")
        page.wait_for_selector('.row >> text="<b>2</b>"')
        page.wait_for_selector('#latest >> text="/rates/USD = <b>2</b>"')
        assert re.fullmatch(r"bulk/ 20,000, \d+ kB", page.locator("nav button", has_text="bulk/").inner_text())
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#value').value === '<b>2</b>'")
        clone.set("/rates/USD", b"3").wait(10)
        page.wait_for_selector("#newer:not([hidden])")
        assert page.locator("#seen li").count() == 1 and page.locator("#seen").inner_text().endswith(" 3")
        assert errors == []
        page.fill("#value", "mine")
        page.click("#save")
        page.wait_for_function("() => document.querySelector('#said').textContent.includes('changed meanwhile')")
        assert clone["/rates/USD"] == b"3"
        page.keyboard.press("Escape")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#value').value === '3'")
        page.fill("#value", "mine")
        page.click("#save")
        page.wait_for_function("() => document.querySelector('#said').textContent.startsWith('done')")
        pair.primary.kill()
        page.wait_for_function("() => document.querySelector('#servers').textContent.includes('unreachable')")
        page.wait_for_function("() => document.querySelectorAll('#epochs li').length === 2")


@browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_400_pixels_and_does_not_write_unless_it_may(pair: Pair, chromium: Any, scheme: str) -> None:
    with RunningGateway(pair.servers) as gateway:
        gateway.client.put("/v1/keys/a", content=b"1")
        page = chromium.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
        page.goto(gateway.url)
        page.click('.row >> text="/a"')
        page.wait_for_selector("#entry:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.locator("#save").is_hidden()
        status = page.evaluate("async () => (await fetch('/v1/keys/a', {method: 'PUT', body: '2'})).status")
        assert status == 403 and gateway.client.get("/v1/keys/a").content == b"1"
