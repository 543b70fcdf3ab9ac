"""OpenAI's surfaces, by the official client and by the bytes on the wire."""

import json

import openai
import pytest

from twostroke.types import FinishReason

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


ANSWER = "→user\nhi"  # the prompt as the template writes it, to the end-of-turn token
NUM_ANSWER_TOKENS = 10  # with `<|im_start|>`, which has no text, and the end-of-turn token


def events(reply):
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    lines = reply.body.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_chat_whole(client):
    answer = client.chat.completions.create(model="echo", messages=HI, max_tokens=50)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == NUM_ANSWER_TOKENS
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + NUM_ANSWER_TOKENS
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id.removeprefix("chatcmpl-")
    assert answer.timings["ttft_ms"] > 0


def test_chat_streamed(client):
    stream = client.chat.completions.create(
        model="echo", messages=HI, max_completion_tokens=5, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "→use"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in chunks)


def test_chat_stream_helper_accumulates(client):
    with client.chat.completions.stream(model="echo", messages=HI) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER


def test_completion_whole_and_streamed(client):
    whole = client.completions.create(model="echo", prompt="abc")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("→abc", "stop")
    chunks = list(client.completions.create(model="echo", prompt="abc", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "→abc"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]


async def test_the_asynchronous_client(live):
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        stream = await client.completions.create(model="echo", prompt="abc", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "→abc"


def test_usage_comes_only_when_asked_for(live):
    body = {"prompt": "abc", "stream": True}
    assert all("usage" not in event for event in events(live.post("/v1/completions", body)))
    for options in ({}, {"include_usage": False}, None):
        asked = {**body, "stream_options": options}
        assert all("usage" not in event for event in events(live.post("/v1/completions", asked)))
    asked = {**body, "stream_options": {"include_usage": True, "more": 1}}
    *before, last = events(live.post("/v1/completions", asked))
    assert last["choices"] == []
    counts = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert last["usage"] == {
        **counts,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert all(event["usage"] is None for event in before)


def test_the_role_comes_first_and_the_reason_last(live):
    reply = live.post("/v1/chat/completions", {"messages": HI, "max_tokens": 3, "stream": True})
    first, *deltas, last = events(reply)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"] for event in deltas] == [
        {"content": "→"},
        {"content": "u"},
    ]
    assert last["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert last["timings"]["prefill_ms"] > 0
    assert len({(e["id"], e["created"], e["object"], e["model"]) for e in (first, *deltas)}) == 1


def test_each_token_is_an_event_of_its_own_chunk(live):
    with live.connect("/v1/completions", {"prompt": "abc", "stream": True}) as stream:
        stream.head()
        chunks, ended_cleanly = stream.chunks()
    assert ended_cleanly
    assert [chunk.count(b"data: ") for chunk in chunks] == [1] * 6
    assert chunks[-1] == b"data: [DONE]\n\n"


def test_a_client_sees_errors_as_what_they_are(client):
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served here") as caught:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="audio is not supported") as caught:
        client.chat.completions.create(model="echo", messages=HI, extra_body={"audio": {"a": 1}})
    assert caught.value.param == "audio"


def test_unknown_fields_are_ignored(live):
    body = {"prompt": "abc", "user": "me", "metadata": {"a": "b"}, "some_new_field": [1]}
    assert live.post("/v1/completions", body).json()["choices"][0]["text"] == "→abc"


def test_extensions_of_other_servers_are_understood(live):
    stop_id = live.model.encode("c")[-1]
    body = {"prompt": "abcd", "stop_token_ids": [stop_id], "top_k": 1, "min_p": 0.1}
    choice = live.post("/v1/completions", body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("→ab", FinishReason.STOP)


def test_models_are_listed_with_the_limit_that_is_enforced(client, live):
    models = client.models.list().data
    assert [model.id for model in models] == ["echo"]
    limit = models[0].max_model_len
    assert limit == live.model.context_tokens
    reply = live.post("/v1/completions", {"prompt": "x" * limit})
    assert reply.status == 400
    assert str(limit) in reply.error()["message"]


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_routes_answer_without_the_prefix_too(live, prefix):
    assert live.get(f"{prefix}/models").json()["data"][0]["id"] == "echo"
    assert live.post(f"{prefix}/completions", {"prompt": "a"}).status == 200
    assert live.post(f"{prefix}/chat/completions", {"messages": HI}).status == 200


@pytest.mark.parametrize("name", ["org/name:tag", "org%2Fname:tag", "org%2Fname%3Atag"])
def test_a_model_id_may_hold_slashes_and_colons(serve_echo, name):
    live = serve_echo(name="org/name:tag")
    reply = live.get(f"/v1/models/{name}")
    assert (reply.status, reply.json()["id"]) == (200, "org/name:tag")
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        assert client.models.retrieve("org/name:tag").id == "org/name:tag"
    answer = live.post("/v1/completions", {"model": "org/name:tag", "prompt": "a"}).json()
    assert answer["model"] == "org/name:tag"
