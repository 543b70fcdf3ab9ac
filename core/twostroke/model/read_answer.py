"""An answer as it was read: its text, what the model thought, and the functions it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from twostroke.text.parsers import CallArguments, CallBegin, Content, Delta, Reasoning
from twostroke.text.parsers.spec import new_call_id


@dataclass(slots=True)
class ToolCall:
    """One call of a function. `arguments` is what the model wrote: JSON unless it erred."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ReadAnswer:
    """Collects deltas. `tool_calls` are in the order of their index."""

    new_id: Callable[[], str] = new_call_id
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Takes more. Mutates self."""
        for delta in deltas:
            match delta:
                case Content(text):
                    self.text += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegin(_, name):
                    self.tool_calls.append(ToolCall(self.new_id(), name))
                case CallArguments(index, text):
                    self.tool_calls[index].arguments += text
