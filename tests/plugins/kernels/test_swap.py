"""Graphs whose products were swapped compute the same, and nothing else of them changes."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.backends import Device
from twostroke.errors import BackendError
from twostroke.types import Stroke
from twostroke_backends import kernels, prepacked
from twostroke_backends.cpu import CpuBackend
from twostroke_backends.kernel_swap import swap_products


def graph_file(cases, tmp_path, case):
    """A MatMulNBits graph on disk whose larger constants lie in a file beside it."""
    path = tmp_path / "decode.onnx"
    model = cases.onnx.load_from_string(cases.model(case, "com.microsoft"))
    cases.onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    return path


def run(cases, graph, swapped, rows):
    options = cases.SessionOptions()
    options.register_custom_ops_library(str(cases.twostroke_kernels.library_path()))
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(graph.parent))
    values = [cases.OrtValue.ortvalue_from_numpy(each) for each in swapped.packed.values()]
    options.add_external_initializers(list(swapped.packed), values)
    session = cases.InferenceSession(swapped.model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"A": rows})[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_swapped_graph_computes_the_same(cases, tmp_path, bits, zeros, bias):
    case = cases.random_case((40, 130), bits, 32, zeros=zeros, bias=bias)
    graph = graph_file(cases, tmp_path, case)
    swapped = swap_products(graph, cases.twostroke_kernels.pack)
    rows = np.random.default_rng(1).standard_normal((3, 130)).astype(np.float32)
    wanted = cases.expected(case, rows)
    found = run(cases, graph, swapped, rows)
    np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


def test_constants_that_only_the_product_read_are_gone_and_the_rest_stays(cases, tmp_path):
    case = cases.random_case((40, 130), 8, 32, zeros=True, bias=True)
    graph = graph_file(cases, tmp_path, case)
    swapped = cases.onnx.load_from_string(swap_products(graph, cases.twostroke_kernels.pack).model)
    (node,) = swapped.graph.node
    assert (node.domain, node.name, list(node.output)) == ("twostroke", "product", ["Y"])
    assert [tensor.name for tensor in swapped.graph.initializer] == ["bias", node.input[1]]


def test_what_the_operator_does_not_take_is_left_byte_for_byte(cases, tmp_path):
    case = cases.random_case((40, 130), 8, 32, zeros=False, bias=False)
    model = cases.onnx.load_from_string(cases.model(case, "com.microsoft"))
    model.graph.initializer.append(cases.numpy_helper.from_array(np.zeros(160, np.int32), "g_idx"))
    model.graph.node[0].input[4] = "g_idx"
    path = tmp_path / "decode.onnx"
    path.write_bytes(model.SerializeToString())
    swapped = swap_products(path, cases.twostroke_kernels.pack)
    assert not swapped.packed
    assert swapped.model.startswith(path.read_bytes())  # and a line about the domain behind it


def backend(**options):
    return CpuBackend(Device(0, "", "cpu"), options)


@pytest.mark.parametrize("off", ["off", False])
def test_off_takes_none(off, monkeypatch):
    monkeypatch.setattr("twostroke_backends.cpu.find_kernels", lambda: pytest.fail("asked"))
    backend(kernels=off)


def test_auto_goes_on_without_and_require_does_not(monkeypatch):
    monkeypatch.setattr("twostroke_backends.cpu.find_kernels", lambda: "the package is missing")
    backend(kernels="auto")
    with pytest.raises(BackendError, match="kernels: require cannot be had, because the package"):
        backend(kernels="require")


def test_they_need_a_file_for_their_weights(cases):
    backend(kernels="auto", share_weights=False)
    with pytest.raises(BackendError, match="share_weights: false leaves no file"):
        backend(kernels="require", share_weights=False)


def test_require_refuses_a_cache_that_cannot_be_written(cases, monkeypatch, tmp_path):
    def refuse(*_):
        raise prepacked.NotPackedError("there is no space")

    monkeypatch.setattr(prepacked, "packed_graph", refuse)
    graph = tmp_path / "decode.onnx"
    graph.write_bytes(b"")
    with pytest.raises(BackendError, match="because there is no space"):
        backend(kernels="require").open_session(graph, Stroke.DECODE)


def test_a_missing_package_is_told_with_what_to_install(monkeypatch):
    kernels.find_kernels.cache_clear()
    monkeypatch.setattr(kernels, "PACKAGE", "no_such_package")
    assert "pip install twostroke-kernels" in kernels.find_kernels()
    kernels.find_kernels.cache_clear()


@pytest.mark.slow
def test_the_demo_model_runs_on_them_and_says_so(cases, demo_bundle_int8):
    for stroke in Stroke:
        session = backend(kernels="require").open_session(
            demo_bundle_int8 / f"{stroke}.onnx", stroke
        )
        assert session.placement.brought == {"twostroke": 121}
        assert "121 of them twostroke's own" in session.placement.sentence()
        session.close()
