"""Several prompts in one legacy completion, by the official client."""

import openai
import pytest

from twostroke.server.choices import MAX_CHOICES

SAMPLED = {"temperature": 1.5, "seed": 7, "max_tokens": 12}


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, prompt, **more):
    return client.completions.create(model="echo", prompt=prompt, **more)


def streamed(chunks):
    """Each choice's text, logprobs and finish reason, in the order of their indices."""
    choices = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text, values, reasons = choices.setdefault(choice.index, ([], [], []))
            text.append(choice.text)
            values += choice.logprobs.token_logprobs if choice.logprobs else []
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert all(len(reasons) == 1 for _, _, reasons in choices.values())
    return [("".join(choices[i][0]), choices[i][1], choices[i][2][0]) for i in sorted(choices)]


def test_each_prompt_has_an_answer_in_its_place(client, live):
    texts = ["one", "two!", "three"]
    ids = [list(live.model.encode(text)) for text in texts]
    for prompt in (texts, ids):
        answer = ask(client, prompt)
        assert [choice.text for choice in answer.choices] == [f"→{text}" for text in texts]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.prompt_tokens == sum(map(len, ids))
        assert answer.usage.completion_tokens == sum(len(each) + 2 for each in ids)


def test_choices_are_grouped_by_their_prompt(client):
    together = ask(client, ["ab", "cd"], n=2, **SAMPLED)
    alone = [ask(client, prompt, n=2, **SAMPLED) for prompt in ("ab", "cd")]
    texts = [choice.text for answer in alone for choice in answer.choices]
    assert [choice.text for choice in together.choices] == texts
    assert len(set(texts)) > 2
    assert together.usage.prompt_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
def test_echoed_prompts_are_scored_as_they_are_alone(client, stream):
    more = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    answer = ask(client, ["hello", "hi"], stream=stream, **more)
    found = (
        streamed(answer)
        if stream
        else [(c.text, c.logprobs.token_logprobs, c.finish_reason) for c in answer.choices]
    )
    for (text, values, reason), prompt in zip(found, ("hello", "hi"), strict=True):
        (alone,) = ask(client, prompt, **more).choices
        assert (text, values) == (alone.text, alone.logprobs.token_logprobs)
        assert (len(values), reason) == (len(prompt) + 1, "length")


def test_a_stream_says_what_whole_answers_say(client):
    prompts = ["ab", "c", "def"]
    whole = ask(client, prompts, n=2, stop="e")
    stream = ask(
        client, prompts, n=2, stop="e", stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    told = [(choice.text, choice.finish_reason) for choice in whole.choices]
    assert [(text, reason) for text, _, reason in streamed(chunks)] == told
    assert told[4] == ("→d", "stop")
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert usage.prompt_tokens == whole.usage.prompt_tokens == 6
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"prompt": ["a", [1, 10**6]]}, "prompt[1][1]", "outside of the vocabulary"),
        ({"prompt": [[1], []]}, "prompt[1]", "empty list"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt", "65 prompts with 2 answers each are 130"),
        ({"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt", "129 prompts with one answer each"),
        (
            {"prompt": ["a", "b" * 600]},
            "prompt[1]",
            "Prompt 1 of the list: The prompt is too long: it has 600",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_refuses_all_before_any_byte(live, body, param, said, stream):
    before = live.model.engine.stats()
    reply = live.post("/v1/completions", {**body, "stream": stream})
    assert (reply.status, reply.error()["param"]) == (400, param)
    assert said in reply.error()["message"]
    after = live.model.engine.stats()
    assert (after.num_waiting, after.num_steps) == (0, before.num_steps)


def test_a_client_that_goes_away_frees_the_rows_of_all_prompts(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.02)
    body = {"prompt": ["a" * 200, "b" * 200], "n": 2, "stream": True}
    with live.connect("/v1/completions", body) as raw:
        raw.head()
        assert raw.chunk()
    stats = live.model.engine.stats
    wait_until(lambda: stats().num_running == 0 and stats().num_waiting == 0)
    assert stats().num_finished == 0
