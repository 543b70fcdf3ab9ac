"""Stores the parameters of a layer's experts as ONNX Runtime's operators read them, each once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.passes.expert_node import MATRICES, ExpertsNode
from twostroke_export.passes.linears import constant, parameter_key, parameter_name
from twostroke_export.precision import Lowering
from twostroke_export.quantise import BLOCK_SIZES, Blocks, QuantisedMatrix, quantise
from twostroke_export.weights import WeightFile


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Puts the experts' parameters into a weight file and names them in a graph. Mutates both."""

    graph: ir.Graph
    weights: WeightFile

    def floats(self, experts: ExpertsNode, name: str) -> ir.Value:
        """A matrix of every expert, [experts, out, in], or a bias, [experts, out]; float32."""
        numbers = range(experts.integer("num_experts"))
        tensor = self.weights.once(
            parameter_key(experts.operand(name), "experts"),
            lambda: np.stack([experts.rows(name, number) for number in numbers]),
        )
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
        made: list[QuantisedMatrix] = []

        def part(field: str) -> npt.NDArray[Any]:
            if not made:  # by the expert, which bounds the copies in floats
                numbers = range(experts.integer("num_experts"))
                made.extend(quantise(experts.rows(name, number), blocks) for number in numbers)
            parts = [getattr(matrix, field) for matrix in made]
            return np.stack([array.reshape(len(array), -1) for array in parts])

        def stored(field: str) -> ir.Value:
            key = parameter_key(experts.operand(name), f"experts {field} of {blocks}")
            return constant(self.graph, self.weights.once(key, lambda: part(field)))

        zeros = None if blocks.is_symmetric else stored("zero_points")
        return stored("values"), stored("scales"), zeros


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
    return None
