from __future__ import annotations

import threading

import numpy as np
import pytest

from twostroke.backends.protocol import API_VERSION, Backend
from twostroke.errors import BackendError, BundleError, EngineError
from twostroke.testing import echo, make_echo_bundle
from twostroke.testing.echo_graph import EchoGraph, next_token
from twostroke.types import Stroke

GRAPH = EchoGraph(vocab_size=50, num_layers=1, num_kv_heads=1, head_dim=2, separator_id=3, eos_id=2)


def test_the_spec_is_a_plugins():
    (spec,) = echo.twostroke_backends()
    assert (spec.name, spec.api_version) == ("echo", API_VERSION)
    device = spec.probe().devices[0]
    backend = spec.open(device, {"step_delay_s": 1})
    assert isinstance(backend, Backend)


@pytest.mark.parametrize(
    ("history", "expected"),
    [([7], 3), ([7, 8, 3], 7), ([7, 8, 3, 7], 8), ([7, 8, 3, 7, 8], 2), ([3], 2), ([7, 3, 9], 2)],
)
def test_the_answer_is_the_separator_the_prompt_and_the_end(history, expected):
    assert next_token(GRAPH, history) == expected


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"speed": 1}, "echo has no option 'speed'. Its options are fail_decode_runs"),
        ({"step_delay_s": "fast"}, "step_delay_s must be a number of seconds, not 'fast'"),
        ({"step_delay_s": -1}, "step_delay_s must be"),
        ({"row_views": 1}, "row_views must be true or false"),
        ({"fail_decode_runs": 3}, "fail_decode_runs must be a list of numbers"),
    ],
)
def test_wrong_options_are_named(options, fault):
    with pytest.raises(BackendError, match=fault):
        echo.parse_options(options)


@pytest.fixture
def backend():
    return echo.EchoBackend(echo.probe().devices[0], echo.parse_options({}))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_echo_bundle(tmp_path_factory.mktemp("echo") / "bundle", position_ids=True)


def bound(backend, bundle, stroke=Stroke.DECODE, rows=2):
    """Buffers of one binding by name, and the binding."""
    session = backend.open_session(bundle / f"{stroke}.onnx", stroke)
    inputs = {}
    for name, spec in session.inputs.items():
        sizes = {"batch": rows, "sequence": 1, "capacity": 8}
        shape = tuple(sizes.get(size, size) for size in spec.shape)
        inputs[name] = backend.allocate(shape, spec.dtype)
    outputs = {
        name: inputs[name.replace("present", "past_key_values")]
        for name in session.outputs
        if name != "logits"
    }
    outputs["logits"] = backend.allocate((rows, 1, 260), "float32")
    return {**inputs, "logits": outputs["logits"]}, session.bind(inputs, outputs)


def feed(buffers, ids, lengths, positions=None):
    lengths = np.array(lengths, np.int32)
    buffers["input_ids"].values[:] = np.array(ids)[:, None]
    buffers["seqlens_k"].values[:] = lengths
    buffers["total_sequence_length"].values[...] = lengths.max() + 1
    buffers["position_ids"].values[:] = lengths[:, None] if positions is None else positions


def test_tokens_are_kept_in_the_buffers_and_rows_are_apart(backend, bundle):
    buffers, binding = bound(backend, bundle)
    feed(buffers, [10, 20], [0, 0])
    binding.run()
    feed(buffers, [3, 21], [1, 1])
    binding.run()
    kept = buffers["past_key_values.1.value"].values[:, 0, :3, 1]
    assert kept.tolist() == [[10, 3, 0], [20, 21, 0]]
    assert buffers["logits"].values[:, 0].argmax(axis=1).tolist() == [10, 3]


def test_what_the_buffers_hold_decides_the_logits(backend, bundle):
    buffers, binding = bound(backend, bundle, rows=1)
    feed(buffers, [10], [2])
    binding.run()
    before = buffers["logits"].values.copy()
    for side in range(2):
        for kind in ("key", "value"):
            buffers[f"past_key_values.{side}.{kind}"].values[0, :, 1] = 11
    binding.run()
    assert not np.array_equal(before, buffers["logits"].values)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"input_ids": 260}, "token ids from 260"),
        ({"input_ids": -1}, "token ids from -1"),
        ({"total_sequence_length": 5}, "not that of the longest row"),
        ({"position_ids": 1}, "position_ids do not follow"),
        ({"seqlens_k": 8, "total_sequence_length": 9}, "rows of 9 to 9 in 8"),
        ({"past_key_values.1.key": 9}, "the layers of row 0 disagree"),
    ],
)
def test_what_the_engine_must_not_do_is_an_error(backend, bundle, change, fault):
    buffers, binding = bound(backend, bundle, rows=1)
    feed(buffers, [10], [2])
    for name, value in change.items():
        buffers[name].values[...] = value
    with pytest.raises(EngineError, match=fault):
        binding.run()


def test_a_present_in_a_buffer_of_its_own_is_refused(backend, bundle):
    session = backend.open_session(bundle / "decode.onnx", Stroke.DECODE)
    inputs = {name: backend.allocate((1, 1, 8, 2), "float32") for name in session.inputs}
    outputs = {name: backend.allocate((1, 1, 8, 2), "float32") for name in session.outputs}
    with pytest.raises(BackendError, match="must be the same buffer"):
        session.bind(inputs, outputs)


def test_runs_fail_and_answer_no_numbers_when_asked_to(bundle):
    options = echo.parse_options({"fail_decode_runs": [1], "nan_decode_runs": [2]})
    backend = echo.EchoBackend(echo.probe().devices[0], options)
    buffers, binding = bound(backend, bundle)
    feed(buffers, [10, 20], [0, 0])
    binding.run()
    with pytest.raises(EngineError, match="decode run 1 fails"):
        binding.run()
    binding.run()
    assert np.isnan(buffers["logits"].values).all()
    binding.run()
    assert np.isfinite(buffers["logits"].values).all()


def test_a_closed_session_does_not_run(backend, bundle):
    session = backend.open_session(bundle / "decode.onnx", Stroke.DECODE)
    assert backend.num_open_sessions == 1
    session.close()
    session.close()
    assert backend.num_open_sessions == 0
    with pytest.raises(EngineError, match="was closed"):
        session.start_run(1, threading.Event())


def test_another_file_is_no_echo_graph(backend, bundle):
    with pytest.raises(BundleError, match=r"tokenizer\.json is no echo graph"):
        backend.open_session(bundle / "tokenizer.json", Stroke.DECODE)


def test_buffers_take_only_their_own_shape_and_dtype(backend):
    buffer = backend.allocate((2, 3), "int64")
    with pytest.raises(
        BackendError, match=r"int64\[3, 2\] was written to a buffer of int64\[2, 3\]"
    ):
        buffer.write(np.zeros((3, 2), np.int64))
    with pytest.raises(BackendError, match="int32"):
        buffer.write(np.zeros((2, 3), np.int32))
    buffer.rows(1, 1).write(np.full((1, 3), 7))
    assert buffer.read().tolist() == [[0, 0, 0], [7, 7, 7]]
