"""`POST /completion`, streamed or whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from twostroke.errors import TwostrokeError
from twostroke.grammar import constraint_from
from twostroke.model import TextEvent
from twostroke.server.answers import Answer, AnswerEvent, gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.choices import num_choices
from twostroke.server.fields import check_shape
from twostroke.server.harmless import refuse_unless_harmless
from twostroke.server.replies import dump, json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.llama_cpp.fields import HARMLESS, REASONS, LlamaCompletionBody
from twostroke.server.surfaces.llama_cpp.shapes import (
    ending,
    error_body,
    only,
    probabilities,
    timings_so_far,
)
from twostroke.server.turn import Prompt, Turn
from twostroke.types import ConstraintKind, FinishedEvent, ProgressEvent, TokenId, TokenLogprob


async def completion(request: web.Request) -> web.StreamResponse:
    """Answers `POST /completion`. Of several answers it is a list, or events with an `index`."""
    raw = await read_json(request)
    body = check_shape(LlamaCompletionBody, raw)
    refuse_unless_harmless(raw, HARMLESS, reasons=REASONS)
    prompts = body.prompts()
    wanted = Wanted(
        body.model,
        prompts,
        body.sampling(),
        body.scheduled,
        n=num_choices(body.n_cmpl),
        constraint=constraint_from({ConstraintKind.JSON_SCHEMA: body.json_schema}),
        reports_progress=bool(body.stream and body.return_progress),
    )
    turn = await begin(request, wanted)
    texts = await asyncio.to_thread(_texts, turn, prompts)
    if body.stream:
        return await stream(request, turn, CompletionFrames(turn, body, texts))
    wholes = await gather(turn)
    bodies = [_whole(turn, body, i, whole, texts[i]) for i, whole in enumerate(wholes)]
    return json_reply(bodies if body.is_several else bodies[0])


def _texts(turn: Turn, prompts: Sequence[Prompt]) -> list[str]:
    """The prompt of each choice as text."""
    found = []
    for prompt, first in zip(prompts, turn.choices[:: turn.num_per_prompt], strict=True):
        is_text = isinstance(prompt, str)
        ids = first.request.prompt_ids
        text = str(prompt) if is_text else turn.model.tokenizer.decode(ids)
        found += [text] * turn.num_per_prompt
    return found


def _whole(
    turn: Turn, body: LlamaCompletionBody, index: int, whole: Answer, prompt: str
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "content": whole.text,
        "tokens": list(whole.token_ids) if body.return_tokens else [],
        "has_new_line": "\n" in whole.text,
        **ending(turn, index, whole.finished, prompt),
    }
    if body.n_probs:
        found["completion_probabilities"] = probabilities(turn.model.tokenizer, whole.logprobs)
    return only(body.response_fields, found)


@dataclass(slots=True)
class _Written:
    """What came of a choice so far; `ids` and `logprobs` wait for the rest of a character."""

    began_at: float | None = None  # time.monotonic(), when its prompt began to be read
    first_at: float | None = None  # of the first token
    has_new_line: bool = False
    num_tokens: int = 0
    ids: list[TokenId] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class CompletionFrames:
    """Server-sent events without names; the last of a choice has `stop` true and all facts."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, turn: Turn, body: LlamaCompletionBody, prompts: Sequence[str]) -> None:
        self._turn = turn
        self._body = body
        self._prompts = prompts
        self._written = [_Written() for _ in turn.choices]

    def progress(self, index: int, event: ProgressEvent) -> bytes:
        """How far the prompt is read; nothing while it waits."""
        written = self._written[index]
        if event.num_ahead is not None:
            return b""
        if written.began_at is None:
            written.began_at = time.monotonic()
        read = {
            "total": event.num_prompt_tokens,
            "cache": event.num_cached_tokens,
            "processed": event.num_read_tokens,
            "time_ms": round((time.monotonic() - written.began_at) * 1e3),
        }
        return self._part(index, 0, {"prompt_progress": read})

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """Nothing."""
        return b""

    def token(self, index: int, event: TextEvent) -> bytes:
        """The text that is certain; nothing while a character is incomplete."""
        written = self._written[index]
        if written.first_at is None:
            written.first_at = time.monotonic()
        if event.index == written.num_tokens:  # the last one comes again with text held back
            written.num_tokens += 1
            written.ids.append(event.token_id)
        if event.logprob is not None:
            written.logprobs.append(event.logprob)
        if not event.text:
            return b""
        written.has_new_line = written.has_new_line or "\n" in event.text
        what = {"content": event.text, **self._taken(index)}
        if self._body.timings_per_token:
            decode_ms = (time.monotonic() - written.first_at) * 1e3
            num_prompt = len(self._turn.choices[index].request.prompt_ids)
            what["timings"] = timings_so_far(num_prompt, written.num_tokens, decode_ms)
        return self._part(index, written.num_tokens, what)

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """Why it ended, the counts, the timings."""
        written = self._written[index]
        facts = ending(self._turn, index, event, self._prompts[index])
        last = {"content": "", **self._taken(index), "has_new_line": written.has_new_line, **facts}
        yield _event(only(self._body.response_fields, last))

    def fault(self, error: TwostrokeError) -> bytes:
        """The error object."""
        return _event(error_body(error))

    def _part(self, index: int, num_answered: int, what: dict[str, Any]) -> bytes:
        head = {"index": index, "content": "", "tokens": [], "stop": False, "id_slot": index}
        num_prompt = len(self._turn.choices[index].request.prompt_ids)
        counts = {"tokens_predicted": num_answered, "tokens_evaluated": num_prompt}
        return _event({**head, **what, **counts})

    def _taken(self, index: int) -> dict[str, Any]:
        """The tokens since the last part, and their log-probabilities. Mutates self."""
        written = self._written[index]
        ids, found = written.ids, written.logprobs
        written.ids, written.logprobs = [], []
        if not self._body.n_probs:
            return {"tokens": ids}
        entries = probabilities(self._turn.model.tokenizer, found)
        return {"tokens": ids, "completion_probabilities": entries}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + dump(value) + b"\n\n"
