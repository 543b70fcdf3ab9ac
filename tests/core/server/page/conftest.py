"""A browser for the page: Debian's (or any) Chromium, driven by Playwright, headless.

Where there is none these tests are skipped, or fail where TWOSTROKE_NEEDS_BROWSER is set.
The browser lives as long as a module: Playwright's loop would be in the way of other tests' loops.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from twostroke.testing import make_echo_bundle

from .vendored import AXE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_MS = 30_000


@dataclass
class Visit:
    """A page that was opened, and what went wrong or elsewhere on it."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    expects_errors: bool = False  # a refusal by the server shows in the browser's console

    def ask(self, text: str) -> Locator:
        """Sends a message and waits for the end of its answer, which it returns."""
        self.say(text)
        self.wait_for_end()
        return self.answer

    def wait_for_end(self) -> None:
        """Waits until the last answer has ended and is shown so."""
        self.page.wait_for_selector(".message:last-child .facts", state="attached")

    def say(self, text: str) -> None:
        """Sends a message by the keyboard."""
        self.page.wait_for_selector("#send:not([disabled])")
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.page.wait_for_selector(".message.assistant")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.page.locator(".message.assistant").last

    def check(self) -> None:
        """Nothing was asked of other hosts, and nothing went wrong unseen."""
        assert self.elsewhere == []
        if self.expects_errors:
            return
        assert self.problems == []

    def audit(self) -> list[str]:
        """What axe-core finds wrong with the page as it is now."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(f"{(AXE / 'axe.min.js').read_text(encoding='utf-8')}; undefined")
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes']][:4]}"
            for each in found["violations"]
        ]


@pytest.fixture(scope="session")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An echo bundle whose context has room for long messages and their echo."""
    return make_echo_bundle(tmp_path_factory.mktemp("wide") / "bundle", context_tokens=4096)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    must = bool(os.environ.get("TWOSTROKE_NEEDS_BROWSER"))
    if path is None and not must:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    assert path is not None, "Chromium is missing; on Debian: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root needs --no-sandbox, small /dev/shm the other one.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a server: `visit(live.url, color_scheme="dark")`. Checked at the end."""
    with ExitStack() as stack:
        visits: list[Visit] = []

        def open_page(url: str, path: str = "/", **options: Any) -> Visit:
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(TIMEOUT_MS)
            page = context.new_page()
            visited = Visit(page, url)
            visits.append(visited)
            _watch(visited)
            page.goto(url + path)
            return visited

        yield open_page
        for each in visits:
            each.check()


def _watch(visit: Visit) -> None:
    def note_request(url: str) -> None:
        if urlsplit(url).netloc != urlsplit(visit.origin).netloc:
            visit.elsewhere.append(url)

    def note_message(kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            visit.problems.append(f"{kind}: {text}")

    page = visit.page
    page.on("request", lambda request: note_request(request.url))
    page.on("console", lambda message: note_message(message.type, message.text))
    page.on("pageerror", lambda error: visit.problems.append(f"exception: {error}"))
    page.on("dialog", lambda dialog: (visit.problems.append("a dialog"), dialog.dismiss()))
