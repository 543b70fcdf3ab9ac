"""Stores the parameters of a layer's experts as ONNX Runtime's operators read them, each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from twostroke_export.passes.expert_node import ExpertsNode
from twostroke_export.passes.linears import constant, parameter_key
from twostroke_export.quantise import QuantisedMatrix, quantise
from twostroke_export.weights import WeightFile

_MIN_BLOCK_SIZE = 16  # of the kernels


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

    def blocks(
        self, experts: ExpertsNode, name: str, bits: int, block_size: int
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """A matrix of every expert: values, scales and, for 4 bits, zero points.

        values: [experts, out, in * bits / 8] uint8; scales: [experts, out, blocks] float32;
        zero points: [experts, out, ceil(blocks / 2)] uint8.
        """
        made: list[QuantisedMatrix] = []

        def part(field: str) -> npt.NDArray[Any]:
            if not made:  # by the expert, which bounds the copies in floats
                numbers = range(experts.integer("num_experts"))
                made.extend(
                    quantise(experts.rows(name, number), bits, block_size) for number in numbers
                )
            parts = [getattr(matrix, field) for matrix in made]
            return np.stack([array.reshape(len(array), -1) for array in parts])

        def stored(field: str) -> ir.Value:
            key = parameter_key(experts.operand(name), f"experts {field} {bits} {block_size}")
            return constant(self.graph, self.weights.once(key, lambda: part(field)))

        return stored("values"), stored("scales"), stored("zero_points") if bits == 4 else None


def fitting_block_size(experts: ExpertsNode, block_size: int) -> int | None:
    """The largest block up to `block_size` that cuts a row of either matrix into several.

    None where there is none. A row of a single block would be read in another layout.
    """
    while block_size >= _MIN_BLOCK_SIZE:
        if all(length % block_size == 0 and length > block_size for length in experts.row_lengths):
            return block_size
        block_size //= 2
    return None
