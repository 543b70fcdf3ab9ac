"""What one bundle is made of, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle.manifest import Dialect
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.precision import (
    ACCURACY_LEVEL,
    ACCURACY_LEVELS,
    FLOATS,
    MIXED,
    PRECISIONS,
    TARGET_KL,
    Lowering,
    lowering,
)
from twostroke_export.quantise import BLOCK_SIZE, BLOCK_SIZES

DIALECTS: tuple[Dialect, ...] = ("fused", "standard")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The precision of each stroke and the dialects of a bundle's graphs, the default's first.

    `block_size`, `is_symmetric` and `accuracy_level` are of the strokes that are quantised; see
    `Lowering`. `mixed_kl` and `mixed_budget_bytes` bound what is mixed; see `mixed.choose_bits`.
    `floats` (a precision's name) is what both graphs compute in, None for what their precisions
    say; `has_int8_kv` keeps the cache in int8, not in those floats.
    """

    prefill: str = "int8"
    decode: str = "int8"
    dialects: tuple[Dialect, ...] = ("fused",)
    block_size: int = BLOCK_SIZE
    is_symmetric: bool | None = None
    accuracy_level: int = ACCURACY_LEVEL
    mixed_kl: float = TARGET_KL
    mixed_budget_bytes: int | None = None
    floats: str | None = None
    has_int8_kv: bool = False

    def precision(self, stroke: Stroke) -> str:
        """The precision of a stroke's graph."""
        return self.prefill if stroke is Stroke.PREFILL else self.decode

    @property
    def precisions(self) -> tuple[str, ...]:
        """Each precision once."""
        return tuple(dict.fromkeys((self.prefill, self.decode)))

    @property
    def activations(self) -> str:
        """In which floats both graphs compute, numpy's name.

        A quantised stroke follows the other one where that is in half floats.
        """
        own = [precision for precision in self.precisions if precision in FLOATS]
        return FLOATS[self.floats or next(iter(own), "fp32")]

    @property
    def kv_dtype(self) -> str:
        """In which both graphs keep their cache, numpy's name."""
        return "int8" if self.has_int8_kv else self.activations

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
        floats=options.activations,
        has_int8_kv=options.kv_dtype == "int8",
    )
    check_precisions(recipe.precisions)
    _check_blocks(options, recipe)
    _check_mixed(options, recipe)
    _check_floats(recipe)
    _check_kv(options, recipe)
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


def _check_floats(recipe: Recipe) -> None:
    if recipe.floats is not None and recipe.floats not in FLOATS:
        raise ExportError(
            f"The activations {recipe.floats!r} are unknown; choose one of {', '.join(FLOATS)}."
        )
    own = {f"{stroke} is": recipe.precision(stroke) for stroke in Stroke}
    if recipe.floats is not None:
        own["the activations are"] = recipe.floats
    fixed = {what: name for what, name in own.items() if name in FLOATS}
    if len(set(fixed.values())) > 1:
        listed = ", ".join(f"{what} {name}" for what, name in fixed.items())
        raise ExportError(
            f"Both graphs compute in the same floats, because they share one KV cache, but "
            f"{listed}; make them equal, or quantise a stroke (int8, int4)."
        )


def _check_kv(options: ExportOptions, recipe: Recipe) -> None:
    if options.kv_dtype not in (None, "auto", "int8"):
        raise ExportError(
            f"The cache dtype {options.kv_dtype!r} is unknown; choose auto (the floats that the "
            f"graphs compute in, see --activations) or int8."
        )
    if recipe.has_int8_kv and "standard" in recipe.dialects:
        raise ExportError(
            "An int8 KV cache needs ONNX Runtime's own attention operator, which the standard "
            "dialect does without; leave out --kv-dtype int8 or export the fused dialect alone."
        )


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
