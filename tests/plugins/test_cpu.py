from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from twostroke.backends import Backend, Device
from twostroke.backends.ort import Threads
from twostroke.errors import BackendError, BundleError
from twostroke.testing.onnx_bundles import TinyModel
from twostroke.types import Stroke
from twostroke_backends import cpu, cpu_facts
from twostroke_backends.cpu import CpuBackend

MODEL = TinyModel()
CAPACITY = 64


def test_the_probe_answers_one_device_with_what_matters():
    (device,) = cpu.probe().devices
    assert (device.index, device.kind) == (0, "cpu")
    assert device.name
    assert int(device.details["threads"]) >= 1
    assert device.memory_bytes is None or device.memory_bytes > 1 << 28
    assert "float32" in device.dtypes


def test_the_probe_says_when_there_is_no_runtime(monkeypatch):
    monkeypatch.setattr("twostroke.install.installed_runtimes", lambda path=None: ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = cpu.probe()
    assert not result.is_available
    assert "ONNX Runtime is not installed" in result.reason


def test_it_is_a_backend_and_the_last_resort(device):
    assert isinstance(CpuBackend(device, {}), Backend)
    (spec,) = cpu.twostroke_backends()
    assert (spec.name, spec.priority) == ("cpu", 0)


def test_unknown_options_are_refused_by_name(device):
    with pytest.raises(BackendError, match=r"'thread'.*intra_op_threads, spinning, share_weights"):
        CpuBackend(device, {"thread": 2})


def test_options_reach_the_runtime(device):
    backend = CpuBackend(
        device, {"intra_op_threads": 3, "spinning": False, "optimization": "basic"}
    )
    options = backend.session_options()
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.graph_optimization_level == basic
    default = CpuBackend(device, {}).session_options()
    assert default.intra_op_num_threads == cpu_facts.num_usable_threads()
    assert default.get_session_config_entry("session.intra_op.allow_spinning") == "1"


def test_threads_of_its_own_are_told(device):
    assert CpuBackend(device, {"intra_op_threads": 3}).threads == Threads(3, is_shared=False)
    usual = Threads(cpu_facts.num_usable_threads(), is_shared=False)
    assert CpuBackend(device, {}).threads == usual


def test_where_the_process_has_a_pool_sessions_join_it(device, monkeypatch):
    monkeypatch.setattr("twostroke.backends.ort.threads._num_shared", 5)
    for options in ({}, {"intra_op_threads": 5}):
        backend = CpuBackend(device, options)
        assert backend.threads == Threads(5, is_shared=True)
        assert not backend.session_options().use_per_session_threads
    for options, fault in (
        ({"intra_op_threads": 2}, "intra_op_threads: 2"),
        ({"spinning": False}, "spinning: false"),
    ):
        with pytest.raises(BackendError, match=f"cannot take {fault}: .* a pool of 5 threads"):
            CpuBackend(device, options)


def test_slow_attention_is_switched_off_unless_the_user_decided(device, monkeypatch):
    monkeypatch.delenv("ORT_GQA_DISABLE_FLASH_ATTENTION", raising=False)
    CpuBackend(device, {})
    assert os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] == "1"
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    CpuBackend(device, {})
    assert os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] == "0"


def test_the_plugin_imports_nothing_heavy():
    code = "import sys, twostroke_backends.cpu as m; m.probe(); print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_damaged_graph_is_a_bundle_error(device, tmp_path):
    graph = tmp_path / "decode.onnx"
    graph.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"decode\.onnx cannot be loaded"):
        CpuBackend(device, {}).open_session(graph, Stroke.DECODE)


class Runner:
    """Feeds the two graphs of a tiny bundle; the cache has `rows` rows."""

    def __init__(self, backend: CpuBackend, bundle: Path, rows: int) -> None:
        self.backend = backend
        self.sessions = {s: backend.open_session(bundle / f"{s}.onnx", s) for s in Stroke}
        shape = (rows, MODEL.num_kv_heads, CAPACITY, MODEL.head_dim)
        names = [n for n in self.sessions[Stroke.DECODE].inputs if n.startswith("past")]
        self.cache = {name: backend.allocate(shape, "float32") for name in names}

    def run(self, stroke: Stroke, start: int, token_ids: list[list[int]], past: list[int]):
        """Logits [batch, vocab] after `token_ids` in rows [start, start + batch)."""
        ids = np.array(token_ids, np.int64)  # [batch, sequence]
        batch, num_new = ids.shape
        total = np.array(past, np.int32) + num_new  # [batch]
        values = {
            "input_ids": ids,
            "seqlens_k": total - 1,
            "total_sequence_length": np.array(total.max(), np.int32),
        }
        if stroke is Stroke.PREFILL:
            values["logit_index"] = np.full((batch, 1), num_new - 1, np.int64)
        inputs = {}
        for name, value in values.items():
            inputs[name] = self.backend.allocate(value.shape, value.dtype.name, on_host=True)
            inputs[name].write(value)
        outputs = {"logits": self.backend.allocate((batch, 1, MODEL.vocab_size), "float32")}
        for name, buffer in self.cache.items():
            inputs[name] = buffer.rows(start, batch)
            outputs[name.replace("past_key_values", "present")] = inputs[name]
        self.sessions[stroke].bind(inputs, outputs).run()
        return outputs["logits"].read()[:, 0].copy()


