"""How much of prompts a step may read, so that running streams stall no longer than they should.

While nothing decodes a step reads up to `max_chunk_tokens`. While something does, the time between
two of its tokens is that of the step's transfers, prompt chunks and decode runs together, so chunks
are made as long as `max_stall_s` allows by a model of what they cost, but never shorter than the
shortest length there is: a prompt always gets on. Where even that takes too long, a chunk may be
longer that takes hardly more. Lengths are halves, quarters … of `max_chunk_tokens`, because each
length needs a binding of its own.

A sequence whose prompt ends in a step has its first token in the middle of it: what the step does
behind that counts as a part of the next step, which brings the second token and may read nothing.

The model is d = a + b n + c n (p + n / 2) for n tokens behind p others: a run's overhead, the
matrix products, attention. Its coefficients follow what was measured by least squares of the
relative error, with exponential forgetting and a prior that keeps what was not measured yet small.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.engine.transfer_costs import TransferCosts
from twostroke.life.observe import End, RunFacts
from twostroke.types import Stroke

MIN_CHUNK_TOKENS = 16
FORGETTING = 0.95  # what an observation still weighs when the next one comes
_PRIOR = (0.0, 1e-3, 0.0)  # seconds, each token, each pair of tokens
_SCALES = (1e-3, 1e-3, 1e-7)  # how far from the prior each coefficient may lie
_PRIOR_WEIGHT = 1e-3
AIM = 0.95  # of the longest stall: what is predicted is not quite what comes
_HARDLY_MORE = 1.25  # than the shortest chunk takes, where that is too long itself
_OUTLIER = 4.0  # an observation counts as at most so many times what was expected


def chunk_lengths(max_chunk_tokens: int) -> tuple[int, ...]:
    """The lengths of chunks, the longest first."""
    lengths = [max_chunk_tokens]
    while lengths[-1] // 2 >= MIN_CHUNK_TOKENS:
        lengths.append(lengths[-1] // 2)
    return tuple(lengths)


class PrefillCost:
    """What prompt chunks cost, learned from those that ran."""

    def __init__(self) -> None:
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3
        self._coefficients = _PRIOR
        self._num_seen = 0

    def predict_s(self, num_tokens: int, start: int) -> float:
        """Seconds for `num_tokens` behind `start` others; never negative."""
        features = _features(num_tokens, start)
        return sum(c * x for c, x in zip(self._coefficients, features, strict=True))

    def observe(self, num_tokens: int, start: int, duration_s: float) -> None:
        """Takes in what a chunk took. Mutates the model."""
        if self._num_seen >= 4:  # one hiccup of the machine must not halve the next chunks
            duration_s = min(duration_s, _OUTLIER * self.predict_s(num_tokens, start))
        duration_s = max(duration_s, 1e-6)  # clocks are coarse
        self._num_seen += 1
        relative = [x / duration_s for x in _features(num_tokens, start)]
        for i, x in enumerate(relative):
            self._products[i] = FORGETTING * self._products[i] + x
            for j, y in enumerate(relative):
                self._squares[i][j] = FORGETTING * self._squares[i][j] + x * y
        self._coefficients = self._fit()

    def _fit(self) -> tuple[float, float, float]:
        matrix = [row[:] for row in self._squares]
        right = self._products[:]
        for i, (prior, scale) in enumerate(zip(_PRIOR, _SCALES, strict=True)):
            weight = _PRIOR_WEIGHT / scale**2
            matrix[i][i] += weight
            right[i] += weight * prior
        a, b, c = (max(0.0, value) for value in _solve(matrix, right))
        return a, b, c


class PrefillBudget:
    """Sizes the chunks of one engine. An observer of its runs: add it to the engine's."""

    def __init__(self, max_chunk_tokens: int, max_stall_s: float | None = None) -> None:
        self._lengths = chunk_lengths(max_chunk_tokens)
        self._aim_s = None if max_stall_s is None else AIM * max_stall_s
        self._last = StepBudget(self._lengths, PrefillCost(), 0, None)
        self.cost = PrefillCost()
        self.transfers = TransferCosts()
        self._decode_run_s = 0.0  # of late

    @property
    def max_chunk_tokens(self) -> int:
        """Tokens of the longest chunk."""
        return self._lengths[0]

    @property
    def decode_run_s(self) -> float:
        """Seconds a decode run takes, of late; 0 before the first."""
        return self._decode_run_s

    def ran(self, facts: RunFacts) -> None:
        """Learns from a run."""
        if facts.stroke is Stroke.PREFILL:
            self.cost.observe(facts.num_new_tokens, facts.num_past_tokens, facts.duration_s)
        else:
            before = self._decode_run_s or facts.duration_s
            self._decode_run_s = before + 0.2 * (facts.duration_s - before)

    def told(self, gap_s: float) -> None:
        """Nothing to learn."""

    def ended(self, end: End) -> None:
        """Nothing to learn."""

    def step(self, num_decode_runs: int) -> StepBudget:
        """What the prompts of a step with so many decode runs may share."""
        left_s, decode_s = None, num_decode_runs * self._decode_run_s
        if num_decode_runs and self._aim_s is not None:
            left_s = max(0.0, self._aim_s - decode_s - self._last.late_s)
        self._last = StepBudget(
            self._lengths,
            self.cost,
            self._lengths[0],
            left_s,
            self._aim_s,
            decode_s,
            is_begun=left_s is not None and self._last.has_end,
        )
        return self._last


