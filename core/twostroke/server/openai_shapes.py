"""What `/v1/chat/completions` and `/v1/completions` share: fields, chunks, the last of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Required, TypedDict

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from twostroke.errors import TwostrokeError
from twostroke.server.fields import Int, SamplingFields
from twostroke.server.keys import ARRIVED_AT, MODELS, REQUEST_ID, SCOPE, TURN
from twostroke.server.replies import dump, error_body, timings_body, usage_body
from twostroke.server.turn import Prompt, Turn, prepare
from twostroke.text.tools import ToolUse
from twostroke.types import Constraint, FinishedEvent


class StreamOptions(BaseModel):
    """`stream_options`; what it holds besides is ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool | None = None


class OpenAIFields(SamplingFields):
    """The fields both surfaces take. SDKs send others too: those are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop_token_ids: list[Int] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


async def begin(
    request: web.Request,
    body: OpenAIFields,
    prompt: Prompt,
    constraint: Constraint | None = None,
    tools: ToolUse | None = None,
    *,
    reads_sections: bool = False,
) -> Turn:
    """Prepares the turn of a request; see `prepare`.

    Raises:
        TwostrokeError: the model, a parameter or the prompt is wrong.
    """
    given = body.sampling()
    if body.stop_token_ids is not None:
        given["stop_ids"] = frozenset(body.stop_token_ids)
    turn: Turn = await prepare(
        request.app[MODELS].find(body.model),
        prompt,
        given,
        request_id=request[REQUEST_ID],
        arrived_at=request[ARRIVED_AT],
        scope=request[SCOPE],
        constraint=constraint,
        tools=tools,
        reads_sections=reads_sections,
    )
    request[TURN] = turn
    return turn


def answer_body(
    turns: Sequence[Turn], kind: str, prefix: str, choices: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The body of a whole answer, one choice a turn; its timings are the first one's."""
    ends = Ends(len(turns))
    total = None
    for turn in turns:
        assert turn.finished is not None, "a whole answer is written after its turns have finished"
        total = ends.add(turn.finished)
    finished = turns[0].finished
    assert finished is not None
    assert total is not None
    return {
        **_head(turns[0], kind, prefix),
        "choices": [{**choice, "index": i} for i, choice in enumerate(choices)],
        "usage": usage_body(total),
        "timings": timings_body(finished.timings),
    }


def _head(turn: Turn, kind: str, prefix: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{turn.request.request_id}",
        "object": kind,
        "created": turn.created_at,
        "model": turn.model.name,
    }


class Ends:
    """Counts the choices of one request that have ended."""

    def __init__(self, num_choices: int) -> None:
        self._num_open = num_choices
        self._num_completion_tokens = 0

    def add(self, finished: FinishedEvent) -> FinishedEvent | None:
        """One more end; of the last one, with the tokens of all. Mutates self.

        The prompt is counted once.
        """
        self._num_open -= 1
        self._num_completion_tokens += finished.num_completion_tokens
        if self._num_open:
            return None
        return replace(finished, num_completion_tokens=self._num_completion_tokens)


class FrameFields(TypedDict, total=False):
    """What `SseFrames` is given by name."""

    wants_usage: Required[bool]
    index: int
    ends: Ends
    head: Turn


class SseFrames:
    """Server-sent events: chunks of one choice, the usage where it is asked for, `[DONE]`.

    Where there are several choices, each has frames of its own; `ends` is common to them.
    """

    content_type = "text/event-stream; charset=utf-8"

    def __init__(
        self,
        turn: Turn,
        kind: str,
        prefix: str,
        *,
        wants_usage: bool,
        index: int = 0,
        ends: Ends | None = None,
        head: Turn | None = None,
    ) -> None:
        """`head` is the turn whose id all choices go by; None: `turn` itself."""
        self._index = index
        self._ends = ends or Ends(1)
        self._head = _head(head or turn, kind, prefix)
        # OpenAI sends `usage: null` in every other chunk once usage is asked for.
        self._no_usage: dict[str, None] = {"usage": None} if wants_usage else {}

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        """One chunk of the answer."""
        numbered = {**choice, "index": self._index}
        return _event({**self._head, "choices": [numbered], **self._no_usage, **more})

    def closing_chunks(self, finished: FinishedEvent, choice: dict[str, Any]) -> Iterator[bytes]:
        """The chunk with finish reason and timings; of the last choice, also the usage where asked
        for, and `[DONE]`.
        """
        yield self.chunk(choice, timings=timings_body(finished.timings))
        total = self._ends.add(finished)
        if total is None:
            return
        if self._no_usage:
            yield _event({**self._head, "choices": [], "usage": usage_body(total)})
        yield b"data: [DONE]\n\n"

    def fault(self, error: TwostrokeError) -> bytes:
        """An error event, which SDKs raise."""
        return _event(error_body(error))


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + dump(value) + b"\n\n"
