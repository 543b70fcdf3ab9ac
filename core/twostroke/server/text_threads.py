"""Where prompts are tokenised: beside the event loop, by few threads.

A crowd of prompts waits for its turn here instead of taking the cores from the running streams.
Long ones have a thread of their own, so that short ones don't wait behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twostroke.model.preparing import is_chat
from twostroke.text.long_texts import LONG_CHARACTERS

_short = ThreadPoolExecutor(max_workers=2, thread_name_prefix="twostroke-text")
_long = ThreadPoolExecutor(max_workers=1, thread_name_prefix="twostroke-long-text")


def threads_for(prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> ThreadPoolExecutor:
    """The threads that tokenise a prompt of this length."""
    return threads_of_length(_num_characters(prompt))


def threads_of_length(num_items: int) -> ThreadPoolExecutor:
    """The threads for what has so many characters, or tokens."""
    return _long if num_items >= LONG_CHARACTERS else _short


def _num_characters(prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> int:
    """Of the text in it; what is no text is as good as none."""
    if isinstance(prompt, str):
        return len(prompt)
    if not is_chat(prompt):  # ids
        return 0
    contents = (each.get("content") for each in prompt if isinstance(each, Mapping))
    return sum(_length(content) for content in contents)


def _length(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):  # parts
        return sum(_length(part.get("text")) for part in content if isinstance(part, Mapping))
    return 0
