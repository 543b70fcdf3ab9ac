"""What `/v1/chat/completions` and `/v1/completions` share: fields, chunks, the last of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from twostroke.errors import TwostrokeError
from twostroke.server.fields import Count, Int, QueueFields, SamplingFields
from twostroke.server.replies import dump, timings_body, usage_body
from twostroke.server.surface import error_body
from twostroke.server.surfaces.openai.obfuscation import obfuscation
from twostroke.server.surfaces.openai.structure import StructureFields
from twostroke.server.turn import Turn
from twostroke.text.template_variables import check_variables
from twostroke.types import FinishedEvent


class StreamOptions(BaseModel):
    """`stream_options`; what it holds besides is ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class OpenAIFields(SamplingFields, QueueFields, StructureFields):
    """The fields both surfaces take. SDKs send others too: those are ignored."""

    model: str | None = None
    """which one, by name or alias; left out: `server.default_model`, or the first"""
    n: Count = None  # `num_choices` checks it, and `best_of`
    """answers to each prompt, 1 to 128; they are taken or refused together"""
    stream: bool | None = None
    """whether tokens are sent as they are made"""
    stream_options: StreamOptions | None = None
    """`include_usage`: token counts in a last chunk of their own; `include_obfuscation`: chunks
    are filled up with random letters, so that their sizes say less (default false)"""
    stop_token_ids: list[Int] | None = None
    """tokens that end the answer"""
    service_tier: (
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None
    ) = None
    """OpenAI's names; the answer says `default`, since there is one tier"""

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_obfuscation(self) -> bool:
        """Whether chunks are filled up, so that their sizes say less."""
        return bool(self.stream_options and self.stream_options.include_obfuscation)

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.stop_token_ids is not None:
            given["stop_ids"] = frozenset(self.stop_token_ids)
        return given


def answer_body(
    turn: Turn, body: OpenAIFields, kind: str, prefix: str, choices: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The body of whole answers. Of several, each also tells its own timings."""
    if len(choices) > 1:
        each = [timings_body(end.timings) for end in turn.ends]
        choices = [{**c, "timings": timings} for c, timings in zip(choices, each, strict=True)]
    return {
        **_head(turn, body, kind, prefix),
        "choices": [{**choice, "index": i} for i, choice in enumerate(choices)],
        "usage": usage_body(turn),
        "timings": timings_body(turn.timings),
    }


def _head(turn: Turn, body: OpenAIFields, kind: str, prefix: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{turn.request_id}",
        "object": kind,
        "created": turn.created_at,
        "model": turn.model.name,
        "system_fingerprint": turn.model.fingerprint,
        # The tier that served it: there is one only.
        **({} if body.service_tier is None else {"service_tier": "default"}),
    }


class SseFrames:
    """Server-sent events: chunks of one choice each, the usage where it is asked for, `[DONE]`."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, turn: Turn, body: OpenAIFields, kind: str, prefix: str) -> None:
        self._turn = turn
        self._head = _head(turn, body, kind, prefix)
        # OpenAI sends `usage: null` in every other chunk once usage is asked for.
        self._no_usage: dict[str, None] = {"usage": None} if body.wants_usage else {}
        self._obfuscates = body.wants_obfuscation

    def chunk(self, index: int, choice: dict[str, Any], **more: Any) -> bytes:
        """One chunk of the choice `index`."""
        numbered = {**choice, "index": index}
        if self._obfuscates:
            more["obfuscation"] = obfuscation(len(dump(choice)))
        return _event({**self._head, "choices": [numbered], **self._no_usage, **more})

    def closing_chunks(
        self, index: int, finished: FinishedEvent, choice: dict[str, Any]
    ) -> Iterator[bytes]:
        """The chunk with finish reason and timings; of the last choice also the usage where it is
        asked for, with the timings of all where there are several, and `[DONE]`.
        """
        turn = self._turn
        yield self.chunk(index, choice, timings=timings_body(turn.with_blocked(finished.timings)))
        if not turn.is_finished:
            return
        if self._no_usage:
            of_all = {"timings": timings_body(turn.timings)} if len(turn.choices) > 1 else {}
            yield _event({**self._head, "choices": [], "usage": usage_body(turn), **of_all})
        yield b"data: [DONE]\n\n"

    def fault(self, error: TwostrokeError) -> bytes:
        """An error event, which SDKs raise."""
        return _event(error_body(error))


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def template_variables(effort: str | None, verbosity: str | None, given: Any) -> dict[str, Any]:
    """Values for chat templates that ask for them; those in `given` (a body's) come first.

    No effort means no thinking, for which many templates have another name.

    Raises:
        RequestError: they are wrong.
    """
    named: dict[str, Any] = {"reasoning_effort": effort, "verbosity": verbosity}
    if effort == "none":
        named["enable_thinking"] = False
    known = {name: value for name, value in named.items() if value is not None}
    return check_variables({**known, **check_variables(given)})
