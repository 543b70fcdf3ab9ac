"""Repetition, presence and frequency penalties, logit bias and least length of one sequence.

Kept incrementally: a step costs as many operations as there are distinct tokens seen, never a
pass over the vocabulary in Python.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.types import SamplingParams, TokenId

_TOO_SOON = np.float32(1e9)  # not infinite: where a grammar leaves nothing else, it is chosen

Logits = npt.NDArray[np.float32]


class Penalties:
    """The distinct tokens seen so far and how often each is in the answer.

    `stop_ids` end an answer, so they are held back as long as it is shorter than it must become.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[TokenId],
        stop_ids: Collection[TokenId] = (),
    ) -> None:
        self._num_too_few = params.min_tokens
        self._stop_ids = np.fromiter(stop_ids, dtype=np.int64, count=len(stop_ids))
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64)
        self._biases = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        seen = dict.fromkeys(prompt_ids) if params.repetition_penalty != 1.0 else {}
        self._slots = {token_id: slot for slot, token_id in enumerate(seen)}
        self._num_seen = len(seen)
        self._ids = np.fromiter(seen, dtype=np.int64, count=len(seen))
        self._counts = np.zeros(len(seen), dtype=np.float32)

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        prompt_ids: Sequence[TokenId],
        stop_ids: Collection[TokenId] = (),
    ) -> Penalties | None:
        """The penalties that `params` ask for, None where they ask for none."""
        is_off = (
            params.repetition_penalty == 1.0
            and params.presence_penalty == 0.0
            and params.frequency_penalty == 0.0
            and not params.logit_bias
            and not params.min_tokens
        )
        return None if is_off else cls(params, prompt_ids, stop_ids)

    def add(self, token_id: TokenId) -> None:
        """Counts one more token of the answer."""
        self._num_too_few -= 1
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._num_seen
            self._num_seen += 1
            if slot == self._ids.shape[0]:
                self._grow()
            self._ids[slot] = token_id
        self._counts[slot] += 1.0

    def apply(self, logits: Logits) -> Logits:
        """A penalised copy of `logits`, [vocab]; the argument is not changed."""
        logits = logits.copy()
        if self._num_seen:
            ids = self._ids[: self._num_seen]
            counts = self._counts[: self._num_seen]
            seen = logits[ids]  # [num_seen]
            seen = np.where(seen > 0, seen / self._repetition, seen * self._repetition)
            seen -= self._presence * (counts > 0) + self._frequency * counts
            logits[ids] = seen
        if self._bias_ids.shape[0]:
            logits[self._bias_ids] += self._biases
        if self._num_too_few > 0:
            logits[self._stop_ids] -= _TOO_SOON
        return logits

    def _grow(self) -> None:
        room = max(64, self._ids.shape[0])
        self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
