"""What one bundle is made of, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twostroke.backends.hookspecs import ExportOptions
from twostroke.bundle.manifest import Dialect
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.passes.lower import PRECISIONS

DIALECTS: tuple[Dialect, ...] = ("fused", "standard")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The precision of each stroke and the dialects of a bundle's graphs, the default's first."""

    prefill: str = "int8"
    decode: str = "int8"
    dialects: tuple[Dialect, ...] = ("fused",)

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


def recipe_of(options: ExportOptions) -> Recipe:
    """The recipe that `twostroke export` asks for.

    Raises:
        ExportError: an unknown precision or dialect, or two that cannot go together.
    """
    recipe = Recipe(
        prefill=options.prefill_precision or options.precision,
        decode=options.decode_precision or options.precision,
        dialects=_dialects(options.dialects),
    )
    check_precisions(recipe.precisions)
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


def _dialects(wanted: Iterable[str]) -> tuple[Dialect, ...]:
    found = tuple(dialect for dialect in DIALECTS if dialect in wanted)
    unknown = set(wanted) - set(DIALECTS)
    if unknown or not found:
        raise ExportError(
            f"The dialect {min(unknown, default='')!r} is unknown; choose fused, standard or both."
        )
    return found
