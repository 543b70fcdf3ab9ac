from __future__ import annotations

from typing import Any

import pytest

from twostroke.errors import RequestError
from twostroke.text import check_messages


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_text_parts_are_joined_as_they_are() -> None:
    parts = [text_part("What is"), text_part(" 2+2?")]
    assert check_messages([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "What is 2+2?"}
    ]


def test_developer_is_system() -> None:
    assert check_messages([{"role": "developer", "content": "x"}])[0]["role"] == "system"


def test_what_clients_leave_null_does_no_harm() -> None:
    sent = {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "name": "n"}
    assert check_messages([sent]) == [{"role": "assistant", "content": "x"}]
    assert sent["name"] == "n"


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"content": "x"}, "messages[1].role", "is missing"),
        ({"role": "user"}, "messages[1].content", "is missing"),
        ({"role": "user", "content": None}, "messages[1].content", "is missing"),
        ({"role": "user", "content": 5}, "messages[1].content", "not a number"),
        ({"role": "user", "content": True}, "messages[1].content", "not a boolean"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content", "not an object"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]", "text part"),
        ({"role": "user", "content": [None]}, "messages[1].content[0]", "text part"),
        ({"role": "im_end", "content": "x"}, "messages[1].role", "must be one of system"),
        ({"role": ["user"], "content": "x"}, "messages[1].role", "must be one of system"),
        ({"role": "function", "content": "x"}, "messages[1].role", "must be one of system"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id", "must be the id"),
        ({"role": "assistant"}, "messages[1].content", "is missing"),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "messages[1].function_call",
            "send tool_calls",
        ),
        ({"role": "assistant", "tool_calls": 5}, "messages[1].tool_calls", "list of calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]", "must be"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            "messages[1].tool_calls[0].function.arguments",
            "as a string",
        ),
        ("hi", "messages[1]", "not a string"),
        (None, "messages[1]", "not null"),
    ],
)
def test_what_is_wrong_is_named(message: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check_messages([{"role": "user", "content": "fine"}, message])
    assert caught.value.param == param
    assert caught.value.status == 400
    assert str(caught.value).startswith(param)


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "images are not supported"),
        ({"type": "input_audio", "input_audio": {}}, "audio are not supported"),
        ({"type": "file", "file": {}}, "files are not supported"),
    ],
)
def test_media_are_refused_by_name(part: dict[str, Any], word: str) -> None:
    with pytest.raises(RequestError, match=word) as caught:
        check_messages([{"role": "user", "content": [text_part("see"), part]}])
    assert caught.value.param == "messages[0].content[1]"


@pytest.mark.parametrize("messages", [[], "hi", {"role": "user"}, 5, None])
def test_only_a_list_of_messages_will_do(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_messages(messages)
    assert caught.value.param == "messages"
