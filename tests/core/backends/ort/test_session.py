from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from twostroke.backends.ort import CPU_PROVIDER, OrtSession, allocate_host, load_session
from twostroke.errors import BackendError, BundleError, EngineError
from twostroke.testing.onnx_bundles import TinyModel, write_graphs

MODEL = TinyModel()


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    write_graphs(folder, MODEL)
    return folder


@pytest.fixture
def session(graphs: Path) -> OrtSession:
    return load_session(graphs / "decode.onnx", CPU_PROVIDER, {}, onnxruntime.SessionOptions())


def buffers(session: OrtSession, batch: int = 1, capacity: int = 32) -> tuple[dict, dict]:
    sizes = {"batch": batch, "sequence": 1, "capacity": capacity}
    inputs = {
        name: allocate_host(tuple(sizes.get(d, d) for d in spec.shape), spec.dtype)
        for name, spec in session.inputs.items()
    }
    outputs = {
        name: inputs[name.replace("present", "past_key_values")]
        if name.startswith("present")
        else allocate_host(tuple(sizes.get(d, d) for d in spec.shape), spec.dtype)
        for name, spec in session.outputs.items()
    }
    inputs["total_sequence_length"].write(np.array(1, np.int32))
    return inputs, outputs


def test_declared_tensors_are_told_as_the_graph_has_them(session):
    assert session.inputs["input_ids"].shape == ("batch", "sequence")
    assert session.inputs["input_ids"].dtype == "int64"
    assert session.inputs["seqlens_k"].dtype == "int32"
    past = session.inputs["past_key_values.0.key"]
    assert (past.shape, past.dtype) == (("batch", 2, "capacity", 16), "float32")
    assert session.outputs["logits"].shape == ("batch", 1, MODEL.vocab_size)


def test_every_node_is_accounted_for(session):
    assert session.placement.requested == CPU_PROVIDER
    assert set(session.placement.nodes) == {CPU_PROVIDER}
    assert session.placement.nodes[CPU_PROVIDER] >= 15
    assert session.placement.strays == {}


def test_small_inputs_change_in_place_and_the_cache_is_written_in_place(session):
    inputs, outputs = buffers(session)
    binding = session.bind(inputs, outputs)
    answers = []
    for position, token in enumerate([5, 9, 5]):
        inputs["input_ids"].write(np.array([[token]], np.int64))
        inputs["seqlens_k"].write(np.array([position], np.int32))
        inputs["total_sequence_length"].write(np.array(position + 1, np.int32))
        binding.run()
        answers.append(outputs["logits"].read().copy())
    assert not np.array_equal(answers[0], answers[2])  # the same token after another history
    filled = np.abs(inputs["past_key_values.1.key"].read()).sum((0, 1, 3))  # [capacity]
    assert np.flatnonzero(filled).tolist() == [0, 1, 2]


def test_a_binding_keeps_its_buffers(session):
    inputs, outputs = buffers(session)
    logits = outputs["logits"]
    binding = session.bind(inputs, outputs)
    del inputs, outputs
    gc.collect()
    for _ in range(20):
        allocate_host((64, 64), "float32")  # would land where the freed ones lay
        binding.run()
    assert np.isfinite(logits.read()).all()


def test_a_missing_or_unknown_or_wrong_buffer_is_named(session):
    inputs, outputs = buffers(session)
    with pytest.raises(BackendError, match="the input 'seqlens_k' has no buffer"):
        session.bind({k: v for k, v in inputs.items() if k != "seqlens_k"}, outputs)
    with pytest.raises(BackendError, match="the output 'extra' is not declared"):
        session.bind(inputs, {**outputs, "extra": outputs["logits"]})
    half = allocate_host(inputs["past_key_values.0.key"].shape, "float16")
    with pytest.raises(
        BackendError, match=r"'past_key_values\.0\.key' is float32, its buffer float16"
    ):
        session.bind({**inputs, "past_key_values.0.key": half}, outputs)


def test_a_failed_run_is_an_engine_error_and_the_binding_stays_usable(session):
    inputs, outputs = buffers(session)
    binding = session.bind(inputs, outputs)
    inputs["input_ids"].write(np.array([[MODEL.vocab_size]], np.int64))
    with pytest.raises(EngineError, match=r"decode.onnx failed: .*indices"):
        binding.run()
    inputs["input_ids"].write(np.array([[1]], np.int64))
    binding.run()


def test_a_closed_session_refuses(session):
    binding = session.bind(*buffers(session))
    session.close()
    session.close()
    with pytest.raises(EngineError, match=r"decode\.onnx is closed"):
        binding.run()


def test_files_that_cannot_be_loaded_are_named(graphs, tmp_path):
    def load(path: Path) -> None:
        load_session(path, CPU_PROVIDER, {}, onnxruntime.SessionOptions())

    with pytest.raises(BundleError, match=r"nowhere\.onnx does not exist"):
        load(tmp_path / "nowhere.onnx")
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"junk\.onnx cannot be loaded"):
        load(junk)
    lonely = tmp_path / "decode.onnx"
    lonely.write_bytes((graphs / "decode.onnx").read_bytes())
    with pytest.raises(BundleError, match=r"decode\.onnx cannot be loaded"):
        load(lonely)  # its weights are elsewhere


def test_a_provider_that_cannot_load_is_not_mistaken_for_the_cpu(graphs):
    """Without a GPU the runtime answers a CPU session; only the placement shows it."""
    cuda = "CUDAExecutionProvider"
    if cuda not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime was built without CUDA")
    session = load_session(
        graphs / "decode.onnx", cuda, {}, onnxruntime.SessionOptions(), on_host=False
    )
    placement = session.placement
    assert placement.requested == cuda
    assert placement.strays.get("GroupQueryAttention", 0) == 2  # fp32: on the CPU in any case


def test_inputs_that_were_copied_are_bound_anew_before_each_run(graphs):
    """As on a device: what was copied at binding time must not go stale."""
    session = load_session(
        graphs / "decode.onnx", CPU_PROVIDER, {}, onnxruntime.SessionOptions(), on_host=False
    )
    inputs, outputs = buffers(session)
    rebound: list[str] = []
    token_ids = inputs["input_ids"]
    original = type(token_ids).bind_input

    class Counting(type(token_ids)):
        __slots__ = ()

        def bind_input(self, ort_binding, name):
            rebound.append(name)
            original(self, ort_binding, name)

    counted = Counting(token_ids.array)
    binding = session.bind({**inputs, "input_ids": counted}, outputs)
    binding.run()
    binding.run()
    assert rebound == ["input_ids"] * 2  # by each run, with what they hold then
