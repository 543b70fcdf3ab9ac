"""The values that cross rooms: what a sequence asks for and what it answers.

Surfaces translate their own bodies into a `Request`; the engine answers a request with
`TokenEvent`s (`ProgressEvent`s before them where it asks) and exactly one terminal event
(`FinishedEvent` or `FailedEvent`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from twostroke.errors import TwostrokeError
from twostroke.timings import Timings as Timings

TokenId = int


class Stroke(enum.StrEnum):
    """The two halves of the cycle; each is a graph of its own."""

    PREFILL = "prefill"
    DECODE = "decode"


class FinishReason(enum.StrEnum):
    """Why a sequence ended. The values are the ones OpenAI's clients expect."""

    STOP = "stop"  # an end-of-sequence id, a stop id or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORTED = "aborted"  # the client went away, or a deadline passed


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Already checked: constructing one out of range raises ValueError.

    `temperature` 0 (or below 1e-3) is greedy; 1 is the model's distribution as it is. `top_k` 0,
    `top_p` 1 and `min_p` 0 are off.
    Repetition penalty follows CTRL (Keskar et al. 2019): positive logits of tokens seen in prompt
    or answer are divided by it, negative ones multiplied. Presence and frequency penalties follow
    OpenAI's definition: subtracted once, and per occurrence, for tokens seen in the *answer*.
    `logprobs` and `prompt_logprobs` ask for log-probabilities of the answer's and of the prompt's
    tokens with so many alternatives each; None asks for none. They are of the model's own
    distribution, whatever temperature, penalties or a grammar make of it. Before `min_tokens` no
    end-of-sequence id, stop id or stop string ends an answer.
    """

    max_tokens: int | None = None  # None: up to the end of the context
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[TokenId, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[TokenId] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        ranges = {  # name: (low, high), both inclusive
            "temperature": (0.0, 100.0),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:  # NaN fails this too
                raise ValueError(f"{name} must be from {low:g} to {high:g}, not {value!r}")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens must be 0 or more, not {self.max_tokens}")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens must be 0 or more, not {self.min_tokens}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, not {self.top_k}")

    @property
    def is_greedy(self) -> bool:
        """True where the highest logit is taken and no random number is drawn."""
        return self.temperature < 1e-3


class ConstraintKind(enum.StrEnum):
    """What the text of a constraint is. The values are the names that surfaces use."""

    JSON_SCHEMA = "json_schema"  # a schema, as JSON
    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    REGEX = "regex"  # a pattern that the whole answer matches
    CHOICE = "choice"  # a JSON list of strings, one of which is the answer
    GRAMMAR = "grammar"  # a grammar in llguidance's Lark dialect, which begins at `start`


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like, as the client wrote it; `twostroke.grammar` checks it."""

    kind: ConstraintKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for one model, already tokenised; the only thing the engine is given.

    `prompt_ids` is never empty and every id lies inside the vocabulary: whoever builds a request
    has checked that (`text.encode_prompt` does). `constraint` is best compiled before the request
    is submitted (`Engine.compile`), because that takes time.

    `priority`: lower ones run sooner; equal ones in order of arrival. `deadline_at`, on the
    engine's clock, ends the sequence with an error; None never does. `group` names requests with
    one prompt that are answered together (the choices of one HTTP request). What one request has
    left in the KV cache is reused by others of the same `scope` only. `reports_progress` asks for
    `ProgressEvent`s. `prediction` is what the answer is expected to say: guesses come from it, and
    it changes nothing in the answer.
    """

    request_id: str
    prompt_ids: tuple[TokenId, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None
    priority: int = 0
    deadline_at: float | None = None
    group: str | None = None
    scope: str = ""
    reports_progress: bool = False
    prediction: tuple[TokenId, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, and of the most likely ones', best first."""

    token_id: TokenId
    logprob: float  # 0 or less; -infinity is possible
    top: tuple[tuple[TokenId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One more token. `index` counts from 0 within the answer.

    `logprob` is there where the request asks for it, and so are `prompt_logprobs` with the first
    token: those of `FinishedEvent`, for whoever streams.
    """

    token_id: TokenId
    index: int
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """How far a prompt has come; before the first token, where the request asks for it.

    One whenever its place in the queue changes, one when its reading begins, one after each chunk.
    `num_ahead` requests would be admitted before it as things stand; None once it is being read.
    `num_read_tokens` are in the KV cache, the `num_cached_tokens` found there among them.
    """

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_read_tokens: int = 0
    num_ahead: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Terminal: the sequence ended as it should, or was aborted.

    Where the request asks for them: `prompt_logprobs` has one for each token of the prompt (None
    for the first), `end_logprob` is that of the token that ended the answer and sent no TokenEvent.
    `num_cached_tokens` of the prompt were in the KV cache and were not computed. `stop_string` is
    the one that ended the text, where one did.
    """

    reason: FinishReason
    num_prompt_tokens: int
    num_completion_tokens: int
    timings: Timings
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    end_logprob: TokenLogprob | None = None
    num_cached_tokens: int = 0
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """Terminal: a fault. The error is what the surfaces show."""

    error: TwostrokeError


Event = ProgressEvent | TokenEvent | FinishedEvent | FailedEvent
