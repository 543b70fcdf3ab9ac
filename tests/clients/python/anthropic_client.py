"""anthropic: messages, token counts, models; its exceptions and its retries."""

from __future__ import annotations

import anthropic
import httpx
from asking import FACTS, MESSAGES, SCHEMA, cell, equal, refused

client = anthropic.Anthropic(base_url=FACTS.url, api_key=FACTS.key, max_retries=0)
MESSAGE = {"model": FACTS.model, "messages": MESSAGES, "max_tokens": FACTS.max_tokens}
GREEDY = {**MESSAGE, "extra_body": {"temperature": 0}}
LONG = {**GREEDY, "max_tokens": 64}
TOOLS = {
    "tools": [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
}


def check_calls(message: anthropic.types.Message) -> None:
    equal(message.stop_reason, "tool_use")
    for block in message.content:
        equal((block.type, block.name), ("tool_use", "weather"))
        assert block.input["city"] in ("Paris", "London")


def check_text(message: anthropic.types.Message) -> None:
    equal((message.content[0].text, message.stop_reason), (FACTS.chat.text, "end_turn"))
    usage = message.usage
    read = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    equal(read, FACTS.chat.num_prompt_tokens)
    equal(usage.output_tokens, FACTS.chat.num_completion_tokens)


def check_retries() -> None:
    """While a stream of its key runs there is a 429, which is retried when the stream has ended."""
    one = client.with_options(api_key=FACTS.one_at_a_time)
    endless = {**MESSAGE, "max_tokens": 1000, "extra_body": {"ignore_eos": True}}
    running = one.messages.create(**endless, stream=True)
    next(running)
    refused(anthropic.RateLimitError, lambda: one.messages.create(**MESSAGE))
    statuses = []

    def note(response: httpx.Response) -> None:
        statuses.append(response.status_code)
        running.close()

    patient = one.with_options(
        max_retries=4, http_client=anthropic.DefaultHttpxClient(event_hooks={"response": [note]})
    )
    check_text(patient.messages.create(**GREEDY))
    equal((statuses[0], statuses[-1]), (429, 200))


@cell("messages", "whole")
def _() -> None:
    check_text(client.messages.create(**GREEDY))
    check_calls(client.messages.create(**LONG, **TOOLS))
    counted = client.messages.count_tokens(model=FACTS.model, messages=MESSAGES)
    equal(counted.input_tokens, FACTS.chat.num_prompt_tokens)
    stranger = client.with_options(api_key=FACTS.wrong_key)
    refused(anthropic.AuthenticationError, lambda: stranger.messages.create(**MESSAGE))
    other = {**MESSAGE, "model": "no-such-model"}
    refused(anthropic.NotFoundError, lambda: client.messages.create(**other))
    broken = {**MESSAGE, "model": FACTS.broken}
    refused(anthropic.ServiceUnavailableError, lambda: client.messages.create(**broken))


@cell("messages", "streamed")
def _() -> None:
    with client.messages.stream(**GREEDY) as stream:
        equal("".join(stream.text_stream), FACTS.chat.text)
        check_text(stream.get_final_message())
    with client.messages.stream(**LONG, **TOOLS) as stream:
        check_calls(stream.get_final_message())
    too_long = {**MESSAGE, "messages": [{"role": "user", "content": FACTS.too_long}]}
    error = refused(
        anthropic.BadRequestError, lambda: client.messages.create(**too_long, stream=True)
    )
    assert "prompt is too long" in str(error)
    check_retries()


@cell("models", "whole")
def _() -> None:
    equal(next(model.id for model in client.models.list()), FACTS.model)
    equal(client.models.retrieve(FACTS.model).type, "model")
    refused(anthropic.NotFoundError, lambda: client.models.retrieve("no-such-model"))