@dataclass(slots=True)
class StepBudget:
    """What is left for the prompts of one step: tokens, and seconds where streams wait.

    `late_s`: of this step, how long it goes on behind the first prompt that ends in it.
    """

    lengths: tuple[int, ...]
    cost: PrefillCost
    left_tokens: int
    left_s: float | None
    aim_s: float | None = None
    decode_s: float = 0.0
    is_begun: bool = False
    has_end: bool = False
    late_s: float = 0.0

    def take(self, start: int, num_wanted: int) -> int:
        """How many of the next `num_wanted` tokens behind `start` may be read; 0: no more in
        this step. Mutates what is left.
        """
        num_tokens = self._allowed(start, min(num_wanted, self.left_tokens))
        if num_tokens:
            self.spend(start, num_tokens, is_last=num_tokens == num_wanted)
        return num_tokens

    def has_room_for(self, start: int, num_tokens: int) -> bool:
        """Whether so many can be read at once; always true for the first of a step."""
        if not self.is_begun:
            return True
        fits_time = self.left_s is None or self.cost.predict_s(num_tokens, start) <= self.left_s
        return num_tokens <= self.left_tokens and fits_time

    def spend(self, start: int, num_tokens: int, *, is_last: bool) -> None:
        """Notes tokens that will be read, the prompt's last ones or not. Mutates what is left."""
        self.is_begun = True
        self.left_tokens = max(0, self.left_tokens - num_tokens)
        self.pass_s(self.cost.predict_s(num_tokens, start))
        if is_last and not self.has_end:
            self.has_end, self.late_s = True, self.decode_s
            self.left_s = self.aim_s if self.left_s is None else self.left_s

    def pass_s(self, duration_s: float) -> None:
        """Notes time that something else of the step will take. Mutates what is left."""
        if self.left_s is not None:
            self.left_s -= duration_s
        if self.has_end:
            self.late_s += duration_s

    def _allowed(self, start: int, limit: int) -> int:
        if self.left_s is None:
            return limit
        allowed_s, least = self.left_s, min(limit, self.lengths[-1])
        if not self.is_begun:
            allowed_s = max(allowed_s, _HARDLY_MORE * self.cost.predict_s(least, start))
        for num_tokens in (limit, *(length for length in self.lengths if length < limit)):
            if num_tokens and self.cost.predict_s(num_tokens, start) <= allowed_s:
                return num_tokens
        return 0 if self.is_begun else least


def _features(num_tokens: int, start: int) -> tuple[float, float, float]:
    return 1.0, float(num_tokens), num_tokens * (start + num_tokens / 2)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solves a small symmetric positive definite system by Cholesky's factors."""
    size = len(right)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = max(rest, 1e-300) ** 0.5 if i == j else rest / lower[j][j]
    half: list[float] = []
    for i in range(size):
        half.append((right[i] - sum(lower[i][k] * half[k] for k in range(i))) / lower[i][i])
    solution = [0.0] * size
    for i in reversed(range(size)):
        above = sum(lower[k][i] * solution[k] for k in range(i + 1, size))
        solution[i] = (half[i] - above) / lower[i][i]
    return solution
