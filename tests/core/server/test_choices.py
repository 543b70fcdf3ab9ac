"""`n`: several answers to one request, by the official client and on `/generate`."""

import json

import openai
import pytest

HI = [{"role": "user", "content": "hi"}]
SAMPLED = {"temperature": 1.5, "seed": 7, "max_tokens": 12}


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def texts_of(stream):
    """Each choice's text and finish reason, in the order of their indices."""
    texts, reasons = {}, {}
    for chunk in stream:
        for choice in chunk.choices:
            text = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
            if choice.finish_reason is not None:
                assert choice.index not in reasons  # one end each
                reasons[choice.index] = choice.finish_reason
    return [texts[i] for i in sorted(texts)], [reasons[i] for i in sorted(reasons)]


def test_choices_are_those_of_seeds_that_follow_each_other(client):
    answer = client.chat.completions.create(model="echo", messages=HI, n=3, **SAMPLED)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    several = [choice.message.content for choice in answer.choices]
    alone = [
        client.chat.completions.create(model="echo", messages=HI, **{**SAMPLED, "seed": 7 + i})
        for i in range(3)
    ]
    assert several == [each.choices[0].message.content for each in alone]
    assert answer.usage.prompt_tokens == alone[0].usage.prompt_tokens  # counted once
    total = sum(each.usage.completion_tokens for each in alone)
    assert answer.usage.completion_tokens == total


def test_streamed_choices_say_the_same(client):
    more = {"model": "echo", "n": 3, **SAMPLED}
    whole = client.chat.completions.create(messages=HI, **more)
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(messages=HI, stream=True, stream_options=options, **more)
    )
    texts, reasons = texts_of(chunks)
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert len({chunk.id for chunk in chunks}) == 1
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert [usage.completion_tokens for usage in usages] == [whole.usage.completion_tokens]


def test_legacy_completions(client):
    whole = client.completions.create(
        model="echo", prompt="abc", n=2, best_of=2, echo=True, logprobs=0
    )
    assert [choice.text for choice in whole.choices] == ["abc→abc"] * 2
    assert [len(choice.logprobs.tokens) for choice in whole.choices] == [8, 8]
    stream = client.completions.create(model="echo", prompt="abc", n=2, stop="c", stream=True)
    assert texts_of(stream) == (["→ab"] * 2, ["stop"] * 2)


