"""`POST /v1/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Unpack

from aiohttp import web
from pydantic import BeforeValidator

from twostroke.errors import RequestError
from twostroke.model import TextEvent
from twostroke.server.body import read_json
from twostroke.server.choices import choices_of, gather_all, num_choices
from twostroke.server.fields import Int, check_shape
from twostroke.server.logprobs import legacy_logprobs, offsets_of
from twostroke.server.openai_shapes import (
    Ends,
    FrameFields,
    OpenAIFields,
    SseFrames,
    answer_body,
    begin,
)
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.structure import asked_constraint
from twostroke.server.turn import Answer, Prompt, Turn, gather
from twostroke.server.unsupported import refuse_unsupported
from twostroke.types import FinishedEvent, TokenId, TokenLogprob


def _unless_false(value: Any) -> Any:
    return None if value is False else value


class CompletionBody(OpenAIFields):
    """The body of a legacy completion, but for its prompt."""

    echo: bool | None = None
    logprobs: Annotated[Int | None, BeforeValidator(_unless_false)] = None  # 0: no alternatives

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.logprobs is not None:
            given["logprobs"] = self.logprobs
            if self.echo:
                given["prompt_logprobs"] = self.logprobs
        return given


async def completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/completions`, streamed or whole.

    With `echo` the text begins with the prompt; of a prompt that came as ids, with their text,
    which leaves control tokens out. With `logprobs` too, its tokens are scored.
    """
    raw = await read_json(request)
    body = check_shape(CompletionBody, raw)
    refuse_unsupported(raw, taken=("n", "best_of", "echo", "logprobs"))
    n = num_choices(raw)
    if body.stream and body.echo and body.logprobs is not None:
        raise RequestError(
            "The logprobs of an echoed prompt are not streamed; leave out one of the three.",
            param="stream",
            code="unsupported_parameter",
        )
    prompt = one_prompt(raw)
    turn = await begin(request, body, prompt, asked_constraint(raw))
    echoed = _echoed(turn, prompt) if body.echo else ""
    turns = choices_of(turn, n)
    if body.stream:
        ends = Ends(n)
        wants = body.wants_usage
        frames = [
            CompletionFrames(each, echoed, wants_usage=wants, index=i, ends=ends, head=turn)
            for i, each in enumerate(turns)
        ]
        siblings = list(zip(turns[1:], frames[1:], strict=True))
        return await stream(request, turn, frames[0], siblings=siblings)
    wholes = await gather_all(turns) if n > 1 else [await gather(turn)]
    choices = []
    for whole in wholes:
        logprobs = None
        if body.logprobs is not None:
            logprobs = await asyncio.to_thread(_whole_logprobs, turn, whole, echoed)
        choices.append(_choice(echoed + whole.text, whole.finished.reason, logprobs))
    return json_reply(answer_body(turns, "text_completion", "cmpl", choices))


def _echoed(turn: Turn, prompt: Prompt) -> str:
    return (
        prompt if isinstance(prompt, str) else turn.model.tokenizer.decode(turn.request.prompt_ids)
    )


def _whole_logprobs(turn: Turn, whole: Answer, echoed: str) -> dict[str, Any]:
    """One entry for each token of an echoed prompt and of the answer, its end included."""
    tokenizer, finished = turn.model.tokenizer, whole.finished
    ids: list[TokenId] = []
    offsets: list[int] = []
    if finished.prompt_logprobs:
        ids += turn.request.prompt_ids
        offsets += offsets_of(tokenizer, ids)
    answered = whole.logprobs
    offsets += [len(echoed) + offset for offset in whole.offsets]
    if finished.end_logprob is not None:
        answered = (*answered, finished.end_logprob)
        offsets.append(len(echoed) + len(whole.text))
    ids += [each.token_id for each in answered]
    return legacy_logprobs(tokenizer, ids, (*finished.prompt_logprobs, *answered), offsets)


def one_prompt(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a body: a string, token ids, or a list with one of them.

    Raises:
        RequestError: there is none, there are several, or it is something else.
    """
    value = body.get("prompt")
    if value is None:
        raise RequestError("prompt is missing.", param="prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise RequestError(
                f"prompt holds {len(value)} prompts; this server takes one a request. Send them "
                "as requests of their own: they are batched all the same.",
                param="prompt",
                code="unsupported_parameter",
            )
        value = value[0]
    is_ids = isinstance(value, list) and set(map(type, value)) <= {int}
    if isinstance(value, str) or is_ids:
        return value
    raise RequestError("prompt must be a string or a list of token ids.", param="prompt")


class CompletionFrames(SseFrames):
    """Chunks with text, the echoed prompt first; the finish reason comes last."""

    def __init__(self, turn: Turn, echoed: str = "", **more: Unpack[FrameFields]) -> None:
        super().__init__(turn, "text_completion", "cmpl", **more)
        self._tokenizer = turn.model.tokenizer
        self._echoed = echoed
        self._num_characters = len(echoed)  # sent or certain so far
        self._waiting: list[tuple[TokenLogprob, int]] = []  # and where each begins in the text

    def opening(self) -> bytes:
        """The prompt where it is echoed; this surface has no roles."""
        return self.chunk(_choice(self._echoed)) if self._echoed else b""

    def token(self, event: TextEvent) -> bytes:
        """The token's text; no chunk while a character is incomplete."""
        if event.logprob is not None:
            self._waiting.append((event.logprob, self._num_characters))
        self._num_characters += len(event.text)
        return self.chunk(_choice(event.text, None, self._logprobs())) if event.text else b""

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the usage where asked for, `[DONE]`."""
        if event.end_logprob is not None:
            self._waiting.append((event.end_logprob, self._num_characters))
        return self.closing_chunks(event, _choice("", event.reason, self._logprobs()))

    def _logprobs(self) -> dict[str, Any] | None:
        """Those since the last chunk. Mutates self."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return None
        found, offsets = [each for each, _ in waiting], [offset for _, offset in waiting]
        return legacy_logprobs(self._tokenizer, [each.token_id for each in found], found, offsets)


def _choice(
    text: str, finish_reason: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"text": text, "logprobs": logprobs, "finish_reason": finish_reason}
