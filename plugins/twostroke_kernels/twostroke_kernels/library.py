"""The shared library, as Python sees it."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SUFFIX = {"win32": ".dll", "darwin": ".so"}.get(sys.platform, ".so")


def library_path() -> Path:
    """The file for `register_custom_ops_library`.

    Raises:
        FileNotFoundError: the package was installed without it.
    """
    path = Path(__file__).with_name(f"twostroke_kernels{_SUFFIX}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: reinstall twostroke-kernels.")
    return path


def isa() -> str | None:
    """The instruction set that is used, e.g. `avx512_vnni`.

    It is the best that the processor has; the environment's TWOSTROKE_KERNELS_ISA names another.
    None where that one is unknown or not to be had here.
    """
    name: bytes | None = _library().twostroke_kernels_isa()
    return None if name is None else name.decode()


def packed_bytes() -> int:
    """Bytes of the weights that sessions of this process have packed in memory."""
    return int(_library().twostroke_kernels_packed_bytes())


def pack(
    shape: tuple[int, int],
    bits: int,
    weights: NDArray[np.uint8],
    scales: NDArray[np.float32],
    zero_points: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Packs MatMulNBits' constants as the operator reads them with the attribute `packed`.

    Args:
        shape: N and K.
        bits: 4 or 8.
        weights: uint8 [N, blocks, block_size * bits / 8].
        scales: float32 [N, blocks] or [N * blocks].
        zero_points: uint8 [N, ceil(blocks * bits / 8)] or flat; None: 2 ** (bits - 1) everywhere.

    Returns:
        uint8, one axis.

    Raises:
        ValueError: the arrays don't fit together.
    """
    num_columns, depth = shape
    _, num_blocks, blob_bytes = weights.shape
    block = blob_bytes * 8 // bits
    zero_bytes = num_columns * -(-num_blocks * bits // 8)
    if num_blocks != -(-depth // block) or len(weights) != num_columns:
        raise ValueError(f"weights {weights.shape} are not those of N and K {shape}.")
    if scales.size != num_columns * num_blocks or scales.dtype != np.float32:
        raise ValueError(f"scales {scales.shape} must be float32, one for each block.")
    if zero_points is not None and zero_points.nbytes != zero_bytes:
        raise ValueError(f"zero_points has {zero_points.nbytes} bytes, not {zero_bytes}.")
    library, layout = _library(), (num_columns, depth, bits, block)
    size = library.twostroke_kernels_packed_size(*layout, int(zero_points is not None))
    packed = np.empty(size, np.uint8)
    given = [None if a is None else np.ascontiguousarray(a) for a in (weights, scales, zero_points)]
    pointers = [None if a is None else a.ctypes.data for a in given]
    library.twostroke_kernels_pack(*layout, *pointers, packed.ctypes.data)
    return packed


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.twostroke_kernels_isa.restype = ctypes.c_char_p
    library.twostroke_kernels_packed_bytes.restype = ctypes.c_uint64
    size = library.twostroke_kernels_packed_size
    size.restype, size.argtypes = (
        ctypes.c_uint64,
        [
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int32,
            ctypes.c_uint64,
            ctypes.c_int32,
        ],
    )
    pack_into = library.twostroke_kernels_pack
    pack_into.restype, pack_into.argtypes = (
        None,
        [
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int32,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ],
    )
    return library
