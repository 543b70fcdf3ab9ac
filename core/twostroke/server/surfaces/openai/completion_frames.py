"""How a stream of `/v1/completions` is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twostroke.model import TextEvent
from twostroke.server.answers import AnswerEvent
from twostroke.server.surfaces.openai.logprobs import legacy_logprobs, offsets_of
from twostroke.server.surfaces.openai.shapes import OpenAIFields, SseFrames
from twostroke.server.turn import Turn
from twostroke.types import FinishedEvent, TokenLogprob


@dataclass(slots=True)
class _Written:
    """What of a choice has been written.

    `num_characters` are sent or certain so far; `waiting` are tokens that were not sent yet, and
    where each begins in the text.
    """

    num_characters: int
    waiting: list[tuple[TokenLogprob, int]] = field(default_factory=list)


class CompletionFrames(SseFrames):
    """Chunks with text, the echoed prompt first; the finish reason comes last.

    Of several choices the first scores their prompt; what others say before that is held back.
    """

    def __init__(self, turn: Turn, body: OpenAIFields, echoed: Sequence[str]) -> None:
        """`echoed` is what each choice's text begins with."""
        super().__init__(turn, body, "text_completion", "cmpl")
        self._echoed = echoed
        self._written = [_Written(len(text)) for text in echoed]
        # By the index of a prompt's first choice: None where its prompt is not scored.
        self._scored: dict[int, dict[str, Any] | None] = {}
        self._held: dict[int, list[bytes]] = {}

    async def opening(self, index: int, event: AnswerEvent) -> bytes:
        """The prompt where it is echoed, scored where that is asked for; there are no roles."""
        first = first_of(self._turn, index)
        if index == first:
            found, self._scored[first] = event.prompt_logprobs, None
            if found:
                self._scored[first] = await asyncio.to_thread(self._of_prompt, index, found)
            followers = range(first + 1, first + self._turn.num_per_prompt)
            waiting = [each for each in followers if each in self._held]
            behind = [self._opened(each) + b"".join(self._held.pop(each)) for each in waiting]
            return self._opened(index) + b"".join(behind)
        is_scored = self._turn.choices[first].request.sampling.prompt_logprobs is not None
        if is_scored and first not in self._scored:
            self._held[index] = []
            return b""
        return self._opened(index)

    def _opened(self, index: int) -> bytes:
        echoed = self._echoed[index]
        logprobs = self._scored.get(first_of(self._turn, index))
        return (
            self.chunk(index, choice_shape(echoed, None, logprobs)) if echoed or logprobs else b""
        )

    def token(self, index: int, event: TextEvent) -> bytes:
        """The token's text; no chunk while a character is incomplete."""
        written = self._written[index]
        if event.logprob is not None:
            written.waiting.append((event.logprob, written.num_characters))
        written.num_characters += len(event.text)
        if not event.text:
            return b""
        return self._unless_held(
            index, self.chunk(index, choice_shape(event.text, None, self._logprobs(index)))
        )

    def closing(self, index: int, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the usage where asked for, `[DONE]`."""
        written = self._written[index]
        if event.end_logprob is not None:
            written.waiting.append((event.end_logprob, written.num_characters))
        last = choice_shape("", event.reason, self._logprobs(index))
        for chunk in self.closing_chunks(index, event, last):
            yield self._unless_held(index, chunk)

    def _unless_held(self, index: int, chunk: bytes) -> bytes:
        """The chunk, or nothing where it must wait. Mutates what is held back."""
        if index not in self._held:
            return chunk
        self._held[index].append(chunk)
        return b""

    def _of_prompt(self, index: int, found: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        tokenizer, ids = self._turn.model.tokenizer, self._turn.choices[index].request.prompt_ids
        return legacy_logprobs(tokenizer, ids, found, offsets_of(tokenizer, ids))

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        """Those since the choice's last chunk. Mutates self."""
        written = self._written[index]
        waiting, written.waiting = written.waiting, []
        if not waiting:
            return None
        found, offsets = [each for each, _ in waiting], [offset for _, offset in waiting]
        ids = [each.token_id for each in found]
        return legacy_logprobs(self._turn.model.tokenizer, ids, found, offsets)


def first_of(turn: Turn, index: int) -> int:
    """The index of the first choice of the prompt that a choice answers."""
    return index - index % turn.num_per_prompt


def choice_shape(
    text: str, finish_reason: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A choice, or a chunk of it, but for its index."""
    return {"text": text, "logprobs": logprobs, "finish_reason": finish_reason}
