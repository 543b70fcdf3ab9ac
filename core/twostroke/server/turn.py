"""One request through one model: what is behind every surface.

A request asks for one answer or several (`n`, several prompts): its choices. They are submitted
together and each becomes a sequence of the engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from twostroke.life.together import together
from twostroke.model import Model, TextEvent
from twostroke.model.predictions import PredictionTally
from twostroke.text.parsers import Content, Delta, Reasoning, SectionParser
from twostroke.timings import Preparation, Timings
from twostroke.types import FinishedEvent, Request, TokenId

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages."""


def new_id() -> str:
    """A fresh request id; also the stem of the ids in OpenAI's answers."""
    return uuid4().hex


@dataclass(slots=True)
class Choice:
    """One answer of a turn. `finished` is set when it ended well.

    `num_tokens` have come so far; `num_reasoning_tokens` of them were thought, as far as read.
    """

    request: Request
    parser: SectionParser | None = None  # None: an answer is nothing but text
    finished: FinishedEvent | None = None
    tally: PredictionTally | None = None  # where the answer was predicted
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    _num_read: int = field(default=0, init=False)  # of `num_tokens`: it is known what they are

    def note(self, event: TextEvent) -> None:
        """Counts a token; text that was held back to the end is none. Mutates the counts."""
        if event.index < self.num_tokens:
            return
        self.num_tokens = event.index + 1
        if self.tally is not None:
            self.tally.add(event.token_id)

    def read(self, text: str) -> Sequence[Delta]:
        """What the next piece of the answer's text is. Mutates the parser and the counts."""
        if self.parser is None:
            return [Content(text)]
        return self._counted(self.parser.push(text))

    def read_rest(self) -> Sequence[Delta]:
        """What the parser has held back to the end. Mutates it and the counts."""
        return () if self.parser is None else self._counted(self.parser.finish())

    def _counted(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """`deltas`; the tokens since the last ones are theirs, a marker before them included."""
        if deltas:
            if isinstance(deltas[-1], Reasoning):
                self.num_reasoning_tokens += self.num_tokens - self._num_read
            self._num_read = self.num_tokens
        return deltas


@dataclass(slots=True)
class Turn:
    """A tokenised request on its way through a model.

    `choices` are in the order of their prompts, `num_per_prompt` of each. `blocked_s` is what a
    stream has waited for its client; None where nothing was streamed.
    """

    model: Model
    request_id: str
    arrived_at: float  # time.monotonic()
    prepared: Preparation
    choices: list[Choice]
    num_per_prompt: int = 1
    created_at: int = field(default_factory=lambda: int(time.time()))  # seconds since the epoch
    blocked_s: float | None = None

    def new_call_id(self) -> str:
        """An id for a call in an answer, as the model's template wants it."""
        reader = self.model.reader
        assert reader is not None, "calls are read by a reader"
        return reader.spec.new_call_id()

    @property
    def reads_sections(self) -> bool:
        """Whether answers are split into content, reasoning and calls."""
        return self.choices[0].parser is not None

    @property
    def shown_ids(self) -> frozenset[TokenId]:
        """Control tokens that the parsers must see."""
        reader = self.model.reader
        return frozenset() if reader is None or not self.reads_sections else reader.shown_ids

    def note_blocked(self, duration_s: float) -> None:
        """Adds a time in which the client did not read; 0 says that it is streamed. Mutates."""
        self.blocked_s = (self.blocked_s or 0.0) + duration_s

    @property
    def ends(self) -> list[FinishedEvent]:
        """How the choices ended that have ended well so far, in their order."""
        return [choice.finished for choice in self.choices if choice.finished is not None]

    @property
    def is_finished(self) -> bool:
        """Whether all choices have ended well."""
        return len(self.ends) == len(self.choices)

    @property
    def num_prompt_tokens(self) -> int:
        """Of each prompt once, however many choices it has."""
        firsts = self.choices[:: self.num_per_prompt]
        return sum(len(choice.request.prompt_ids) for choice in firsts)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompts that were in the KV cache; of each prompt for its first choice."""
        firsts = [choice.finished for choice in self.choices[:: self.num_per_prompt]]
        return sum(end.num_cached_tokens for end in firsts if end is not None)

    @property
    def num_completion_tokens(self) -> int:
        """Of all choices that have ended well so far."""
        return sum(end.num_completion_tokens for end in self.ends)

    @property
    def num_made_tokens(self) -> int:
        """Of all choices so far, those that were cut off too."""
        return sum(
            choice.finished.num_completion_tokens if choice.finished else choice.num_tokens
            for choice in self.choices
        )

    @property
    def num_reasoning_tokens(self) -> int:
        """Of all choices: tokens that the model thought and did not answer."""
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    @property
    def prediction_counts(self) -> tuple[int, int] | None:
        """Tokens of predictions that answers said, and others; None where nothing was predicted."""
        tallies = [choice.tally for choice in self.choices if choice.tally is not None]
        if not tallies:
            return None
        return sum(t.num_accepted for t in tallies), sum(t.num_rejected for t in tallies)

    @property
    def timings(self) -> Timings:
        """The cycle of all choices as one; nothing is known before the first has ended."""
        ends = self.ends
        return self.with_blocked(together(ends)) if ends else Timings()

    def with_blocked(self, timings: Timings) -> Timings:
        """`timings`, with how long the client has kept the stream waiting so far."""
        if self.blocked_s is None:
            return timings
        return replace(timings, blocked_ms=self.blocked_s * 1e3)
