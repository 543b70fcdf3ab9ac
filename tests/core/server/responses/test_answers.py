"""Answers as items and as typed events: texts, calls, reasoning, schemas, log-probabilities."""

import json

import pytest

from .conftest import ADD, NOW, PATH, THOUGHT, TWO_CALLS, ask, told, types_of


def without_ids(item):
    """An item of an answer as plain data, but for ids."""
    return {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")}


def test_a_text(client):
    answer = ask(client, "hi", instructions="Say it.", metadata={"a": "b"}, temperature=0)
    assert answer.output_text == "→hi"
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (answer.status, answer.object, answer.error) == ("completed", "response", None)
    assert answer.id.removeprefix("resp_") == answer._request_id
    assert answer.incomplete_details is None
    assert (answer.instructions, answer.metadata) == ("Say it.", {"a": "b"})
    assert (answer.temperature, answer.tool_choice, answer.tools) == (0, "auto", [])
    assert answer.completed_at >= answer.created_at
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (4, 0)
    assert usage.input_tokens_details.cached_tokens == 0


def test_the_events_of_a_text(client):
    events = told(client, "hi")
    assert types_of(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    first, final = events[0].response, events[-1].response
    assert (first.status, first.output, first.usage, first.id) == (
        "in_progress",
        [],
        None,
        final.id,
    )
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "→hi"
    added, done = events[2].item, events[-2].item
    assert (added.status, added.content) == ("in_progress", [])
    assert done == final.output[0]
    assert {e.item_id for e in events if hasattr(e, "item_id")} == {done.id}


def test_the_bytes_on_the_wire(live):
    body = live.post(PATH, {"input": "a", "stream": True}).body.decode()
    frames = [frame.split("\n") for frame in body.split("\n\n")]
    assert frames.pop() == [""]
    for name, data in frames:
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert "[DONE]" not in body


def test_the_clients_own_accumulator(client):
    asked = {"model": "echo", "input": f"{THOUGHT}{TWO_CALLS}", "tools": [ADD, NOW]}
    with client.responses.stream(**asked) as found:
        final = found.get_final_response()
    assert [item.type for item in final.output[:3]] == ["message", "reasoning", "message"]
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(c.name, c.arguments) for c in calls] == [("add", '{"a": 1}'), ("now", "{}")]


def test_a_whole_answer_is_what_the_stream_ends_with(client):
    text = f"{THOUGHT}{TWO_CALLS}"
    whole = ask(client, text, tools=[ADD, NOW])
    streamed = told(client, text, tools=[ADD, NOW])[-1].response
    assert list(map(without_ids, whole.output)) == list(map(without_ids, streamed.output))
    assert whole.usage.output_tokens_details == streamed.usage.output_tokens_details
    assert whole.usage.total_tokens == streamed.usage.total_tokens


def test_calls(client):
    answer = ask(client, TWO_CALLS, tools=[ADD, NOW])
    first, second = [item for item in answer.output if item.type == "function_call"]
    assert (first.name, json.loads(first.arguments), first.status) == ("add", {"a": 1}, "completed")
    assert (second.name, second.arguments) == ("now", "{}")
    assert first.call_id != second.call_id
    assert first.id.startswith("fc_")
    assert answer.tools[0].name == "add"


def test_the_events_of_calls(client):
    events = told(client, TWO_CALLS, tools=[ADD, NOW])
    item = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert types_of(events)[8:-1] == [*item, "output_item.done"] * 2
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert [e.output_index for e in deltas] == sorted(e.output_index for e in deltas)
    assert "".join(e.delta for e in deltas if e.output_index == 1) == '{"a": 1}'
    (done, _) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == '{"a": 1}'


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "add"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "add"}],
        },
    ],
)
def test_calls_are_enforced(client, choice):
    more = {"tools": [ADD], "tool_choice": choice, "parallel_tool_calls": False}
    answer = ask(client, "no call at all", **more)
    (call,) = answer.output
    assert json.loads(call.arguments)["a"] in (1, 2)
    assert answer.parallel_tool_calls is False


def test_reasoning(client):
    answer = ask(client, THOUGHT)
    reasoning = next(item for item in answer.output if item.type == "reasoning")
    assert (reasoning.content[0].text, reasoning.summary) == ("a < b", [])
    assert answer.output_text == "→It is b."
    num_thought = answer.usage.output_tokens_details.reasoning_tokens
    assert len("a < b") <= num_thought < len(THOUGHT) - len("It is b.")


def test_the_events_of_reasoning(client):
    events = told(client, THOUGHT)
    start = types_of(events).index("reasoning_text.delta") - 2
    assert types_of(events)[start : start + 6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]


def test_an_answer_that_is_cut_off_is_incomplete(client):
    answer = ask(client, "hello", max_output_tokens=3)
    assert (answer.status, answer.output_text) == ("incomplete", "→he")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    last = told(client, "hello", max_output_tokens=3)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_a_schema(client):
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "seven", "schema": schema, "strict": True}
    answer = ask(client, "anything", text={"format": form})
    assert json.loads(answer.output_text)["a"] == 7
    assert answer.text.format.name == "seven"
    free = ask(client, "anything", text={"format": {"type": "json_object"}}, max_output_tokens=40)
    assert free.output_text.lstrip().startswith("{")


def test_log_probabilities(client):
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = ask(client, "hi", **more)
    found = answer.output[0].content[0].logprobs
    assert [each.token for each in found[:3]] == ["→", "h", "i"]
    assert all(len(each.top_logprobs) == 2 for each in found)
    deltas = [e for e in told(client, "hi", **more) if e.type == "response.output_text.delta"]
    assert [each.token for e in deltas for each in e.logprobs] == ["→", "h", "i"]
    assert ask(client, "hi").output[0].content[0].logprobs == []


def test_input_tokens_are_counted_without_an_answer(client, live):
    counted = client.responses.input_tokens.count(model="echo", input="hello", instructions="i")
    assert counted.input_tokens == ask(client, "hello", instructions="i").usage.input_tokens
    assert live.model.engine.stats().num_finished == 1


def test_obfuscation_fills_deltas_up(live):
    body = {"input": "hello", "stream": True}
    assert "obfuscation" not in live.post(PATH, body).body.decode()
    asked = {**body, "stream_options": {"include_obfuscation": True}}
    lines = live.post(PATH, asked).body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [e for e in events if "delta" in e]
    assert {len((e["delta"] + e["obfuscation"]).encode()) % 16 for e in deltas} == {0}
