"""Stores the parameters of a layer's experts as ONNX Runtime's operators read them, each once."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.passes.expert_node import MATRICES, ExpertsNode
from twostroke_export.passes.linears import constant, parameter_key, parameter_name
from twostroke_export.precision import Importance, Lowering
from twostroke_export.quantise import BLOCK_SIZES, Blocks, QuantisedMatrix, quantise
from twostroke_export.weights import WeightFile

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Puts the experts' parameters into a weight file and names them in a graph. Mutates both."""

    graph: ir.Graph
    weights: WeightFile
    importance: Importance

    def floats(self, experts: ExpertsNode, name: str) -> ir.Value:
        """A matrix of every expert, [experts, out, in], or a bias, [experts, out]; float32."""
        key = parameter_key(experts.operand(name), "experts")
        tensor = self.weights.once(key, lambda: experts.stack(name))
        return constant(self.graph, tensor)

    def bias(self, experts: ExpertsNode, name: str) -> ir.Value | None:
        """[experts, out] float32; None where the experts have none."""
        return self.floats(experts, f"{name}_bias") if experts.has_bias else None

    def quantised(
        self, experts: ExpertsNode, name: str, blocks: Blocks
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """A matrix of every expert: values, scales and zero points where it has some.

        values: [experts, out, in * bits / 8] uint8; scales: [experts, out, blocks] float32;
        zero points: [experts, out, ceil(blocks * bits / 8)] uint8.
        """
        parameter, num_experts = experts.operand(name), experts.integer("num_experts")

        def rows(number: int) -> npt.NDArray[Any]:
            return experts.rows(name, number)

        importance = self.importance.get(parameter_name(parameter))
        values, scales, *zeros = store_blocks(
            self.graph, parameter, rows, num_experts, blocks, self.weights, importance
        )
        return values, scales, zeros[0] if zeros else None


def store_blocks(
    graph: ir.Graph,
    parameter: ir.Value,
    rows: Callable[[int], npt.NDArray[Any]],
    num_experts: int,
    blocks: Blocks,
    weights: WeightFile,
    importance: npt.NDArray[np.float32] | None = None,
) -> list[ir.Value]:
    """Quantises what `rows` makes of each expert: values, scales and zero points, if any.

    `importance` is of the columns; see `quantise`. One expert is taken at a time, which bounds the
    copies in floats.
    """
    made: list[QuantisedMatrix] = []

    def part(field: str) -> npt.NDArray[Any]:
        if not made:
            numbers = range(num_experts)
            floats = (rows(number).astype(np.float32, copy=False) for number in numbers)
            made.extend(quantise(matrix, blocks, importance) for matrix in floats)
        parts = [getattr(matrix, field) for matrix in made]
        return np.stack([array.reshape(len(array), -1) for array in parts])

    fields = ("values", "scales", *(() if blocks.is_symmetric else ("zero_points",)))
    keys = [parameter_key(parameter, f"experts {field} of {blocks}") for field in fields]
    return [
        constant(graph, weights.once(key, functools.partial(part, field)))
        for field, key in zip(fields, keys, strict=True)
    ]


def fitting_blocks(experts: ExpertsNode, lowering: Lowering) -> Blocks | None:
    """How to quantise a layer's experts; None where they stay floats.

    Both matrices get the bits that the more demanding one asks for, in the largest blocks up to
    those of `lowering` that cut a row of either into several: a row of a single block would be read
    in another layout. Experts that no block cuts so stay floats.
    """
    wanted = [lowering.layers(parameter_name(experts.operand(name))) for name in MATRICES]
    bits = [number for number in wanted if number is not None]
    if len(bits) < len(wanted):
        return None
    blocks = lowering.blocks(max(bits))
    for size in sorted(BLOCK_SIZES, reverse=True):
        is_whole = all(length % size == 0 and length > size for length in experts.row_lengths)
        if size <= blocks.size and is_whole:
            return dataclasses.replace(blocks, size=size)
    log.warning(
        "experts stay floats: no block of %d to %d columns cuts their rows of %d and of %d evenly",
        *(BLOCK_SIZES[0], blocks.size, *experts.row_lengths),
    )
    return None
