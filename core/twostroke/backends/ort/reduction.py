"""Appends nodes to a decode graph that reduce its logits; see `twostroke.backends.reduced`.

Works on the bytes of the .onnx file, since the package `onnx` is no part of a serving environment:
a node, an input, an output and an initializer are each one more field of the graph's message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from twostroke.backends.reduced import (
    BLOCK_IDS,
    BLOCK_WEIGHTS,
    INVERSE_TEMPERATURE,
    NUM_TOP,
    TOP_IDS,
    TOP_LOGITS,
)
from twostroke.bundle import onnx_wire
from twostroke.bundle.contract import LOGITS
from twostroke.bundle.graph_header import read_header
from twostroke.bundle.wire import VARINT, delimited, wire_fields
from twostroke.errors import BundleError

_GRAPH, _OPSET_IMPORT = 7, 8  # ModelProto
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12  # GraphProto
_LEAST_OPSET = 13  # axes of ReduceSum are an input from here on
_FLOATS = frozenset({"float32", "float16", "bfloat16"})
_OWN = "twostroke.reduced."  # before the names of what is added


def with_reduced_logits(path: Path) -> bytes | None:
    """The graph at `path` with its logits reduced; None where they are not of one position each,
    or the vocabulary's size or the operators' version is not what this needs.

    Data in other files is still named relatively to the folder of `path`.

    Raises:
        BundleError: the file cannot be read or is no ONNX graph.
    """
    declared = read_header(path).outputs.get(LOGITS)
    if declared is None or declared.dtype not in _FLOATS or len(declared.shape) != 3:
        return None
    _, num_positions, vocab_size = declared.shape
    if num_positions != 1 or not isinstance(vocab_size, int) or vocab_size < 1:
        return None
    try:
        message = memoryview(path.read_bytes())
        if _opset(message) < _LEAST_OPSET:
            return None
        added = b"".join(_added(vocab_size, is_float32=declared.dtype == "float32"))
        return b"".join(
            delimited(_GRAPH, bytes(part.value) + added)
            if part.number == _GRAPH
            else bytes(part.whole)
            for part in wire_fields(message)
        )
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error


def num_blocks(vocab_size: int) -> int:
    """Blocks of a vocabulary; the last may be shorter."""
    return -(-vocab_size // BLOCK_IDS)


def _opset(message: memoryview) -> int:
    """The version of ONNX's own operators; 0 where none is declared."""
    for part in wire_fields(message):
        if part.number == _OPSET_IMPORT:
            fields = {found.number: found for found in wire_fields(part.value)}
            if 1 not in fields or not len(fields[1].value):
                version = fields.get(2)
                return version.number_value if version and version.wire_type == VARINT else 0
    return 0


def _added(vocab_size: int, *, is_float32: bool) -> Iterator[bytes]:
    """The fields of the graph's message that are added."""
    blocks = num_blocks(vocab_size)
    num_padded = blocks * BLOCK_IDS - vocab_size
    constants = {
        "k": [min(NUM_TOP, vocab_size)],
        "zero": [0],
        "one": [1],
        "last_axis": [-1],
        "blocks_shape": [0, 0, blocks, BLOCK_IDS],  # 0: as it was
        "padding": [0, 0, 0, 0, 0, num_padded],
    }
    for name, values in constants.items():
        content = onnx_wire.tensor(_OWN + name, np.array(values, np.int64), _no_file())
        yield delimited(_INITIALIZER, content)
    for node in _nodes(is_float32=is_float32, is_padded=num_padded > 0):
        yield delimited(_NODE, node)
    info = onnx_wire.value_info
    yield delimited(_INPUT, info(INVERSE_TEMPERATURE, "float32", ["batch", 1, 1]))
    top: list[int | str] = ["batch", 1, min(NUM_TOP, vocab_size)]
    yield delimited(_OUTPUT, info(TOP_LOGITS, "float32", top))
    yield delimited(_OUTPUT, info(TOP_IDS, "int64", top))
    yield delimited(_OUTPUT, info(BLOCK_WEIGHTS, "float32", ["batch", 1, blocks]))


def _nodes(*, is_float32: bool, is_padded: bool) -> Iterator[bytes]:
    def node(op: str, inputs: list[str], *outputs: str, **attributes: int) -> bytes:
        return onnx_wire.node(op, inputs, outputs, "", **attributes)

    logits = LOGITS  # [batch, 1, vocab]
    if not is_float32:
        logits = f"{_OWN}logits"
        yield node("Cast", [LOGITS], logits, to=onnx_wire.ELEMENT_TYPES["float32"])
    yield node("TopK", [logits, f"{_OWN}k"], TOP_LOGITS, TOP_IDS, axis=-1, largest=1, sorted=1)
    ends = [f"{_OWN}zero", f"{_OWN}one", f"{_OWN}last_axis"]
    yield node("Slice", [TOP_LOGITS, *ends], f"{_OWN}peak")  # [batch, 1, 1]
    yield node("Sub", [logits, f"{_OWN}peak"], f"{_OWN}below")
    yield node("Mul", [f"{_OWN}below", INVERSE_TEMPERATURE], f"{_OWN}scaled")
    weights = f"{_OWN}weights"
    yield node("Exp", [f"{_OWN}scaled"], weights)  # [batch, 1, vocab]; the highest is 1
    if is_padded:
        yield node("Pad", [weights, f"{_OWN}padding"], f"{_OWN}padded")
        weights = f"{_OWN}padded"
    yield node("Reshape", [weights, f"{_OWN}blocks_shape"], f"{_OWN}in_blocks")
    inputs = [f"{_OWN}in_blocks", f"{_OWN}last_axis"]  # [batch, 1, blocks, BLOCK_IDS]
    yield node("ReduceSum", inputs, BLOCK_WEIGHTS, keepdims=0)


def _no_file() -> onnx_wire.WeightsFile:
    return onnx_wire.WeightsFile("")  # these constants are too small for a file
