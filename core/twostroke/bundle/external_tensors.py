"""Which initializers of an .onnx file have their bytes in another file, and where.

Field numbers from onnx.proto (github.com/onnx/onnx).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twostroke.bundle.tensor_facts import read_tensor
from twostroke.bundle.wire import WireField, wire_fields
from twostroke.errors import BundleError

_GRAPH, _INITIALIZER = 7, 5


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """`num_bytes` at `offset` of a file; `element_type` is ONNX's number (TensorProto.DataType)."""

    file: Path
    offset: int
    num_bytes: int
    dims: tuple[int, ...]
    element_type: int


def external_tensors(path: Path) -> dict[str, ExternalTensor]:
    """The initializers outside of the graph at `path`, by name. Reads no weights.

    Those whose length is not written down are left out.

    Raises:
        BundleError: the file cannot be read or is no ONNX graph.
    """
    found: dict[str, ExternalTensor] = {}
    try:
        with path.open("rb") as file:
            # Unmapped with the last view of it.
            message = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for graph in (part.value for part in wire_fields(message) if part.number == _GRAPH):
            for part in wire_fields(graph):
                if part.number == _INITIALIZER:
                    found.update(_external(part, path.parent))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise BundleError(f"{path} is not a whole ONNX graph ({error}). Copy it again.") from None
    return found


def _external(tensor: WireField, folder: Path) -> Iterator[tuple[str, ExternalTensor]]:
    facts = read_tensor(tensor.value)
    place = facts.external
    if "location" in place and "length" in place:
        file = folder / place["location"]
        offset, length = int(place.get("offset") or 0), int(place["length"])
        yield facts.name, ExternalTensor(file, offset, length, facts.dims, facts.element_type)
