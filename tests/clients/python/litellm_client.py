"""litellm: its providers openai, anthropic and ollama, each on its own surface."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from asking import FACTS, MESSAGES, SCHEMA, cell, equal, refused

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a list of prices

import litellm

litellm.suppress_debug_info = True
FUNCTION = {"name": "weather", "description": "the weather of a city", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
OPENAI = {"provider": "openai", "api_base": f"{FACTS.url}/v1"}
ANTHROPIC = {"provider": "anthropic", "api_base": FACTS.url}
OLLAMA = {"provider": "ollama_chat", "api_base": FACTS.url}


def ask(provider: str, model: str = FACTS.model, **fields: Any) -> Any:
    settings = {"api_key": FACTS.key, "temperature": 0, "max_tokens": FACTS.max_tokens}
    asked = {"messages": MESSAGES, "num_retries": 0, "max_retries": 0, **settings, **fields}
    return litellm.completion(f"{provider}/{model}", **asked)


def check_answer(answer) -> None:
    equal(answer.choices[0].message.content, FACTS.chat.text)
    equal(answer.choices[0].finish_reason, "stop")
    equal(answer.usage.prompt_tokens, FACTS.chat.num_prompt_tokens)
    equal(answer.usage.completion_tokens, FACTS.chat.num_completion_tokens)


def check_calls(answer) -> None:
    for call in answer.choices[0].message.tool_calls:
        equal(call.function.name, "weather")
        assert json.loads(call.function.arguments)["city"] in ("Paris", "London")


def check_refusals(surface: dict[str, str]) -> None:
    stranger = {**surface, "api_key": FACTS.wrong_key}
    refused(litellm.AuthenticationError, lambda: ask(**stranger))
    refused(litellm.NotFoundError, lambda: ask(**surface, model="no-such-model"))


def check_stream(surface: dict[str, str], **fields: Any) -> None:
    chunks = list(ask(**surface, stream=True, stream_options={"include_usage": True}, **fields))
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    check_answer(litellm.stream_chunk_builder(chunks))


def too_long(surface: dict[str, str]) -> Callable[[], Any]:
    messages = [{"role": "user", "content": FACTS.too_long}]
    return lambda: list(ask(**surface, messages=messages, stream=True))


def complete(**fields: Any) -> Any:
    return litellm.text_completion(
        model=f"text-completion-openai/{FACTS.model}",
        prompt=FACTS.prompt,
        api_base=OPENAI["api_base"],
        api_key=FACTS.key,
        temperature=0,
        max_tokens=FACTS.max_tokens,
        **fields,
    )


@cell("chat", "whole")
def _() -> None:
    check_answer(ask(**OPENAI))
    check_calls(ask(**OPENAI, **{**TOOLS, "max_tokens": 64}))
    check_refusals(OPENAI)
    form = {"type": "json_schema", "json_schema": {"name": "capital", "schema": SCHEMA}}
    constrained = ask(**OPENAI, response_format=form)
    assert json.loads(constrained.choices[0].message.content)["city"] in ("Paris", "London")


@cell("chat", "streamed")
def _() -> None:
    check_stream(OPENAI)
    refused(litellm.ContextWindowExceededError, too_long(OPENAI))


@cell("completions", "whole")
def _() -> None:
    equal(complete().choices[0].text, FACTS.completion.text)


@cell("completions", "streamed")
def _() -> None:
    pieces = [chunk.choices[0].text or "" for chunk in complete(stream=True)]
    equal("".join(pieces), FACTS.completion.text)


@cell("messages", "whole")
def _() -> None:
    check_answer(ask(**ANTHROPIC))
    check_calls(ask(**ANTHROPIC, **{**TOOLS, "max_tokens": 64}))
    check_refusals(ANTHROPIC)


@cell("messages", "streamed")
def _() -> None:
    check_stream(ANTHROPIC)
    refused(litellm.ContextWindowExceededError, too_long(ANTHROPIC))


@cell("ollama chat", "whole")
def _() -> None:
    check_answer(ask(**OLLAMA))
    refused(litellm.AuthenticationError, lambda: ask(**{**OLLAMA, "api_key": FACTS.wrong_key}))


@cell("ollama chat", "streamed")
def _() -> None:
    check_stream(OLLAMA)
