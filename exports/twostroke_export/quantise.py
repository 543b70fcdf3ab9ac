"""Block quantisation of weight matrices into the layout of `com.microsoft::MatMulNBits`.

A matrix [rows, columns] is cut along its columns into blocks that share a scale. 8 bits are
symmetric (zero point 128), 4 bits have a zero point for each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 32
_CHUNK_ELEMENTS = 1 << 22  # bounds the float32 temporaries to a few times 16 MiB
_SHRINKS = (1.0, 0.95, 0.9, 0.85)


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """values: [rows, blocks, block_size * bits / 8] uint8; scales: [rows, blocks] float32.

    zero_points: [rows, ceil(blocks * bits / 8)] uint8, or None where they are the middle.
    """

    bits: int
    values: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.uint8] | None


def quantise(
    matrix: npt.NDArray[np.float32], bits: int, block_size: int = BLOCK_SIZE
) -> QuantisedMatrix:
    """Quantises [rows, columns] to 8 or 4 bits in blocks of `block_size` columns.

    Columns are padded with zeros to whole blocks. Works through the rows in chunks.
    """
    num_rows, num_columns = matrix.shape
    num_blocks = -(-num_columns // block_size)
    values = np.empty((num_rows, num_blocks, block_size * bits // 8), np.uint8)
    scales = np.empty((num_rows, num_blocks), np.float32)
    zeros = np.empty((num_rows, num_blocks), np.uint8) if bits == 4 else None
    step = max(1, _CHUNK_ELEMENTS // (num_blocks * block_size))
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        blocks = np.zeros((rows.stop - start, num_blocks * block_size), np.float32)
        blocks[:, :num_columns] = matrix[rows]
        blocks = blocks.reshape(-1, num_blocks, block_size)
        if zeros is None:
            values[rows], scales[rows] = _symmetric(blocks)
        else:
            nibbles, scales[rows], zeros[rows] = _asymmetric(blocks)
            values[rows] = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return QuantisedMatrix(bits, values, scales, None if zeros is None else _pack_pairs(zeros))


def _symmetric(
    blocks: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """[rows, blocks, block_size] -> uint8 around 128 and scales [rows, blocks].

    The entry of largest magnitude becomes exactly 0 (that is -128), whatever its sign.
    """
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = peak / np.float32(-128)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    values = np.clip(np.rint(blocks * inverse) + 128, 0, 255).astype(np.uint8)
    return values, scales[..., 0]


def _asymmetric(
    blocks: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """[rows, blocks, block_size] -> uint8 0 … 15, scales and zero points [rows, blocks].

    Of a few clipping ranges each block takes the one with the least squared error.
    """
    low = np.minimum(blocks.min(-1, keepdims=True), 0)
    high = np.maximum(blocks.max(-1, keepdims=True), 0)
    best_error = np.full(low.shape, np.inf, np.float32)
    best_values = np.zeros(blocks.shape, np.uint8)
    best_scales, best_zeros = np.zeros_like(low), np.zeros(low.shape, np.uint8)
    for shrink in _SHRINKS:
        scales = (high - low) * np.float32(shrink / 15)
        inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
        zeros = np.clip(np.rint(-low * np.float32(shrink) * inverse), 0, 15)
        values = np.clip(np.rint(blocks * inverse) + zeros, 0, 15)
        error = np.square((values - zeros) * scales - blocks).sum(-1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_values = np.where(better, values.astype(np.uint8), best_values)
        best_scales = np.where(better, scales, best_scales)
        best_zeros = np.where(better, zeros.astype(np.uint8), best_zeros)
    return best_values, best_scales[..., 0], best_zeros[..., 0]


def _pack_pairs(zeros: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[rows, blocks] of 0 … 15 -> [rows, ceil(blocks / 2)], the even block in the low half."""
    packed = zeros[:, 0::2].copy()
    packed[:, : zeros.shape[1] // 2] |= zeros[:, 1::2] << 4
    return packed
