"""What the page says where an answer cannot be had: keys, refusals, faults, loading."""

from __future__ import annotations

from twostroke.config.schema import ServerConfig


def test_where_a_key_is_wanted_it_is_asked_for_and_never_written_down(serve_echo, visit):
    page = visit(serve_echo(server={"keys": ["right"]}).url)
    page.expects_errors = True  # Chromium's console tells of each 401
    page.page.wait_for_selector("#key-problem:not([hidden])")
    assert page.page.evaluate("document.activeElement.id") == "setting-key"
    page.page.fill("#setting-key", "wrong")
    page.page.keyboard.press("Enter")
    page.page.locator("#key-problem").get_by_text("not known").wait_for()
    page.page.fill("#setting-key", "right")
    page.page.keyboard.press("Enter")
    page.ask("open sesame")
    assert "open sesame" in page.answer.inner_text()
    assert page.page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert page.page.evaluate("document.cookie") == ""
    assert "right" not in page.page.evaluate("document.documentElement.outerHTML")
    assert "right" not in page.page.url


def test_what_is_refused_is_told_in_words_and_can_be_tried_again(serve_echo, visit):
    live = serve_echo()
    page = visit(live.url)
    page.expects_errors = True
    page.ask("x" * (live.model.context_tokens + 10))
    assert "Shorten the prompt" in page.answer.locator(".problem").inner_text()
    assert page.answer.get_by_text("Try again").is_visible()


def test_a_fault_in_the_middle_is_told_and_what_was_there_stays(serve_echo, visit):
    page = visit(serve_echo(fail_decode_runs=[30]).url)
    page.expects_errors = True
    page.ask("hello " * 12)
    assert "hello" in page.answer.inner_text()
    assert "decode run 30 fails" in page.answer.locator(".problem").inner_text()


def test_a_server_that_is_gone_is_told_and_found_again(serve_echo, visit):
    live = serve_echo()
    page = visit(live.url)
    page.expects_errors = True
    page.page.wait_for_selector("#send:not([disabled])")
    page.page.route("**/generate", lambda route: route.abort())
    page.ask("anybody there?")
    assert "does not answer" in page.answer.locator(".problem").inner_text()
    page.page.unroute("**/generate")
    page.answer.get_by_text("Try again").click()
    page.wait_for_end()
    assert "anybody there?" in page.answer.inner_text()


def test_while_a_model_loads_its_stage_is_shown(make_server, echo_model, visit):
    live = make_server(["echo"], ServerConfig(port=0))
    live.call(lambda: live.registry.note_stage("echo", "writing decode (40%)"))
    page = visit(live.url)
    page.expects_errors = True  # /health is 503 for as long
    notice = page.page.locator("#notice")
    notice.get_by_text("writing decode (40%)").wait_for()
    assert page.page.locator("#send").is_disabled()
    model = echo_model("echo")
    live.call(lambda: live.registry.add(model))
    page.ask("now")
    assert notice.is_hidden()
    assert "now" in page.answer.inner_text()
