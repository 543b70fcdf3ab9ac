"""The chat in a browser: asking, stopping, asking again, editing.

Over the echo model, whose answer is the prompt again: a message decides what the answer holds.
"""

from __future__ import annotations

import json

import pytest

from twostroke.config.schema import ServerConfig

SLOW = {"step_delay_s": 0.03}
ATTACKS = {
    "an image": "<img src=x onerror='window.hit=1'>",
    "a script": "<script>window.hit=1</script>",
    "a frame": "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "a link": "[click](javascript:window.hit=1) <a href='javascript:window.hit=1'>me</a>",
    "a link in data": "[x](data:text/html,<script>window.hit=1</script>)",
    "a picture elsewhere": "![track](https://example.invalid/pixel.png)",
    "a style": "<div style='position:fixed;inset:0'>over everything</div>",
    "a vector": "<svg onload='window.hit=1'><a xlink:href='javascript:window.hit=1'></a></svg>",
    "a form": "<form action='https://example.invalid'><input name=key></form>",
    "a code fence": '```"><img src=x onerror=window.hit=1>\n<b>x</b>\n```',
    "a title": '[x](https://example.invalid "onmouseover=window.hit=1")',
    "a mutation": "<math><mtext><table><mglyph><style><img src=x onerror=window.hit=1>",
    "an id": "<a id=prompt name=body>clobber</a>",
}


