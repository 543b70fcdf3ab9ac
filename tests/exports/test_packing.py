"""Products that read one value become one product, and the same numbers as before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from twostroke_export.passes.linears import StackedTensor, find_linears, parameter_key
from twostroke_export.passes.lower import lower
from twostroke_export.passes.pack_gate_up import pack_gate_up
from twostroke_export.passes.pack_qkv import pack_qkv
from twostroke_export.precision import lowering
from twostroke_export.weights import WeightFile

FLOAT = ir.TensorType(ir.DataType.FLOAT)
SIZE, HEADS, KV_HEADS, HEAD_DIM, CAPACITY = 64, 4, 2, 32, 16
WIDTHS = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}


class Builder:
    """Collects the nodes of one attention layer with a gated MLP behind it."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.random = np.random.default_rng(0)

    def weight(self, name: str, *shape: int) -> ir.Value:
        array = self.random.standard_normal(shape).astype(np.float32) / 8
        return self.constant(name, array)

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        self.initializers.append(value)
        return value

    def add(self, op: str, inputs: list, width: int | None = None, count: int = 1, **attrs):
        domain = attrs.pop("domain", "")
        node = ir.node(op, inputs, attributes=attrs, domain=domain, num_outputs=count)
        for number, output in enumerate(node.outputs):
            output.name, output.type = f"{op}{len(self.nodes)}_{number}", FLOAT
        if width is not None:
            node.outputs[0].shape = ir.Shape(["batch", "sequence", width])
        self.nodes.append(node)
        return node.outputs[0]

    def linear(self, x: ir.Value, name: str, width: int, bias: bool = False) -> ir.Value:
        turned = self.add("Transpose", [self.weight(name, width, SIZE)], perm=(1, 0))
        product = self.add("MatMul", [x, turned], width)
        return (
            self.add("Add", [product, self.weight(f"{name}_b", width)], width) if bias else product
        )


