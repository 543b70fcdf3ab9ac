"""A copy of blocks of memory in the CUDA driver's words: `CUDA_MEMCPY2D` of `cuda.h`."""

from __future__ import annotations

import ctypes

from twostroke.backends.ort import Blocks

_HOST, _DEVICE = 1, 2  # CUmemorytype


class Memcpy2D(ctypes.Structure):
    """Rows of bytes with a distance between them, on both sides; arrays are never used here."""

    _fields_ = [
        ("src_x_bytes", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_memory_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src_device", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x_bytes", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_memory_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst_device", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


def describe_copy(target: Blocks, source: Blocks, count: int, block_bytes: int) -> Memcpy2D:
    """The driver's description; arrays must live until the copy is done."""
    copy = Memcpy2D(
        src_pitch=source.pitch_bytes,
        dst_pitch=target.pitch_bytes,
        width_bytes=block_bytes,
        height=count,
    )
    if isinstance(source.memory, int):
        copy.src_memory_type, copy.src_device = _DEVICE, source.memory
    else:
        copy.src_memory_type, copy.src_host = _HOST, source.memory.ctypes.data
    if isinstance(target.memory, int):
        copy.dst_memory_type, copy.dst_device = _DEVICE, target.memory
    else:
        copy.dst_memory_type, copy.dst_host = _HOST, target.memory.ctypes.data
    return copy
