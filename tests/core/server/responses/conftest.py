"""A model whose answers a test writes, and OpenAI's client for it.

The template of the bundle hands the last message to the echo model.
"""

import openai
import pytest

from twostroke.testing import make_echo_bundle

TEMPLATE = "{# <tool_call> <think> {{ tools }} #}{{ messages[-1]['content'] }}"
ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
NOW = {"type": "function", "name": "now", "parameters": {"additionalProperties": False}}
TWO_CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\na < b\n</think>\n\nIt is b."
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("responses") / "bundle"
    return make_echo_bundle(folder, chat_template=TEMPLATE, context_tokens=4096)


@pytest.fixture
def live(serve_echo, bundle):
    return serve_echo(bundle=bundle)


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def heard(live, monkeypatch):
    """The messages that the model was given, request by request."""
    asked, encode = [], live.model.encode_timed

    def listen(prompt, *others):
        asked.append(prompt)
        return encode(prompt, *others)

    monkeypatch.setattr(live.model, "encode_timed", listen)
    return asked


def ask(client, said, **more):
    return client.responses.create(model="echo", input=said, **more)


def told(client, said, **more):
    """The events of a stream; their numbers follow each other."""
    events = list(client.responses.create(model="echo", input=said, stream=True, **more))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def types_of(events):
    """The types of events in order, deltas that follow each other as one."""
    types = [event.type.removeprefix("response.") for event in events]
    return [t for i, t in enumerate(types) if not (t.endswith(".delta") and types[i - 1] == t)]
