"""Whatever JSON is sent: an answer, or a refusal in the surface's shape, and the server lives."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.server.surfaces.anthropic.fields import MessagesBody
from twostroke.server.surfaces.ollama.fields import OllamaChatBody, OllamaGenerateBody
from twostroke.server.surfaces.ollama.options import Options

ODD = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 2**64, 10**30, 0.5, 1e308, "", "a", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "name", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image"])},
    optional=dict.fromkeys(["text", "id", "name", "input", "tool_use_id", "content"], ODD),
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | ODD},
    optional={
        "content": st.lists(BLOCK, max_size=2) | ODD,
        **dict.fromkeys(["tool_calls", "thinking", "images", "tool_name"], ODD),
    },
)
CHANGES = {
    "options": st.dictionaries(st.sampled_from([*Options.model_fields]), ODD, max_size=2) | ODD,
    "messages": st.lists(MESSAGE, max_size=3) | ODD,
}
KINDS = {
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": MessagesBody,
    "/api/chat": OllamaChatBody,
    "/api/generate": OllamaGenerateBody,
}
BASE = {
    "max_tokens": 4,
    "prompt": "hi",
    "messages": [{"role": "user", "content": "hi"}],
    "options": {"num_predict": 4},
}


@st.composite
def requests(draw):
    path = draw(st.sampled_from([*KINDS]))
    names = draw(st.lists(st.sampled_from([*KINDS[path].model_fields]), min_size=1, max_size=3))
    return path, {**BASE, **{name: draw(CHANGES.get(name, ODD)) for name in names}}


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=requests())
def test_no_body_is_ever_a_500(live, request):
    path, body = request
    reply = live.post(path, json.dumps(body))
    assert reply.status in (200, 400, 403, 404), reply.body
    if reply.status != 200:
        told = reply.json()
        sentence = told["error"] if path.startswith("/api") else told["error"]["message"]
        assert isinstance(sentence, str)
        assert len(reply.body) < 2000
