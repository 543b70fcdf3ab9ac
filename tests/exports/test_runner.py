"""The runner of the checks at export: graphs that cannot be run are an error of the export."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from twostroke.errors import ExportError
from twostroke_export.runner import TwoGraphs


def test_a_graph_that_cannot_be_loaded_is_named(tmp_path):
    """falcon adds its positions in bfloat16, for which the CPU has no kernel."""
    sides = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1]) for name in "xy"]
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    graph = helper.make_graph([node], "g", sides[:1], sides[1:])
    opset = helper.make_opsetid("", 21)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=10),
        tmp_path / "prefill.standard.onnx",
    )
    graphs = TwoGraphs(tmp_path, [], "float32", dialects="standard")
    with pytest.raises(ExportError, match=r"prefill\.standard\.onnx was made, but .*Mul\(14\)"):
        graphs.prefill([[1]])
