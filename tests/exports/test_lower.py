"""Linear products and the embedding in each precision's operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from twostroke_export.passes.linears import StackedTensor, find_linears
from twostroke_export.passes.lower import lower
from twostroke_export.precision import Lowering, lowering
from twostroke_export.weights import WEIGHTS_NAME, WeightFile

FLOAT, INT64 = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT64)
VOCAB, SIZE = 96, 64


def weight(name: str, *shape: int) -> ir.Value:
    array = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return ir.Value(name=name, const_value=ir.tensor(array, name=name))


def build(*, tied: bool = True, small: bool = False) -> ir.Graph:
    """Embedding, Gemm with a bias, MatMul of a transposed weight, head."""
    ids = ir.Value(name="input_ids", shape=ir.Shape(["batch", 1]), type=INT64)
    table = weight("embedding", VOCAB, SIZE)
    head = table if tied else weight("lm_head", VOCAB, SIZE)
    dense = weight("dense", SIZE, SIZE)
    bias = weight("bias", SIZE)
    middle = weight("router", 8, SIZE) if small else weight("middle", SIZE, SIZE)
    gather = ir.node("Gather", [table, ids])
    gemm = ir.node("Gemm", [gather.outputs[0], dense, bias])
    turned = ir.node("Transpose", [middle], attributes={"perm": (1, 0)})
    side = ir.node("MatMul", [gemm.outputs[0], turned.outputs[0]])
    # A small one is a router of eight experts, beside the path to the head.
    product = ir.node("Identity", [gemm.outputs[0]]) if small else side
    head_turned = ir.node("Transpose", [head], attributes={"perm": (1, 0)})
    logits = ir.node("MatMul", [product.outputs[0], head_turned.outputs[0]])
    nodes = [gather, gemm, turned, *([side] if small else []), product, head_turned, logits]
    for number, node in enumerate(nodes):
        node.outputs[0].name, node.outputs[0].type = f"v{number}", FLOAT
    outputs = [logits.outputs[0], *([side.outputs[0]] if small else [])]
    initializers = {value.name: value for value in (table, dense, bias, middle, head)}
    return ir.Graph(
        [ids],
        outputs,
        nodes=nodes,
        initializers=list(initializers.values()),
        opset_imports={"": 23},
    )


def lowered(graph: ir.Graph, precision: str, folder, **options) -> Counter[str]:
    with WeightFile(folder) as weights:
        lower(graph, lowering(precision, **options), weights)
        RemoveUnusedNodesPass()(ir.Model(graph, ir_version=10))
        weights.store_initializers(graph)
    return Counter(node.op_type for node in graph)


def test_finds_linears_in_every_spelling():
    found = find_linears(build())
    assert [(linear.weight.name, linear.is_out_in) for linear in found] == [
        ("dense", False),
        ("middle", True),
        ("embedding", True),
    ]
    assert [linear.matrix().shape for linear in found] == [(64, 64), (64, 64), (96, 64)]
    assert [linear.bias is not None for linear in found] == [True, False, False]


@pytest.mark.parametrize("attributes", [{"transA": 1}, {"alpha": 0.5}, {"beta": 2.0}])
def test_a_gemm_that_does_more_is_left_alone(attributes):
    graph = build()
    gemm = next(node for node in graph if node.op_type == "Gemm")
    for name, value in attributes.items():
        gemm.attributes[name] = ir.Attr(
            name, ir.AttributeType.INT if name == "transA" else ir.AttributeType.FLOAT, value
        )
    assert [linear.weight.name for linear in find_linears(graph)] == ["middle", "embedding"]


def test_fp32_stores_weights_as_they_are_read(tmp_path):
    graph = build()
    assert lowered(graph, "fp32", tmp_path) == Counter(Gather=1, Gemm=1, MatMul=1, FusedMatMul=1)
    values = (VOCAB * SIZE + 2 * SIZE * SIZE) * 4  # the tied table once
    assert values <= (tmp_path / WEIGHTS_NAME).stat().st_size <= values + 3 * 4096


def test_an_untied_head_is_transposed_like_the_rest(tmp_path):
    ops = lowered(build(tied=False), "fp32", tmp_path)
    assert ops == Counter(Gather=1, Gemm=1, MatMul=2)


@pytest.mark.parametrize(("precision", "bits"), [("int8", [8, 8, 8]), ("int4", [4, 4, 8])])
def test_quantised_layers_and_an_int8_head(tmp_path, precision, bits):
    graph = build()
    ops = lowered(graph, precision, tmp_path)
    assert ops == Counter(GatherBlockQuantized=1, MatMulNBits=3, Add=1)
    products = [node for node in graph if node.op_type == "MatMulNBits"]
    assert [node.attributes["bits"].as_int() for node in products] == bits
    assert {node.attributes["accuracy_level"].as_int() for node in products} == {4}
    gather = next(node for node in graph if node.op_type == "GatherBlockQuantized")
    table, head = gather.inputs[0].const_value, products[-1].inputs[1].const_value
    assert (table.offset, table.length) == (head.offset, head.length)
    assert gather.inputs[2] is products[-1].inputs[2]  # the scales


def test_two_graphs_quantise_a_weight_once(tmp_path, monkeypatch):
    from twostroke_export.passes import lower as module

    calls = []
    original = module.quantise
    monkeypatch.setattr(
        module,
        "quantise",
        lambda m, blocks, *rest: calls.append(blocks.bits) or original(m, blocks, *rest),
    )
    model = ir.Model(build(), ir_version=10)
    with WeightFile(tmp_path) as weights:
        for _ in range(2):
            lower(model.clone().graph, lowering("int8"), weights)
    assert calls == [8, 8, 8]


def test_a_small_matrix_stays_a_float(tmp_path):
    ops = lowered(build(small=True), "int8", tmp_path)
    assert ops == Counter(GatherBlockQuantized=1, MatMulNBits=2, Add=1, MatMul=1, Identity=1)


def bits_of(graph: ir.Graph) -> list[int]:
    return [n.attributes["bits"].as_int() for n in graph if n.op_type == "MatMulNBits"]


def test_each_layer_gets_the_bits_that_its_name_asks_for(tmp_path):
    bits = {"dense": 8, "middle": 4}
    graph = build()
    with WeightFile(tmp_path) as weights:
        lower(graph, Lowering(bits.__getitem__, 8), weights)
    assert bits_of(graph) == [8, 4, 8]


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(4, 8, [8, 4, 8]), (4, 4, [4, 4, 8]), (4, None, [4, 8])]
)
def test_a_packed_matrix_gets_what_its_most_demanding_part_asks_for(
    tmp_path, first, second, expected
):
    graph = build()
    linear = find_linears(graph)[0]
    parts = [weight("model.q", SIZE // 2, SIZE), weight("model.v", SIZE // 2, SIZE)]
    linear.weight.const_value = StackedTensor(parts, [True, True], "both")
    asked = []

    def layers(name: str) -> int | None:
        asked.append(name)
        return {"q": first, "v": second, "middle": 4}[name]

    with WeightFile(tmp_path) as weights:
        lower(graph, Lowering(layers, 8), weights)
    assert bits_of(graph) == expected
    assert asked == ["q", "v", "middle"]


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_blocks_and_accuracy_as_asked_and_the_embedding_alike(tmp_path, precision, is_symmetric):
    graph = build()
    options = {"block_size": 16, "is_symmetric": is_symmetric, "accuracy_level": 1}
    lowered(graph, precision, tmp_path, **options)
    quantised = [n for n in graph if n.op_type in ("MatMulNBits", "GatherBlockQuantized")]
    assert {node.attributes["block_size"].as_int() for node in quantised} == {16}
    assert {len(node.inputs) for node in quantised} == {3 if is_symmetric else 4}
    products = [node for node in quantised if node.op_type == "MatMulNBits"]
    assert {node.attributes["accuracy_level"].as_int() for node in products} == {1}


def test_an_embedding_that_does_not_make_whole_blocks_stays_a_float(tmp_path):
    ops = lowered(build(), "int8", tmp_path, block_size=128)
    assert ops == Counter(Gather=1, MatMulNBits=3, Add=1)
