"""covers: the gateway's console: its files and their policy, and the page in a real Chromium, where there is one."""

import asyncio
import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import URL
from starlette.requests import Request

from chp_client import Clone
from chp_client.gateway.access.caller import NOBODY
from chp_client.gateway.call import Call
from chp_client.gateway.console import FOLDER, POLICY, SERVED, show_console
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

CHROMIUM = shutil.which("chromium")
browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="NOT TESTED IN A BROWSER: install Debian's chromium, and playwright from the extra `browser`",
)


def test_the_console_files_are_small_and_name_no_other_hosts() -> None:
    files = list(FOLDER.iterdir())
    assert sum(path.stat().st_size for path in files) < 250_000
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|innerHTML|\beval\b|<style|<script>|style=\"", text), path


def test_console_files_have_a_policy_and_no_other_files_are_served(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway:
        page = gateway.client.get("/")
        assert page.headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
        for name in re.findall(r'(?:href|src)="(/[^"]+)"', page.text):
            assert gateway.client.get(name).status_code == 200, name
        for name in ("/console/index.html", "/console/", "/console/../console.py", "/console/%2e%2e/app.py"):
            assert gateway.client.get(name).status_code == 404, name
        assert gateway.client.get("/v1/keys").headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_host_header_cannot_name_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Starlette before 1.0.1 put a part of the Host header into the path of `Request.url` (CVE-2026-48710)."""
    (tmp_path / "secret.html").write_text("secret")

    def url(request: Request) -> URL:
        host = dict(request.scope["headers"])[b"host"].decode()
        return URL(f"http://{host}{request.scope['path']}")

    monkeypatch.setattr(Request, "url", property(url))
    gateway: Any = None
    for path in SERVED:
        headers = [(b"host", f"127.0.0.1/{tmp_path}/secret.html?".encode())]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
        answer = asyncio.run(show_console(Call(gateway, Request(scope), NOBODY, {})))
        assert answer.status_code == 200 and answer.body == (FOLDER / SERVED[path]).read_bytes()


@pytest.fixture
def chromium() -> Iterator[Any]:
    """Start a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


Open = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Open]:
    """Return a function that opens a page. Errors in its console fail the test, except those that the test wants."""
    errors: list[str] = []

    def open_page(url: str, width: int = 1400, scheme: str = "light") -> Any:
        page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    assert [each for each in errors if "412 (Precondition Failed)" not in each] == []


def says(page: Any, selector: str, text: str) -> None:
    """Wait until the element of a selector has this text."""
    page.locator(selector).filter(has_text=text).first.wait_for()


@browser
@pytest.mark.slow
def test_the_console_shows_changes_and_refuses_to_overwrite_them(pair: Pair, opened: Open) -> None:
    with Clone(pair.servers, name="writer") as clone, RunningGateway(pair.servers, "--write") as gateway:
        clone.set_many({f"/bulk/{n:05}": b"%d" % n for n in range(20_000)}).wait(20)
        clone.set("/rates/USD", b"1").wait(10)
        page = opened(gateway.url)
        says(page, "#count", "20,001 of 20,001 keys")
        assert page.locator(".row").count() < 100, "only rows that can be seen are there"
        assert re.fullmatch(r"bulk/\s*20,000 · \d+ kB", page.locator("#folders button", has_text="bulk/").inner_text())
        page.keyboard.press("/")
        page.keyboard.type("rates")
        says(page, ".row", "/rates/USD")
        clone.set("/rates/USD", b"<b>2</b>").wait(10)
        page.wait_for_selector(".flash")
        says(page, ".row", "<b>2</b>")
        says(page, "#latest li", "<b>2</b>")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#value').value === '<b>2</b>'")
        clone.set("/rates/USD", b"3").wait(10)
        says(page, "#newer", "Somebody changed it")
        assert page.locator("#newer del").inner_text() == "<b>2</b>" and page.locator("#newer ins").inner_text() == "3"
        page.fill("#value", "mine")
        page.click("#save")
        says(page, "#said", "Not done: it was changed meanwhile; now 3")
        assert clone["/rates/USD"] == b"3"
        page.click("#newer button")
        page.wait_for_function("() => document.querySelector('#value').value === '3'")
        page.fill("#value", "mine")
        page.click("#save")
        says(page, "#said", "Done")
        clone.sync(10)
        assert clone["/rates/USD"] == b"mine"
        page.click("#remove")
        says(page, "#remove", "Really delete?")
        assert "/rates/USD" in clone
        page.click("#remove")
        says(page, "#said", "Done")
        clone.sync(10)
        assert "/rates/USD" not in clone


