"""What weights take: estimated from a model's parameters, or counted in the graphs that read them.

Two graphs share each tensor that both store alike, so two precisions cost less than their sum, and
more than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from twostroke.types import Stroke
from twostroke_export.passes.linears import MIN_SIDE
from twostroke_export.precision import Lowering

Stored = Mapping[Any, int]
"""Bytes of each stored tensor, by what tells it from others."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of weights that each stroke reads, and of those that both read."""

    prefill_bytes: int
    decode_bytes: int
    shared_bytes: int

    @property
    def total_bytes(self) -> int:
        """What both strokes take together, each tensor once."""
        return self.prefill_bytes + self.decode_bytes - self.shared_bytes

    def of(self, stroke: Stroke) -> int:
        """What one stroke reads."""
        return self.prefill_bytes if stroke is Stroke.PREFILL else self.decode_bytes


def footprint(prefill: Stored, decode: Stored) -> Footprint:
    """What two graphs take together."""
    shared = prefill.keys() & decode.keys()
    return Footprint(
        sum(prefill.values()), sum(decode.values()), sum(prefill[key] for key in shared)
    )


def estimate(model: Any, lowering: Lowering) -> dict[Any, int]:
    """Bytes of each tensor that a graph of `model` will store, before there is one.

    Tables and matrices count as `lower` stores them; where a float matrix would be packed or
    transposed first, its bytes are the same.
    """
    float_bytes = np.dtype(lowering.floats).itemsize
    head = _weight(model.get_output_embeddings())
    tables = {
        module.weight.data_ptr(): module is model.get_input_embeddings()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
    }
    stored: dict[Any, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        pointer = parameter.data_ptr()
        is_head = head is not None and pointer == head.data_ptr()
        kinds = {lowering.head} if is_head else set()
        if pointer in tables:
            is_whole = parameter.shape[1] % lowering.block_size == 0
            kinds.add(lowering.head if tables[pointer] and is_whole else None)
        elif not is_head:
            kinds.add(lowering.layers(name))
        for bits in kinds:
            size = parameter.numel() * float_bytes
            if bits is None or parameter.ndim < 2 or min(parameter.shape[-2:]) < MIN_SIDE:
                stored[pointer, lowering.floats] = size
            else:  # experts have their matrices above one another
                blocks, columns = lowering.blocks(bits), parameter.shape[-1]
                stored[pointer, blocks] = blocks.num_bytes(parameter.numel() // columns, columns)
    return stored


def count(graphs: Iterable[ir.Graph]) -> dict[Any, int]:
    """Bytes of each tensor in the data file that these graphs read, by its place there.

    A part of a tensor that is read whole, too, does not count again.
    """
    places = {
        (str(tensor.location), tensor.offset or 0, -tensor.nbytes)
        for graph in graphs
        for value in graph.initializers.values()
        if isinstance(tensor := value.const_value, ir.ExternalTensor)
    }
    stored: dict[Any, int] = {}
    end: tuple[str, int] = ("", 0)
    for location, offset, negative_bytes in sorted(places):  # the longest at a place comes first
        if (location, offset) < end and location == end[0]:
            continue
        stored[location, offset] = -negative_bytes
        end = (location, offset - negative_bytes)
    return stored


def _weight(module: Any) -> torch.Tensor | None:
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, torch.Tensor) else None
