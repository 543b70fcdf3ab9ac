"""Measures strokes in turns, so that whatever else the machine does befalls all of them alike."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from twostroke.backends.hookspecs import Progress
from twostroke.engine.decode_step import decode_step
from twostroke.engine.runner import Runner
from twostroke.life.memory import kv_bytes_per_token
from twostroke.tune.opened import OpenVariant
from twostroke.tune.settings import Workload
from twostroke.types import Stroke, TokenId

Clock = Callable[[], float]
Report = Callable[[Progress], None]

NUM_STEPS = 12  # decode steps in a round, of which the median counts
_UNTIMED = 2  # the first ones touch memory and build bindings
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
HOPELESS = 3.0
"""How many times longer than the best a variant may take before it is left out."""


@dataclass(slots=True)
class Samples:
    """Seconds of the same thing, one figure a round."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Largest less smallest, over the median."""
        return (max(self.seconds) - min(self.seconds)) / max(self.median_s, 1e-9)


@dataclass(slots=True)
class StrokeFigures:
    """What a variant took: a prompt, or a step of so many streams."""

    prompt: Samples = field(default_factory=Samples)
    steps: dict[int, Samples] = field(default_factory=dict)  # by streams


def prompt_of(workload: Workload, vocab_size: int) -> list[TokenId]:
    """The same random tokens each time."""
    choice = random.Random(workload.prompt_tokens)
    return [choice.randrange(vocab_size) for _ in range(workload.prompt_tokens)]


def read_prompt(runner: Runner, ids: Sequence[TokenId], chunk_tokens: int) -> None:
    """Reads a prompt into row 0 in the chunks that the engine would make."""
    size = chunk_tokens if runner.chunks_prompts else len(ids)
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        runner.prefill(0, start, chunk, is_last=start + size >= len(ids))


def in_turns(
    contenders: Mapping[str, Callable[[], None]],
    seconds: float,
    report: Report,
    what: str,
    drop: Callable[[Sequence[str]], Collection[str]] = lambda names: (),
    clock: Clock = time.perf_counter,
) -> int:
    """Runs every contender once unmeasured, then all of them in rounds for about `seconds`.

    `drop` says after the first run who is not worth more of them. Each round begins with another
    one. On a machine that became busier than it was at first, rounds end with the time, but for the
    least that tell anything. Answers the number of rounds.
    """
    took_s = {}
    for number, (name, run) in enumerate(contenders.items()):
        report(Progress(f"{what}: warming up {name}", 0.2 * number / len(contenders)))
        began = clock()
        run()
        took_s[name] = clock() - began
    dropped = drop(list(contenders))
    names = [name for name in contenders if name not in dropped]
    round_s = max(sum(took_s[name] for name in names), 1e-6)
    num_rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, round(seconds / round_s)))
    began = clock()
    for turn in range(num_rounds):
        if turn >= LEAST_ROUNDS and clock() - began >= seconds:
            return turn
        stage = f"{what}: round {turn + 1} of {num_rounds}, about {round_s:.0f} s each"
        report(Progress(stage, 0.2 + 0.8 * turn / num_rounds))
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            contenders[name]()
    return num_rounds


def hopeless(timers: Mapping[str, StrokeTimer]) -> dict[str, float]:
    """Who took so much longer than the best of its stroke that no noise explains it: how often.

    They run once more before it is decided, since some backends compile in their first runs. What
    the YAML asks for is never left out, and of each backend the quickest stays to be compared.
    """
    for name in _slow(timers):
        timers[name]()
    return _slow(timers)


def _slow(timers: Mapping[str, StrokeTimer]) -> dict[str, float]:
    best: dict[tuple[Stroke, str], float] = {}
    for timer in timers.values():
        key = timer.opened.variant.stroke, timer.opened.variant.backend
        best[key] = min(best.get(key, math.inf), timer.first_s)
    slow = {}
    for name, timer in timers.items():
        variant = timer.opened.variant
        best_s = min(seconds for (stroke, _), seconds in best.items() if stroke is variant.stroke)
        is_kept = variant.is_current or timer.first_s == best[variant.stroke, variant.backend]
        if timer.first_s > HOPELESS * best_s and not is_kept:
            slow[name] = timer.first_s / max(best_s, 1e-9)
    return slow


class StrokeTimer:
    """Measures one open variant; call it once a round. What a first call finds is not counted.

    `first_s` is the least that was found before the rounds: of a prompt, or a step of each number
    of streams together.
    """

    def __init__(
        self,
        opened: OpenVariant,
        workload: Workload,
        chunk_tokens: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.opened = opened
        self.figures = StrokeFigures()
        self._workload = workload
        self._chunk_tokens = chunk_tokens
        self._clock = clock
        self._ids = prompt_of(workload, opened.runner.vocab_size)
        self._is_filled = False
        self.first_s = math.inf
        self.is_counting = False

    def __call__(self) -> None:
        """One prompt, or some steps of each number of streams."""
        if self.opened.variant.stroke is Stroke.PREFILL:
            taken = {0: self._prompt_s()}
        else:
            taken = {streams: self._step_s(streams) for streams in self._workload.streams}
        if not self.is_counting:
            self.first_s = min(self.first_s, sum(taken.values()))
            return
        for streams, seconds in taken.items():
            is_prompt = self.opened.variant.stroke is Stroke.PREFILL
            steps = self.figures.steps
            samples = self.figures.prompt if is_prompt else steps.setdefault(streams, Samples())
            samples.seconds.append(seconds)

    def _prompt_s(self) -> float:
        began = self._clock()
        read_prompt(self.opened.runner, self._ids, self._chunk_tokens)
        return self._clock() - began

    def _step_s(self, streams: int) -> float:
        past_tokens, runner = self._workload.past_tokens, self.opened.runner
        manifest, graph = self.opened.variant.bundle.manifest, self.opened.graph
        num_bytes = past_tokens * kv_bytes_per_token(manifest.kv_layers, graph.kv_dtype)
        if graph.is_concatenating or not self._is_filled:
            for row in range(max(self._workload.streams)):
                runner.restore_row(row, bytes(num_bytes), past_tokens, past_tokens)
            self._is_filled = True
        num_steps = min(NUM_STEPS, self._workload.context_tokens - past_tokens)
        taken = [self._one_step_s(streams, past_tokens + n) for n in range(max(1, num_steps))]
        return statistics.median(taken[_UNTIMED:] or taken)

    def _one_step_s(self, streams: int, past_tokens: int) -> float:
        runner, token = self.opened.runner, self._ids[0]
        began = self._clock()
        if self.opened.is_alone:
            for row in range(streams):
                decode_step(runner, row, [token], [past_tokens])
        else:
            decode_step(runner, 0, [token] * streams, [past_tokens] * streams)
        return self._clock() - began