@browser
@pytest.mark.slow
def test_the_console_shows_versions_and_makes_keys_without_a_mouse(pair: Pair, opened: Open) -> None:
    with Clone(pair.servers, name="writer") as clone, RunningGateway(pair.servers, "--write") as gateway:
        for n in range(3):
            clone.set("/a", b"%d" % n).wait(10)
        page = opened(gateway.url)
        says(page, ".row", "/a")
        page.wait_for_function("() => Number(document.querySelector('#connected').textContent) >= 2")
        page.keyboard.press("/")
        page.keyboard.press("ArrowDown")
        for key in ("ArrowDown", "Enter"):
            page.keyboard.press(key)
        page.wait_for_function("() => document.querySelector('#value').value === '2'")
        page.keyboard.press("h")
        page.wait_for_function("() => document.querySelectorAll('#seen li').length === 3")
        assert re.search(r"\d\d:\d\d:\d\d 1\.\d+ by writer", page.locator("#seen li").first.inner_text())
        assert page.locator("#numbers").inner_text() == "from 0 to 2"
        clone.set("/a", b"9").wait(10)
        page.wait_for_function("() => document.querySelectorAll('#seen li').length === 4")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.wait_for_selector("#entry", state="hidden")
        page.keyboard.press("/")
        page.keyboard.type("/a")
        page.keyboard.press("Escape")
        assert page.input_value("#search") == "/a", "the list is what the filter says"
        page.keyboard.press("/")
        page.keyboard.type("/new")
        says(page, "#nothing", "Enter makes one of this name")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.activeElement.id === 'value'")
        page.keyboard.type("1")
        page.keyboard.press("Control+Enter")
        says(page, "#said", "Done")
        clone.sync(10)
        assert clone["/new"] == b"1"
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.wait_for_selector("#help[open]")
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.scheme") == "light"


@browser
@pytest.mark.slow
def test_the_console_shows_topics_clients_and_a_failover(pair: Pair, opened: Open) -> None:
    with Clone(pair.servers, name="writer") as clone, RunningGateway(pair.servers) as gateway:
        orders = clone.topic("orders")
        orders.create()
        for group in ("billing", "shipping"):
            orders.subscribe(group, "begin")
        orders.publish_many([b"<i>%d</i>" % n for n in range(12)]).wait(10)
        page = opened(gateway.url)
        with orders.consumer("billing"):
            page.keyboard.press("2")
            says(page, "#topic-orders h2", "12 messages")
            says(page, "#topic-orders tr:has-text('billing') td:nth-child(4)", "1")
            says(page, "#topic-orders tr:has-text('shipping') td:nth-child(2)", "12")
            says(page, "#topic-orders tr:has-text('shipping') td:nth-child(4)", "nobody")
            page.click("#topic-orders button")
            says(page, ".messages li", "<i>11</i>")
            assert page.locator(".messages li").count() == 8
        page.keyboard.press("3")
        says(page, "#clients tr", "writer")
        says(page, "#clients tr", "everything")
        page.keyboard.press("4")
        says(page, "#pair section:has-text('primary')", "longest turn")
        says(page, "#epochs li", "primary serves, epoch 1")
        pair.primary.kill()
        says(page, "#servers .bad", "unreachable")
        says(page, "#epochs li", "backup serves, epoch 2")
        says(page, "#epochs li", "its peer was silent, and a client asked to be served")
        says(page, "#servers .good", "backup active")
        says(page, "#state.good", "live")


