"""The best pairs once more, together: hand-over, both sessions' threads, one cache or two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from twostroke.engine.decode_step import decode_step
from twostroke.tune.opened import OpenVariants
from twostroke.tune.pairs import Pair, with_measured
from twostroke.tune.rounds import (
    NUM_STEPS,
    Clock,
    Report,
    Samples,
    in_turns,
    prompt_of,
    read_prompt,
)
from twostroke.tune.settings import Workload


class PairTimer:
    """Reads a prompt and makes some tokens behind it; call it once a round. The first is not
    counted.
    """

    def __init__(
        self,
        pair: Pair,
        variants: OpenVariants,
        workload: Workload,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Makes a cache for the pair.

        Raises:
            TwostrokeError: it cannot be had.
        """
        self._pair = pair
        self._runner = variants.pair(pair.prefill, pair.decode)
        self._workload = workload
        self._chunk_tokens = variants.chunk_tokens(pair.prefill.graph.backend)
        self._clock = clock
        self._ids = prompt_of(workload, self._runner.vocab_size)
        self._ttft, self._hand_over, self._step = Samples(), Samples(), Samples()
        self._is_warm = False

    def __call__(self) -> None:
        """One request, cut short."""
        began = self._clock()
        read_prompt(self._runner, self._ids, self._chunk_tokens)
        ttft_s = self._clock() - began
        moved = self._runner.take_hand_over()
        past_tokens = self._lengthen()
        num_steps = max(1, min(NUM_STEPS, self._workload.context_tokens - past_tokens))
        steps = [self._step_s(past_tokens + n) for n in range(num_steps)]
        if self._is_warm:
            self._ttft.seconds.append(ttft_s)
            self._hand_over.seconds.append(0.0 if moved is None else moved.seconds)
            self._step.seconds.append(statistics.median(steps))
        self._is_warm = True

    def result(self) -> Pair:
        """The pair with what was measured."""
        return with_measured(
            self._pair, self._ttft.median_s, self._hand_over.median_s, self._step.median_s
        )

    def _lengthen(self) -> int:
        """Half of the answer, read at once and not counted; the tokens that the row then holds."""
        prompt_tokens, past_tokens = self._workload.prompt_tokens, self._workload.past_tokens
        if not self._runner.chunks_prompts or past_tokens == prompt_tokens:
            return prompt_tokens
        half = [self._ids[0]] * (past_tokens - prompt_tokens)
        self._runner.prefill(0, prompt_tokens, half, is_last=True)
        self._runner.take_hand_over()
        return past_tokens

    def _step_s(self, past_tokens: int) -> float:
        began = self._clock()
        decode_step(self._runner, 0, [self._ids[0]], [past_tokens])
        return self._clock() - began


def measure_together(
    pairs: Sequence[Pair],
    variants: OpenVariants,
    workload: Workload,
    seconds: float,
    report: Report,
) -> list[Pair]:
    """The pairs, each as it ran together with the others in turns.

    Raises:
        TwostrokeError: a cache cannot be had, or a run failed.
    """
    timers = [PairTimer(pair, variants, workload) for pair in pairs]
    named = {
        f"{pair.prefill.variant.name} → {pair.decode.variant.name}": timer
        for pair, timer in zip(pairs, timers, strict=True)
    }
    in_turns(named, seconds, report, "pairs")
    return [timer.result() for timer in timers]
