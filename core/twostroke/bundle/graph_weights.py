"""The weights of an .onnx file and the operators that read them, without the package `onnx`.

Field numbers from onnx.proto (github.com/onnx/onnx); only the graph's file is read, not the data.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from twostroke.bundle.tensor_facts import read_tensor
from twostroke.bundle.wire import WireField, wire_fields
from twostroke.errors import BundleError

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_ELEMENT_BITS = {1: 32, 2: 8, 3: 8, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 16: 16, 21: 4, 22: 4}


@dataclass(frozen=True, slots=True)
class Reader:
    """A node that reads a tensor as its input number `index`; `numbers` are its int attributes."""

    operator: str
    index: int
    numbers: Mapping[str, int]


@dataclass(slots=True)
class StoredTensor:
    """An initializer: `place` (file, offset, bytes) or its name tells equal ones of two graphs."""

    place: tuple[str, str, str]
    dims: tuple[int, ...]
    num_bytes: int
    readers: list[Reader] = field(default_factory=list)


def read_weights(path: Path) -> list[StoredTensor]:
    """Every initializer of a graph, with the nodes of the top level that read it.

    Raises:
        BundleError: the file cannot be read or is no ONNX graph.
    """
    try:
        with path.open("rb") as file:
            pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graphs = [part.value for part in wire_fields(pages) if part.number == _GRAPH]
        tensors: dict[str, StoredTensor] = {}
        nodes = []
        for part in wire_fields(graphs[-1]):
            if part.number == _INITIALIZER:
                name, tensor = _tensor(part)
                tensors[name] = tensor
            elif part.number == _NODE:
                nodes.append(part)
        for node in nodes:
            _note_readers(node, tensors)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, IndexError) as error:
        raise BundleError(f"{path} is not a whole ONNX graph ({error}). Copy it again.") from None
    return list(tensors.values())


def _note_readers(node: WireField, tensors: Mapping[str, StoredTensor]) -> None:
    operator, inputs = "", []
    numbers: dict[str, int] = {}
    for part in wire_fields(node.value):
        if part.number == 1:
            inputs.append(part.text)
        elif part.number == 4:
            operator = part.text
        elif part.number == 5:
            attribute = {found.number: found for found in wire_fields(part.value)}
            if 1 in attribute and 3 in attribute:
                numbers[attribute[1].text] = attribute[3].number_value
    for index, name in enumerate(inputs):
        if name in tensors:
            tensors[name].readers.append(Reader(operator, index, numbers))


def _tensor(tensor: WireField) -> tuple[str, StoredTensor]:
    facts = read_tensor(tensor.value)
    num_bytes = math.prod(facts.dims) * _ELEMENT_BITS.get(facts.element_type, 8) // 8
    place, external = ("", facts.name, ""), facts.external
    if "location" in external:
        place = (external["location"], external.get("offset", "0"), external.get("length", ""))
    return facts.name, StoredTensor(place, facts.dims, num_bytes)