def build(
    *, bias: bool = False, norm: bool = False, two_sources: bool = False, rotary: bool = True
) -> ir.Model:
    """x -> q, k, v -> attention -> o; o -> gate, up -> product -> head."""
    b = Builder()
    x = ir.Value(name="x", shape=ir.Shape(["batch", "sequence", SIZE]), type=FLOAT)
    other = b.add("Abs", [x], SIZE) if two_sources else x
    past = [
        ir.Value(name=n, shape=ir.Shape(["batch", KV_HEADS, CAPACITY, HEAD_DIM]), type=FLOAT)
        for n in ("past_k", "past_v")
    ]
    ints = [ir.Value(name=n, type=ir.TensorType(ir.DataType.INT32)) for n in ("seqlens", "total")]
    ints[0].shape, ints[1].shape = ir.Shape(["batch"]), ir.Shape([])
    sides = {
        name: b.linear(other if name == "v" else x, name, width, bias and name != "o")
        for name, width in WIDTHS.items()
    }
    if norm:
        gain = b.constant("gain", np.linspace(0.5, 1.5, HEAD_DIM, dtype=np.float32))
        for name in ("q", "k"):
            heads = b.add(
                "Reshape", [sides[name], b.constant(f"{name}_h", np.array([0, 0, -1, HEAD_DIM]))]
            )
            normed = b.add("SimplifiedLayerNormalization", [heads, gain], axis=-1, epsilon=1e-5)
            sides[name] = b.add("Reshape", [normed, b.constant(f"{name}_f", np.array([0, 0, -1]))])
    angles = np.arange(CAPACITY)[:, None] / 10.0 ** np.linspace(0, 2, HEAD_DIM // 2)
    caches = [b.constant(f.__name__, f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    attended = b.add(
        "GroupQueryAttention",
        [*sides.values(), *past, *ints, *(caches if rotary else ())],
        WIDTHS["q"],
        3,
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        do_rotary=int(rotary),
    )
    out = b.add("MatMul", [attended, b.weight("o", WIDTHS["q"], SIZE)], SIZE)
    gate, up = b.linear(out, "gate", 96), b.linear(out, "up", 96)
    product = b.add("Mul", [b.add("Sigmoid", [gate], 96), up], 96)
    logits = b.add("MatMul", [product, b.weight("head", 96, 40)], 40)
    graph = ir.Graph(
        [x, *past, *ints],
        [logits],
        nodes=b.nodes,
        initializers=b.initializers,
        opset_imports={"": 23, "com.microsoft": 1},
    )
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model) -> np.ndarray:
    random = np.random.default_rng(1)
    cache = np.zeros((2, KV_HEADS, CAPACITY, HEAD_DIM), np.float32)
    feeds = {
        "x": random.standard_normal((2, 5, SIZE)).astype(np.float32),
        "past_k": cache,
        "past_v": cache,
        "seqlens": np.full(2, 4, np.int32),
        "total": np.array(5, np.int32),
    }
    content = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def packed(model: ir.Model) -> Counter[str]:
    pack_qkv(model.graph)
    pack_gate_up(model.graph)
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("bias", [False, True])
def test_attention_reads_q_k_and_v_as_one_value(bias):
    model, plain = build(bias=bias), run(build(bias=bias))
    assert pack_qkv(model.graph) == 1
    attention = next(node for node in model.graph if node.op_type == "GroupQueryAttention")
    assert attention.inputs[1] is attention.inputs[2] is None
    assert list(attention.inputs[0].shape) == ["batch", "sequence", sum(WIDTHS.values())]
    assert len(find_linears(model.graph)) == 5  # of seven
    assert np.allclose(run(model), plain, atol=1e-5)


def test_a_layer_that_does_not_rotate_is_packed_too():
    model, plain = build(rotary=False), run(build(rotary=False))
    assert pack_qkv(model.graph) == 1
    assert "Split" not in {node.op_type for node in model.graph}
    assert np.allclose(run(model), plain, atol=1e-5)


def test_a_norm_on_the_way_to_attention_takes_a_split():
    model, plain = build(norm=True), run(build(norm=True))
    assert pack_qkv(model.graph) == 1
    node = next(node for node in model.graph if node.op_type == "Split")
    assert node.inputs[1].const_value.numpy().tolist() == list(WIDTHS.values())
    assert np.allclose(run(model), plain, atol=1e-5)


def test_gate_and_up_become_one_product():
    model, plain = build(), run(build())
    assert pack_gate_up(model.graph) == 4  # k and v have one size too
    assert packed(model)["Split"] == 2
    model = build()
    ops = packed(model)
    assert (ops["MatMul"], ops["Split"], ops["Transpose"]) == (4, 1, 2)
    assert np.allclose(run(model), plain, atol=1e-5)


def test_projections_of_different_values_stay_apart():
    model, plain = build(two_sources=True), run(build(two_sources=True))
    assert pack_qkv(model.graph) == 0
    assert np.allclose(run(model), plain, atol=1e-6)


def test_a_projection_that_others_read_too_takes_a_split():
    model = build()
    key = next(n for n in model.graph if n.op_type == "GroupQueryAttention").inputs[1]
    extra = ir.node("Abs", [key])
    extra.outputs[0].name, extra.outputs[0].type = "extra", FLOAT
    model.graph.append(extra)
    model.graph.outputs.append(extra.outputs[0])
    plain = run(model.clone())
    assert pack_qkv(model.graph) == 1
    assert "Split" in {node.op_type for node in model.graph}
    assert np.allclose(run(model), plain, atol=1e-5)


def test_small_matrices_and_the_head_stay():
    model = build()
    source = model.graph.inputs[0]
    for name in ("router", "scores"):  # of one size, and read by one value
        array = np.zeros((SIZE, 8), np.float32)
        weight = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        model.graph.initializers[name] = weight
        small = ir.node("MatMul", [source, weight])
        model.graph.insert_before(model.graph[0], small)
        model.graph.outputs.append(small.outputs[0])
    packed(model)
    kept = [linear.weight.name for linear in find_linears(model.graph)]
    assert {"router", "scores"} < set(kept)
    assert kept[-1] == "head"


def test_two_graphs_store_a_packed_matrix_once(tmp_path):
    model = build()
    sizes, names = [], []
    with WeightFile(tmp_path) as weights:
        for _ in range(2):
            clone = model.clone()
            packed(clone)
            lower(clone.graph, lowering("int8"), weights)
            RemoveUnusedNodesPass()(clone)
            weights.store_initializers(clone.graph)
            names.append(sorted(clone.graph.initializers))
            sizes.append((tmp_path / "weights.bin").stat().st_size)
    assert names[0] == names[1]
    assert sizes[0] == sizes[1]


def test_the_key_of_a_packed_matrix_is_that_of_its_parts():
    keys, model = [], build()
    for _ in range(2):
        parts = [linear.weight for linear in find_linears(model.graph)[:2]]
        stacked = StackedTensor(parts, [True, True], "both")
        keys.append(parameter_key(ir.Value(name="both", const_value=stacked), "values8"))
    assert keys[0] == keys[1]
    assert keys[0] != parameter_key(parts[0], "values8")
