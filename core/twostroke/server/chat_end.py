"""Where the text of a conversation ends, for surfaces that let its last message say so."""

from __future__ import annotations

from typing import Any

from twostroke.text.template import ChatEnd


def ended(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], ChatEnd]:
    """Messages, and how their text ends: the answer goes on from a last one of the assistant's.

    One that says nothing is left out, and calls are not gone on with.
    """
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last or len(messages) == 1:
        return messages, ChatEnd.BEGUN
    if not last["content"].strip():
        return messages[:-1], ChatEnd.BEGUN
    return messages, ChatEnd.OPEN
