"""The life of an answer beside the chat: tokens, prefill, speed, limits, memory, placement."""

from __future__ import annotations

import re

import pytest

from twostroke.config.schema import ServerConfig
from twostroke.model import Model

WIDE = {"viewport": {"width": 1400, "height": 900}}


def text_of(page, heading):
    return page.page.locator(".stage", has_text=heading).inner_text()


@pytest.fixture
def demo_server(demo_bundle_int8, make_server):
    """A server with the demo model."""
    live = make_server(["demo"], ServerConfig(port=0))
    with Model.open(demo_bundle_int8, name="demo", context_tokens=512) as model:
        live.call(lambda: live.registry.add(model))
        yield live


@pytest.fixture
def answered(serve_echo, visit):
    """A page on which one answer has ended."""
    live = serve_echo(scheduler={"prefill_chunk_tokens": 16})
    page = visit(live.url, **WIDE)
    page.ask("count to three")
    return page


def test_the_prompt_is_shown_token_by_token_with_who_wrote_each(answered):
    chips = answered.page.locator(".strip .chip:not(.answer)")
    prompt = "".join(chips.all_inner_texts()).replace("⏎", "\n")
    assert "count to three" in prompt
    mine = answered.page.locator(".strip .chip.user").all_inner_texts()
    assert "".join(mine) == "count to three", "no more and no less than what was written"
    assert answered.page.locator(".strip .chip.control").count() > 0
    written = "".join(answered.page.locator(".strip .chip.answer").all_inner_texts())
    assert written.startswith("→")


def test_a_token_tells_its_number_to_the_pointer_and_to_the_keyboard(answered):
    readout = answered.page.locator(".readout")
    answered.page.locator(".strip .chip.user").first.hover()
    assert re.match(r'Token \d+: number \d+, "c", from what you wrote\.', readout.inner_text())
    answered.page.locator(".strip").focus()
    answered.page.keyboard.press("Home")
    assert readout.inner_text().startswith("Token 1: ")
    answered.page.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith("Token 2: ")
    answered.page.keyboard.press("End")
    assert "written by the model" in readout.inner_text()


def test_the_numbers_are_those_of_the_server(answered):
    tiles = dict(
        zip(
            answered.page.locator(".tile dt").all_inner_texts(),
            answered.page.locator(".tile .value").all_inner_texts(),
            strict=True,
        )
    )
    num_prompt = answered.page.locator(".strip .chip:not(.answer)").count()
    assert tiles["Prompt"] == str(num_prompt)
    assert tiles["Answer"] == str(answered.page.locator(".strip .chip.answer").count())
    assert re.fullmatch(r"[\d.]+ ms", tiles["First token"])
    prefill = text_of(answered, "2. Prefill")
    assert re.search(rf"{num_prompt} read in \d+ pieces in [\d.]+ m?s", prefill)


def test_the_speed_is_drawn_as_a_line(answered):
    points = answered.page.locator(".chart .line").get_attribute("points").split()
    assert len(points) > 5
    assert all(re.fullmatch(r"[\d.]+,-?[\d.]+", point) for point in points)
    label = answered.page.locator(".chart").get_attribute("aria-label")
    assert "tokens at" in label


def test_what_was_in_the_cache_is_told_apart(answered):
    answered.ask("and to four")
    said = text_of(answered, "2. Prefill")
    cached = int(re.search(r"(\d+) from the cache", said)[1])
    assert cached > 16
    widths = answered.page.locator(".in-prefill .bar span").evaluate_all(
        "all => all.map((part) => parseFloat(part.style.width))"
    )
    assert widths[0] > 0
    assert widths[1] > 0
    assert sum(widths) == pytest.approx(100)


def test_memory_and_placement_are_shown_before_anything_is_asked(serve_echo, visit):
    page = visit(serve_echo().url, **WIDE)
    page.page.wait_for_selector(".stage:not(.idle) .parts")
    memory = text_of(page, "5. Where the memory goes")
    assert re.search(r"weights: what it has learnt\s+[\d.]+ k?B", memory)
    assert "echo" in text_of(page, "6. Where it runs")


def test_an_earlier_answer_can_be_looked_at_again(answered):
    first = answered.page.locator(".tile .value").first.inner_text()
    answered.ask("and on")
    assert answered.page.locator(".tile .value").first.inner_text() != first
    answered.page.locator(".message.assistant").first.get_by_text("Its life").click()
    answered.page.wait_for_timeout(100)
    assert answered.page.locator(".tile .value").first.inner_text() == first


def test_who_waits_sees_the_place_in_the_queue(serve_echo, visit, wait_until):
    live = serve_echo(step_delay_s=0.02, scheduler={"max_rows": 1})
    page = visit(live.url, **WIDE)
    with live.connect("/generate", {"prompt": "b" * 100}) as first:
        first.head()
        first.chunk()
        page.say("hello")
        page.answer.get_by_text("Waiting: next in line").wait_for()
        assert "It waits: next in line." in text_of(page, "2. Prefill")
    page.wait_for_end()
    assert "hello" in page.answer.inner_text()


def test_a_long_prompt_is_seen_being_read(serve_echo, visit):
    live = serve_echo(prefill_delay_s_per_token=0.02, scheduler={"prefill_chunk_tokens": 32})
    page = visit(live.url, **WIDE)
    page.say("x" * 250)
    page.answer.get_by_text(re.compile(r"Reading the prompt: \d+ of \d+ tokens")).wait_for()
    assert page.page.locator(".strip .chip.unread").count() > 0
    page.page.click("#stop")
    page.answer.get_by_text("You stopped it.").wait_for()


@pytest.mark.slow
def test_a_real_model_fills_every_part(demo_server, visit):
    page = visit(demo_server.url, **WIDE)
    page.expects_errors = True  # until the model is there /health is 503
    page.page.click("#open-settings")
    page.page.fill("#setting-temperature", "0")
    page.page.fill("#setting-max_tokens", "24")
    page.page.keyboard.press("Enter")
    page.ask("Write a haiku about the sea.")
    assert page.page.locator(".strip .chip.control").first.inner_text() == "<|im_start|>"
    assert page.page.locator(".strip .chip.answer").count() == 24
    limits = text_of(page, "4. How much of the hardware")
    assert re.search(r"memory\s+((< )?\d+ % · )?[\d.]+ [MG]B/s", limits)
    assert "CPUExecutionProvider" in text_of(page, "6. Where it runs")
    assert page.audit() == []
