"""One data file for both graphs: every tensor is written once, named by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

WEIGHTS_NAME = "weights.bin"
_INLINE_BYTES = 256  # smaller tensors stay in the graph
_ALIGNMENT_BYTES = 4096  # a page, so that tensors can be mapped; small ones take 64


class WeightFile:
    """Appends tensors to the data file; equal bytes are stored once, whatever their shape.

    Use as a context manager: leaving it closes the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / WEIGHTS_NAME).open("wb")
        self._offsets: dict[bytes, int] = {}
        self._made: dict[Hashable, ir.ExternalTensor] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def once(self, key: Hashable, make: Callable[[], npt.NDArray[np.generic]]) -> ir.ExternalTensor:
        """The stored tensor of `key`; `make` is called (and its array written) the first time."""
        if key not in self._made:
            self._made[key] = self.add(make())
        return self._made[key]

    def add(self, array: npt.NDArray[np.generic]) -> ir.ExternalTensor:
        """Stores an array and answers the reference to it; its name tells content and shape."""
        data = np.ascontiguousarray(array)
        raw = data.reshape(-1).view(np.uint8)
        digest = hashlib.sha256(raw.data).digest()
        if digest not in self._offsets:
            alignment = _ALIGNMENT_BYTES if raw.nbytes >= _ALIGNMENT_BYTES else 64
            self._file.write(b"\0" * (-self._file.tell() % alignment))
            self._offsets[digest] = self._file.tell()
            self._file.write(raw.data)
        return self._reference(
            f"w_{digest.hex()[:16]}_{data.dtype}",
            self._offsets[digest],
            raw.nbytes,
            ir.DataType.from_numpy(data.dtype),
            array.shape,
        )

    def reshaped(
        self,
        tensor: ir.TensorProtocol | None,
        dims: Sequence[int],
        dtype: ir.DataType | None = None,
    ) -> ir.ExternalTensor:
        """The same bytes under another shape, or as numbers of another type.

        `tensor` is one that was stored here.
        """
        assert isinstance(tensor, ir.ExternalTensor)
        content = (tensor.name or "").rpartition("_")[0]
        if dtype is not None and dtype != tensor.dtype:
            content = f"{content.rpartition('_')[0]}_{dtype.name.lower()}"
        return self._reference(
            content,
            tensor.offset or 0,
            tensor.length or tensor.nbytes,
            dtype or tensor.dtype,
            dims,
        )

    def rows(
        self, tensor: ir.TensorProtocol | None, begin: int, end: int, num_rows: int
    ) -> ir.ExternalTensor:
        """Rows [begin, end) of a tensor that was stored here, where they lie in the file.

        The tensor has `num_rows` rows; its first axis counts them, or equal parts of them.
        """
        assert isinstance(tensor, ir.ExternalTensor)
        content, _, dtype = (tensor.name or "").rpartition("_")[0].rpartition("_")
        first, *others = (int(dim) for dim in tensor.shape.numpy())
        row_bytes = tensor.nbytes // num_rows
        return self._reference(
            f"{content}-{begin}_{dtype}",
            (tensor.offset or 0) + begin * row_bytes,
            (end - begin) * row_bytes,
            tensor.dtype,
            (first * (end - begin) // num_rows, *others),
        )

    def _reference(
        self, content: str, offset: int, length: int, dtype: ir.DataType, dims: Sequence[int]
    ) -> ir.ExternalTensor:
        return ir.ExternalTensor(
            WEIGHTS_NAME,
            offset,
            length,
            dtype,
            shape=ir.Shape(dims),
            name=f"{content}_{'x'.join(map(str, dims))}",
            base_dir=self._folder,
        )

    def store_initializers(self, graph: ir.Graph) -> None:
        """Moves every initializer of some size into the file and renames it by its content.

        Initializers that turn out equal become one; unused ones go. Mutates the graph.
        """
        for number, value in enumerate(list(graph.initializers.values())):
            tensor = value.const_value
            if tensor is None or not value.uses():
                graph.initializers.pop(value.name or "")
                continue
            name = f"c_{number}"
            if isinstance(tensor, ir.ExternalTensor) or tensor.nbytes >= _INLINE_BYTES:
                if not isinstance(tensor, ir.ExternalTensor):
                    tensor = value.const_value = self.add(tensor.numpy())
                name = tensor.name or name
            first = graph.initializers.get(name)
            graph.initializers.pop(value.name or "")
            if first is not None and first is not value:
                ir.convenience.replace_all_uses_with(value, first)
                continue
            value.name = name
            graph.initializers[name] = value
