"""What OpenVINO is told beyond the YAML: how wide the groups of quantised activations are."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from twostroke.backends import Device
from twostroke.backends.capabilities import READS_FASTER
from twostroke_backends import cpu_facts, kernels, openvino, openvino_properties
from twostroke_backends.plugin_ep_providers import options_for_graph

PROVIDER = "OpenVINOExecutionProvider"


def graph_of_blocks(folder: Path, *sizes: int) -> Path:
    """A file of matrices that are quantised in blocks of these sizes; 0: by their channels."""
    nodes, weights = [], []
    for index, size in enumerate(sizes):
        weights += [
            onnx.TensorProto(name=f"w{index}", dims=[8, 256], data_type=onnx.TensorProto.UINT8),
            onnx.TensorProto(name=f"s{index}", dims=[8, 1], data_type=onnx.TensorProto.FLOAT),
        ]
        attributes = {"axis": 1, "block_size": size} if size else {"axis": 0}
        names = [f"w{index}", f"s{index}"]
        nodes.append(onnx.helper.make_node("DequantizeLinear", names, [f"m{index}"], **attributes))
    graph = onnx.helper.make_graph(nodes, "blocks", [], [], weights)
    path = folder / "blocks.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("sizes", "group"),
    [
        ((64, 64), "64"),
        ((256, 64), "64"),  # within every block
        ((256, 256), "128"),  # wider ones lose accuracy
        ((32, 64), None),  # OpenVINO's own
        ((64, 0), None),
        ((), None),
    ],
)
def test_activations_are_quantised_in_groups_as_wide_as_the_blocks(
    monkeypatch, tmp_path: Path, sizes, group
):
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_vnni",))
    options = {"load_config": json.dumps({"CPU": {"NUM_STREAMS": "1"}})}
    graph = graph_of_blocks(tmp_path, *sizes)
    config = json.loads(options_for_graph(PROVIDER, options, graph)["load_config"])
    expected = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group} if group else {}
    assert config == {"CPU": {"NUM_STREAMS": "1", **expected}}


def test_groups_are_left_alone_where_the_yaml_sets_them_or_amx_multiplies(
    monkeypatch, tmp_path: Path
):
    graph = graph_of_blocks(tmp_path, 64)
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_vnni",))
    own = {"load_config": json.dumps({"CPU": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}})}
    assert options_for_graph(PROVIDER, own, graph) == own
    on_a_gpu = {"load_config": json.dumps({"GPU.0": {}})}
    assert options_for_graph(PROVIDER, on_a_gpu, graph) == on_a_gpu
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_vnni", "amx_bf16"))
    with_amx = {"load_config": json.dumps({"CPU": {}})}
    assert options_for_graph(PROVIDER, with_amx, graph) == with_amx


def test_pieces_of_prompts_are_short_where_no_amx_multiplies(monkeypatch):
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_vnni",))
    assert openvino_properties.chunk_tokens() == 256
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: ("avx512_vnni", "amx_bf16"))
    assert openvino_properties.chunk_tokens() == 512


@pytest.mark.parametrize(
    ("sets", "has_kernels", "faster"),
    [
        (("avx512_vnni",), False, True),
        (("avx512_vnni",), True, False),
        (("avx512_vnni", "amx_int8"), True, True),
        (("avx2",), False, False),
    ],
)
def test_it_is_praised_where_it_reads_faster_than_what_is_installed(
    monkeypatch, sets, has_kernels, faster
):
    found = kernels.Kernels(Path(), "", "", list) if has_kernels else "not installed"
    monkeypatch.setattr(openvino, "find_kernels", lambda: found)
    monkeypatch.setattr(cpu_facts, "cpu_name", lambda: "Intel(R) Xeon(R)")
    monkeypatch.setattr(cpu_facts, "instruction_sets", lambda: sets)
    device = openvino._praised(Device(0, "", "cpu"))
    assert (READS_FASTER in device.capabilities) == faster
