"""`n`: several answers to one request, by the official client."""

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
