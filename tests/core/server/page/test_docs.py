"""`/docs` in a browser: every route is there, in light and dark, on a phone, without a mouse."""

from __future__ import annotations

import subprocess

import pytest

PHONE = {"width": 390, "height": 800}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_tells_of_every_route_and_axe_finds_nothing(live, visit, scheme):
    seen = visit(live.url, "/docs", color_scheme=scheme)
    seen.page.wait_for_selector("article")
    routes = live.get("/openapi.json").json()["paths"]
    assert seen.page.locator("article").count() == sum(len(item) for item in routes.values())
    assert seen.audit() == []


def test_it_fits_a_phone(live, visit):
    seen = visit(live.url, "/docs", viewport=PHONE)
    seen.page.wait_for_selector("article")
    assert seen.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_its_commands_work(live, visit):
    seen = visit(live.url, "/docs")
    seen.page.wait_for_selector("article")
    for route in ("post_generate", "post_tokenize", "get_v1_models"):
        command = seen.page.locator(f"#{route} pre").inner_text()
        done = subprocess.run(
            ["bash", "-c", f"{command} -sf"], capture_output=True, timeout=60, check=True
        )
        assert done.stdout
