"""An int8 cache: scales that hold at any position, and attention that keeps to them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from twostroke.errors import ExportError
from twostroke_export.kv_scales import kv_scales
from twostroke_export.observe import observe
from twostroke_export.passes.quantise_kv import quantise_kv
from twostroke_export.rotary import rotate


def load(make_model, model_type, **changes):
    from transformers import AutoModelForCausalLM

    folder = make_model(model_type, **changes)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("cohere", {}),  # interleaved rotary
        ("phi", {}),  # rotates a part of each head
        ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2}),  # no rotary
        ("mistral", {"sliding_window": 8}),  # whose own cache would forget
    ],
)
def test_scales_hold_what_a_longer_text_leaves_in_the_cache(make_model, model_type, changes):
    from transformers import DynamicCache

    model = load(make_model, model_type, **changes)
    observed = observe(model)
    ids = [(7 * n) % 300 for n in range(48)]
    scales = kv_scales(model, observed, ids)
    assert len(scales) == len(observed.layers)
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
    for (keys, values), layer, geometry in zip(scales, cache.layers, observed.layers, strict=True):
        assert keys.shape == values.shape == (1, geometry.num_kv_heads, 1, geometry.head_dim)
        used = np.abs(layer.keys.numpy() / keys).max(2)  # of 127 by each channel
        assert used.max() <= 127 / 1.05 + 1e-3
        used = np.abs(layer.values.numpy() / values).max(2)
        assert np.allclose(used, 127 / 1.3)  # room for other text, and not more


def test_keys_stay_in_range_when_they_are_turned_further(make_model):
    """The same keys at positions far behind the text's: what the lengths of pairs are for."""
    from transformers import DynamicCache

    model = load(make_model, "llama")
    observed = observe(model)
    ids = [(7 * n) % 300 for n in range(16)]
    (scale, _), *_ = kv_scales(model, observed, ids)
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
    keys = cache.layers[0].keys  # [1, kv_heads, 16, head_dim], turned to positions 0 … 15
    rotary = observed.rotary.layers[0]
    cos, sin = rotary.caches(256, 256)
    outside = 0.0
    plain = np.abs(keys.numpy()).max(2, keepdims=True)
    for turn in (5, 100, 250):  # turning on by a position adds its angle
        turned = rotate(keys, cos[turn], sin[turn], rotary.is_interleaved).numpy()
        assert np.abs(turned / scale).max() <= 127
        outside = max(outside, float((np.abs(turned).max(2, keepdims=True) / plain).max()))
    assert outside > 1.3  # the channels' own largest would not have held them


def test_a_cache_of_another_shape_is_refused(make_model, monkeypatch):
    model = load(make_model, "llama")
    observed = observe(model)
    half = type(observed)(observed.layers[:1], None)
    with pytest.raises(ExportError, match=r"'llama' model is not the keys and values of its 1"):
        kv_scales(model, half, [1, 2, 3])


def attention(layer: int) -> ir.Node:
    def value(name: str) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))

    past = [value(f"past_key_values.{layer}.{side}") for side in ("key", "value")]
    node = ir.node(
        "GroupQueryAttention",
        [value("qkv"), None, None, *past, value("seqlens_k"), value("total")],
        attributes={"num_heads": 2, "kv_num_heads": 1},
        domain="com.microsoft",
        num_outputs=3,
    )
    for output in node.outputs:
        output.type = ir.TensorType(ir.DataType.FLOAT)
    return node


def test_each_attention_gets_the_scales_of_its_layer():
    nodes = [attention(1), attention(0)]
    inputs = [value for node in nodes for value in node.inputs if value is not None]
    graph = ir.Graph(inputs, nodes[0].outputs, nodes=nodes, opset_imports={"": 23})
    scales = [
        (np.full((1, 1, 1, 4), 2 * n, np.float32), np.full((1, 1, 1, 4), 2 * n + 1, np.float32))
        for n in range(2)
    ]
    quantise_kv(graph, scales)
    for node, layer in zip(nodes, (1, 0), strict=True):
        kept = [node.inputs[index] for index in (3, 4)] + [node.outputs[index] for index in (1, 2)]
        assert {value.dtype for value in kept} == {ir.DataType.INT8}
        assert node.outputs[0].dtype == ir.DataType.FLOAT
        found = [node.inputs[index].const_value.numpy() for index in (12, 13)]
        assert [array.flat[0] for array in found] == [2 * layer, 2 * layer + 1]
        assert node.inputs[11] is None
        assert node.attributes["k_quant_type"].as_string() == "PER_CHANNEL"
        assert node.attributes["v_quant_type"].as_string() == "PER_CHANNEL"
        assert node.attributes["kv_cache_bit_width"].as_int() == 8
