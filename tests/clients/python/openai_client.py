"""openai: chat completions, completions, responses, models; its exceptions and its retries."""

from __future__ import annotations

import json
from typing import Literal

import httpx
import openai
from asking import FACTS, MESSAGES, SCHEMA, cell, equal, refused
from pydantic import BaseModel

URL = f"{FACTS.url}/v1"
client = openai.OpenAI(base_url=URL, api_key=FACTS.key, max_retries=0)
ASKED = {"model": FACTS.model, "temperature": 0}
CHAT = {**ASKED, "messages": MESSAGES, "max_completion_tokens": FACTS.max_tokens}
COMPLETION = {**ASKED, "prompt": FACTS.prompt, "max_tokens": FACTS.max_tokens}
RESPONSE = {**ASKED, "input": MESSAGES, "max_output_tokens": FACTS.max_tokens, "store": False}
FUNCTION = {"name": "weather", "description": "the weather of a city", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}


class Capital(BaseModel):
    city: Literal["Paris", "London"]


def check_usage(usage, answer) -> None:
    equal(usage.prompt_tokens, answer.num_prompt_tokens)
    equal(usage.completion_tokens, answer.num_completion_tokens)
    equal(usage.total_tokens, answer.num_prompt_tokens + answer.num_completion_tokens)


def check_call(name: str, arguments: str) -> None:
    equal(name, "weather")
    assert json.loads(arguments)["city"] in ("Paris", "London"), arguments


@cell("chat", "whole")
def _() -> None:
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    equal((choice.message.content, choice.finish_reason), (FACTS.chat.text, "stop"))
    equal("".join(item.token for item in choice.logprobs.content), FACTS.chat.text)
    check_usage(answer.usage, FACTS.chat)
    parsed = client.chat.completions.parse(**CHAT, response_format=Capital)
    assert parsed.choices[0].message.parsed.city in ("Paris", "London")
    called = client.chat.completions.create(**{**CHAT, "max_completion_tokens": 64}, **TOOLS)
    equal(called.choices[0].finish_reason, "tool_calls")
    for call in called.choices[0].message.tool_calls:
        check_call(call.function.name, call.function.arguments)
    stranger = client.with_options(api_key=FACTS.wrong_key)
    refused(openai.AuthenticationError, lambda: stranger.chat.completions.create(**CHAT))
    other = {**CHAT, "model": "no-such-model"}
    refused(openai.NotFoundError, lambda: client.chat.completions.create(**other))


@cell("chat", "streamed")
def _() -> None:
    usage = {"stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(**CHAT, stream=True, **usage)
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), FACTS.chat.text)
    equal(chunks[-1].choices[0].finish_reason, "stop")
    check_usage(last.usage, FACTS.chat)
    long = {**CHAT, "max_completion_tokens": 64}
    with client.chat.completions.stream(**long, **TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    for call in message.tool_calls:
        check_call(call.function.name, call.function.arguments)
    too_long = {**CHAT, "messages": [{"role": "user", "content": FACTS.too_long}]}
    error = refused(
        openai.BadRequestError, lambda: client.chat.completions.create(**too_long, stream=True)
    )
    equal((error.code, error.status_code), ("context_length_exceeded", 400))


@cell("completions", "whole")
def _() -> None:
    answer = client.completions.create(**COMPLETION)
    equal(answer.choices[0].text, FACTS.completion.text)
    check_usage(answer.usage, FACTS.completion)
    scored = client.completions.create(**{**COMPLETION, "max_tokens": 1}, echo=True, logprobs=1)
    equal("".join(scored.choices[0].logprobs.tokens), scored.choices[0].text)
    equal(scored.choices[0].logprobs.token_logprobs[0], None)
    broken = {**COMPLETION, "model": FACTS.broken}
    error = refused(openai.InternalServerError, lambda: client.completions.create(**broken))
    equal(error.status_code, 503)
    assert int(error.response.headers["retry-after"]) > 0


@cell("completions", "streamed")
def _() -> None:
    """Text and, while a stream of its key runs, a 429 that is retried when the stream has ended."""
    chunks = list(client.completions.create(**COMPLETION, stream=True))
    equal("".join(chunk.choices[0].text for chunk in chunks), FACTS.completion.text)
    one = openai.OpenAI(base_url=URL, api_key=FACTS.one_at_a_time, max_retries=0)
    running = one.completions.create(**{**COMPLETION, "max_tokens": 1000}, stream=True)
    next(running)
    refused(openai.RateLimitError, lambda: one.completions.create(**COMPLETION))
    statuses = []

    def note(response: httpx.Response) -> None:
        statuses.append(response.status_code)
        running.close()

    patient = one.with_options(
        max_retries=4, http_client=httpx.Client(event_hooks={"response": [note]})
    )
    equal(patient.completions.create(**COMPLETION).choices[0].text, FACTS.completion.text)
    equal((statuses[0], statuses[-1]), (429, 200))


@cell("responses", "whole")
def _() -> None:
    answer = client.responses.create(**RESPONSE)
    equal((answer.output_text, answer.status), (FACTS.chat.text, "completed"))
    equal(answer.usage.output_tokens, FACTS.chat.num_completion_tokens)
    parsed = client.responses.parse(**RESPONSE, text_format=Capital)
    assert parsed.output_parsed.city in ("Paris", "London")
    tool = {"type": "function", "strict": True, **FUNCTION}
    long = {**RESPONSE, "max_output_tokens": 64}
    called = client.responses.create(**long, tools=[tool], tool_choice="required")
    for item in called.output:
        equal(item.type, "function_call")
        check_call(item.name, item.arguments)
    first = client.responses.create(**{**RESPONSE, "store": True})
    after = {**RESPONSE, "input": "And of Italy?", "previous_response_id": first.id}
    second = client.responses.create(**after)
    assert second.usage.input_tokens > first.usage.total_tokens
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id))


@cell("responses", "streamed")
def _() -> None:
    with client.responses.stream(**RESPONSE) as stream:
        events = list(stream)
        equal(stream.get_final_response().output_text, FACTS.chat.text)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(deltas), FACTS.chat.text)
    stranger = client.with_options(api_key=FACTS.wrong_key)
    refused(openai.AuthenticationError, lambda: stranger.responses.create(**RESPONSE, stream=True))


@cell("models", "whole")
def _() -> None:
    equal(next(model.id for model in client.models.list()), FACTS.model)
    equal(client.models.retrieve(FACTS.model).object, "model")
    refused(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
