"""How `/generate` writes its answers: as text, as NDJSON, as one JSON object.

One answer is written as it is. Of several, NDJSON lines say which `choice` they belong to, and each
choice ends with a line of its own before the last line of all; JSON has a list of `choices`; text
has them one after the other, each below a line `--- choice 0 ---`, so what a later one has said
while an earlier one was written follows it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.model import ReadAnswer, TextEvent
from twostroke.server.answers import Answer, AnswerEvent
from twostroke.server.replies import dump, timings_body
from twostroke.server.surface import error_body
from twostroke.server.surfaces.openai.tool_shapes import call_shape, finish_reason
from twostroke.server.text_threads import threads_of_length
from twostroke.server.turn import Turn
from twostroke.text.pieces import token_texts
from twostroke.types import FinishedEvent, ProgressEvent


class TextFrames:
    """Nothing but the text."""

    content_type = "text/plain; charset=utf-8"

    def __init__(self, turn: Turn) -> None:
        self._is_single = len(turn.choices) == 1
        self._held = ["" for _ in turn.choices]  # what waits for earlier choices to end
        self._has_ended = [False for _ in turn.choices]
        self._current = 0  # the choice that is being written

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """Of several choices, the first one's heading."""
        return b"" if self._is_single or index else _heading(0).encode()

    def token(self, index: int, event: TextEvent) -> bytes:
        """The token's text; empty while a character is incomplete, or another choice is written."""
        if index == self._current:
            return event.text.encode()
        self._held[index] += event.text
        return b""

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """Nothing; of several choices, what waited for this one to end."""
        self._has_ended[index] = True
        while not self._is_single and self._has_ended[self._current]:
            yield b"\n"
            self._current += 1
            if self._current == len(self._has_ended):
                return
            yield (_heading(self._current) + self._held[self._current]).encode()

    def fault(self, error: TwostrokeError) -> bytes:
        """Nothing: a message inside the text would be taken for the model's."""
        return b""


class NdjsonFrames:
    """One JSON object a line."""

    content_type = "application/x-ndjson"

    def __init__(self, turn: Turn, shown: bytes = b"") -> None:
        """`shown` stands before everything else."""
        self._turn = turn
        self._shown = shown
        self._is_single = len(turn.choices) == 1
        self._parts = [ReadAnswer(turn.new_call_id) for _ in turn.choices]

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """What stands before everything else, where nothing was written yet."""
        return self._take_shown()

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """`{"progress": {…}}`, with what is known; of several choices, `choice` before it."""
        facts = {name: value for name, value in asdict(event).items() if value is not None}
        line = dump({**self._which(index), "progress": facts}) + b"\n"
        return self._take_shown() + line

    def token(self, index: int, event: TextEvent) -> bytes:
        """`{"index", "token_id", "text"}`; of several choices, `choice` before them."""
        self._parts[index].add(self._turn.choices[index].read(event.text))
        facts = {"index": event.index, "token_id": event.token_id, "text": event.text}
        return dump({**self._which(index), **facts}) + b"\n"

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the counts, the timings; calls and reasoning where they are read."""
        turn, parts = self._turn, self._parts[index]
        parts.add(turn.choices[index].read_rest())
        facts = _facts(turn, event, parts)
        if self._is_single:
            yield dump({"done": True, **_head(turn), **facts}) + b"\n"
            return
        yield dump({**self._which(index), **facts}) + b"\n"
        if turn.is_finished:
            yield dump({"done": True, **_head(turn), **_totals(turn)}) + b"\n"

    def fault(self, error: TwostrokeError) -> bytes:
        """OpenAI's error object."""
        return dump(error_body(error)) + b"\n"

    def _take_shown(self) -> bytes:
        shown, self._shown = self._shown, b""
        return shown

    def _which(self, index: int) -> dict[str, int]:
        return {} if self._is_single else {"choice": index}


async def prompt_line(turn: Turn) -> bytes:
    """The first prompt as ids, texts, and the positions of control tokens; made in a thread."""
    ids = turn.choices[0].request.prompt_ids
    tokenizer = turn.model.tokenizer

    def line() -> bytes:
        control = [at for at, each in enumerate(ids) if each in tokenizer.control.id_set]
        texts = token_texts(tokenizer, ids)
        return dump({"prompt": {"token_ids": ids, "texts": texts, "control": control}}) + b"\n"

    return await asyncio.get_running_loop().run_in_executor(threads_of_length(len(ids)), line)


def whole_text(wholes: Sequence[Answer]) -> str:
    """The text of all answers; of several, with headings."""
    if len(wholes) == 1:
        return wholes[0].text
    return "".join(f"{_heading(i)}{whole.text}\n" for i, whole in enumerate(wholes))


def whole_body(turn: Turn, wholes: Sequence[Answer]) -> dict[str, Any]:
    """The JSON of all answers."""
    bodies = [
        {"text": whole.parts.text, **_facts(turn, whole.finished, whole.parts)} for whole in wholes
    ]
    if len(bodies) == 1:
        return {**_head(turn), **bodies[0]}
    return {"choices": bodies, **_head(turn), **_totals(turn)}


def _heading(index: int) -> str:
    return f"--- choice {index} ---\n"


def _head(turn: Turn) -> dict[str, Any]:
    return {"model": turn.model.name, "request_id": turn.request_id}


def _totals(turn: Turn) -> dict[str, Any]:
    return {
        "num_prompt_tokens": turn.num_prompt_tokens,
        "num_completion_tokens": turn.num_completion_tokens,
        "timings": timings_body(turn.timings),
    }


def _facts(turn: Turn, finished: FinishedEvent, parts: ReadAnswer) -> dict[str, Any]:
    """Of one choice."""
    calls = [call_shape(call) for call in parts.tool_calls]
    sections = {"reasoning": parts.reasoning, "tool_calls": calls} if turn.reads_sections else {}
    return {
        **sections,
        "finish_reason": finish_reason(finished, called=bool(calls)),
        "num_prompt_tokens": finished.num_prompt_tokens,
        "num_completion_tokens": finished.num_completion_tokens,
        "timings": timings_body(turn.with_blocked(finished.timings)),
    }
