"""How long a run may take before it counts as hung."""

from __future__ import annotations

from twostroke.engine.prefill_budget import PrefillBudget

FACTOR = 10.0
"""Of what a run is expected to take: machines are busy at times, and some sleep."""


class RunBounds:
    """Bounds in seconds, from what runs of late took and never below a configured least.

    A prompt that must be read whole may be many chunks long: it gets the least for each chunk's
    worth of tokens, since before the first long one nothing is known of what they cost.
    """

    def __init__(self, least_s: float | None, budget: PrefillBudget) -> None:
        self._least_s = float("inf") if least_s is None else least_s
        self._budget = budget

    def prompt_s(self, num_tokens: int, start: int) -> float:
        """For so many tokens of a prompt, or of a draft, behind `start` others."""
        num_chunks = max(1.0, num_tokens / self._budget.max_chunk_tokens)
        return max(
            self._least_s * num_chunks, FACTOR * self._budget.cost.predict_s(num_tokens, start)
        )

    def decode_s(self) -> float:
        """For a decode run, or a copy of a row."""
        return max(self._least_s, FACTOR * self._budget.decode_run_s)
