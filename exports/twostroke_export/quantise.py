"""Block quantisation of weight matrices into the layout of `com.microsoft::MatMulNBits`.

A matrix [rows, columns] is cut along its columns into blocks that share a scale. Symmetric blocks
have their zero in the middle (128 of 256, 8 of 16); others have a zero point each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 32
BLOCK_SIZES = (16, 32, 64, 128, 256)  # those of the runtime's kernels
_CHUNK_ELEMENTS = 1 << 17  # float32 temporaries that stay in a core's own cache
# Clipping ranges that each block chooses from, and how often the scale is fitted to the outcome.
_SHRINKS = {8: (1.0,), 4: (1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)}
_NUM_FITS = 2

Float = npt.NDArray[np.float32]
# Blocks lie side by side while they are searched, [size, rows, blocks]: numpy is many times faster
# along the first axis than along a short last one.
_Offer = tuple[Float, Float]  # of each block the scale and the zero, [rows, blocks]


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


def quantise(
    matrix: npt.NDArray[np.float32], blocks: Blocks, importance: Float | None = None
) -> QuantisedMatrix:
    """Quantises [rows, columns] as `blocks` says.

    `importance` [columns] weighs the squared errors of the columns; with the mean square of what
    each column is multiplied by, it is the error of the product that is kept small (None: all
    alike). Columns are padded with zeros to whole blocks. Works through the rows in chunks.
    """
    num_rows, num_columns = matrix.shape
    num_blocks = -(-num_columns // blocks.size)
    values = np.empty((num_rows, num_blocks, blocks.size * blocks.bits // 8), np.uint8)
    scales = np.empty((num_rows, num_blocks), np.dtype(blocks.floats))
    zeros = np.empty((num_rows, num_blocks), np.uint8)
    weigh = np.ones(num_blocks * blocks.size, np.float32)
    if importance is not None:
        weigh[:num_columns] = importance
    weigh = np.ascontiguousarray(weigh.reshape(num_blocks, blocks.size).T)[:, None]
    offers = _symmetric if blocks.is_symmetric else _asymmetric
    step = max(1, _CHUNK_ELEMENTS // (num_blocks * blocks.size))
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        padded = np.zeros((rows.stop - start, num_blocks * blocks.size), np.float32)
        padded[:, :num_columns] = matrix[rows]
        cut = padded.reshape(-1, num_blocks, blocks.size).transpose(2, 0, 1).copy()
        best = _nearest(cut, offers(cut, blocks), blocks, weigh)
        scales[rows], zeros[rows] = best
        whole = _rounded(cut, best, blocks).astype(np.uint8).transpose(1, 2, 0)
        values[rows] = whole if blocks.bits == 8 else whole[..., 0::2] | (whole[..., 1::2] << 4)
    if blocks.is_symmetric:
        return QuantisedMatrix(blocks, values, scales, None)
    return QuantisedMatrix(blocks, values, scales, zeros if blocks.bits == 8 else _pack(zeros))


def dequantise(quantised: QuantisedMatrix, num_columns: int) -> Float:
    """[rows, columns] as `com.microsoft::MatMulNBits` reads it."""
    blocks, values = quantised.blocks, quantised.values
    zeros: npt.NDArray[Any] = np.array(1 << (blocks.bits - 1))
    if quantised.zero_points is not None:
        zeros = quantised.zero_points
        zeros = (_unpack(zeros)[:, : values.shape[1]] if blocks.bits == 4 else zeros)[..., None]
    whole = _unpack(values) if blocks.bits == 4 else values
    floats = whole.astype(np.float32)
    floats -= zeros.astype(np.float32)
    floats *= quantised.scales.astype(np.float32)[..., None]
    return floats.reshape(len(floats), -1)[:, :num_columns]


def _nearest(cut: Float, offers: Iterable[_Offer], blocks: Blocks, weigh: Float) -> _Offer:
    """Of several ways to quantise each block of `cut` the one with the least squared error."""
    first, *others = offers
    if not others:
        return first
    best, least = first, _squared_error(cut, first, blocks, weigh)
    for offer in others:
        best, least = _better(cut, offer, best, least, blocks, weigh)
    for _ in range(_NUM_FITS):
        offer = _fitted_scale(cut, best, blocks, weigh), best[1]
        best, least = _better(cut, offer, best, least, blocks, weigh)
    return best


def _better(
    cut: Float, offer: _Offer, best: _Offer, least: Float, blocks: Blocks, weigh: Float
) -> tuple[_Offer, Float]:
    """For each block the better of `offer` and `best`, whose error is `least`; with its error."""
    error = _squared_error(cut, offer, blocks, weigh)
    is_better = error < least
    scales, zeros = (np.where(is_better, *pair) for pair in zip(offer, best, strict=True))
    return (scales, zeros), np.where(is_better, error, least)


def _fitted_scale(cut: Float, offer: _Offer, blocks: Blocks, weigh: Float) -> Float:
    """The scale of least squared error for the whole numbers that `offer` leads to."""
    whole = _rounded(cut, offer, blocks)
    whole -= offer[1]
    weighed = whole * weigh
    norm = (weighed * whole).sum(0)
    fitted = np.divide((weighed * cut).sum(0), norm, out=offer[0].copy(), where=norm > 0)
    return _as_stored(fitted, blocks)


def _rounded(cut: Float, offer: _Offer, blocks: Blocks) -> Float:
    """The whole numbers that a way to quantise stores for `cut`."""
    scales, zeros = offer
    values: Float = cut * _inverse(scales)
    np.rint(values, out=values)
    values += zeros
    return np.clip(values, 0, (1 << blocks.bits) - 1, out=values)


def _squared_error(cut: Float, offer: _Offer, blocks: Blocks, weigh: Float) -> Float:
    error = _rounded(cut, offer, blocks)
    error -= offer[1]
    error *= offer[0]
    error -= cut
    np.square(error, out=error)
    error *= weigh
    total: Float = error.sum(0)
    return total


def _symmetric(cut: Float, blocks: Blocks) -> Iterator[_Offer]:
    """Around the middle: the entry of largest magnitude becomes the lowest, whatever its sign."""
    middle = 1 << (blocks.bits - 1)
    low, high = cut.min(0), cut.max(0)
    peak = np.where(-low > high, low, high)
    zeros = np.full(peak.shape, middle, np.float32)
    for shrink in _SHRINKS[blocks.bits]:
        yield _as_stored(peak * np.float32(-shrink / middle), blocks), zeros


def _asymmetric(cut: Float, blocks: Blocks) -> Iterator[_Offer]:
    """From the lowest entry (or 0) to the highest (or 0)."""
    top = (1 << blocks.bits) - 1
    low, high = np.minimum(cut.min(0), 0), np.maximum(cut.max(0), 0)
    for shrink in _SHRINKS[blocks.bits]:
        scales = _as_stored((high - low) * np.float32(shrink / top), blocks)
        zeros = np.clip(np.rint(-low * np.float32(shrink) * _inverse(scales)), 0, top)
        yield scales, zeros


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


def _unpack(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Nibbles of the last axis, the low half first."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
