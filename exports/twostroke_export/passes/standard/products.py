"""Products with constant matrices, whole or quantised in blocks, and the embedding likewise."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from twostroke.errors import ExportError
from twostroke_export.passes.gathered_experts import names_every_expert
from twostroke_export.passes.standard.dequantise import QuantisedMatrix
from twostroke_export.passes.standard.plain_ops import PlainOps, dims, floats_of, optional, required


def plain_fused_product(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """FusedMatMul: alpha * A B, either side transposed in its last two axes."""
    left, right = required(node, 0), required(node, 1)
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.0
    is_left_turned, is_right_turned = (bool(_int(node, f"trans{side}", 0)) for side in "AB")
    if is_right_turned and not is_left_turned and right.is_initializer():
        return [_by_rows(ops, left, right, alpha)]
    product = ops(
        "MatMul",
        _turned(ops, left) if is_left_turned else left,
        _turned(ops, right) if is_right_turned else right,
    )
    return [product if alpha == 1.0 else ops("Mul", product, ops.scalar(alpha, floats_of(node)))]


def _by_rows(ops: PlainOps, left: ir.Value, right: ir.Value, alpha: float) -> ir.Value:
    """[.., in] by a stored matrix [out, in] -> [.., out].

    Gemm, which takes two axes only, reads the matrix as it lies: with a Transpose before MatMul a
    runtime keeps a turned copy, which for a tied head is a second embedding.
    """
    num_out, num_in = dims(right)
    rows = ops("Gemm", ops("Reshape", left, ops.ints(-1, num_in)), right, transB=1, alpha=alpha)
    outer = ops("Shape", left, start=0, end=-1)
    return ops("Reshape", rows, ops("Concat", outer, ops.ints(num_out), axis=0))


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
    num_in = _int(node, "K")
    bits, block_size = _int(node, "bits", 4), _int(node, "block_size")
    parts = (required(node, 1), required(node, 2), optional(node, 3))
    matrix = QuantisedMatrix(*parts, bits, block_size).whole(ops)  # [out, in]
    if num_in % block_size:
        matrix = ops("Slice", matrix, ops.ints(0), ops.ints(num_in), ops.ints(1))
    product = ops("MatMul", required(node, 0), ops("Transpose", matrix, perm=(1, 0)))
    bias = optional(node, 5)
    return [product if bias is None else ops("Add", product, bias)]


def plain_quantised_gather(ops: PlainOps, node: ir.Node) -> Sequence[ir.Value]:
    """GatherBlockQuantized: of a table [rows, columns] by ids [batch, sequence], or of experts.

    The matrices of experts [experts, rows, columns] are gathered by ids [chosen], or all are read.

    Raises:
        ExportError: the table is laid out in another way than the exporter's.
    """
    bits, block_size = _int(node, "bits", 4), _int(node, "block_size")
    table, ids, scales = (required(node, index) for index in range(3))
    layout = (_int(node, "gather_axis", 0), _int(node, "quantize_axis", 1))
    if layout != (0, len(dims(table)) - 1) or table.dtype != ir.DataType.UINT8:
        raise ExportError(
            "A quantised table is gathered along another axis than its rows, which the standard "
            "dialect cannot do; export with --dialect fused."
        )
    matrix = QuantisedMatrix(table, scales, optional(node, 3), bits, block_size)
    return [matrix.whole(ops) if names_every_expert(ids) else matrix.rows(ops, ids)]


def _turned(ops: PlainOps, value: ir.Value) -> ir.Value:
    rank = len(dims(value))
    return ops("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))


def _int(node: ir.Node, name: str, default: int | None = None) -> int:
    if name not in node.attributes and default is not None:
        return default
    return node.attributes[name].as_int()