@browser
@pytest.mark.slow
def test_the_console_confirms_a_hand_over_and_shows_its_outcome(pair: Pair, opened: Open) -> None:
    with Clone(pair.servers) as clone, RunningGateway(pair.servers, "--write") as gateway:
        clone.set("/a", b"1").wait(10)
        page = opened(gateway.url)
        page.keyboard.press("4")
        page.wait_for_selector("#hand:enabled")
        page.click("#hand")
        says(page, "#sure-what", "backup then serves instead of primary")
        # Enter presses the focused button, which does not confirm.
        page.keyboard.press("Enter")
        page.wait_for_selector("#sure", state="hidden")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sure[open]")
        page.keyboard.press("1")
        page.click("#sure-yes")
        says(page, "#sure-said.good", "Done: backup serves, after")
        assert page.locator("#sure-yes").is_hidden() and page.locator("#view-pair").is_visible()
        page.click("#sure-no")
        says(page, "#epochs li", "an operator had the other hand over")
        says(page, "#servers .good", "backup active")
        page.wait_for_selector("#hand:enabled")
        pair.primary.kill()
        page.wait_for_selector("#hand:disabled")
        assert page.get_attribute("#hand", "title") == "not now: there is no passive server"
        page.close()
    with RunningGateway(pair.servers) as gateway:
        page = opened(f"{gateway.url}/#pair")
        says(page, "#servers .good", "backup active")
        assert page.locator("#hand").is_hidden(), "it may not write"


@browser
@pytest.mark.slow
def test_the_console_shows_a_user_the_part_it_may_read(pair: Pair, chromium: Any) -> None:
    def refuse(route: Any) -> None:
        route.fulfill(status=403, json={"detail": "user 'alice' may not read all of ''"})

    with Clone(pair.servers) as clone, RunningGateway(pair.servers, "--write") as gateway:
        clone.set_many({"/pub/a": b"1", "/secret/b": b"2"}).wait(10)
        page = chromium.new_page()
        for path in ("/v1/pair", "/v1/history", "/v1/clients", "/v1/watch?prefix=", "/v1/keys?limit=1&prefix="):
            page.route(gateway.url + path, refuse)
        page.goto(gateway.url)
        says(page, "#nothing", "user 'alice' may not read all of ''. The page of a part is /?prefix=/part/")
        page.keyboard.press("3")
        says(page, "#clients", "user 'alice' may not")
        page.goto(f"{gateway.url}/?prefix=/pub/")
        says(page, "#count", "1 of 1 keys")
        says(page, "#state.good", "live")
        page.click(".row")
        page.wait_for_selector("#save")
        page.fill("#value", "2")
        page.click("#save")
        says(page, "#said", "Done")
        assert gateway.client.get("/v1/keys/pub/a").content == b"2"


@browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_console_fits_400_pixels_and_does_not_write_without_the_flag(pair: Pair, opened: Open, scheme: str) -> None:
    with Clone(pair.servers, name="writer" * 20) as clone, RunningGateway(pair.servers) as gateway:
        clone.set("/a" * 200, b"1" * 1000).wait(10)
        clone.topic("t" * 150).create()
        clone.topic("t" * 150).subscribe("g" * 100)
        page = opened(gateway.url, 400, scheme)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
        assert dark is (scheme == "dark")
        for view, there in (("topics", "table"), ("clients", "tbody tr"), ("pair", "#epochs li"), ("keys", ".row")):
            page.click(f"#to-{view}")
            page.wait_for_selector(f"#view-{view} {there}")
            assert page.evaluate("document.documentElement.scrollWidth") == 400, view
        page.click(".row")
        page.wait_for_selector("#entry:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.locator("#save").is_hidden() and page.locator("#make").is_hidden()
        page.click("#close")
        page.wait_for_selector("#entry", state="hidden")
        status = gateway.client.put("/v1/keys/a", content=b"2", headers={"Origin": gateway.url}).status_code
        assert status == 403 and "/a" not in clone
