from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from twostroke.backends.ort import CPU_PROVIDER, load_session, onnxruntime, with_reduced_logits
from twostroke.backends.reduced import (
    BLOCK_IDS,
    BLOCK_WEIGHTS,
    INVERSE_TEMPERATURE,
    NUM_TOP,
    REDUCED_OUTPUTS,
    TOP_IDS,
    TOP_LOGITS,
)


def write_graph(path, vocab, *, dtype=TensorProto.FLOAT, opset=21, positions=1):
    """A graph whose logits are its input."""
    shape = ["batch", positions, vocab]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["logits"])],
        "copy",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("logits", dtype, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("vocab", [10, NUM_TOP, BLOCK_IDS, 2 * BLOCK_IDS, 3 * BLOCK_IDS + 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_answered_is_what_the_table_says(tmp_path, vocab, dtype):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = write_graph(tmp_path / "decode.onnx", vocab, dtype=kind)
    content = with_reduced_logits(graph)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    options = onnxruntime().SessionOptions()
    session = load_session(graph, CPU_PROVIDER, {}, options, content=content)
    assert set(session.outputs) == {"logits", *REDUCED_OUTPUTS}
    logits = np.random.default_rng(vocab).normal(0, 3, (3, 1, vocab)).astype(dtype)
    scales = np.array([1.0, 2.0, 0.5], np.float32).reshape(3, 1, 1)
    top, ids, blocks = session._session.run(
        [TOP_LOGITS, TOP_IDS, BLOCK_WEIGHTS], {"x": logits, INVERSE_TEMPERATURE: scales}
    )
    exact = logits.astype(np.float32)
    count = min(NUM_TOP, vocab)
    assert np.array_equal(top, -np.sort(-exact)[..., :count])
    assert np.array_equal(np.take_along_axis(exact, ids, axis=2), top)
    weights = np.exp((exact - exact.max(axis=2, keepdims=True)) * scales)
    sums = [weights[..., start : start + BLOCK_IDS].sum(axis=2) for start in range(0, vocab, 256)]
    assert np.allclose(blocks, np.stack(sums, axis=2), rtol=1e-5)


@pytest.mark.parametrize("faults", [{"opset": 12}, {"positions": 2}, {"positions": "k"}], ids=str)
def test_graphs_that_it_does_not_fit_are_left_alone(tmp_path, faults):
    assert with_reduced_logits(write_graph(tmp_path / "decode.onnx", 300, **faults)) is None


def test_a_vocabulary_of_unknown_size_is_left_alone(tmp_path):
    assert with_reduced_logits(write_graph(tmp_path / "decode.onnx", "vocab")) is None
