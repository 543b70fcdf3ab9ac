"""Graphs of one product, and what it must give, in float64."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession, OrtValue, SessionOptions  # noqa: F401  # for tests

import twostroke_kernels

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """The constants of a product Y = A @ W.T + bias, as MatMulNBits stores them."""

    num_columns: int
    depth: int
    bits: int
    block: int
    weights: npt.NDArray[np.uint8]  # [N, blocks, block * bits / 8]
    scales: Floats  # [N, blocks]
    zero_points: npt.NDArray[np.uint8] | None  # [N, ceil(blocks * bits / 8)]
    bias: Floats | None

    @property
    def num_blocks(self) -> int:
        return -(-self.depth // self.block)


def random_case(
    shape: tuple[int, int], bits: int, block: int, *, zeros: bool, bias: bool, seed: int = 0
) -> Case:
    rng = np.random.default_rng(seed)
    num_columns, depth = shape
    blocks = -(-depth // block)
    weights = rng.integers(0, 256, (num_columns, blocks, block * bits // 8), dtype=np.uint8)
    scales = rng.standard_normal((num_columns, blocks)).astype(np.float32) * 0.02
    zero_points = rng.integers(0, 256, (num_columns, -(-blocks * bits // 8)), dtype=np.uint8)
    return Case(
        num_columns,
        depth,
        bits,
        block,
        weights,
        scales,
        zero_points if zeros else None,
        rng.standard_normal(num_columns).astype(np.float32) if bias else None,
    )


def model(case: Case, domain: str) -> bytes:
    """The graph of one product in `domain`: `com.microsoft` or `twostroke`."""
    constants = {
        "B": case.weights,
        "scales": case.scales,
        "zero_points": case.zero_points,
        "g_idx": None,
        "bias": case.bias,
    }
    names = ["A", *(name if value is not None else "" for name, value in constants.items())]
    attributes = {"N": case.num_columns, "K": case.depth, "bits": case.bits}
    attributes["block_size"] = case.block
    if domain == "com.microsoft":
        attributes["accuracy_level"] = 4
    node = helper.make_node("MatMulNBits", names, ["Y"], "product", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one_product",
        [helper.make_tensor_value_info("A", TensorProto.FLOAT, ["rows", case.depth])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", case.num_columns])],
        [numpy_helper.from_array(v, k) for k, v in constants.items() if v is not None],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 10
    return bytes(onnx.ModelProto.SerializeToString(made))


def dequantised(case: Case) -> npt.NDArray[np.float64]:
    """The weights [N, blocks * block] that the constants stand for."""
    weights, zero_points = case.weights, case.zero_points
    if case.bits == 4:
        weights = np.stack([weights & 15, weights >> 4], -1).reshape(
            case.num_columns, case.num_blocks, case.block
        )
        if zero_points is not None:
            zero_points = np.stack([zero_points & 15, zero_points >> 4], -1)
    zeros = np.full((case.num_columns, case.num_blocks), 2.0 ** (case.bits - 1))
    if zero_points is not None:
        zeros = zero_points.reshape(case.num_columns, -1)[:, : case.num_blocks].astype(float)
    values = (weights - zeros[..., None]) * case.scales[..., None].astype(float)
    return values.reshape(case.num_columns, -1)


def quantised_rows(case: Case, rows: Floats) -> npt.NDArray[np.float64]:
    """Rows [rows, blocks * block] as the operator reads them: int8 by blocks, ties to even."""
    padded = np.zeros((len(rows), case.num_blocks * case.block), np.float32)
    padded[:, : case.depth] = rows
    blocks = padded.reshape(len(rows), case.num_blocks, case.block)
    most = np.abs(blocks).max(-1, keepdims=True)
    factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    values = np.rint(blocks * factor).astype(float) * (most / np.float32(127)).astype(float)
    return values.reshape(len(rows), -1)


def expected(case: Case, rows: Floats) -> npt.NDArray[np.float64]:
    """The product of quantised rows and weights, in float64."""
    bias = 0.0 if case.bias is None else case.bias.astype(float)
    return quantised_rows(case, rows) @ dequantised(case).T + bias


def session(content: bytes, threads: int = 2, library: str | None = None) -> InferenceSession:
    """A session that knows the operator, from the installed library or another build of it."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library or str(twostroke_kernels.library_path()))
    return InferenceSession(content, options, providers=["CPUExecutionProvider"])


def error(case: Case, rows: Floats) -> float:
    """The largest difference from `expected`, as a fraction of the largest result."""
    (found,) = session(model(case, "twostroke")).run(None, {"A": rows})
    wanted = expected(case, rows)
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def worst_error(threads: int, library: str | None) -> float:
    """Over products of all kinds: bits, blocks, odd edges, few rows and many."""
    worst = 0.0
    for index, (bits, block) in enumerate((bits, b) for bits in (4, 8) for b in (16, 32, 128)):
        for shape in ((1, 16), (17, 70), (70, 257)):
            case = random_case(shape, bits, block, zeros=index % 2 == 0, bias=index % 3 == 0)
            rows = np.random.default_rng(bits).standard_normal((100, shape[1])).astype(np.float32)
            opened = session(model(case, "twostroke"), threads, library)
            wanted = expected(case, rows)
            for num_rows in (1, 2, 5, 6, 7, 49, 100):
                (found,) = opened.run(None, {"A": rows[:num_rows]})
                off = np.abs(found - wanted[:num_rows]).max() / np.abs(wanted).max()
                worst = max(worst, float(off))
    return worst


if __name__ == "__main__":  # in a process of its own: instruction set and library are its own
    print(worst_error(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
