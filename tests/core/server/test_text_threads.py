from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from twostroke.server import text_threads
from twostroke.server.text_threads import LONG_CHARACTERS, threads_for
from twostroke.text import long_texts

LONG = "a" * LONG_CHARACTERS


@pytest.mark.parametrize(
    "prompt",
    [
        LONG,
        [{"role": "user", "content": LONG}],
        [{"role": "user", "content": LONG[1:]}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": [{"type": "text", "text": LONG}]}],
    ],
)
def test_long_texts_have_a_thread_of_their_own(prompt):
    assert threads_for(prompt) is text_threads._long


@pytest.mark.parametrize(
    "prompt", ["", LONG[1:], [1] * LONG_CHARACTERS, [{"role": "user"}], [{"content": [None, {}]}]]
)
def test_short_ones_and_ids_do_not_wait_for_them(prompt):
    assert threads_for(prompt) is text_threads._short


def test_the_server_answers_while_a_long_prompt_is_tokenised(serve_echo, monkeypatch):
    live = serve_echo()
    began, may_end = threading.Event(), threading.Event()
    encode = long_texts._encode

    def gated(core, text):
        if len(text) >= LONG_CHARACTERS:
            began.set()
            assert may_end.wait(60)
        return encode(core, text)

    monkeypatch.setattr(long_texts, "_encode", gated)
    with ThreadPoolExecutor(2) as clients:
        try:
            waiting = [
                clients.submit(live.post, "/generate", {"prompt": LONG, "max_tokens": 1})
                for _ in range(2)
            ]
            assert began.wait(60)
            for _ in range(20):
                assert live.get("/health").status == 200
            assert live.post("/generate", {"prompt": "x"}).body.decode() == "→x"
            assert not any(each.done() for each in waiting)
        finally:
            may_end.set()
        for each in waiting:
            assert "the context holds" in each.result().error()["message"]
