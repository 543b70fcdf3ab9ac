"""Log-probabilities on OpenAI's surfaces, whole and streamed, and echoed prompts."""

import json
import math

import openai
import pytest

HI = [{"role": "user", "content": "hi"}]
EMOJI = "😀"


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_echoed_prompt_is_scored_without_an_answer(client):
    answer = client.completions.create(
        model="echo", prompt="hello", echo=True, logprobs=1, max_tokens=0
    )
    (choice,) = answer.choices
    assert choice.text == "hello"
    assert choice.logprobs.tokens == list("hello")
    first, *others = choice.logprobs.token_logprobs
    assert first is None
    assert len(others) == 4
    assert all(value <= 0 for value in others)
    assert choice.logprobs.top_logprobs[0] is None
    assert all(len(top) == 1 for top in choice.logprobs.top_logprobs[1:])
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize("text", ["hi", "→hi"])  # one more token, or the end of the answer
def test_a_harness_gets_one_entry_more_than_the_prompt_has(client, live, text):
    ids = list(live.model.encode(text))
    answer = client.completions.create(
        model="echo", prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    found = answer.choices[0].logprobs
    assert answer.usage.completion_tokens == 1
    for array in (found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset):
        assert len(array) == len(ids) + 1
    assert answer.choices[0].text.startswith(text)
    assert max(found.top_logprobs[-1].values()) == found.token_logprobs[-1]


def test_echo_alone_puts_the_prompt_before_the_answer(client):
    whole = client.completions.create(model="echo", prompt="hi", echo=True)
    assert whole.choices[0].text == "hi→hi"
    assert whole.choices[0].logprobs is None
    chunks = client.completions.create(model="echo", prompt="hi", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hi→hi"


def test_chat_names_the_bytes_of_a_part_of_a_character(client):
    asked = {
        "model": "echo",
        "messages": [{"role": "user", "content": EMOJI}],
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**asked)
    content = whole.choices[0].logprobs.content
    spelt = b"".join(bytes(each.bytes) for each in content)
    assert EMOJI.encode() in spelt
    parts = [each for each in content if bytes(each.bytes) in EMOJI.encode()]
    assert len(parts) == 4
    assert all(each.token == "\ufffd" for each in parts)
    for each in content:
        assert len(each.top_logprobs) == 3
        assert each.top_logprobs[0].logprob == max(top.logprob for top in each.top_logprobs)
        assert sum(math.exp(top.logprob) for top in each.top_logprobs) <= 1 + 1e-6
    streamed = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content


@pytest.mark.parametrize("max_tokens", [0, 1, 50])
@pytest.mark.parametrize("prompt", ["a" + EMOJI, "→"])  # the end follows the other at once
def test_a_stream_scores_the_echoed_prompt_before_its_answer(client, prompt, max_tokens):
    asked = {"model": "echo", "prompt": prompt, "echo": True, "logprobs": 2}
    asked["max_tokens"] = max_tokens
    whole = client.completions.create(**asked).choices[0]
    chunks = list(client.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].text == prompt
    assert chunks[0].choices[0].logprobs.token_logprobs[0] is None
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [entry for part in parts for entry in getattr(part, name)]
        assert streamed == getattr(whole.logprobs, name)


def test_a_legacy_stream_says_what_a_whole_answer_says(client):
    asked = {"model": "echo", "prompt": "a" + EMOJI, "logprobs": 2}
    whole = client.completions.create(**asked).choices[0]
    tokens, values, offsets, text = [], [], [], ""
    for chunk in client.completions.create(**asked, stream=True):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.tokens
            values += chunk.choices[0].logprobs.token_logprobs
            offsets += chunk.choices[0].logprobs.text_offset
    assert text == whole.text == "→a" + EMOJI
    assert tokens == whole.logprobs.tokens
    assert tokens == ["→", "a", *(f"bytes:\\x{byte:02x}" for byte in EMOJI.encode()), "<|im_end|>"]
    assert values == whole.logprobs.token_logprobs
    assert offsets == whole.logprobs.text_offset == [0, 1, 2, 2, 2, 2, 3]


def test_false_asks_for_none(live):
    reply = live.post("/v1/completions", {"prompt": "a", "logprobs": False})
    assert reply.json()["choices"][0]["logprobs"] is None


def test_zero_alternatives_are_none(client):
    found = client.completions.create(model="echo", prompt="a", logprobs=0).choices[0].logprobs
    assert set(found.top_logprobs) == {None}
    assert all(value <= 0 for value in found.token_logprobs)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": -1}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": True}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HI, "logprobs": 2}, "logprobs"),
        ("/v1/chat/completions", {"messages": HI, "echo": True}, "echo"),
    ],
)
def test_what_is_not_meant_so_is_refused_by_name(live, path, body, param):
    reply = live.post(path, json.dumps(body))
    assert reply.status == 400, reply.body
    assert reply.error()["param"] == param
