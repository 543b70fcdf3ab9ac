"""What an .onnx file declares, read without loading it and without the package `onnx`.

Field numbers from onnx.proto (github.com/onnx/onnx). Of the weights only types, sizes and places
are looked at.
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from twostroke.bundle.tensor_facts import read_tensor
from twostroke.bundle.wire import WireField, wire_fields
from twostroke.errors import BundleError

_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12  # GraphProto
_OP_TYPE, _ATTRIBUTE = 4, 5  # NodeProto
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3
_QUANTISED = "MatMulNBits"
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    16: "bfloat16",
    21: "uint4",
    22: "int4",
}


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """An input or output: numpy's name of its dtype, and its shape; a free dimension is a name."""

    dtype: str
    shape: tuple[int | str, ...]


@dataclass(slots=True)
class GraphHeader:
    """The declarations of a graph.

    Attributes:
        inputs, outputs: by name, in the graph's order.
        num_weights: elements of the initializers by dtype.
        external: files that hold weights, as the graph names them, and how many bytes each of
            them must have at least.
        operators: how often each operator occurs at the top level.
        weight_bits: the bits of the block-quantised products (MatMulNBits) by how often they occur.
    """

    inputs: dict[str, DeclaredTensor] = field(default_factory=dict)
    outputs: dict[str, DeclaredTensor] = field(default_factory=dict)
    num_weights: Counter[str] = field(default_factory=Counter)
    external: dict[str, int] = field(default_factory=dict)
    operators: Counter[str] = field(default_factory=Counter)
    weight_bits: Counter[int] = field(default_factory=Counter)


def read_header(path: Path) -> GraphHeader:
    """Reads a graph's declarations.

    Raises:
        BundleError: the file cannot be read, is cut off or no ONNX graph.
    """
    try:
        with path.open("rb") as file:
            # Unmapped with the last view of it; closing it here would fail beside a traceback.
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _model(memoryview(pages))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # of the wire format, of UTF-8; an empty file cannot be mapped
        raise BundleError(
            f"{path} is not a whole ONNX graph ({error}). Copy it again from where it was made."
        ) from None


def _model(message: memoryview) -> GraphHeader:
    graphs = [found.value for found in wire_fields(message) if found.number == _MODEL_GRAPH]
    if not graphs:
        raise ValueError("it holds no graph")
    header, initializers = GraphHeader(), set()
    for found in wire_fields(graphs[-1]):
        if found.number == _NODE:
            _node(found, header)
        elif found.number == _INITIALIZER:
            initializers.add(_initializer(found, header))
        elif found.number == _INPUT:
            header.inputs.update(_declared(found))
        elif found.number == _OUTPUT:
            header.outputs.update(_declared(found))
    for name in initializers & header.inputs.keys():  # old graphs list their weights as inputs
        del header.inputs[name]
    return header


def _node(node: WireField, header: GraphHeader) -> None:
    operator, bits = "", 0
    for found in wire_fields(node.value):
        if found.number == _OP_TYPE:
            operator = found.text
        elif found.number == _ATTRIBUTE and operator == _QUANTISED:
            parts = {part.number: part for part in wire_fields(found.value)}
            name = parts[_ATTRIBUTE_NAME].text if _ATTRIBUTE_NAME in parts else ""
            if name == "bits" and _ATTRIBUTE_INT in parts:
                bits = parts[_ATTRIBUTE_INT].number_value
    header.operators[operator] += 1
    if operator == _QUANTISED:
        header.weight_bits[bits or 4] += 1  # 4 is the operator's default


def _initializer(tensor: WireField, header: GraphHeader) -> str:
    """Notes a tensor's dtype, size and file; answers its name."""
    facts = read_tensor(tensor.value)
    dtype, external = facts.element_type, facts.external
    header.num_weights[_DTYPES.get(dtype, f"type {dtype}")] += math.prod(facts.dims)
    if "location" in external:
        end = int(external.get("offset") or 0) + int(external.get("length") or 0)
        location = external["location"]
        header.external[location] = max(end, header.external.get(location, 0))
    return facts.name


def _declared(value_info: WireField) -> Mapping[str, DeclaredTensor]:
    """ValueInfoProto (name 1, type 2) with TypeProto.tensor_type (1: elem_type 1, shape 2)."""
    name, dtype = "", 0
    shape: list[int | str] = []
    for found in wire_fields(value_info.value):
        if found.number == 1:
            name = found.text
        elif found.number == 2:
            for kind in wire_fields(found.value):
                if kind.number == 1:
                    for part in wire_fields(kind.value):
                        if part.number == 1:
                            dtype = part.number_value
                        elif part.number == 2:
                            shape = [_dimension(d) for d in wire_fields(part.value)]
    return {name: DeclaredTensor(_DTYPES.get(dtype, f"type {dtype}"), tuple(shape))}


def _dimension(found: WireField) -> int | str:
    """A dimension's value (1) or name (2); "" where it has neither."""
    for part in wire_fields(found.value):
        return part.number_value if part.number == 1 else part.text
    return ""