@pytest.mark.parametrize("max_tokens", [0, 9])
def test_an_echoed_prompt_is_scored_once_for_all_its_answers(serve_echo, max_tokens):
    live = serve_echo()
    asked = {"prompt": ["abc", "x"], "n": 3, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    whole = live.post("/v1/completions", asked).json()["choices"]
    assert [choice["logprobs"]["tokens"][:3] for choice in whole[:3]] == [["a", "b", "c"]] * 3
    assert whole[0]["logprobs"] == whole[1]["logprobs"] == whole[2]["logprobs"]
    found = {}
    *lines, _ = filter(
        None, live.post("/v1/completions", {**asked, "stream": True}).body.split(b"\n")
    )
    for line in lines:
        for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
            parts = found.setdefault(choice["index"], {"text": "", "tokens": [], "scores": []})
            parts["text"] += choice["text"]
            parts["tokens"] += (choice["logprobs"] or {}).get("tokens", [])
            parts["scores"] += (choice["logprobs"] or {}).get("token_logprobs", [])
    for index, choice in enumerate(whole):
        assert found[index]["text"] == choice["text"]
        assert found[index]["tokens"] == choice["logprobs"]["tokens"]
        assert found[index]["scores"] == choice["logprobs"]["token_logprobs"]


def test_who_shares_a_scored_prompt_does_not_read_it(serve_echo):
    asked = {"prompt": "x" * 40, "n": 3, "echo": True, "logprobs": 1, "max_tokens": 2}
    prefill = serve_echo().post("/v1/completions", asked).json()["timings"]["prefill"]
    assert prefill["num_computed_tokens"] < 2 * 40


@pytest.mark.parametrize("n", [0, -1, 129, True, "2", 1.5])
def test_a_wrong_n_is_a_400(live, n):
    reply = live.post("/v1/chat/completions", {"messages": HI, "n": n})
    assert (reply.status, reply.error()["param"]) == (400, "n")


def test_best_of_ranks_nothing(live):
    reply = live.post("/v1/completions", {"prompt": "a", "best_of": 3})
    assert (reply.status, reply.error()["param"]) == (400, "best_of")


@pytest.mark.parametrize("stream", [False, True])
def test_more_choices_than_can_ever_wait_are_a_400(serve_echo, stream):
    live = serve_echo(scheduler={"max_rows": 1, "max_queue": 1})
    reply = live.post("/v1/completions", {"prompt": "a", "n": 9, "stream": stream})
    assert (reply.status, reply.error()["param"]) == (400, "n")
    assert live.post("/v1/completions", {"prompt": "a"}).status == 200
    assert live.model.engine.stats().num_waiting == 0


def test_a_client_that_goes_away_frees_all_rows(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.02)
    with live.connect("/v1/completions", {"prompt": "a" * 200, "n": 4, "stream": True}) as raw:
        raw.head()
        assert raw.chunk()
    stats = live.model.engine.stats
    wait_until(lambda: stats().num_running == 0 and stats().num_waiting == 0)
    assert stats().num_finished == 0


NDJSON = {"Accept": "application/x-ndjson"}
PLAIN = {"prompt": "ab", "n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 5}


def test_generate_reads_the_prompt_once_for_all_choices(serve_echo):
    live = serve_echo()
    reply = live.post("/generate", {"prompt": "x" * 40, "n": 3}, Accept="application/json")
    body = reply.json()
    assert [choice["text"] for choice in body["choices"]] == ["→" + "x" * 40] * 3
    assert (body["num_prompt_tokens"], body["num_completion_tokens"]) == (40, 3 * 42)
    stats = live.model.engine.stats()
    assert stats.num_cached_tokens == 2 * 39
    prefill = body["timings"]["prefill"]
    assert (prefill["num_computed_tokens"], prefill["num_cached_tokens"]) == (42, 78)


def test_ndjson_lines_say_whose_they_are(live):
    whole = live.post("/generate", PLAIN, Accept="application/json").json()
    lines = [json.loads(line) for line in live.post("/generate", PLAIN, **NDJSON).body.splitlines()]
    last = lines.pop()
    texts, ends = [""] * 3, {}
    for line in lines:
        if "finish_reason" in line:
            ends[line["choice"]] = line
        else:
            assert line["choice"] not in ends, "a choice has ended before"
            texts[line["choice"]] += line["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    for index, choice in enumerate(whole["choices"]):
        assert ends[index]["finish_reason"] == choice["finish_reason"]
        assert ends[index]["timings"]["ttft_ms"] > 0
    assert last["done"] is True
    assert "choice" not in last
    assert last["num_completion_tokens"] == whole["num_completion_tokens"]
    assert live.post("/generate", {**PLAIN, "n": 1}, **NDJSON).body.count(b"choice") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_text_has_the_choices_one_after_the_other(live, stream):
    whole = live.post("/generate", PLAIN, Accept="application/json").json()
    text = "".join(
        f"--- choice {index} ---\n{choice['text']}\n"
        for index, choice in enumerate(whole["choices"])
    )
    assert live.post("/generate", {**PLAIN, "stream": stream}).body.decode() == text


def test_the_first_choice_streams_while_others_are_made(serve_echo):
    live = serve_echo(step_delay_s=0.01)
    with live.connect("/generate", {"prompt": "abc", "n": 2}) as raw:
        raw.head()
        chunks, was_clean = raw.chunks()
    assert was_clean
    assert chunks[0] == b"--- choice 0 ---\n"
    assert len(chunks) > 4
    assert b"".join(chunks).decode() == "--- choice 0 ---\n→abc\n--- choice 1 ---\n→abc\n"


def test_timings_are_those_of_all_choices_and_of_each(client):
    answer = client.chat.completions.create(model="echo", messages=HI, n=3)
    each = [choice.timings for choice in answer.choices]
    total = answer.timings
    assert total["ttft_ms"] == min(timings["ttft_ms"] for timings in each)
    assert total["total_ms"] == max(timings["total_ms"] for timings in each)
    last_ms = max(timings["ttft_ms"] + timings["decode_ms"] for timings in each)
    assert total["ttft_ms"] + total["decode_ms"] == pytest.approx(last_ms, abs=0.01)
    tokens_per_s = (answer.usage.completion_tokens - 1) * 1e3 / total["decode_ms"]
    assert total["decode_tokens_per_s"] == pytest.approx(tokens_per_s, rel=0.01)
    num_read = sum(timings["prefill"]["num_computed_tokens"] for timings in each)
    assert total["prefill"]["num_computed_tokens"] == num_read
    alone = client.chat.completions.create(model="echo", messages=HI)
    assert not hasattr(alone.choices[0], "timings")


def test_the_log_line_counts_all_choices(live, caplog):
    caplog.set_level("INFO", "twostroke.server")
    live.post("/v1/completions", {"prompt": ["abc", "a"], "n": 2, "max_tokens": 4})
    (line,) = [r.getMessage() for r in caplog.records if r.name == "twostroke.server"]
    facts = dict(fact.split("=") for fact in line.split() if "=" in fact)
    assert (facts["prompt_tokens"], facts["choices"]) == ("4", "4")
    assert facts["completion_tokens"] == "14"
    assert facts["finish"] == "length,length,stop,stop"
