"""What an engine may do for speed without changing its answers: measured before it serves."""

from __future__ import annotations

import logging

from twostroke.engine.limits import EngineLimits
from twostroke.engine.runner import Runner
from twostroke.engine.speculation import Speculation
from twostroke.engine.step_costs import StepCosts
from twostroke.engine.verify_probe import (
    TOLERANCE,
    continuation_difference,
    verification_difference,
)
from twostroke.errors import ConfigError

log = logging.getLogger(__name__)

_DIFFERS = (
    "answers may differ from plain decoding: of several tokens at once these kernels compute "
    "logits that are off by {:.1%}"
)


def open_speculation(
    name: str, runner: Runner, limits: EngineLimits, context_tokens: int
) -> Speculation | None:
    """What guesses, or None where it is off, cannot be, or (in mode auto) would change answers.

    Raises:
        ConfigError: it is asked for and cannot be. The runner is closed.
    """
    if limits.speculation == "off":
        return None
    obstacle = runner.verification_obstacle()
    if obstacle is None:
        difference = 0.0
        if not runner.verifies_floats:
            difference = verification_difference(runner, context_tokens)
        if difference <= TOLERANCE or limits.speculation == "on":
            if difference > TOLERANCE:
                log.warning("%s: with speculation %s", name, _DIFFERS.format(difference))
            return Speculation(limits.speculation, limits.max_draft_tokens, StepCosts())
        obstacle = _DIFFERS.format(difference)
    elif limits.speculation == "on":
        runner.close()
        raise ConfigError(
            [f"speculation is on, but {name} cannot verify drafts: {obstacle}. Set it to auto."]
        )
    log.info("%s: no speculation, because %s", name, obstacle)
    return None


def reuses_answers(name: str, runner: Runner, limits: EngineLimits, context_tokens: int) -> bool:
    """Whether a prompt may go on from an answer as it was decoded."""
    if limits.reuse_prefixes != "exact" or not runner.chunks_prompts:
        return True
    if runner.computes_floats_alike:
        return True
    difference = continuation_difference(runner, context_tokens)
    if difference > TOLERANCE:
        log.info(
            "%s: prompts reuse prompts but no answers: behind tokens that were decoded the logits "
            "are off by %.1f%%. kv.prefixes.reuse: all reuses them nevertheless",
            name,
            100 * difference,
        )
    return difference <= TOLERANCE
