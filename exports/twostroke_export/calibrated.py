"""What the calibration text tells of a model, before its weights are written at a precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from twostroke.types import Stroke
from twostroke_export.calibration import calibration_ids
from twostroke_export.groups import find_groups
from twostroke_export.importance import measure_importance
from twostroke_export.mixed import NUM_TOKENS, Mixture, choose_bits
from twostroke_export.passes.fuse import pack
from twostroke_export.precision import MIXED, PRECISIONS, Importance, Lowering
from twostroke_export.prepare import Prepared
from twostroke_export.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Calibrated:
    """importance: of the channels of each matrix, where some get 4 bits; mixture: see `mixed`."""

    importance: Importance = field(default_factory=dict)
    mixture: Mixture | None = None

    def lowering(self, recipe: Recipe, stroke: Stroke) -> Lowering:
        """How the matrices of a stroke are stored, with what was learnt."""
        plain = replace(recipe.lowering(stroke), importance=self.importance)
        if recipe.precision(stroke) != MIXED or self.mixture is None:
            return plain
        bits, rest = self.mixture.bits, plain.layers
        return replace(plain, layers=lambda name: bits.get(name, rest(name)))

    def group_bits(self, recipe: Recipe, stroke: Stroke) -> dict[str, int] | None:
        """The chosen bits for the manifest; None where none were chosen."""
        if recipe.precision(stroke) != MIXED or self.mixture is None:
            return None
        return dict(self.mixture.group_bits)


def calibrate(prepared: Prepared, recipe: Recipe, report: Callable[[float], None]) -> Calibrated:
    """Runs the model over the calibration text where the recipe profits from it; changes nothing.

    What mixes bits runs it once for each group of matrices, which `report` (0 to 1) follows.
    """
    has_four_bits = any(PRECISIONS[precision].layers == 4 for precision in recipe.precisions)
    if MIXED not in recipe.precisions and not has_four_bits:
        return Calibrated()
    model = prepared.loaded.model
    ids = calibration_ids(prepared.loaded, prepared.context_tokens)
    importance = measure_importance(model, ids)
    if MIXED not in recipe.precisions:
        return Calibrated(importance)
    stroke = next(stroke for stroke in Stroke if recipe.precision(stroke) == MIXED)
    lowering = replace(recipe.lowering(stroke), importance=importance)
    groups = find_groups(
        prepared.graph(Stroke.PREFILL).clone().graph, lambda graph: pack(graph, lowering)
    )
    half = NUM_TOKENS // 2
    mixture = choose_bits(
        model,
        groups,
        [*ids[:half], *ids[half:][-half:]],  # prose, and the turns of a conversation
        lowering,
        target_kl=recipe.mixed_kl,
        budget_bytes=recipe.mixed_budget_bytes,
        report=report,
    )
    return Calibrated(importance, mixture)
