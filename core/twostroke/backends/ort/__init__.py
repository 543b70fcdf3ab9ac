"""Shared ground for backends over ONNX Runtime: buffers, sessions, options, placement proof.

Importing this package imports numpy but not onnxruntime; that happens on first use.
"""

from twostroke.backends.ort.buffers import HostBuffer, allocate_host, check_like, numpy_dtype
from twostroke.backends.ort.device_buffers import (
    DeviceBuffer,
    DeviceMemory,
    OrtValueBuffer,
    allocate_on_device,
)
from twostroke.backends.ort.library import dtype_name, first_line, onnxruntime
from twostroke.backends.ort.options import Option, check_options
from twostroke.backends.ort.placement import (
    CPU_PROVIDER,
    count_placement,
    is_heavy,
    prove_placement,
    read_placement,
)
from twostroke.backends.ort.session import OrtBinding, OrtSession, load_session

__all__ = [
    "CPU_PROVIDER",
    "DeviceBuffer",
    "DeviceMemory",
    "HostBuffer",
    "Option",
    "OrtBinding",
    "OrtSession",
    "OrtValueBuffer",
    "allocate_host",
    "allocate_on_device",
    "check_like",
    "check_options",
    "count_placement",
    "dtype_name",
    "first_line",
    "is_heavy",
    "load_session",
    "numpy_dtype",
    "onnxruntime",
    "prove_placement",
    "read_placement",
]
