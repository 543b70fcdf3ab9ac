from __future__ import annotations

import numpy as np
import pytest

from twostroke.bundle.external_tensors import external_tensors
from twostroke.errors import BundleError
from twostroke.testing.onnx_bundles import TinyModel, write_graphs
from twostroke.testing.tiny_model import tiny_weights


def test_every_tensor_is_found_where_it_lies(tmp_path):
    model = TinyModel()
    write_graphs(tmp_path, model)
    weights = tiny_weights(model)
    found = {name: external_tensors(tmp_path / f"{name}.onnx") for name in ("prefill", "decode")}
    assert found["prefill"] == found["decode"]  # one place for both
    assert found["decode"].keys() == weights.keys()
    content = (tmp_path / "weights.bin").read_bytes()
    for name, tensor in found["decode"].items():
        assert tensor.file == tmp_path / "weights.bin"
        values = np.frombuffer(content, np.float32, tensor.num_bytes // 4, tensor.offset)
        assert np.array_equal(values.reshape(tensor.dims), weights[name])
        assert tensor.element_type == 1  # float32


@pytest.mark.parametrize("content", [b"", b"\x3a\xff"])
def test_what_is_no_graph_is_refused(tmp_path, content):
    path = tmp_path / "decode.onnx"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"decode\.onnx is not a whole ONNX graph"):
        external_tensors(path)
    with pytest.raises(BundleError, match=r"missing\.onnx cannot be read"):
        external_tensors(tmp_path / "missing.onnx")
