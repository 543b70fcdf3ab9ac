"""Block quantisation of weight matrices into the layout of `com.microsoft::MatMulNBits`.

A matrix [rows, columns] is cut along its columns into blocks that share a scale. Symmetric blocks
have their zero in the middle (128 of 256, 8 of 16); others have a zero point each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 32
BLOCK_SIZES = (16, 32, 64, 128, 256)  # those of the runtime's kernels
_CHUNK_ELEMENTS = 1 << 22  # bounds the float32 temporaries to a few times 16 MiB
_SHRINKS = {8: (1.0,), 4: (1.0, 0.95, 0.9, 0.85)}  # clipping ranges that each block chooses from

Float = npt.NDArray[np.float32]
# Values [rows, blocks, size], and of each block its scale and its zero, [rows, blocks, 1].
_Offer = tuple[Float, Float, Float]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The layout of a quantised matrix: 4 or 8 bits, columns a block, zero points or none.

    floats: of the scales, numpy's name (ml_dtypes' for bfloat16).
    """

    bits: int
    size: int = BLOCK_SIZE
    is_symmetric: bool = True
    floats: str = "float32"

    def num_bytes(self, num_rows: int, num_columns: int) -> int:
        """What a matrix takes in the weights file: values, scales and zero points."""
        num_blocks = -(-num_columns // self.size)
        zeros = 0 if self.is_symmetric else -(-num_blocks * self.bits // 8)
        scales = num_blocks * np.dtype(self.floats).itemsize
        return num_rows * (num_blocks * self.size * self.bits // 8 + scales + zeros)


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """values: [rows, blocks, block size * bits / 8] uint8; scales: [rows, blocks] floats.

    zero_points: [rows, ceil(blocks * bits / 8)] uint8, or None where they are the middle.
    """

    blocks: Blocks
    values: npt.NDArray[np.uint8]
    scales: npt.NDArray[Any]
    zero_points: npt.NDArray[np.uint8] | None


def quantise(matrix: npt.NDArray[np.float32], blocks: Blocks) -> QuantisedMatrix:
    """Quantises [rows, columns] as `blocks` says.

    Columns are padded with zeros to whole blocks. Works through the rows in chunks.
    """
    num_rows, num_columns = matrix.shape
    num_blocks = -(-num_columns // blocks.size)
    values = np.empty((num_rows, num_blocks, blocks.size * blocks.bits // 8), np.uint8)
    scales = np.empty((num_rows, num_blocks), np.dtype(blocks.floats))
    zeros = np.empty((num_rows, num_blocks), np.uint8)
    offers = _symmetric if blocks.is_symmetric else _asymmetric
    step = max(1, _CHUNK_ELEMENTS // (num_blocks * blocks.size))
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        cut = np.zeros((rows.stop - start, num_blocks * blocks.size), np.float32)
        cut[:, :num_columns] = matrix[rows]
        cut = cut.reshape(-1, num_blocks, blocks.size)
        found, scale, zero = _nearest(cut, offers(cut, blocks))
        scales[rows], zeros[rows] = scale[..., 0], zero[..., 0]
        whole = found.astype(np.uint8)
        values[rows] = whole if blocks.bits == 8 else whole[..., 0::2] | (whole[..., 1::2] << 4)
    if blocks.is_symmetric:
        return QuantisedMatrix(blocks, values, scales, None)
    return QuantisedMatrix(blocks, values, scales, zeros if blocks.bits == 8 else _pack(zeros))


def _nearest(cut: Float, offers: Iterator[_Offer]) -> _Offer:
    """Of several ways to quantise each block of `cut` the one with the least squared error."""
    best = next(offers)
    error: Float | None = None
    for offer in offers:
        error = _squared_error(cut, best) if error is None else error
        other = _squared_error(cut, offer)
        better = other < error
        error = np.where(better, other, error)
        values, scales, zeros = (np.where(better, *pair) for pair in zip(offer, best, strict=True))
        best = values, scales, zeros
    return best


def _squared_error(cut: Float, offer: _Offer) -> Float:
    values, scales, zeros = offer
    error: Float = np.square((values - zeros) * scales - cut).sum(-1, keepdims=True)
    return error


def _symmetric(cut: Float, blocks: Blocks) -> Iterator[_Offer]:
    """Around the middle: the entry of largest magnitude becomes the lowest, whatever its sign."""
    middle, top = 1 << (blocks.bits - 1), (1 << blocks.bits) - 1
    peak = np.take_along_axis(cut, np.abs(cut).argmax(-1)[..., None], -1)
    zeros = np.full(peak.shape, middle, np.float32)
    for shrink in _SHRINKS[blocks.bits]:
        scales = _as_stored(peak * np.float32(-shrink / middle), blocks)
        yield np.clip(np.rint(cut * _inverse(scales)) + middle, 0, top), scales, zeros


def _asymmetric(cut: Float, blocks: Blocks) -> Iterator[_Offer]:
    """From the lowest entry (or 0) to the highest (or 0)."""
    top = (1 << blocks.bits) - 1
    low = np.minimum(cut.min(-1, keepdims=True), 0)
    high = np.maximum(cut.max(-1, keepdims=True), 0)
    for shrink in _SHRINKS[blocks.bits]:
        scales = _as_stored((high - low) * np.float32(shrink / top), blocks)
        inverse = _inverse(scales)
        zeros = np.clip(np.rint(-low * np.float32(shrink) * inverse), 0, top)
        yield np.clip(np.rint(cut * inverse) + zeros, 0, top), scales, zeros


def _as_stored(scales: Float, blocks: Blocks) -> Float:
    return scales.astype(np.dtype(blocks.floats)).astype(np.float32)


def _inverse(scales: Float) -> Float:
    inverse: Float = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    return inverse


def _pack(zeros: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[rows, blocks] of 0 … 15 -> [rows, ceil(blocks / 2)], the even block in the low half."""
    packed = zeros[:, 0::2].copy()
    packed[:, : zeros.shape[1] // 2] |= zeros[:, 1::2] << 4
    return packed
