"""How the page looks and works for everybody: phones, colours, keyboards, screen readers."""

from __future__ import annotations

import pytest

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
DESK = {"viewport": {"width": 1280, "height": 800}}
TEXT = (
    "A **list**:\n\n1. one\n2. two\n\n> quoted\n\n```js\nlet x = 1; // a very long line: "
    + "y" * 90
    + "\n```"
)


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "dark")])
def test_axe_finds_nothing_wrong(serve_echo, visit, wide_bundle, size, scheme):
    page = visit(serve_echo(bundle=wide_bundle).url, color_scheme=scheme, **size)
    page.page.wait_for_selector("#send:not([disabled])")
    assert page.audit() == []
    page.ask(TEXT)
    assert page.audit() == []
    page.page.locator(".message.user").first.get_by_text("Edit").click()
    if size is PHONE:
        page.page.click("#view-life")
        assert page.audit() == []
    page.page.click("#open-settings")
    assert page.audit() == []


def test_nothing_is_wider_than_a_phone(serve_echo, visit, wide_bundle):
    page = visit(serve_echo(bundle=wide_bundle).url, **PHONE)
    page.ask(TEXT)
    assert page.page.locator("#life").is_hidden()
    assert page.page.evaluate("document.documentElement.scrollWidth") == 360
    page.page.click("#view-life")
    assert page.page.locator("#life").is_visible()
    assert page.page.locator("#prompt").is_hidden()
    assert page.page.evaluate("document.documentElement.scrollWidth") == 360
    sticking_out = page.page.evaluate(
        "[...document.querySelectorAll('#life *')]"
        ".filter((e) => e.getBoundingClientRect().right > 361)"
        ".map((e) => e.className.baseVal ?? e.className)"
    )
    assert sticking_out == []
    page.page.click("#view-chat")
    assert page.page.locator("#prompt").is_visible()


def back_colour(page):
    return page.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_colours_follow_the_system_until_they_are_chosen(serve_echo, visit):
    page = visit(serve_echo().url, color_scheme="dark")
    dark = back_colour(page)
    page.page.emulate_media(color_scheme="light")
    light = back_colour(page)
    assert dark != light
    switch = page.page.locator("#theme")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.click()
    assert (back_colour(page), switch.get_attribute("aria-pressed")) == (dark, "true")
    page.page.reload()
    assert back_colour(page) == dark, "the choice is kept"
    switch.click()
    assert back_colour(page) == light


def test_everything_works_by_keyboard_alone(serve_echo, visit):
    page = visit(serve_echo(step_delay_s=0.01).url, **DESK)
    keys = page.page.keyboard
    page.page.wait_for_selector("#send:not([disabled])")
    keys.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "skip"
    keys.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "prompt"
    keys.type("one line")
    keys.press("Shift+Enter")
    keys.type("two lines")
    keys.press("Enter")
    page.page.wait_for_selector(".message.assistant .block")
    keys.press("Escape")
    page.answer.get_by_text("You stopped it.").wait_for()
    assert page.page.locator(".message.user .said").inner_text() == "one line\ntwo lines"
    for _ in range(20):  # back through what can be done with the answer
        keys.press("Shift+Tab")
        if page.page.evaluate("document.activeElement.textContent") == "Again":
            break
    keys.press("Enter")
    page.wait_for_end()
    assert "two lines" in page.answer.inner_text()
    assert page.page.evaluate("document.activeElement.id") == "prompt", "not lost with the button"


def test_the_dialog_keeps_the_focus_and_gives_it_back(serve_echo, visit):
    page = visit(serve_echo().url, **DESK)
    page.page.focus("#open-settings")
    page.page.keyboard.press("Enter")
    for _ in range(12):
        page.page.keyboard.press("Tab")
        inside = page.page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
        assert inside
    page.page.keyboard.press("Escape")
    assert page.page.locator("#settings").is_hidden()
    assert page.page.evaluate("document.activeElement.id") == "open-settings"


def test_a_screen_reader_is_told_once_and_not_for_each_token(serve_echo, visit):
    page = visit(serve_echo(step_delay_s=0.005).url, **DESK)
    page.page.wait_for_selector("#send:not([disabled])")
    page.page.evaluate(
        "() => { window.told = []; new MutationObserver(() => told.push(announcer.textContent))"
        ".observe(announcer, {childList: true, characterData: true, subtree: true}); }"
    )
    page.ask("say it")
    told = page.page.evaluate("told")
    assert told[0] == "The model is answering."
    assert "say it" in told[-1]
    assert len(set(told)) == 2


def test_nothing_moves_where_people_do_not_want_it(serve_echo, visit):
    page = visit(serve_echo(step_delay_s=0.01).url, reduced_motion="reduce", **DESK)
    page.say("still")
    page.page.wait_for_selector(".message.assistant .block")
    moving = page.page.evaluate("document.getAnimations().length")
    assert moving == 0


def test_a_long_message_scrolls_in_its_place_and_is_reached_by_keyboard(
    serve_echo, visit, wide_bundle
):
    page = visit(serve_echo(bundle=wide_bundle).url, **DESK)
    page.ask("one line\n" * 170)
    said = page.page.locator(".message.user .said")
    assert said.bounding_box()["height"] <= 0.4 * 800 + 1
    assert said.get_attribute("tabindex") == "0"
    assert page.audit() == []
