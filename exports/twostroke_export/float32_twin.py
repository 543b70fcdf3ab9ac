"""A float32 copy of graphs in bfloat16, for a processor that has no kernels for those.

The weights are the same numbers; what is computed from them is not rounded between operators.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from twostroke.bundle.manifest import Manifest
from twostroke_export.weights import WeightFile

_HALF, _FULL = ir.DataType.BFLOAT16, ir.DataType.FLOAT


@contextlib.contextmanager
def runnable(folder: Path, manifest: Manifest) -> Iterator[tuple[Path, str | None]]:
    """Graphs that the CPU can run: a bundle's own, or twins inside its folder while this lasts.

    Yields their folder and, of twins, the floats that they compute in.
    """
    halves = [g.file for g in manifest.graphs if g.quantisation.activations == "bfloat16"]
    if not halves:
        yield folder, None
        return
    with tempfile.TemporaryDirectory(prefix=".float32-", dir=folder) as twins:
        write_twins([folder / name for name in halves], Path(twins))
        yield Path(twins), "float32"


def write_twins(graphs: Iterable[Path], folder: Path) -> None:
    """Writes a float32 twin of each graph under its own name into `folder`, which must be there."""
    with WeightFile(folder) as weights:
        for path in graphs:
            model = ir.load(path)
            _widen(model.graph, weights)
            ir.save(model, folder / path.name)


def _widen(graph: ir.Graph, weights: WeightFile) -> None:
    """Turns every bfloat16 of a graph into float32. Mutates; tensors move to `weights`."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.dtype == ir.DataType.UINT4:  # two in a byte, which numpy has no array for
            packed = weights.add(np.frombuffer(tensor.tobytes(), np.uint8))
            value.const_value = weights.reshaped(packed, tensor.shape.numpy(), tensor.dtype)
            continue
        array = tensor.numpy()
        if tensor.dtype == _HALF:
            array = array.astype(np.float32)
        is_large = isinstance(tensor, ir.ExternalTensor)
        value.const_value = weights.add(array) if is_large else ir.tensor(array)
        value.type = ir.TensorType(value.const_value.dtype)
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.dtype == _HALF:
            value.type = ir.TensorType(_FULL)
    for node in graph:
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _HALF:
                wide = ir.tensor(attribute.as_tensor().numpy().astype(np.float32))
                node.attributes[name] = ir.AttrTensor(name, wide)
        if node.op_type == "Cast" and node.attributes["to"].as_int() == _HALF:
            node.attributes["to"] = ir.AttrInt64("to", _FULL)
