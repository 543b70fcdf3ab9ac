"""Parameters mean what they say, or are refused before anything is made."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

CHAT = "/v1/chat/completions"
EVERY_SURFACE = pytest.mark.parametrize("path", ["/generate", "/v1/completions", CHAT])
BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
STORY = "Once upon a time"
MiB = 2**20


def body_of(path, prompt="hi"):
    return (
        {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    )


@pytest.mark.cases(8)
@EVERY_SURFACE
@BOTH_MODES
def test_a_bias_on_an_unknown_token_is_refused(live, path, stream):
    asked = {**body_of(path), "stream": stream, "logit_bias": {"191222": -100}}
    assert "191222" in live.post(path, asked).error()["message"]
    assert live.say(path, "hi", max_tokens=2).num_tokens == 2


@pytest.mark.cases(9)
@EVERY_SURFACE
@pytest.mark.parametrize("prompt", ["", [""], [[]], []], ids=repr)
def test_an_empty_prompt_is_refused_or_answered(live, path, prompt):
    asked = (
        {"messages": prompt} if path == CHAT and isinstance(prompt, list) else body_of(path, prompt)
    )
    reply = live.post(path, {**asked, "max_tokens": 4})
    if prompt == "" or (prompt == [""] and path == "/v1/completions"):
        assert reply.status == 200, "an empty text is the beginning of one"
        assert live.say(path, prompt, max_tokens=4).num_prompt_tokens == (30 if path == CHAT else 1)
    else:
        reply.error()
    assert live.say(path, "hi", max_tokens=2).num_tokens == 2


@pytest.mark.cases(10)
@EVERY_SURFACE
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "-1", '"1"', "true"])
def test_a_temperature_that_is_none_is_refused(live, path, value):
    head = json.dumps({**body_of(path), "max_tokens": 4})[:-1]
    live.post(path, f'{head},"temperature":{value}}}').error()


@pytest.mark.cases(10)
@EVERY_SURFACE
def test_a_tiny_temperature_is_greedy(live, path):
    greedy = live.say(path, STORY, max_tokens=24)
    assert live.say(path, STORY, max_tokens=24, temperature=1e-4, seed=5).text == greedy.text


@pytest.mark.cases(11)
@EVERY_SURFACE
@pytest.mark.parametrize("value", ["-1", "true", '"5"', "1.5", "9" * 4001, "9" * 5000])
def test_max_tokens_that_are_none_are_refused(live, path, value):
    shown = json.dumps(body_of(path))[:-1]
    live.post(path, f'{shown},"max_tokens":{value}}}').error()


@pytest.mark.cases(11)
@EVERY_SURFACE
@pytest.mark.parametrize("value", [10_000, 10**12])
def test_huge_max_tokens_end_with_the_context_and_take_no_memory(live, path, value):
    live.say(path, "hi", max_tokens=4)
    before = live.resident_bytes()
    said = live.say(path, "hi", max_tokens=value, stop=["."])
    assert said.reason == "stop"
    assert said.num_tokens < 200
    assert abs(live.resident_bytes() - before) < 32 * MiB


@pytest.mark.cases(12)
def test_a_seed_gives_its_text_also_in_company(live):
    def ask(seed, prompt=STORY):
        chosen = {} if seed is None else {"seed": seed}
        return live.say("/v1/completions", prompt, temperature=1.0, max_tokens=24, **chosen).text

    alone = ask(7)
    assert ask(7) == alone
    assert len({alone, ask(8), ask(None), ask(None)}) == 4
    with ThreadPoolExecutor(6) as pool:
        company = [pool.submit(ask, None, f"{STORY} number {n}") for n in range(5)]
        assert ask(7) == alone
        assert len({each.result() for each in company}) == 5


@pytest.mark.cases(13)
def test_a_prompt_is_scored_without_an_answer(live):
    prompt = "The capital of France is Paris."
    asked = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = live.post("/v1/completions", asked)
    assert reply.status == 200
    (choice,) = reply.json()["choices"]
    usage = reply.json()["usage"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert choice["text"] == prompt
    assert first is None
    assert all(value <= 0 for value in others)
    assert "".join(choice["logprobs"]["tokens"]) == prompt
    assert usage["completion_tokens"] == 0
    assert len(others) + 1 == usage["prompt_tokens"]


@pytest.mark.cases(14)
def test_ids_that_are_scored_get_one_entry_more(live):
    ids = [504, 3575, 282, 4649, 314]
    asked = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    reply = live.post("/v1/completions", asked)
    assert reply.status == 200
    (choice,) = reply.json()["choices"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert len(choice["logprobs"][name]) == len(ids) + 1
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert reply.json()["usage"]["prompt_tokens"] == len(ids)
    assert choice["text"].startswith("".join(choice["logprobs"]["tokens"][:-1]))


@pytest.mark.cases(14)
def test_each_id_gets_its_own_score(live):
    """What a model said is scored as it was said: an entry that slipped by one would show."""
    beginnings = [list(range(500, 500 + length)) for length in (3, 40, 300)]  # 300: two chunks
    said = [
        live.post(
            "/v1/completions",
            {"prompt": ids, "max_tokens": 12, "temperature": 0, "logprobs": 1, "echo": True},
        ).json()["choices"][0]["logprobs"]
        for ids in beginnings
    ]
    for ids, whole in zip(beginnings, said, strict=True):
        assert whole["token_logprobs"][0] is None
        assert len(whole["token_logprobs"]) == len(ids) + 12
        asked = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 0}
        (choice,) = live.post("/v1/completions", asked).json()["choices"]
        alone = choice["logprobs"]
        assert alone["tokens"] == whole["tokens"][: len(ids)]
        assert alone["token_logprobs"][1:] == pytest.approx(
            whole["token_logprobs"][1 : len(ids)], abs=1e-3
        )
        for token, logprob, top in zip(
            whole["tokens"][len(ids) :],
            whole["token_logprobs"][len(ids) :],
            whole["top_logprobs"][len(ids) :],
            strict=True,
        ):
            assert max(top.values()) == pytest.approx(logprob), f"greedy, but {token!r}"


@pytest.mark.cases(14)
def test_prompts_of_ids_are_scored_one_as_the_other(live):
    prompts = [[504, 3575, 282, 4649, 314], [28, 260, 2933], list(range(900, 950))]

    def scored(prompt):
        asked = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
        reply = live.post("/v1/completions", asked)
        assert reply.status == 200, reply.body
        return [choice["logprobs"]["token_logprobs"] for choice in reply.json()["choices"]]

    together = scored(prompts)
    assert [len(values) for values in together] == [5, 3, 50]
    for prompt, values in zip(prompts, together, strict=True):
        assert values[0] is None
        assert values[1:] == pytest.approx(scored([prompt])[0][1:], abs=1e-3)
        # The score of a token depends on what is before it and on nothing behind it.
        assert values[1:3] == pytest.approx(scored([prompt[:3]])[0][1:], abs=1e-2)


@pytest.mark.cases(15)
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_usage_comes_only_when_it_is_asked_for(live, path):
    def chunks(**more):
        reply = live.post(path, {**body_of(path), "max_tokens": 4, "stream": True, **more})
        frames = reply.body.decode().split("\n\n")[:-2]
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]

    for more in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        assert all(not chunk.get("usage") and chunk["choices"] for chunk in chunks(**more))
    *before, last = chunks(stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in before)


@pytest.mark.cases(16)
def test_a_name_with_slash_and_colon_is_found(small):
    name = "org/smollm2:135m"
    for shown in (name, "org%2Fsmollm2:135m", "org%2Fsmollm2%3A135m"):
        reply = small.get(f"/v1/models/{shown}")
        assert (reply.status, reply.json()["id"]) == (200, name)
    (listed,) = small.get("/v1/models").json()["data"]
    assert listed["id"] == name
    assert small.say(CHAT, "hi", model=name, max_tokens=2).num_tokens == 2
    small.get("/v1/models/org/smollm2").error(404)