def test_an_answer_is_shown_as_markdown_with_what_it_took(serve_echo, visit):
    page = visit(serve_echo().url)
    answer = page.ask(
        "Some **bold** words\n\n```python\nx = 'one'  # two\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )
    assert answer.locator("strong").inner_text() == "bold"
    assert answer.locator("pre .hljs-string").inner_text() == "'one'"
    assert answer.locator(".code-head span").inner_text() == "python"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert "tokens" in answer.locator(".facts").inner_text()
    assert page.page.locator("#welcome").is_hidden()
    assert page.page.evaluate("document.activeElement.id") == "prompt"


def test_an_example_is_a_click_away(serve_echo, visit):
    page = visit(serve_echo().url)
    page.page.locator("#examples button").first.click()
    field = page.page.locator("#prompt")
    assert "sky is blue" in field.input_value()
    field.press("Enter")
    page.wait_for_end()
    assert "sky is blue" in page.answer.inner_text()


@pytest.mark.parametrize("has_clipboard", [True, False], ids=["safe", "plain HTTP"])
def test_code_and_messages_can_be_copied(serve_echo, visit, has_clipboard):
    page = visit(serve_echo().url, permissions=["clipboard-read", "clipboard-write"])
    answer = page.ask("```js\nlet x = 1;\n```")
    read = "navigator.clipboard.readText()"
    if not has_clipboard:
        read = "kept.readText()"
        page.page.evaluate(
            "() => { window.kept = navigator.clipboard;"
            " Object.defineProperty(navigator, 'clipboard', {value: undefined}); }"
        )
    answer.get_by_text("Copy code").first.click()
    answer.get_by_text("Copied").wait_for()
    assert page.page.evaluate(read) == "let x = 1;\n"
    page.page.locator(".message.user").get_by_text("Copy").click()
    page.page.locator(".message.user").get_by_text("Copied").wait_for()
    assert page.page.evaluate(read) == "```js\nlet x = 1;\n```"


def test_stop_ends_the_answer_here_and_on_the_server(serve_echo, visit, wait_until):
    live = serve_echo(**SLOW)
    page = visit(live.url)
    page.say("a long one " * 6)
    page.page.wait_for_selector(".message.assistant .block")
    page.page.click("#stop")
    page.wait_for_end()
    assert "You stopped it." in page.answer.inner_text()
    wait_until(lambda: live.model.engine.stats().num_aborted == 1)
    page.page.click("#new-chat")
    page.ask("short")
    assert "short" in page.answer.inner_text()


def test_an_answer_can_be_written_anew(serve_echo, visit):
    live = serve_echo()
    page = visit(live.url)
    page.ask("first")
    page.ask("second")
    page.page.locator(".message.assistant").first.get_by_text("Again").click()
    page.wait_for_end()
    assert page.page.locator(".message").count() == 2, "what came behind it is gone"
    assert "first" in page.answer.inner_text()
    assert live.model.engine.stats().num_finished == 3


def test_a_message_can_be_edited_and_left_as_it_was(serve_echo, visit):
    page = visit(serve_echo().url)
    page.ask("apples")
    page.ask("pears")
    first = page.page.locator(".message.user").first
    first.get_by_text("Edit").click()
    first.locator("textarea").fill("never sent")
    first.locator("textarea").press("Escape")
    assert first.locator(".said").inner_text() == "apples"
    first.get_by_text("Edit").click()
    first.locator("textarea").fill("plums")
    first.locator("textarea").press("Enter")
    page.wait_for_end()
    assert page.page.locator(".message").count() == 2
    assert "plums" in page.answer.inner_text()
    assert "apples" not in page.answer.inner_text()


def test_editing_while_an_answer_is_written_stops_it_first(serve_echo, visit, wait_until):
    live = serve_echo(**SLOW)
    page = visit(live.url)
    page.say("apples " * 8)
    page.page.wait_for_selector(".message.assistant .block")
    mine = page.page.locator(".message.user")
    mine.get_by_text("Edit").click()
    mine.locator("textarea").fill("plums")
    mine.locator("textarea").press("Enter")
    page.page.locator(".message.user .said", has_text="plums").wait_for()
    page.wait_for_end()
    assert page.page.locator(".message").count() == 2
    assert "plums" in page.answer.inner_text()
    wait_until(lambda: live.model.engine.stats().num_aborted == 1)


def test_settings_go_with_the_request_and_stay_for_the_tab(serve_echo, visit):
    page = visit(serve_echo().url)
    page.page.click("#open-settings")
    page.page.fill("#setting-max_tokens", "3")
    page.page.fill("#setting-system", "speak softly")
    page.page.get_by_text("Done").click()
    with page.page.expect_request("**/generate") as asked:
        page.ask("hello")
    body = json.loads(asked.value.post_data)
    assert body["max_tokens"] == 3
    assert body["messages"][0] == {"role": "system", "content": "speak softly"}
    assert "temperature" not in body, "what is empty is the model's own"
    assert "the most tokens" in page.answer.inner_text()
    page.page.reload()
    assert page.page.input_value("#setting-max_tokens") == "3"
    page.page.click("#open-settings")
    page.page.click("#settings-reset")
    assert page.page.input_value("#setting-max_tokens") == ""


def test_a_new_chat_is_empty(serve_echo, visit):
    page = visit(serve_echo().url)
    page.ask("hello")
    page.page.click("#new-chat")
    assert page.page.locator(".message").count() == 0
    assert page.page.locator("#welcome").is_visible()


def test_nothing_in_a_message_or_an_answer_is_ever_run(serve_echo, visit, wide_bundle):
    page = visit(serve_echo(bundle=wide_bundle).url)
    answer = page.ask("\n\n".join(ATTACKS.values()))
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("window.hit") is None
    inside = page.page.locator("#messages")
    for forbidden in (
        "script",
        "img",
        "iframe",
        "svg",
        "form",
        "input",
        "style",
        "math",
        "[style]",
    ):
        assert inside.locator(forbidden).count() == 0, forbidden
    attributes = page.page.evaluate(
        "[...document.querySelectorAll('#messages *')].flatMap((e) => e.getAttributeNames())"
    )
    assert [name for name in attributes if name.startswith("on") or name == "xlink:href"] == []
    links = answer.locator("a").evaluate_all("all => all.map((a) => [a.href, a.rel, a.id])")
    assert all(href.startswith("https://") or href == "" for href, _, _ in links)
    assert all("noopener" in rel and not name for _, rel, name in links)
    assert "onerror" in answer.inner_text(), "what was written is shown as text"


def test_the_model_that_was_picked_answers(make_server, echo_model, visit):
    live = make_server(["one", "org/two:tag"], ServerConfig(port=0))
    one, two = echo_model("one"), echo_model("org/two:tag")
    live.call(lambda: live.registry.add(one))
    page = visit(live.url)
    page.expects_errors = True  # /health is 503 until both are there
    page.page.wait_for_selector("#send:not([disabled])")
    page.page.select_option("#model", "org/two:tag")
    page.page.locator("#notice").get_by_text("being made ready").wait_for()
    assert page.page.locator("#send").is_disabled()
    live.call(lambda: live.registry.add(two))
    with page.page.expect_request("**/generate") as asked:
        page.ask("hello")
    assert json.loads(asked.value.post_data)["model"] == "org/two:tag"
    assert "hello" in page.answer.inner_text()


def test_what_a_model_thinks_first_is_kept_apart_and_not_sent_again(serve_echo, visit):
    page = visit(serve_echo().url)
    answer = page.ask("<think>a plan</think>the answer")
    assert answer.locator("details").get_attribute("open") is None
    assert "the answer" in answer.locator(".words").inner_text()
    assert "a plan" not in answer.locator(".words").inner_text()
    answer.locator("summary").click()
    assert "a plan" in answer.locator("details").inner_text()
    with page.page.expect_request("**/generate") as asked:
        page.ask("go on")
    sent = json.loads(asked.value.post_data)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert "a plan" not in sent[1]["content"]


def test_what_was_never_answered_is_not_sent_again(serve_echo, visit):
    live = serve_echo(fail_prefill_runs=[0])
    page = visit(live.url)
    page.expects_errors = True
    page.ask("lost")
    assert page.answer.locator(".problem").is_visible()
    with page.page.expect_request("**/generate") as asked:
        page.ask("found")
    assert [m["content"] for m in json.loads(asked.value.post_data)["messages"]] == ["found"]


def test_plain_text_goes_without_the_template(serve_echo, visit):
    page = visit(serve_echo().url)
    page.page.click("#open-settings")
    page.page.check("#setting-plain")
    page.page.get_by_text("Done").click()
    answer = page.ask("once upon a time")
    assert answer.locator(".words").inner_text() == "→once upon a time"
    assert page.page.locator(".strip .chip.template").count() == 0
