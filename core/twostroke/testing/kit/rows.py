"""How checks ask a runner: random prompts, prompts in chunks, forced continuations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.engine.runner import Runner
from twostroke.testing.kit.checking import DIFFERENCE, CheckFailedError, CheckSkippedError
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import CONTEXT_TOKENS, Subject

Logits = npt.NDArray[np.float32]
Ids = tuple[int, ...]


def prompt(vocab_size: int, seed: int, num_tokens: int) -> Ids:
    """Random ids of the vocabulary."""
    return tuple(np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist())


def prefill(runner: Runner, row: int, ids: Sequence[int], chunk: int = CONTEXT_TOKENS) -> Logits:
    """A copy of the logits after the last token, [1, vocab]."""
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        logits = runner.prefill(row, start, part, is_last=start + len(part) == len(ids))
    return logits.copy()


def continued(runner: Runner, row: int, ids: Sequence[int], num_read: int) -> Logits:
    """Reads the first tokens and decodes the others: [1 + len(ids) - num_read, vocab]."""
    answers = [prefill(runner, row, ids[:num_read])]
    for position in range(num_read, len(ids)):
        answers.append(runner.decode(row, [ids[position]], [position]).copy())
    return np.concatenate(answers)


def in_each_setup(
    check: Callable[[Subject, Setup], dict[str, float]],
) -> Callable[[Subject], dict[str, float]]:
    """A check that runs in every set-up that opened; the figures are the largest of all.

    A failure says in which set-up it was, where there are several. It is skipped where it has
    nothing to check in any of them.
    """

    def run(subject: Subject) -> dict[str, float]:
        figures: dict[str, float] = {}
        skipped: list[CheckSkippedError] = []
        setups = subject.setups()
        for setup in setups:
            try:
                found = check(subject, setup)
            except CheckSkippedError as reason:
                skipped.append(reason)
                continue
            except CheckFailedError as fault:
                raise CheckFailedError(f"{setup.name}: {fault}") from fault
            for name, value in found.items():
                figures[name] = max(value, figures.get(name, value))
        if len(skipped) == len(setups):
            raise skipped[0]
        return figures

    return run


def differs_by(*differences: float) -> dict[str, float]:
    """The figure of a check that compares logits."""
    return {DIFFERENCE: max(differences)}
