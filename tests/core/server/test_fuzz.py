"""Whatever JSON is sent: a 200, or a 4xx with the error object, and the server lives."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.server.fields import SamplingFields
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.unsupported import HARMLESS

_odd = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 2**31, 2**64, 10**30, 0.5, -0.0, 1e308, "", "a"])
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
_message = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(["user", "system", "tool"]) | _odd, "content": _odd}
)
_structure = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_choice",
    "json_schema",
]
_item = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        "role": st.sampled_from(["user", "assistant"]) | _odd,
        **dict.fromkeys(("id", "call_id", "name", "arguments", "output", "content"), _odd),
    },
)
_fields = [
    *SamplingFields.model_fields,
    *ResponsesBody.model_fields,
    *HARMLESS,
    *_structure,
    "stream",
    "stream_options",
    "model",
    "regex",
]
_bodies = st.builds(
    lambda base, more: {"max_tokens": 4, **base, **more},
    st.sampled_from([{"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}, {}])
    | st.fixed_dictionaries({"prompt": _odd})
    | st.fixed_dictionaries({"messages": st.lists(_message, max_size=3) | _odd})
    | st.fixed_dictionaries({"input": st.lists(_item, max_size=3) | _odd}),
    st.dictionaries(st.sampled_from(_fields), _odd, max_size=3),
)


_paths = ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=st.sampled_from(_paths), body=_bodies)
def test_no_body_is_ever_a_500(live, path, body):
    reply = live.post(path, json.dumps(body))
    assert reply.status in (200, 400, 404), reply.body
    if reply.status != 200:
        assert reply.error()["type"] == "invalid_request_error"
        assert len(reply.body) < 2000
