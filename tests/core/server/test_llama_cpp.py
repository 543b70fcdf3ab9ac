"""llama.cpp's own routes, as its clients ask them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import LiveServer

JSON = dict[str, Any]
ALL = {
    "index",
    "id_slot",
    "content",
    "tokens",
    "stop",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "tokens_cached",
    "generation_settings",
    "prompt",
    "has_new_line",
    "truncated",
    "stop_type",
    "stopping_word",
    "timings",
}


def complete(live: LiveServer, prompt: Any, **fields: Any) -> Any:
    reply = live.post("/completion", {"prompt": prompt, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


def streamed(live: LiveServer, prompt: Any, **fields: Any) -> list[JSON]:
    reply = live.post("/completion", {"prompt": prompt, "stream": True, **fields})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    *events, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event[6:]) for event in events]


def ids_of(live: LiveServer, text: str, **fields: Any) -> list[int]:
    return live.post("/tokenize", {"content": text, **fields}).json()["tokens"]


def refusal(live: LiveServer, path: str, body: JSON | str) -> JSON:
    reply = live.post(path, body)
    error = reply.json()["error"]
    assert set(error) == {"code", "message", "type"}
    assert error["code"] == reply.status
    return error


def test_a_whole_answer_has_every_fact(live):
    found = complete(live, "a\nb")
    assert set(found) == ALL
    assert (found["content"], found["tokens"], found["stop"]) == ("→a\nb", [], True)
    assert (found["tokens_predicted"], found["tokens_evaluated"]) == (5, 3)
    assert (found["stop_type"], found["stopping_word"], found["has_new_line"]) == ("eos", "", True)
    assert (found["prompt"], found["model"], found["truncated"]) == ("a\nb", "echo", False)
    timings = found["timings"]
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == (3, 5)
    assert timings["predicted_per_second"] > 0


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "word"),
    [
        ({"n_predict": 2}, "→a", "limit", ""),
        ({"stop": ["bc"]}, "→a", "word", "bc"),
        ({"n_predict": -1, "stop": []}, "→abcd", "eos", ""),
    ],
)
def test_both_ways_end_alike(live, fields, content, stop_type, word):
    whole = complete(live, "abcd", **fields)
    events = streamed(live, "abcd", **fields)
    assert "".join(event["content"] for event in events) == whole["content"] == content
    for last in (whole, events[-1]):
        assert (last["stop"], last["stop_type"], last["stopping_word"]) == (True, stop_type, word)
    assert [event["stop"] for event in events[:-1]] == [False] * (len(events) - 1)
    assert set(events[-1]) == ALL


def test_the_tokens_of_a_stream_are_those_of_the_whole_answer(live):
    prompt = "né€😀!"
    whole = complete(live, prompt, return_tokens=True)
    events = streamed(live, prompt)
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    assert len(whole["tokens"]) == 1 + len(prompt.encode())
    pieces = [event["content"] for event in events if event["content"]]
    assert pieces == ["→", *prompt]
    assert [event["tokens_predicted"] for event in events[:-1]] == [1, 2, 4, 7, 11, 12]


def test_a_prompt_comes_in_many_forms(live):
    ids = ids_of(live, "ab")
    for prompt in ("ab", ids, {"prompt_string": "ab"}, ["ab"], [ids]):
        found = complete(live, prompt)
        assert (found["content"], found["prompt"]) == ("→ab", "ab")
    several = complete(live, ["a", ids_of(live, "b")], n_cmpl=2)
    assert [each["content"] for each in several] == ["→a", "→a", "→b", "→b"]
    assert [each["index"] for each in several] == [0, 1, 2, 3]
    events = streamed(live, ["a", "b"])
    for number, letter in enumerate("ab"):
        own = [event["content"] for event in events if event["index"] == number]
        assert "".join(own) == f"→{letter}"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1, "a"], "mixes text and token ids"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "read text only"),
        ({"text": "a"}, "prompt must be a string"),
        ([[1, 2.5]], "prompt[0] must be a string"),
        (5, "prompt must be a string"),
        ([], "at least one"),
        (None, "prompt must be a string"),
        ([10**6], "vocabulary"),
    ],
)
def test_other_prompts_are_refused(live, prompt, said):
    error = refusal(live, "/completion", {"prompt": prompt})
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]


def test_values_are_taken_by_llama_cpps_names(live):
    fields = {
        "n_predict": 3,
        "temperature": -1,
        "top_k": -5,
        "top_p": 0.5,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "seed": 7,
        "logit_bias": [[5, -1.5], ["6", False]],
        "cache_prompt": False,
        "id_slot": 3,
        "n_keep": -1,
        "mirostat_tau": 5.0,
    }
    told = complete(live, "a", **fields)["generation_settings"]
    assert (told["n_predict"], told["temperature"], told["top_k"], told["top_p"]) == (3, 0, 0, 0.5)
    assert (told["seed"], told["repeat_penalty"]) == (7, 1.0)
    assert told["logit_bias"] == [{"token": 5, "bias": -1.5}, {"token": 6, "bias": -100.0}]
    assert complete(live, "a", seed=-1)["generation_settings"]["seed"] == 2**32 - 1
    unpunished = complete(live, "a", repeat_penalty=2.0, repeat_last_n=0)
    assert unpunished["generation_settings"]["repeat_penalty"] == 1.0


def test_a_bias_of_false_forbids_a_token(live):
    (letter,) = ids_of(live, "b")
    assert "b" not in complete(live, "ab", logit_bias=[[letter, False]], n_predict=5)["content"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("grammar", 'root ::= "a"', "send json_schema"),
        ("mirostat", 2, "only 0 is taken"),
        ("samplers", ["top_k"], "samplers"),
        ("repeat_last_n", 64, "may only be -1"),
        ("logit_bias", [["Hello", 1]], "/tokenize tells"),
        ("logit_bias", [[5, True]], "pairs"),
        ("logit_bias", 5, "pairs"),
        ("n_predict", -3, "n_predict"),
        ("n_probs", 21, "logprobs"),
        ("lora", [{"id": 0, "scale": 1}], "lora"),
        ("json_schema", {"type": 5}, "json_schema"),
    ],
)
def test_what_would_change_the_answer_is_refused(live, field, value, said):
    error = refusal(live, "/completion", {"prompt": "a", "repeat_penalty": 1.2, field: value})
    assert error["code"] == 400
    assert said in error["message"]


def test_a_schema_is_followed(live):
    found = complete(live, "a", json_schema={"const": [1, 2]})
    assert json.loads(found["content"]) == [1, 2]
    json.loads(complete(live, "7", json_schema={}, n_predict=200, seed=1)["content"])


def test_probabilities_come_with_both(live):
    whole = complete(live, "ab", n_probs=2)["completion_probabilities"]
    streams = [e["completion_probabilities"] for e in streamed(live, "ab", n_probs=2)]
    assert [entry for each in streams for entry in each] == whole
    assert [entry["token"] for entry in whole] == ["→", "a", "b"]
    assert set(whole[0]) == {"id", "token", "bytes", "logprob", "top_logprobs"}
    assert whole[0]["bytes"] == list("→".encode())
    assert [len(entry["top_logprobs"]) for entry in whole] == [2, 2, 2]


def test_a_stream_tells_how_far_the_prompt_is_and_how_fast_it_goes(live):
    prompt = "0123456789" * 30
    events = streamed(live, prompt, n_predict=3, return_progress=True, timings_per_token=True)
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told[-1]["total"] == told[-1]["processed"] == 300
    assert [each["processed"] for each in told] == sorted(each["processed"] for each in told)
    assert set(told[0]) == {"total", "cache", "processed", "time_ms"}
    paces = [event["timings"]["predicted_n"] for event in events if event["content"]]
    assert paces == [1, 2, 3]
    plain = streamed(live, prompt, n_predict=3)
    assert not any("prompt_progress" in event for event in plain)
    assert not any("timings" in event for event in plain[:-1])


def test_only_the_fields_that_are_asked_for(live):
    fields = ["content", "generation_settings/n_predict", "nothing", "content/deep"]
    assert complete(live, "a", n_predict=9, response_fields=fields) == {
        "content": "→a",
        "n_predict": 9,
    }
