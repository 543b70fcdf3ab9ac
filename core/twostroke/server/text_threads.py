"""Where prompts are tokenised: beside the event loop, by few threads.

A crowd of prompts waits for its turn here instead of taking the cores from the running streams.
Long ones have a thread of their own, so that short ones don't wait behind them, and the system
gives that thread the processor only where streams and event loop leave it some.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

LONG_CHARACTERS = 32_768  # takes about 30 ms
_NICENESS = 10


def _stand_back() -> None:
    """Lowers this thread's priority, where the system knows priorities of threads."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


_short = ThreadPoolExecutor(max_workers=2, thread_name_prefix="twostroke-text")
_long = ThreadPoolExecutor(
    max_workers=1, thread_name_prefix="twostroke-long-text", initializer=_stand_back
)


def threads_for(prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> ThreadPoolExecutor:
    """The threads that tokenise a prompt of this length."""
    return _long if _num_characters(prompt) >= LONG_CHARACTERS else _short


def _num_characters(prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> int:
    """Of the text in it; what is no text is as good as none."""
    if isinstance(prompt, str):
        return len(prompt)
    contents = (each.get("content") for each in prompt if isinstance(each, Mapping))
    return sum(_length(content) for content in contents)


def _length(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):  # parts
        return sum(_length(part.get("text")) for part in content if isinstance(part, Mapping))
    return 0
