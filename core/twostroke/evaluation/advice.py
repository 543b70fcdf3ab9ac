"""Which of several bundles to take."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.bundle.quality import LOSSY_KL, LOSSY_TOP1
from twostroke.evaluation.evaluate import Evaluated

# Perplexity alone is a coarser measure: this much more than the best is taken for a loss.
_LOSSY_PERPLEXITY = 1.02


def advise(found: Sequence[Evaluated]) -> str:
    """One sentence about `found` (at least one bundle): the fastest of those that lose little."""
    if len(found) == 1 and found[0].evaluation.mean_kl is None:
        return "name a --source, or other bundles of the model, to see what a precision costs"
    near = [one for one in found if is_near(one, found)]
    if not near:
        return (
            "none of these stays near its source; int8 and mixed do so for most models, fp32 for "
            "all"
        )
    if len(found) == 1:
        return f"{_name(near[0])} loses little of its source's quality"
    best = min(near, key=_cost)
    others = [one for one in found if one is not best and _cost(one) < _cost(best)]
    sentence = f"take {_name(best)}: the fastest of those that stay near the source"
    if others:
        fastest = min(others, key=_cost)
        sentence += f"; {_name(fastest)} is faster and pays for it in quality"
    return sentence


def is_near(one: Evaluated, found: Sequence[Evaluated]) -> bool:
    """Whether a bundle loses little: against its source, else against the best perplexity here."""
    figures = one.evaluation
    if figures.mean_kl is not None and figures.top1_agreement is not None:
        return figures.mean_kl <= LOSSY_KL and figures.top1_agreement >= LOSSY_TOP1
    best = min(other.evaluation.perplexity for other in found)
    return figures.perplexity <= best * _LOSSY_PERPLEXITY


def _cost(one: Evaluated) -> tuple[float, int]:
    return (one.decode_ms if one.decode_ms is not None else float("inf"), one.weights_bytes)


def _name(one: Evaluated) -> str:
    return f"{one.bundle.manifest.precision} ({one.bundle.root.name})"
