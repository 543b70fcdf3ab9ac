"""What one bundle is made of, checked before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle.manifest import Dialect
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.precision import (
    ACCURACY_LEVEL,
    ACCURACY_LEVELS,
    MIXED,
    PRECISIONS,
    TARGET_KL,
    Lowering,
    lowering,
)
from twostroke_export.quantise import BLOCK_SIZE, BLOCK_SIZES

DIALECTS: tuple[Dialect, ...] = ("fused", "standard")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The precision of each stroke and the dialects of a bundle's graphs, the default's first.

    `block_size`, `is_symmetric` and `accuracy_level` are of the strokes that are quantised; see
    `Lowering`. `mixed_kl` and `mixed_budget_bytes` bound what is mixed; see `mixed.choose_bits`.
    """

    prefill: str = "int8"
    decode: str = "int8"
    dialects: tuple[Dialect, ...] = ("fused",)
    block_size: int = BLOCK_SIZE
    is_symmetric: bool | None = None
    accuracy_level: int = ACCURACY_LEVEL
    mixed_kl: float = TARGET_KL
    mixed_budget_bytes: int | None = None

    def precision(self, stroke: Stroke) -> str:
        """The precision of a stroke's graph."""
        return self.prefill if stroke is Stroke.PREFILL else self.decode

    @property
    def precisions(self) -> tuple[str, ...]:
        """Each precision once."""
        return tuple(dict.fromkeys((self.prefill, self.decode)))

    @property
    def activations(self) -> str:
        """In which floats both graphs compute and keep their cache, numpy's name."""
        return "float16" if "fp16" in self.precisions else "float32"

    def lowering(self, stroke: Stroke) -> Lowering:
        """How the matrices of a stroke are stored."""
        return lowering(
            self.precision(stroke),
            block_size=self.block_size,
            is_symmetric=self.is_symmetric,
            accuracy_level=self.accuracy_level,
            floats=self.activations,
        )


def recipe_of(options: ExportOptions) -> Recipe:
    """The recipe that `twostroke export` asks for.

    Raises:
        ExportError: an unknown precision, dialect or number, or two that cannot go together.
    """
    recipe = Recipe(
        prefill=options.prefill_precision or options.precision,
        decode=options.decode_precision or options.precision,
        dialects=_dialects(options.dialects),
        block_size=_one_of(options.block_size, BLOCK_SIZES, "block size", BLOCK_SIZE),
        is_symmetric=options.is_symmetric,
        accuracy_level=_one_of(
            options.accuracy_level, ACCURACY_LEVELS, "accuracy level", ACCURACY_LEVEL
        ),
        mixed_kl=TARGET_KL if options.mixed_kl is None else options.mixed_kl,
        mixed_budget_bytes=options.mixed_budget_bytes,
    )
    check_precisions(recipe.precisions)
    _check_blocks(options, recipe)
    _check_mixed(options, recipe)
    return recipe


def check_precisions(precisions: Iterable[str]) -> None:
    """Refuses an unknown precision, naming the known ones.

    Raises:
        ExportError: an unknown precision.
    """
    for precision in precisions:
        if precision not in PRECISIONS:
            raise ExportError(
                f"The precision {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}."
            )


def _check_blocks(options: ExportOptions, recipe: Recipe) -> None:
    quantised = [p for p in recipe.precisions if PRECISIONS[p].head is not None]
    given = {
        "--block-size": options.block_size,
        "--symmetric or --asymmetric": options.is_symmetric,
        "--accuracy-level": options.accuracy_level,
    }
    asked = [flag for flag, value in given.items() if value is not None]
    if asked and not quantised:
        raise ExportError(
            f"{asked[0]} is for quantised weights, and {'/'.join(recipe.precisions)} has none; "
            f"choose another precision (int8, int4) or leave it out."
        )
    if quantised and recipe.accuracy_level < ACCURACY_LEVEL:
        log.warning(
            "accuracy level %d multiplies in floats: on the CPU a step of int8 weights takes ten "
            "times as long as with level %d, of int4 weights twice",
            recipe.accuracy_level,
            ACCURACY_LEVEL,
        )


def _check_mixed(options: ExportOptions, recipe: Recipe) -> None:
    given = {"--mixed-kl": options.mixed_kl, "--mixed-mb": options.mixed_budget_bytes}
    for flag, value in given.items():
        if value is not None and MIXED not in recipe.precisions:
            raise ExportError(
                f"{flag} is for the precision {MIXED}, not for {'/'.join(recipe.precisions)}; "
                f"choose --precision {MIXED} or leave it out."
            )
        if value is not None and not value > 0:
            raise ExportError(f"{flag} must be more than 0, not {value:g}.")


def _one_of(given: int | None, known: tuple[int, ...], what: str, default: int) -> int:
    if given is not None and given not in known:
        raise ExportError(
            f"The {what} {given} is unknown; choose one of {', '.join(map(str, known))}."
        )
    return default if given is None else given


def _dialects(wanted: Iterable[str]) -> tuple[Dialect, ...]:
    found = tuple(dialect for dialect in DIALECTS if dialect in wanted)
    unknown = set(wanted) - set(DIALECTS)
    if unknown or not found:
        raise ExportError(
            f"The dialect {min(unknown, default='')!r} is unknown; choose fused, standard or both."
        )
    return found
