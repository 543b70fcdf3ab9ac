"""What OpenAI's routes answer fits the official client's own types, event by event.

The client itself builds its types without checking them, so it would not complain.
"""

import json

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.model import Model
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> <think> #}{% if tools %}{% endif %}{{ messages[-1]['content'] }}"
SAID = '<think>\nhm\n</think>\nWell.<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
FUNCTION = {"name": "now", "description": "Tells the time.", "parameters": {"type": "object"}}
CHAT = {
    "messages": [{"role": "user", "content": SAID}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "logprobs": True,
    "top_logprobs": 1,
    "service_tier": "auto",
    "prediction": {"type": "content", "content": "→"},
    "stream_options": {"include_usage": True, "include_obfuscation": True},
}
TEXT = {"prompt": ["abc", "d"], "n": 2, "logprobs": 1}  # an echo begins with null, as it should
RESPONSE = {
    "input": SAID,
    "instructions": "Be brief.",
    "tools": [{"type": "function", "strict": False, **FUNCTION}],
    "tool_choice": "auto",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "metadata": {"a": "b"},
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=2048)


@pytest.fixture
def live(serve_echo, bundle):
    return serve_echo(bundle=bundle)


def events(live, path, body):
    lines = live.post(path, {**body, "stream": True}).body.splitlines()
    data = [line[6:] for line in lines if line.startswith(b"data: ")]
    return [json.loads(each) for each in data if each != b"[DONE]"]


def test_chat_completions(live):
    whole = live.post("/v1/chat/completions", CHAT).json()
    assert ChatCompletion.model_validate(whole).choices[0].message.tool_calls
    chunks = events(live, "/v1/chat/completions", CHAT)
    assert len([ChatCompletionChunk.model_validate(chunk) for chunk in chunks]) > 10


def test_completions(live):
    assert len(Completion.model_validate(live.post("/v1/completions", TEXT).json()).choices) == 4
    for chunk in events(live, "/v1/completions", TEXT):
        # The type of a stream is that of a whole, whose finish reason is never null.
        choices = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in chunk["choices"]]
        Completion.model_validate({**chunk, "choices": choices})


@pytest.mark.parametrize("more", [{}, {"max_output_tokens": 5}, {"tool_choice": "required"}])
def test_responses(live, more):
    whole = live.post("/v1/responses", {**RESPONSE, **more}).json()
    Response.model_validate(whole)
    items = live.get(f"/v1/responses/{whole['id']}/input_items").json()
    ResponseItemList.model_validate(items)
    told = events(live, "/v1/responses", {**RESPONSE, **more})
    for event in told:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    assert told[-1]["response"].keys() == whole.keys()


def test_models(live):
    (model,) = live.get("/v1/models").json()["data"]
    assert Model.model_validate(model).id == "echo"
