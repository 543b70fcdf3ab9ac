"""Shared ground for backends over ONNX Runtime: buffers, sessions, options, placement proof.

Importing this package imports numpy but not onnxruntime; that happens on first use.
"""

from twostroke.backends.ort.buffers import HostBuffer, allocate_host, check_like, numpy_dtype
from twostroke.backends.ort.device_buffers import (
    Blocks,
    DeviceBuffer,
    DeviceMemory,
    allocate_on_device,
)
from twostroke.backends.ort.handle_buffers import HandleBuffer, OrtValueBuffer
from twostroke.backends.ort.library import dtype_name, first_line, onnxruntime
from twostroke.backends.ort.options import Option, check_options
from twostroke.backends.ort.placement import (
    CPU_PROVIDER,
    count_placement,
    is_heavy,
    prove_placement,
    read_placement,
)
from twostroke.backends.ort.reduction import with_reduced_logits
from twostroke.backends.ort.session import FOLDER_KEY, OrtBinding, OrtSession, load_session
from twostroke.backends.ort.shared_weights import SharedWeights
from twostroke.backends.ort.staging import DeviceStaged, HostRead, StagingMemory
from twostroke.backends.ort.threads import (
    HasThreads,
    Threads,
    join_shared_threads,
    num_shared_threads,
    share_threads,
)

__all__ = [
    "CPU_PROVIDER",
    "FOLDER_KEY",
    "Blocks",
    "DeviceBuffer",
    "DeviceMemory",
    "DeviceStaged",
    "HandleBuffer",
    "HasThreads",
    "HostBuffer",
    "HostRead",
    "Option",
    "OrtBinding",
    "OrtSession",
    "OrtValueBuffer",
    "SharedWeights",
    "StagingMemory",
    "Threads",
    "allocate_host",
    "allocate_on_device",
    "check_like",
    "check_options",
    "count_placement",
    "dtype_name",
    "first_line",
    "is_heavy",
    "join_shared_threads",
    "load_session",
    "num_shared_threads",
    "numpy_dtype",
    "onnxruntime",
    "prove_placement",
    "read_placement",
    "share_threads",
    "with_reduced_logits",
]