PROMPTS = [[5, 9, 7], [40, 41, 42, 43, 44, 45, 46], [100, 3], [8, 8, 8, 8, 8]]


@pytest.mark.parametrize("share_weights", [True, False])
def test_rows_of_different_lengths_decode_together_as_alone(device, bundle, share_weights):
    backend = CpuBackend(device, {"share_weights": share_weights})
    together = Runner(backend, bundle, rows=4)
    for row, prompt in enumerate(PROMPTS):
        together.run(Stroke.PREFILL, row, [prompt], [0])
    lengths = [len(prompt) for prompt in PROMPTS]
    batch = together.run(Stroke.DECODE, 0, [[11], [12], [13], [14]], lengths)
    middle = together.run(Stroke.DECODE, 1, [[15], [16]], [n + 1 for n in lengths[1:3]])
    for row, prompt in enumerate(PROMPTS):
        alone = Runner(backend, bundle, rows=1)
        alone.run(Stroke.PREFILL, 0, [prompt], [0])
        expected = alone.run(Stroke.DECODE, 0, [[11 + row]], [len(prompt)])
        np.testing.assert_allclose(batch[row], expected[0], atol=2e-6)
        if row in (1, 2):
            expected = alone.run(Stroke.DECODE, 0, [[14 + row]], [len(prompt) + 1])
            np.testing.assert_allclose(middle[row - 1], expected[0], atol=2e-6)


def test_a_prompt_in_chunks_is_the_prompt_and_decode_agrees(device, bundle):
    backend = CpuBackend(device, {})
    prompt = list(range(20, 50))
    whole = Runner(backend, bundle, rows=1).run(Stroke.PREFILL, 0, [prompt], [0])
    runner = Runner(backend, bundle, rows=2)
    for begin in range(0, 30, 8):
        chunked = runner.run(Stroke.PREFILL, 1, [prompt[begin : begin + 8]], [begin])
    np.testing.assert_allclose(chunked, whole, atol=2e-5)
    runner.run(Stroke.PREFILL, 0, [prompt[:-1]], [0])
    decoded = runner.run(Stroke.DECODE, 0, [[prompt[-1]]], [29])
    np.testing.assert_allclose(decoded, whole, atol=2e-5)
    other = runner.run(Stroke.DECODE, 0, [[prompt[-1]]], [28])
    assert np.abs(other - whole).max() > 1e-2  # a wrong length would show


def test_two_instances_do_not_disturb_each_other(bundle):
    first = Runner(CpuBackend(Device(0, "", "cpu"), {}), bundle, rows=1)
    second = Runner(CpuBackend(Device(0, "", "cpu"), {"intra_op_threads": 1}), bundle, rows=1)
    a = first.run(Stroke.PREFILL, 0, [[1, 2, 3]], [0])
    second.run(Stroke.PREFILL, 0, [[9, 9, 9]], [0])
    for session in second.sessions.values():
        session.close()
    second.backend.close()
    b = first.run(Stroke.PREFILL, 0, [[1, 2, 3]], [0])
    assert np.array_equal(a, b)


def test_quantised_weights_of_plain_operators_are_floats_before_the_first_step(device, tmp_path):
    """What would be dequantised at each step shows as a node of the placement."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    values = np.arange(64 * 64).reshape(64, 64).astype(np.uint8)
    weights = [numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.float32(0.1), "s")]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["matrix"]),
        helper.make_node("MatMul", ["x", "matrix"], ["y"]),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], weights)
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    num_nodes = []
    for name in ("decode.standard.onnx", "decode.onnx"):
        onnx.save(model, tmp_path / name)
        session = CpuBackend(device, {}).open_session(tmp_path / name, Stroke.DECODE)
        num_nodes.append(sum(session.placement.nodes.values()))
    assert num_nodes == [1, 2]
