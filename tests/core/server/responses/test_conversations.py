"""Conversations: items that are sent, and responses that are stored and gone on from."""

import openai
import pytest

from .conftest import ADD, NOW, PATH, THOUGHT, TWO_CALLS, ask, told


def test_a_conversation_of_items(client, heard):
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "r"}]},
        {"role": "assistant", "content": "first"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "12:00"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "v"},
    ]
    assert ask(client, items, instructions="i", tools=[ADD]).output_text == "→v"
    calls = [("c1", "add", '{"a": 1}'), ("c2", "now", "{}")]
    called = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, name, arguments in calls
    ]
    assert heard == [
        [
            {"role": "system", "content": "i"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": "first",
                "reasoning_content": "r",
                "tool_calls": called,
            },
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "tool", "tool_call_id": "c2", "content": "12:00"},
            {"role": "assistant", "content": "done"},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": "v"},
        ]
    ]


def test_an_answer_goes_back_in_as_it_came(client, heard):
    items = [{"role": "user", "content": f"{THOUGHT}{TWO_CALLS}"}]
    answer = ask(client, items, tools=[ADD, NOW])
    items += [item.to_dict() for item in answer.output]
    calls = [item for item in answer.output if item.type == "function_call"]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls
    ]
    assert "3" in ask(client, items, tools=[ADD, NOW]).output_text
    first, second = heard[1][1:3]
    assert (first["content"], second["content"]) == ("→", "It is b.")
    assert second["reasoning_content"] == "a < b"
    assert [call["id"] for call in second["tool_calls"]] == [call.call_id for call in calls]
    assert [message["role"] for message in heard[1][3:]] == ["tool", "tool"]


def test_a_response_is_stored_and_gone_on_from(client, heard):
    first = ask(client, "one", instructions="i")
    assert first.store is True
    second = ask(client, "two", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    third = told(client, "three", previous_response_id=second.id)[-1].response
    said = ["one", "→one", "two", "→two", "three"]
    assert [message["content"] for message in heard[2]] == said, "without the instructions"
    assert client.responses.retrieve(third.id).output == third.output
    listed = client.responses.input_items.list(third.id, order="asc", limit=3)
    assert [item.content[0].text for item in listed.data] == said[:3]
    assert listed.has_more
    everything = list(client.responses.input_items.list(third.id, limit=2))
    assert [item.content[0].text for item in everything] == said[::-1]


def test_a_result_may_follow_the_stored_response_that_asked_for_it(client, heard):
    asked = ask(client, TWO_CALLS, tools=[ADD, NOW])
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
        for item in asked.output
        if item.type == "function_call"
    ]
    ask(client, results, previous_response_id=asked.id, tools=[ADD, NOW])
    assert [message["role"] for message in heard[1]] == ["user", "assistant", "tool", "tool"]


def test_an_item_may_be_named_instead_of_sent(client, heard):
    first = ask(client, "one")
    items = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "2"}]
    ask(client, items)
    assert [message["content"] for message in heard[1]] == ["→one", "2"]


def test_a_response_may_be_forgotten(client):
    answer = ask(client, "hi")
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(answer.id)
    assert caught.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "more", previous_response_id=answer.id)
    assert (caught.value.param, caught.value.code) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def test_what_is_not_to_be_stored_is_not(client):
    answer = ask(client, "hi", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_response_belongs_to_its_key(serve_echo, bundle):
    live = serve_echo(bundle=bundle, server={"keys": ("one", "two")})
    mine = {"Authorization": "Bearer one"}
    answer = live.post(PATH, {"input": "hi"}, **mine).json()
    where = f"{PATH}/{answer['id']}"
    assert live.get(where, **mine).json() == answer
    for method, path in (("GET", where), ("DELETE", where), ("GET", f"{where}/input_items")):
        assert live.ask(method, path, headers={"Authorization": "Bearer two"}).status == 404
    item = {"type": "item_reference", "id": answer["output"][0]["id"]}
    reply = live.post(PATH, {"input": [item]}, Authorization="Bearer two")
    assert (reply.status, reply.error()["param"]) == (400, "input[0].id")


def test_a_server_may_store_none(serve_echo, bundle):
    live = serve_echo(bundle=bundle, server={"stored_responses": 0})
    answer = live.post(PATH, {"input": "hi"}).json()
    assert answer["store"] is False
    assert live.get(f"{PATH}/{answer['id']}").status == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_a_wrong_page_is_refused(client, live, query):
    where = f"{PATH}/{ask(client, 'hi').id}/input_items"
    assert live.get(f"{where}?{query}").status == 400


def test_the_store_keeps_what_was_used_last(client, serve_echo, bundle):
    live = serve_echo(bundle=bundle, server={"stored_responses": 12_000})
    ids = [live.post(PATH, {"input": "a" * 900}).json()["id"]]
    for _ in range(3):
        body = {"input": "b", "previous_response_id": ids[0], "metadata": {"a": "x" * 500}}
        ids.append(live.post(PATH, body).json()["id"])
    statuses = [live.get(f"{PATH}/{each}").status for each in ids]
    assert statuses[0] == statuses[-1] == 200, "the first is used by all others"
    assert 404 in statuses
