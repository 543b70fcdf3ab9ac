"""Has a graph's matrix products of quantised weights run on the package twostroke_kernels.

A `com.microsoft::MatMulNBits` node becomes a `twostroke::MatMulNBits` whose one constant is the
packed weights. The rest of the graph stays byte for byte, so that bundles need no other graphs.
Fields are read from the wire format (field numbers from onnx.proto).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twostroke.bundle.wire import (
    VARINT,
    Bytes,
    WireField,
    delimited,
    encode_varint,
    wire_fields,
)
from twostroke_backends.graph_constants import Constants

_GRAPH, _OPSET = 7, 8  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_INPUT, _OUTPUT, _NAME, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 1, 2, 3, 4, 5, 7  # of NodeProto
_DIMS, _DATA_TYPE, _TENSOR_NAME, _EXTERNAL, _LOCATION = 1, 2, 8, 13, 14  # of TensorProto
_UINT8 = 2  # TensorProto.DataType
_INT = 2  # AttributeProto.AttributeType

Pack = Callable[..., npt.NDArray[np.uint8]]


@dataclass(slots=True)
class _Product:
    """A MatMulNBits node."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    name: str = ""
    numbers: dict[str, int] = field(default_factory=dict)

    def constant(self, index: int) -> str:
        """The name of an input, "" where it has none."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(slots=True)
class SwappedGraph:
    """A serialized ModelProto, and the packed weights that its session must be given, by name."""

    model: bytes
    packed: dict[str, npt.NDArray[np.uint8]]


class _Swap:
    """One graph's way from bytes to bytes. `packed` grows by what its nodes read."""

    def __init__(self, folder: Path, pack: Pack) -> None:
        self._pack = pack
        self._constants = Constants(folder)
        self.packed: dict[str, npt.NDArray[np.uint8]] = {}

    def graph(self, message: Bytes) -> bytes:
        """A GraphProto with its products swapped and without the constants only they read."""
        fields = list(wire_fields(memoryview(message)))
        names = {
            index: self._constants.add(found.value)
            for index, found in enumerate(fields)
            if found.number == _INITIALIZER
        }
        nodes = {i: self._node(found) for i, found in enumerate(fields) if found.number == _NODE}
        read = {name for node in nodes.values() for name in _inputs(node)}
        parts: list[Bytes] = []
        for index, found in enumerate(fields):
            if index in nodes:
                parts.append(nodes[index])
            elif index not in names or names[index] in read:
                parts.append(found.whole)
        for name, weights in self.packed.items():
            parts.append(delimited(_INITIALIZER, _external(name, weights.nbytes)))
        return b"".join(parts)

    def _node(self, found: WireField) -> Bytes:
        """The field of a node, changed where it is a product that can be taken."""
        product = _product(found.value)
        if product is None:
            return found.whole
        constants = tuple(product.constant(index) for index in (1, 2, 3))
        if not self._can_take(product, constants):
            return found.whole
        name = "+".join(constants)
        if name not in self.packed:
            self.packed[name] = self._packed(product, constants)
        return delimited(_NODE, _swapped_node(product, name, bool(constants[2])))

    def _can_take(self, product: _Product, constants: tuple[str, ...]) -> bool:
        weights, scales, zero_points = constants
        numbers = product.numbers
        bias = product.constant(5)
        return (
            numbers.get("bits", 4) in (4, 8)
            and numbers.get("block_size", 0) in (16, 32, 64, 128, 256)
            and not product.constant(4)
            and self._constants.dtype(weights) == np.uint8
            and self._constants.dtype(scales) == np.float32
            and (not zero_points or self._constants.dtype(zero_points) == np.uint8)
            and (not bias or self._constants.dtype(bias) == np.float32)
        )

    def _packed(self, product: _Product, constants: tuple[str, ...]) -> npt.NDArray[np.uint8]:
        numbers = product.numbers
        arrays = [self._constants.array(name) if name else None for name in constants]
        return self._pack((numbers["N"], numbers["K"]), numbers.get("bits", 4), *arrays)


def swap_products(graph: Path, pack: Pack) -> SwappedGraph:
    """`graph` with its products on twostroke's kernels; `pack` is `twostroke_kernels.pack`.

    What the operator does not take stays ONNX Runtime's. Whatever else the graph reads from files
    is still read from there.

    Raises:
        ValueError: the graph is not understood.
        OSError: a file can't be read.
    """
    swap = _Swap(graph.parent, pack)
    parts: list[Bytes] = []
    for found in wire_fields(memoryview(graph.read_bytes())):
        is_graph = found.number == _GRAPH
        parts.append(delimited(_GRAPH, swap.graph(found.value)) if is_graph else found.whole)
    parts.append(delimited(_OPSET, delimited(1, b"twostroke") + _number(2, 1)))
    return SwappedGraph(b"".join(parts), swap.packed)


def _product(node: Bytes) -> _Product | None:
    """The node, where it is a MatMulNBits of ONNX Runtime's."""
    product, kind = _Product(), {_OP_TYPE: "", _DOMAIN: ""}
    for found in wire_fields(memoryview(node)):
        if found.number == _INPUT:
            product.inputs.append(found.text)
        elif found.number == _OUTPUT:
            product.outputs.append(found.text)
        elif found.number == _NAME:
            product.name = found.text
        elif found.number in kind:
            kind[found.number] = found.text
        elif found.number == _ATTRIBUTE:
            attribute = {part.number: part for part in wire_fields(found.value)}
            if 3 in attribute:
                product.numbers[attribute[1].text] = attribute[3].number_value
    is_product = kind == {_OP_TYPE: "MatMulNBits", _DOMAIN: "com.microsoft"}
    return product if is_product else None


def _swapped_node(product: _Product, packed: str, has_zero_points: bool) -> bytes:
    inputs = [product.inputs[0], packed]
    if bias := product.constant(5):
        inputs += ["", "", "", bias]
    numbers = {key: product.numbers[key] for key in ("K", "N", "block_size")}
    numbers |= {"bits": product.numbers.get("bits", 4), "packed": 2 if has_zero_points else 1}
    message = b"".join(delimited(_INPUT, name.encode()) for name in inputs)
    message += b"".join(delimited(_OUTPUT, name.encode()) for name in product.outputs)
    message += delimited(_NAME, product.name.encode()) + delimited(_OP_TYPE, b"MatMulNBits")
    for key, value in numbers.items():
        attribute = delimited(1, key.encode()) + _number(3, value) + _number(20, _INT)
        message += delimited(_ATTRIBUTE, attribute)
    return message + delimited(_DOMAIN, b"twostroke")


def _external(name: str, num_bytes: int) -> bytes:
    """A TensorProto of bytes that the session is given from elsewhere."""
    message = _number(_DIMS, num_bytes) + _number(_DATA_TYPE, _UINT8)
    message += delimited(_TENSOR_NAME, name.encode())
    message += delimited(_EXTERNAL, delimited(1, b"location") + delimited(2, b"packed"))
    return message + _number(_LOCATION, 1)


def _inputs(node: Bytes) -> list[str]:
    """What the field of a node reads, subgraphs aside."""
    (outer,) = wire_fields(memoryview(node))
    return [found.text for found in wire_fields(outer.value) if found.number == _INPUT]


def _number(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | VARINT) + encode_varint(value)
