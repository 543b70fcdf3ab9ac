from __future__ import annotations

from typing import Any

import pytest

from twostroke.model.preparing import is_chat

MESSAGE = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", False),
        ("", False),
        (b"bytes", False),
        ([], False),
        ([1, 2], False),
        ([MESSAGE], True),
        ((MESSAGE, "no message"), True),
        ([1, MESSAGE], True),
        (MESSAGE, False),
        (None, False),
        (7, False),
    ],
)
def test_messages_are_a_sequence_with_an_object_in_it(prompt: Any, expected: bool) -> None:
    assert is_chat(prompt) is expected


def test_the_characters_of_a_text_are_not_walked_through() -> None:
    class Text(str):
        def __iter__(self) -> Any:
            raise AssertionError("a turn of Python for each character of a prompt")

    assert not is_chat(Text("a prompt"))
