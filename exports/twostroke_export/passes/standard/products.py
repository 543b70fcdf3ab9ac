"""Products with constant matrices, whole or quantised in blocks, in plain operators.

DequantizeLinear reads the very bytes of MatMulNBits: [out, in] in blocks along `in`, and 4 bits
packed with the even channel in the low half, which is how ONNX packs uint4 too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from twostroke.errors import ExportError
from twostroke_export.passes.linears import constant
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, dtype_of, optional, required

_NBITS_TYPES = {8: ir.DataType.UINT8, 4: ir.DataType.UINT4}


def plain_fused_product(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """FusedMatMul: alpha * A B, either side transposed in its last two axes."""
    left, right = required(node, 0), required(node, 1)
    if _int(node, "transA", 0):
        left = _turned(ops, left)
    if _int(node, "transB", 0):
        right = _turned(ops, right)
    product = ops("MatMul", left, right)
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.0
    if alpha != 1.0:
        product = ops("Mul", product, ops.scalar(alpha, dtype_of(node.outputs[0])))
    return [product]


def plain_quantised_product(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """MatMulNBits: x [..., in] -> [..., out] by a dequantised matrix.

    Columns that fill no whole block are stored with padding, which is cut off again.

    Raises:
        ExportError: the columns come in another order.
    """
    if optional(node, 4) is not None:
        raise ExportError(
            "A quantised matrix lists its columns in an order of its own (g_idx), which the "
            "standard dialect cannot read; export with --dialect fused."
        )
    num_out, num_in = _int(node, "N"), _int(node, "K")
    bits, block_size = _int(node, "bits", 4), _int(node, "block_size")
    shape = (num_out, -(-num_in // block_size))
    padded = (num_out, shape[1] * block_size)
    values = _stored(ops, required(node, 1), padded, _NBITS_TYPES[bits])
    scales = _stored(ops, required(node, 2), shape, dtype_of(required(node, 2)))
    zeros = _zero_points(ops, optional(node, 3), shape, bits)
    matrix = ops("DequantizeLinear", values, scales, zeros, axis=1, block_size=block_size)
    if padded[1] > num_in:
        matrix = ops("Slice", matrix, ops.ints(0), ops.ints(num_in), ops.ints(1))
    product = ops("MatMul", required(node, 0), ops("Transpose", matrix, perm=(1, 0)))
    bias = optional(node, 5)
    return [product if bias is None else ops("Add", product, bias)]


def plain_quantised_gather(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """GatherBlockQuantized: rows of a quantised table [rows, columns], by ids [batch, sequence].

    The rows are gathered as bytes and dequantised then, so that the table never is.

    Raises:
        ExportError: the table is laid out in another way than the exporter's embeddings.
    """
    bits, block_size = _int(node, "bits", 4), _int(node, "block_size")
    table, ids, scales = (required(node, index) for index in range(3))
    layout = (_int(node, "gather_axis", 0), _int(node, "quantize_axis", 1))
    if layout != (0, 1) or table.dtype != ir.DataType.UINT8:
        raise ExportError(
            "A quantised table is gathered along another axis than its rows, which the standard "
            "dialect cannot do; export with --dialect fused."
        )
    dtype = dtype_of(scales)
    rows = ops("Cast", ops("Gather", table, ids, axis=0), to=dtype)  # [batch, sequence, bytes]
    if bits == 4:
        rows = _halves(ops, rows, dtype)
    blocks = ops("Reshape", rows, ops.ints(0, 0, -1, block_size))
    zeros = optional(node, 3)
    if zeros is None:
        middle = ops.scalar(1 << (bits - 1), dtype)
    else:
        middle = ops("Cast", ops("Gather", zeros, ids, axis=0), to=dtype)
        if bits == 4:  # a row of an odd number ends with half a byte
            middle = _halves(ops, middle, dtype)
            num_blocks = int(dims(scales)[1])
            middle = ops("Slice", middle, ops.ints(0), ops.ints(num_blocks), ops.ints(2))
        middle = ops("Unsqueeze", middle, ops.ints(-1))
    factors = ops("Unsqueeze", ops("Gather", scales, ids, axis=0), ops.ints(-1))
    centred = ops("Sub", blocks, middle)
    return [ops("Reshape", ops("Mul", centred, factors), ops.ints(0, 0, -1))]


def _halves(ops: PlainOps, pairs: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Bytes [batch, sequence, n] as floats -> their low and high halves [batch, sequence, 2 n]."""
    sixteen = ops.scalar(16.0, dtype)
    high = ops("Floor", ops("Div", pairs, sixteen))
    low = ops("Sub", pairs, ops("Mul", high, sixteen))
    columns = [ops("Unsqueeze", half, ops.ints(-1)) for half in (low, high)]
    return ops("Reshape", ops("Concat", *columns, axis=-1), ops.ints(0, 0, -1))


def _stored(ops: PlainOps, value: ir.Value, size: tuple[int, int], dtype: ir.DataType) -> ir.Value:
    """The same bytes of the data file as a matrix of a type."""
    return constant(ops.graph, ops.weights.reshaped(value.const_value, size, dtype))


def _zero_points(
    ops: PlainOps, given: ir.Value | None, size: tuple[int, int], bits: int
) -> ir.Value:
    """[out, blocks] of the values' type; the middle where none are given."""
    num_out, num_blocks = size
    dtype = _NBITS_TYPES[bits]
    if given is None:
        full = 0x88 if bits == 4 else 0x80
        num_bytes = -(-num_out * num_blocks * bits // 8)
        packed = np.full(num_bytes, full, np.uint8)
        stored = ops.weights.once(("middle", num_bytes, full), lambda: packed)
        return constant(ops.graph, ops.weights.reshaped(stored, size, dtype))
    if bits == 8 or num_blocks % 2 == 0:
        return _stored(ops, given, size, dtype)
    assert given.const_value is not None
    pairs = given.const_value.numpy().reshape(num_out, -1)  # each row ends with half a byte
    halves = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(num_out, -1)[:, :num_blocks]
    flat = np.resize(halves, num_out * num_blocks + num_out * num_blocks % 2)
    stored = ops.weights.add(flat[0::2] | (flat[1::2] << 4))
    return constant(ops.graph, ops.weights.reshaped(stored, size, dtype))


def _turned(ops: PlainOps, value: ir.Value) -> ir.Value:
    rank = len(dims(value))
    return ops("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))


def _int(node: ir.Node, name: str, default: int | None = None) -> int:
    if name not in node.attributes and default is not None:
        return default
    return node.attributes[name].as_int()
