"""What passes between the threads that submit requests and the one that serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twostroke.engine.logprobs import PromptLogprobs
from twostroke.engine.sampler import SamplerState
from twostroke.engine.scheduler import Plan
from twostroke.engine.sequence import Phase, Sequence
from twostroke.grammar import Matcher
from twostroke.life.timeline import Timeline
from twostroke.types import Event, FinishReason, TokenId, TokenLogprob

Sink = Callable[[Event], None]
Tails = tuple[tuple[int, int], ...]  # rows, and how many of their tokens are of use


@dataclass(slots=True, eq=False)
class Work:
    """A sequence with everything the step loop needs to serve it."""

    sequence: Sequence
    sink: Sink
    timeline: Timeline
    sampler: SamplerState
    stop_ids: frozenset[TokenId]  # end-of-sequence ids and the request's own
    matcher: Matcher | None = None  # of a constrained answer
    prompt_logprobs: PromptLogprobs | None = None  # where they are asked for
    end_logprob: TokenLogprob | None = None
    deadline_at: float | None = None  # of the engine's clock
    reports_progress: bool = False
    num_ahead: int | None = None  # in the queue, as it was told last

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.sequence.request_id

    @property
    def has_ended(self) -> bool:
        """Whether its terminal event was told, or is about to be."""
        return self.sequence.phase is Phase.ENDED


@dataclass(frozen=True, slots=True)
class Rest:
    """An idle moment. `num_forgotten` requests are there although there is nothing to be run."""

    num_forgotten: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine thread does next: tell the ended ones, then run the plan.

    `queued` are those that wait and whose place in the queue, to be told, has changed.
    `expired` are those whose deadline has passed, with the phase in which it found them.
    `tails` are rows whose memory should be given back after the plan was run. With a
    `rest` nothing is to be run, and nobody has asked for anything for a while.
    """

    ended: tuple[tuple[Work, FinishReason], ...]
    plan: Plan
    expired: tuple[tuple[Work, Phase], ...] = ()
    tails: Tails = ()
    rest: Rest | None = None
    queued: tuple[Work, ...] = ()
