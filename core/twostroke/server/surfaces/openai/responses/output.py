"""Puts the output of a response together, item by item, and tells each step as an event.

An item is `reasoning`, a `message` with one text, or a `function_call`. Its events are: the item is
added (and its part, where it has one), deltas, the part is done, the item is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from twostroke.server.surfaces.openai.responses.items import new_item_id
from twostroke.text.parsers import CallArguments, CallBegin, Content, Delta, Reasoning

Event = dict[str, Any]
"""One typed event but for its `sequence_number`. It is written at once, or not at all."""

_TEXT_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


@dataclass(slots=True)
class _Open:
    """The item that is being written. `fixed` is what is known of it from the start."""

    fixed: dict[str, Any]
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.fixed["type"])

    def part(self, text: str) -> dict[str, Any]:
        """The one part that it has, with that much of its text."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = self.logprobs if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str) -> dict[str, Any]:
        """It as it stands; one that is in progress is shown without its text."""
        text = "" if status == "in_progress" else "".join(self.pieces)
        if self.kind == "function_call":
            return {**self.fixed, "arguments": text, "status": status}
        content = [self.part(text)] if text else []
        return {**self.fixed, "content": content, "status": status}


class Output:
    """The items of one answer. `items` are those that are done."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.items: list[dict[str, Any]] = []
        self._new_call_id = new_call_id
        self._open: _Open | None = None

    def read(
        self, deltas: Iterable[Delta], logprobs: list[dict[str, Any]] | None = None
    ) -> Iterator[Event]:
        """Takes more of the answer; `logprobs` are of the tokens of its text. Mutates self."""
        for delta in deltas:
            match delta:
                case Content(text):
                    yield from self._switch("message")
                    yield self._add(text, logprobs)
                case Reasoning(text):
                    yield from self._switch("reasoning")
                    yield self._add(text)
                case CallBegin(_, name):
                    yield from self._close("completed")
                    yield from self._begin("function_call", name)
                case CallArguments(_, text):
                    yield self._add(text)

    def finish(self, *, is_complete: bool) -> Iterator[Event]:
        """Ends the last item. Mutates self."""
        return self._close("completed" if is_complete else "incomplete")

    def _switch(self, kind: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._close("completed")
            yield from self._begin(kind)

    def _begin(self, kind: str, name: str = "") -> Iterator[Event]:
        fixed: dict[str, Any] = {"type": kind}
        if kind == "message":
            fixed = {"id": new_item_id("msg"), **fixed, "role": "assistant"}
        elif kind == "reasoning":
            fixed = {"id": new_item_id("rs"), **fixed, "summary": []}
        else:
            ids = {"id": new_item_id("fc"), "call_id": self._new_call_id()}
            fixed = {**ids, **fixed, "name": name}
        self._open = _Open(fixed)
        item = self._open.item("in_progress")
        yield {"type": "response.output_item.added", **self._place(item=item)}
        if kind != "function_call":
            part = self._open.part("")
            yield {"type": "response.content_part.added", **self._in_part(), "part": part}

    def _add(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> Event:
        """A delta of the open item. Mutates it."""
        current = self._current()
        current.pieces.append(text)
        kind = f"{_TEXT_EVENTS[current.kind]}.delta"
        event = {"type": kind, **self._in_text(current), "delta": text}
        if current.kind == "message":
            event["logprobs"] = logprobs or []
            current.logprobs += event["logprobs"]
        return event

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        closed, text = self._open, "".join(self._open.pieces)
        name = "arguments" if closed.kind == "function_call" else "text"
        done = {"type": f"{_TEXT_EVENTS[closed.kind]}.done", **self._in_text(closed), name: text}
        if closed.kind == "message":
            done["logprobs"] = closed.logprobs
        yield done
        if closed.kind != "function_call":
            part = closed.part(text)
            yield {"type": "response.content_part.done", **self._in_part(), "part": part}
        item = closed.item(status)
        yield {"type": "response.output_item.done", **self._place(item=item)}
        self.items.append(item)
        self._open = None

    def _current(self) -> _Open:
        assert self._open is not None, "arguments follow the beginning of their call"
        return self._open

    def _place(self, **more: Any) -> dict[str, Any]:
        return {"output_index": len(self.items), **more}

    def _in_part(self) -> dict[str, Any]:
        return {"item_id": self._current().fixed["id"], **self._place(), "content_index": 0}

    def _in_text(self, current: _Open) -> dict[str, Any]:
        if current.kind == "function_call":
            return {"item_id": current.fixed["id"], **self._place()}
        return self._in_part()
