"""llama.cpp's routes beside `/completion`, its errors, and the page that tells of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from twostroke.server.surfaces.llama_cpp import SURFACE
from twostroke.server.surfaces.llama_cpp.fields import HARMLESS, LlamaCompletionBody

from .conftest import LiveServer


def ids_of(live: LiveServer, text: str, **fields: Any) -> list[Any]:
    return live.post("/tokenize", {"content": text, **fields}).json()["tokens"]


def test_text_becomes_tokens_and_text_again(live):
    text = "Hi <|im_end|> é"
    ids = ids_of(live, text)
    assert live.post("/detokenize", {"tokens": ids}).json() == {"content": text}
    assert len(ids_of(live, text, parse_special=False)) > len(ids)
    assert ids_of(live, "a", add_special=True) == ids_of(live, "a")  # there is no such token
    pieces = ids_of(live, "aé<|im_end|>", with_pieces=True)
    assert [each["piece"] for each in pieces] == ["a", [0xC3], [0xA9], "<|im_end|>"]
    assert ids_of(live, "") == []
    assert live.post("/detokenize", {"tokens": []}).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", {}, "content is missing"),
        ("/tokenize", {"content": 5}, "content must be a valid string"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1] is -1, which is outside"),
        ("/detokenize", {"tokens": [10**30]}, "tokens[0]"),
        ("/apply-template", {}, "messages is missing"),
        ("/apply-template", {"messages": [{"role": "user"}]}, "content"),
        ("/tokenize", '{"content": "\\ud800"}', "surrogate"),
    ],
)
def test_wrong_texts_and_tokens_are_refused(live, path, body, said):
    error = live.post(path, body).json()["error"]
    assert (error["code"], said in error["message"]) == (400, True), error


def test_a_conversation_becomes_the_prompt_that_the_chat_reads(live):
    messages = [{"role": "user", "content": "Hi"}]
    prompt = live.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert "Hi" in prompt
    chat = live.post("/v1/chat/completions", {"messages": messages}).json()
    completed = live.post("/completion", {"prompt": prompt}).json()
    assert completed["tokens_evaluated"] == chat["usage"]["prompt_tokens"]


def test_a_model_says_what_it_is(live):
    told = live.get("/props").json()
    assert (told["model_alias"], told["total_slots"]) == (
        "echo",
        live.model.engine.stats().num_rows,
    )
    settings = told["default_generation_settings"]
    assert settings["n_ctx"] == live.model.context_tokens
    assert settings["params"]["n_predict"] == -1
    assert "im_start" in told["chat_template"]
    assert live.get("/props?model=echo").json() == told
    missing = live.get("/props?model=other")
    assert (missing.status, missing.json()["error"]["type"]) == (404, "not_found_error")


def test_slots_say_how_busy_it_is(serve_echo, wait_until):
    live = serve_echo(scheduler={"max_rows": 2}, step_delay_s=0.05)
    idle = live.get("/slots").json()
    assert [slot["is_processing"] for slot in idle] == [False, False]
    assert live.get("/slots?fail_on_no_slot=1").status == 200
    running = [live.connect("/completion", {"prompt": "a" * 99, "stream": True}) for _ in "ab"]
    wait_until(lambda: all(slot["is_processing"] for slot in live.get("/slots").json()))
    busy = live.get("/slots?fail_on_no_slot=1")
    assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
    assert busy.json()["error"]["type"] == "unavailable_error"
    for each in running:
        each.close()


def test_errors_have_llama_cpps_types(serve_echo):
    live = serve_echo(server={"keys": ["secret"]})
    assert live.get("/props").json()["error"]["type"] == "authentication_error"
    key = {"Authorization": "Bearer secret"}
    assert live.post("/props", {}, **key).json()["error"]["code"] == 405
    long = live.post("/completion", {"prompt": "a" * 600}, **key).json()["error"]
    assert (long["type"], long["code"]) == ("exceed_context_size_error", 400)


PAGE = (Path(__file__).resolve().parents[3] / "docs/llama_cpp.md").read_text(encoding="utf-8")


def test_the_page_names_every_field_and_route():
    section = PAGE.split("## Fields of `/completion`")[1].split("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", section, re.M))
    assert told == {
        name: each.description for name, each in LlamaCompletionBody.model_fields.items()
    }
    refused = PAGE.split("unless their value asks for nothing:")[1].split("Others")[0]
    assert set(re.findall(r"`(\w+)`", refused)) == HARMLESS.keys()
    routes = {f"{route.method} {route.path}" for route in SURFACE.routes}
    assert set(re.findall(r"^\| `([A-Z]+ /\S+)` \|", PAGE, re.M)) == routes
