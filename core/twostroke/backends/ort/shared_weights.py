"""Weights that lie on a device once, however many sessions read them.

ONNX Runtime takes an initializer's value from whoever makes the session
(`SessionOptions.add_initializer`), if it lies where the session would have put it: on the device
that the nodes that read it run on. What does not is loaded by the session itself, as ever. The
value must not own its memory; one that an IOBinding makes of an address does not.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from twostroke.backends.ort.device_buffers import DeviceBuffer, DeviceMemory, allocate_on_device
from twostroke.backends.ort.library import onnxruntime
from twostroke.bundle import onnx_wire
from twostroke.bundle.external_tensors import ExternalTensor, external_tensors
from twostroke.errors import BundleError


class SharedTensor:
    """One tensor on the device, and the OrtValue over it."""

    __slots__ = ("__weakref__", "buffer", "value")

    def __init__(self, buffer: DeviceBuffer, value: Any) -> None:
        self.buffer = buffer
        self.value = value


class SharedWeights:
    """The weights that the sessions of one backend read, on its device.

    A tensor is loaded with the first session that reads it and freed with the last.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._tensors: WeakValueDictionary[ExternalTensor, SharedTensor] = WeakValueDictionary()
        self._binding: Any = None

    @property
    def num_bytes(self) -> int:
        """What lies on the device now."""
        return sum(tensor.num_bytes for tensor in list(self._tensors))

    def give(self, graph: Path, session_options: Any) -> tuple[SharedTensor, ...]:
        """Has the session that is made with these options read its weights here.

        They must be kept as long as the session.

        Raises:
            OutOfMemoryError: the device refuses the bytes.
            BundleError: a file of weights is missing or too short.
        """
        given = []
        for name, tensor in external_tensors(graph).items():
            shared = self._tensors.get(tensor)
            if shared is None:
                shared = self._tensors[tensor] = self._load(tensor)
            session_options.add_initializer(name, shared.value)
            given.append(shared)
        return tuple(given)

    def _load(self, tensor: ExternalTensor) -> SharedTensor:
        buffer = allocate_on_device(self._memory, (tensor.num_bytes,), "uint8")
        try:
            with tensor.file.open("rb") as file:
                start = tensor.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
                size = tensor.offset - start + tensor.num_bytes
                pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=start)
        except (OSError, ValueError) as error:
            raise BundleError(
                f"{tensor.file} lacks {tensor.num_bytes} bytes at {tensor.offset} ({error}). "
                f"`twostroke verify` checks the bundle's files."
            ) from error
        values = np.frombuffer(pages, np.uint8)[tensor.offset - start :]
        buffer.write(values)
        return SharedTensor(buffer, self._value(tensor, buffer.address))

    def _value(self, tensor: ExternalTensor, address: int) -> Any:
        """An OrtValue over an address, which does not own it."""
        if self._binding is None:
            self._binding = (
                onnxruntime()
                .InferenceSession(_copy_graph(), providers=["CPUExecutionProvider"])
                .io_binding()
            )
        device = self._memory.ort_device
        self._binding.bind_output("y", *device, tensor.element_type, list(tensor.dims), address)
        return self._binding.get_outputs()[0]


def _copy_graph() -> bytes:
    """A graph that is never run: something must have an IOBinding."""
    info = onnx_wire.free_value_info
    node = onnx_wire.node("Identity", ["x"], ["y"])
    return onnx_wire.model(
        "copy", [node], [info("x", "float32")], [info("y", "float32")], [], {"": 13}
    )
