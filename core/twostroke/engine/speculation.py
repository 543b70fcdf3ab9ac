"""Which sequences have a guess verified in this step instead of decoding one token.

The rule, in mode auto: a verification must raise the tokens a second of the whole step by a
margin, by measured costs and by how often guesses of that kind were right. Pure policy: no
arrays, no sessions, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from twostroke.engine.acceptance import Acceptance
from twostroke.engine.drafts import Drafter
from twostroke.engine.sequence import Sequence
from twostroke.life.observe import Observer
from twostroke.types import TokenId

Mode = Literal["auto", "on", "off"]

MARGIN = 1.1
"""What verifying must be better by: estimates err, and a rejected draft delays the others."""

MAX_PROMPT_TOKENS = 2**15
"""Of a prompt that was read before, so many are indexed at most: it takes 2 us a token."""

MAX_PREDICTED_TOKENS = 2**13
"""Of a prediction so many are indexed at most: it is done at once, at 2 us a token."""

SplitRows = Callable[[list[int]], list[tuple[int, int]]]
"""Rows to decode, ascending, and the runs (start, count) that cover them."""


class Costs(Observer, Protocol):
    """Seconds of runs, None where unknown, learned by listening; see `StepCosts`."""

    def decode_s(self, num_rows: int) -> float | None:
        """Of a decode run."""
        ...

    def verify_s(self, num_tokens: int) -> float | None:
        """Of a verification."""
        ...


@dataclass(frozen=True, slots=True)
class Guess:
    """A row's draft; `expected_tokens[n]` is what verifying its first n tokens brings."""

    row: int
    draft: tuple[TokenId, ...]
    expected_tokens: Mapping[int, float]


@dataclass(slots=True)
class _Known:
    """What is known of one sequence."""

    drafter: Drafter
    acceptance: Acceptance


class Speculation:
    """Keeps an index of each sequence and chooses drafts. Called by one thread at a time."""

    def __init__(self, mode: Mode, max_draft_tokens: int, costs: Costs) -> None:
        self.mode = mode
        self.costs = costs
        self._lengths = draft_lengths(max_draft_tokens)
        self._acceptance = Acceptance()
        self._known: dict[str, _Known] = {}

    def read(self, sequence: Sequence, num_tokens: int) -> None:
        """Takes in the first `num_tokens` of a prompt, as far as they are new."""
        known = self._known.get(sequence.request_id)
        if known is None:
            prediction = sequence.prediction[:MAX_PREDICTED_TOKENS]
            capacity_tokens = min(sequence.max_total_tokens, MAX_PROMPT_TOKENS * 2)
            drafter = Drafter(capacity_tokens + len(prediction), prediction)
            known = _Known(drafter, Acceptance(self._acceptance))
            self._known[sequence.request_id] = known
            known.drafter.skip(max(0, num_tokens - MAX_PROMPT_TOKENS))
        known.drafter.extend(sequence.prompt_ids[len(known.drafter) : num_tokens])
        if num_tokens == len(sequence.prompt_ids):
            known.drafter.follow_prediction()

    def forget(self, sequence: Sequence) -> None:
        """Drops the index of a sequence that ends; unknown ones are ignored."""
        self._known.pop(sequence.request_id, None)

    def choose(
        self, decoding: Mapping[int, Sequence], split: SplitRows
    ) -> dict[int, tuple[TokenId, ...]]:
        """Drafts to be verified, by row; the other rows of `decoding` decode one token."""
        guesses = [
            guess
            for row, sequence in decoding.items()
            if (guess := self._guess(row, sequence)) is not None
        ]
        if self.mode == "on":
            return {guess.row: guess.draft[: max(guess.expected_tokens)] for guess in guesses}
        return choose_drafts(guesses, decoding, self.costs, split) if guesses else {}

    def _guess(self, row: int, sequence: Sequence) -> Guess | None:
        known = self._known[sequence.request_id]
        drafter, acceptance = known.drafter, known.acceptance
        for token_id in sequence.answer_ids[len(drafter) - len(sequence.prompt_ids) :]:
            if drafter.match_tokens:
                is_right = drafter.next_token == token_id
                acceptance.note(drafter.match_tokens, is_right=is_right)
            drafter.add(token_id)
        # The run's own token comes behind the draft and must fit as well.
        room = sequence.max_total_tokens - sequence.num_tokens - 1
        lengths = [length for length in self._lengths if length <= room]
        if not drafter.match_tokens or not lengths:
            return None
        match_tokens = drafter.match_tokens
        expected = {n: acceptance.expected_tokens(match_tokens, n) for n in lengths}
        return Guess(row, drafter.draft(lengths[-1]), expected)


def draft_lengths(max_draft_tokens: int) -> tuple[int, ...]:
    """The few lengths that drafts have, ascending: each is one more shape to bind and measure."""
    powers = [1 << power for power in range(max_draft_tokens.bit_length())]
    return tuple(sorted({*powers, max_draft_tokens}))


def choose_drafts(
    guesses: list[Guess], rows: Collection[int], costs: Costs, split: SplitRows
) -> dict[int, tuple[TokenId, ...]]:
    """Those drafts, by row, whose verification makes the step give more tokens a second.

    Taken one after the other, the most promising first; each must beat the step without it by
    `MARGIN`. A row that is taken out of a decode run makes that run shorter, but no run of one
    row free, so what pays for one sequence may not pay for one of eight.
    """
    left = sorted(rows)
    num_tokens, verify_s = float(len(left)), 0.0
    step_s = _decode_s(left, costs, split)
    chosen: dict[int, tuple[TokenId, ...]] = {}
    for guess in sorted(guesses, key=lambda guess: -max(guess.expected_tokens.values())):
        others = [row for row in left if row != guess.row]
        others_s = _decode_s(others, costs, split)
        best = num_tokens / step_s * MARGIN if step_s else float("inf")
        for length, expected in guess.expected_tokens.items():
            run_s = costs.verify_s(length + 1)
            if run_s is None or others_s is None:
                continue
            rate = (num_tokens - 1 + expected) / (others_s + verify_s + run_s)
            if rate > best:
                best = rate
                chosen[guess.row] = guess.draft[:length]
        if guess.row in chosen:
            length = len(chosen[guess.row])
            left, num_tokens = others, num_tokens - 1 + guess.expected_tokens[length]
            verify_s += costs.verify_s(length + 1) or 0.0
            step_s = (others_s or 0.0) + verify_s
    return chosen


def _decode_s(rows: list[int], costs: Costs, split: SplitRows) -> float | None:
    """Seconds of the decode runs over `rows`, None where they are unknown."""
    total_s = 0.0
    for _, count in split(rows):
        run_s = costs.decode_s(count)
        if run_s is None:
            return None
        total_s += run_s
    return total_s
