"""A bundle's weights in 4 bits, made from its 8 bits: for what only the size of weights decides."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from twostroke.bundle.open import read_manifest
from twostroke.bundle.write import seal

ROUNDS_TO_16 = 16  # the high half of a byte is its value in steps of 16, about the zero point 8
SMALL_BYTES = 256  # stays in the graph


def in_4_bits(bundle: Path, out: Path) -> Path:
    """The bundle with the products of both graphs over 4 bits, each matrix in the file once."""
    shutil.copytree(bundle, out, ignore=shutil.ignore_patterns("weights.bin"))
    places: dict[bytes, int] = {}
    with (out / "weights.bin").open("wb") as weights:
        for name in ("prefill.onnx", "decode.onnx"):
            model = onnx.load(str(bundle / name))
            halve_products(model.graph)
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) < SMALL_BYTES:
                    continue
                if tensor.raw_data not in places:
                    places[tensor.raw_data] = weights.tell()
                    weights.write(tensor.raw_data)
                place, length = places[tensor.raw_data], len(tensor.raw_data)
                onnx.external_data_helper.set_external_data(tensor, "weights.bin", place, length)
                tensor.ClearField("raw_data")
            (out / name).write_bytes(model.SerializeToString())
    seal(out, read_manifest(bundle))
    return out


def halve_products(graph: Any) -> None:
    """Makes 4 bits of each MatMulNBits's 8, but of what others read too. Mutates the graph."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    readers = [name for node in graph.node for name in node.input]
    for node in graph.node:
        if node.op_type != "MatMulNBits" or readers.count(node.input[1]) > 1:
            continue
        high = numpy_helper.to_array(tensors[node.input[1]]) >> 4  # [N, blocks, 32]
        packed = high[..., 0::2] | (high[..., 1::2] << 4)  # [N, blocks, 16]
        scales = numpy_helper.to_array(tensors[node.input[2]]) * np.float32(ROUNDS_TO_16)
        for name, values in zip(node.input[1:], (packed, scales), strict=True):
            tensors[name].CopyFrom(numpy_helper.from_array(values, name))
        next(a for a in node.attribute if a.name == "bits").i = 4
