"""Chooses the next token of each row: a function of logits and each sequence's own state.

Order: penalties and bias, the ids that a grammar allows, temperature, top-k, top-p, min-p, then one
uniform random number.
Sources: repetition penalty, Keskar et al. 2019 (CTRL); presence and frequency penalties and
logit bias, OpenAI's API reference; top-k, Fan et al. 2018; top-p (nucleus), Holtzman et al. 2020;
min-p, Nguyen et al. 2024. Top-p sees the distribution that top-k left, renormalised; min-p is
relative to the most likely token and therefore does not depend on what was cut before it.

A row is drawn from its own generator and computed on its own, so a sequence with a seed gets the
same tokens whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.engine.filters import draw, kept_positions, top_positions
from twostroke.engine.penalties import Penalties
from twostroke.types import SamplingParams, TokenId

Logits = npt.NDArray[np.float32]

UNUSABLE: TokenId = -1
"""Stands for a row whose highest logit is not a finite number."""


class SamplerState:
    """What sampling remembers of one sequence: its generator and the tokens it has seen.

    Without a seed the generator starts from fresh entropy.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[TokenId],
        stop_ids: Collection[TokenId] = (),
    ) -> None:
        """`stop_ids` are those that end the answer."""
        self.params = params
        self.penalties = Penalties.of(params, prompt_ids, stop_ids)
        # The answer is the argmax of the logits as they are.
        self.is_plain_greedy = params.is_greedy and self.penalties is None
        # The only ids that the next token may have, [n] ascending; None: any. Set at each step.
        self.allowed: npt.NDArray[np.int64] | None = None
        # What a device that reduces logits multiplies them with; greedy rows need no sums.
        self.inverse_temperature = (
            1.0 if params.is_greedy else float(inverse_temperature(params.temperature))
        )
        self._generator: np.random.Generator | None = None

    def uniform(self) -> float:
        """The next random number in [0, 1). Mutates the generator."""
        if self._generator is None:
            seed = self.params.seed  # any integer is a seed; numpy takes no negative ones
            self._generator = np.random.default_rng(None if seed is None else seed % 2**64)
        return float(self._generator.random())

    def add(self, token_id: TokenId) -> None:
        """Notes a token of the answer, for the penalties."""
        if self.penalties is not None:
            self.penalties.add(token_id)


def sample(
    logits: Logits,
    states: Sequence[SamplerState | None],
    failed: Callable[[int, Exception], None] | None = None,
) -> list[TokenId]:
    """One token for each row.

    `logits` is [batch, vocab] float32 and is not changed. `states` has an entry for each row,
    None where no token is wanted. Answers UNUSABLE for such rows and for rows that hold NaN,
    +infinity or nothing above -infinity; also for one whose sampling fails, where `failed` is told
    of it instead of everybody.
    """
    highest = logits.argmax(axis=1)  # [batch]; NaN counts as the highest
    peaks = logits[np.arange(len(states)), highest]  # [batch]
    tokens: list[TokenId] = highest.tolist()
    for row, (state, usable) in enumerate(zip(states, np.isfinite(peaks).tolist(), strict=True)):
        if state is None or not usable:
            tokens[row] = UNUSABLE
        elif state.allowed is not None or not state.is_plain_greedy:
            try:
                tokens[row] = sample_row(logits[row], state)
            except Exception as fault:
                if failed is None:
                    raise
                tokens[row] = UNUSABLE
                failed(row, fault)
    return tokens


def sample_row(logits: Logits, state: SamplerState, uniform: float | None = None) -> TokenId:
    """Draws from one row, [vocab], whose highest logit is finite.

    `uniform` is the random number where it was drawn before; None takes the state's next.
    """
    params = state.params
    if state.penalties is not None:
        logits = state.penalties.apply(logits)
    ids = state.allowed  # None: all of the vocabulary, in order
    if ids is not None:
        logits = logits[ids]  # [num_allowed]
        if not logits.size or not np.isfinite(logits.max()):
            return UNUSABLE
    if params.is_greedy:
        best = int(logits.argmax())
        return best if ids is None else int(ids[best])
    if 0 < params.top_k < logits.shape[0]:
        top = top_positions(logits, params.top_k)  # [top_k]
        ids = top if ids is None else ids[top]
        logits = logits[top]
    weights = relative_weights(logits, params.temperature)
    kept = kept_positions(weights, params.top_p, params.min_p)
    if kept is not None:
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    drawn = draw(weights, state.uniform() if uniform is None else uniform)
    return drawn if ids is None else int(ids[drawn])


def relative_weights(
    logits: Logits, temperature: float, highest: np.float32 | None = None
) -> Logits:
    """Probabilities times a constant: that of `highest`, or the highest of `logits`, is 1."""
    weights = logits - (logits.max() if highest is None else highest)
    weights *= inverse_temperature(temperature)
    np.exp(weights, out=weights)
    return weights


def inverse_temperature(temperature: float) -> np.float32:
    """What logits are multiplied with, wherever that is done."""
    return np.float32(1.0 / temperature)
