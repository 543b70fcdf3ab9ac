"""What the precisions mean: in how many bits, blocks and floats a graph's weights are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke_export.quantise import BLOCK_SIZE, Blocks

ACCURACY_LEVELS = (0, 1, 4)
ACCURACY_LEVEL = 4  # int8 activations inside the CPU kernels; level 0 is many times slower
MIXED = "mixed"
TARGET_KL = 0.05  # nats that a mixed precision may cost: what `quality_note` lets pass in silence


@dataclass(frozen=True, slots=True)
class Bits:
    """How many bits the layers, the head and the embedding are quantised to; None: floats."""

    layers: int | None
    head: int | None


PRECISIONS = {
    "fp32": Bits(None, None),
    "fp16": Bits(None, None),
    "bf16": Bits(None, None),
    "int8": Bits(8, 8),
    "int4": Bits(4, 8),  # an int8 head costs little and keeps most of the quality
    MIXED: Bits(8, 8),  # of what `twostroke_export.mixed` does not choose bits for
}

FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""numpy's names of the floats (ml_dtypes' of bfloat16) that graphs compute in."""

Importance = Mapping[str, npt.NDArray[np.float32]]
"""From a parameter's name to the mean square of what each input channel of its matrix is given."""

BitsOf = Callable[[str], int | None]
"""From a parameter's name in the torch model to the bits of its matrix; None keeps floats."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """How each matrix of one graph is stored.

    layers: asked for each matrix of the layers by its parameter's name, such as
    `model.layers.0.mlp.down_proj.weight`; head: of the head and the embedding. `is_symmetric` None
    leaves out zero points at 8 bits only. `accuracy_level` is MatMulNBits' own. `importance` says
    which channels of a matrix are to be kept the nearest.
    """

    layers: BitsOf
    head: int | None
    block_size: int = BLOCK_SIZE
    is_symmetric: bool | None = None
    accuracy_level: int = ACCURACY_LEVEL
    floats: str = "float32"  # of the scales, numpy's name
    importance: Importance = field(default_factory=dict)

    def blocks(self, bits: int) -> Blocks:
        """The layout of a matrix of `bits` bits."""
        is_symmetric = bits == 8 if self.is_symmetric is None else self.is_symmetric
        return Blocks(bits, self.block_size, is_symmetric, self.floats)


def lowering(precision: str, **options: Any) -> Lowering:
    """The lowering of a precision that treats every layer alike; `options` are its fields."""
    bits = PRECISIONS[precision]
    return Lowering(lambda _: bits.layers, bits.head, **options)
