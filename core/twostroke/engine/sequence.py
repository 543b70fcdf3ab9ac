"""One prompt and its answer while they are in the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from twostroke.engine.token_bytes import token_bytes
from twostroke.errors import ContextLengthError
from twostroke.types import Request, TokenId


class Phase(enum.Enum):
    """Where a sequence stands. It only ever moves down this list."""

    WAITING = "waiting"  # in the queue, no row
    PREFILL = "prefill"  # was promised a row, in which the prompt is not wholly
    DECODE = "decode"  # the prompt is in the row, one token a step
    ENDED = "ended"  # the row is free again


@dataclass(slots=True, eq=False)
class Sequence:
    """Owns its token ids. `row` is set from the first chunk of its prompt until the end.

    Invariant in DECODE: the row holds every token but the newest, which the next step feeds.
    """

    request_id: str
    prompt_ids: tuple[TokenId, ...]
    max_total_tokens: int  # prompt and answer together: where it ends with reason `length`
    answer_ids: list[TokenId] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    row: int | None = None
    scope: str = ""  # whose tokens in the KV cache it may reuse, and who may reuse its own
    reuses_prefix: bool = True
    priority: int = 0  # lower ones are admitted sooner
    prediction: tuple[TokenId, ...] = ()  # what the answer is expected to say
    num_cached_tokens: int = 0  # of the prompt: in the row when it was taken
    prompt_bytes: bytes = field(init=False, repr=False)  # the ids, for comparing prompts

    def __post_init__(self) -> None:
        self.prompt_bytes = token_bytes(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the answer so far."""
        return len(self.prompt_ids) + len(self.answer_ids)

    @property
    def is_full(self) -> bool:
        """True where not one more token may be made."""
        return self.num_tokens >= self.max_total_tokens


def sequence_for(
    request: Request, context_tokens: int, bundle_context_tokens: int | None = None
) -> Sequence:
    """A waiting sequence; its length is bounded by the request and by the context.

    `bundle_context_tokens` is what the context could be at most; None is no more than it is.

    Raises:
        ContextLengthError: the prompt leaves no room for a single token of answer.
    """
    num_prompt_tokens = len(request.prompt_ids)
    check_length(num_prompt_tokens, context_tokens, bundle_context_tokens)
    max_total_tokens = context_tokens
    if request.sampling.max_tokens is not None:
        max_total_tokens = min(context_tokens, num_prompt_tokens + request.sampling.max_tokens)
    return Sequence(
        request.request_id,
        request.prompt_ids,
        max_total_tokens,
        scope=request.scope,
        priority=request.priority,
        prediction=request.prediction,
        # Prompts that are scored are read from their first token on.
        reuses_prefix=request.sampling.prompt_logprobs is None,
    )


def check_length(
    num_prompt_tokens: int, context_tokens: int, bundle_context_tokens: int | None = None
) -> None:
    """Refuses a prompt that leaves no room in the context for a single token of answer.

    Raises:
        ContextLengthError: with both numbers; see `sequence_for`.
    """
    if num_prompt_tokens + 1 > context_tokens:
        limit = bundle_context_tokens or context_tokens
        or_grow = (
            f" or serve the model with a larger context_tokens (its bundle takes up to {limit})"
            if limit > context_tokens
            else ""
        )
        # "prompt is too long" are the words that LangChain and LiteLLM know a full context by.
        raise ContextLengthError(
            f"The prompt is too long: it has {num_prompt_tokens} tokens, the context holds "
            f"{context_tokens} with at least one for the answer. Shorten the prompt to "
            f"{context_tokens - 1} tokens{or_grow}.",
            param="prompt",
        )
