"""Experts lowered to ONNX Runtime's operators give the numbers of the formula."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from twostroke_export.expert_gate import Gate
from twostroke_export.passes.expert_node import find_experts, find_routers
from twostroke_export.passes.experts import lower_experts
from twostroke_export.precision import Importance, Lowering
from twostroke_export.quantise import Blocks, dequantise, quantise
from twostroke_export.weights import WEIGHTS_NAME, WeightFile

HIDDEN, INNER, NUM_EXPERTS, NUM_CHOSEN, NUM_TOKENS = 64, 96, 5, 2, 7
SILU = Gate(1.0, 0.0, float("inf"), is_interleaved=False, is_gate_first=True)
CLAMPED = Gate(1.702, 1.0, 0.5, is_interleaved=True, is_gate_first=True)
UP_FIRST = Gate(1.0, 0.0, float("inf"), is_interleaved=False, is_gate_first=False)
CASES = {  # the gate, and whether matrices are stored [in, out], and whether there are biases
    "mixtral": (SILU, False, False),
    "gpt_oss": (CLAMPED, True, True),
    "up first": (UP_FIRST, True, False),
}
LAYOUTS = [Blocks(8), Blocks(4, is_symmetric=False), Blocks(8, 16, False), Blocks(4, 16, True)]


class Layer:
    """Random experts, as a model stores them, and what they compute."""

    def __init__(
        self, gate: Gate, is_transposed: bool, has_bias: bool, num_inner: int = INNER
    ) -> None:
        random = np.random.default_rng(3)
        self.gate, self.is_transposed, self.has_bias = gate, is_transposed, has_bias
        self.num_inner = num_inner
        shapes = {"gate_up": (2 * num_inner, HIDDEN), "down": (HIDDEN, num_inner)}
        self.matrices = {
            name: random.standard_normal((NUM_EXPERTS, *shape)).astype(np.float32) / 8
            for name, shape in shapes.items()
        }
        self.biases = {
            name: random.standard_normal((NUM_EXPERTS, rows)).astype(np.float32) * has_bias
            for name, (rows, _) in shapes.items()
        }

    def model(self) -> ir.Model:
        """The graph of a trace: states, chosen and weights go through one node."""
        names = {"states": ir.DataType.FLOAT, "chosen": ir.DataType.INT64, "weights": None}
        inputs = [
            ir.Value(name=name, type=ir.TensorType(dtype or ir.DataType.FLOAT))
            for name, dtype in names.items()
        ]
        for value, width in zip(inputs, (HIDDEN, NUM_CHOSEN, NUM_CHOSEN), strict=True):
            value.shape = ir.Shape(["tokens", width])
        stored = {
            name: np.ascontiguousarray(matrix.swapaxes(1, 2)) if self.is_transposed else matrix
            for name, matrix in self.matrices.items()
        }
        if self.has_bias:
            stored |= {f"{name}_bias": bias for name, bias in self.biases.items()}
        parameters = [
            ir.Value(name=name, const_value=ir.tensor(array, name=name))
            for name, array in stored.items()
        ]
        gate = self.gate
        attributes = {
            "num_experts": NUM_EXPERTS,
            "num_chosen": NUM_CHOSEN,
            "is_transposed": int(self.is_transposed),
            "is_interleaved": int(gate.is_interleaved),
            "is_gate_first": int(gate.is_gate_first),
            "alpha": gate.alpha,
            "beta": gate.beta,
            **({"limit": gate.limit} if np.isfinite(gate.limit) else {}),
        }
        node = ir.node("Experts", [*inputs, *parameters], attributes, domain="twostroke")
        node.outputs[0].name, node.outputs[0].type = "mixed", ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = ir.Shape(["tokens", HIDDEN])
        opsets = {"": 23, "twostroke": 1}
        graph = ir.Graph(
            inputs, node.outputs, nodes=[node], initializers=parameters, opset_imports=opsets
        )
        return ir.Model(graph, ir_version=10)

    def compute(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """[tokens, hidden], an expert at a time."""
        mixed = np.zeros_like(feeds["states"])
        for token, (chosen, weights) in enumerate(
            zip(feeds["chosen"], feeds["weights"], strict=True)
        ):
            for expert, weight in zip(chosen, weights, strict=True):
                gate_up, down = (m[expert] for m in self.matrices.values())
                both = gate_up @ feeds["states"][token] + self.biases["gate_up"][expert]
                inner = self.gate.apply(*self._parted(torch.from_numpy(both))).numpy()
                mixed[token] += weight * (down @ inner + self.biases["down"][expert])
        return mixed

    def _parted(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        is_interleaved, half = self.gate.is_interleaved, self.num_inner
        first, second = (both[0::2], both[1::2]) if is_interleaved else (both[:half], both[half:])
        return (first, second) if self.gate.is_gate_first else (second, first)

    def rounded(self, blocks: Blocks, importance: Importance | None = None) -> Layer:
        """The same experts with matrices that went through the quantisation."""
        weigh = importance or {}
        other = Layer(self.gate, self.is_transposed, self.has_bias, self.num_inner)
        other.matrices = {
            name: np.stack(
                [dequantise(quantise(m, blocks, weigh.get(name)), m.shape[1]) for m in matrix]
            )
            for name, matrix in self.matrices.items()
        }
        return other


@pytest.fixture(params=CASES)
def layer(request) -> Layer:
    return Layer(*CASES[request.param])


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    """Weights that don't sum to 1; one token has none, another a single one."""
    random = np.random.default_rng(4)
    chosen = np.stack([random.permutation(NUM_EXPERTS)[:NUM_CHOSEN] for _ in range(NUM_TOKENS)])
    weights = random.uniform(0.05, 2.0, (NUM_TOKENS, NUM_CHOSEN)).astype(np.float32)
    weights[2], weights[3, 0] = 0.0, 0.0
    states = random.standard_normal((NUM_TOKENS, HIDDEN)).astype(np.float32)
    return {"states": states, "chosen": chosen.astype(np.int64), "weights": weights}


def run(model: ir.Model, folder, feeds: dict[str, np.ndarray]) -> np.ndarray:
    ir.save(model, folder / "model.onnx")
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def lowering(blocks: Blocks | None, accuracy_level: int = 4) -> Lowering:
    if blocks is None:
        return Lowering(lambda _: None, None)
    return Lowering(lambda _: blocks.bits, 8, blocks.size, blocks.is_symmetric, accuracy_level)


def lowered(layer: Layer, how: Lowering, folder) -> tuple[ir.Model, Counter]:
    model = layer.model()
    with WeightFile(folder) as weights:
        assert lower_experts(model.graph, how, weights) == 1
        weights.store_initializers(model.graph)
    return model, Counter(node.op_type for node in model.graph)


def test_floats_give_the_same_numbers(layer, feeds, tmp_path):
    model, ops = lowered(layer, lowering(None), tmp_path)
    assert ops["MoE"] == 1
    assert set(model.graph.opset_imports) == {"", "com.microsoft"}
    np.testing.assert_allclose(run(model, tmp_path, feeds), layer.compute(feeds), atol=2e-5)


@pytest.mark.parametrize(("case", "is_shared"), [("mixtral", True), ("gpt_oss", False)])
def test_a_matrix_that_lies_as_it_is_read_is_not_copied(case, is_shared):
    (experts,) = find_experts(Layer(*CASES[case]).model().graph)
    stored = experts.operand("down").const_value.numpy()
    assert np.shares_memory(experts.stack("down"), stored) == is_shared
    assert not np.shares_memory(
        experts.stack("gate_up"), experts.operand("gate_up").const_value.numpy()
    )


@pytest.mark.parametrize("blocks", [b for b in LAYOUTS if b.bits == 4], ids=str)
def test_four_bits_compute_what_they_stand_for(layer, feeds, tmp_path, blocks):
    # At level 0 activations stay floats, which only the kernels of 4 bits can do.
    model, ops = lowered(layer, lowering(blocks, accuracy_level=0), tmp_path)
    assert ops == Counter(Shape=1, Concat=1, ConstantOfShape=1, ScatterElements=1, QMoE=1)
    mine, theirs = run(model, tmp_path, feeds), layer.rounded(blocks).compute(feeds)
    np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_the_channels_that_matter_are_kept(layer, feeds, tmp_path):
    random = np.random.default_rng(5)
    importance = {
        name: random.uniform(0.01, 4.0, size).astype(np.float32) ** 4
        for name, size in (("gate_up", HIDDEN), ("down", INNER))
    }
    blocks = Blocks(4, is_symmetric=False)
    how = dataclasses.replace(lowering(blocks, accuracy_level=0), importance=importance)
    model, _ = lowered(layer, how, tmp_path)
    mine, theirs = run(model, tmp_path, feeds), layer.rounded(blocks, importance).compute(feeds)
    np.testing.assert_allclose(mine, theirs, atol=2e-5)
    assert np.abs(mine - layer.rounded(blocks).compute(feeds)).max() > 1e-3


@pytest.mark.parametrize("blocks", LAYOUTS, ids=str)
def test_quantised_activations_stay_near(layer, feeds, tmp_path, blocks):
    model, _ = lowered(layer, lowering(blocks), tmp_path)
    mine, theirs = run(model, tmp_path, feeds), layer.rounded(blocks).compute(feeds)
    assert np.abs(mine - theirs).max() < 0.03 * np.abs(theirs).max()


@pytest.mark.parametrize(("asked", "taken"), [(256, 32), (32, 32), (16, 16)])
def test_a_block_cuts_both_matrices(tmp_path, asked, taken):
    layer = Layer(*CASES["mixtral"])  # rows of 64 and 96
    model, _ = lowered(layer, lowering(Blocks(8, asked)), tmp_path)
    node = next(node for node in model.graph if node.op_type == "QMoE")
    assert node.attributes["block_size"].as_int() == taken


def test_rows_that_no_block_cuts_stay_floats_and_say_so(feeds, tmp_path, caplog):
    layer = Layer(*CASES["mixtral"], num_inner=40)
    model, ops = lowered(layer, lowering(Blocks(8)), tmp_path)
    assert (ops["MoE"], ops["QMoE"]) == (1, 0)
    assert "rows of 64 and of 40" in caplog.text
    np.testing.assert_allclose(run(model, tmp_path, feeds), layer.compute(feeds), atol=2e-5)


@pytest.mark.parametrize(
    ("bits", "expected"), [({"gate_up": 4, "down": 8}, 8), ({"gate_up": 4, "down": None}, None)]
)
def test_the_more_demanding_matrix_decides(tmp_path, bits, expected):
    how = Lowering(lambda name: bits[name], 8)
    model, _ = lowered(Layer(*CASES["mixtral"]), how, tmp_path)
    found = [
        n.attributes["expert_weight_bits"].as_int() for n in model.graph if n.op_type == "QMoE"
    ]
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("blocks", "bits_a_weight"),
    [(None, 32), (Blocks(8), 9), (Blocks(4, is_symmetric=False), 5.25)],
    ids=str,
)
def test_two_graphs_store_the_experts_once(tmp_path, blocks, bits_a_weight):
    traced = Layer(*CASES["mixtral"]).model()
    with WeightFile(tmp_path) as weights:
        for model in (traced.clone(), traced.clone()):
            lower_experts(model.graph, lowering(blocks), weights)
            weights.store_initializers(model.graph)
    num_bytes = NUM_EXPERTS * 3 * HIDDEN * INNER * bits_a_weight / 8
    assert num_bytes <= (tmp_path / WEIGHTS_NAME).stat().st_size < 1.1 * num_bytes + 4 * 4096


def test_the_product_that_chooses_is_a_router():
    model = Layer(*CASES["mixtral"]).model()
    graph = model.graph
    experts = find_experts(graph)[0]
    table = ir.Value(
        name="router", const_value=ir.tensor(np.ones((HIDDEN, NUM_EXPERTS), np.float32))
    )
    other = ir.Value(name="other", const_value=ir.tensor(np.ones((HIDDEN, HIDDEN), np.float32)))
    before = ir.node("MatMul", [experts.operand("states"), other])
    scores = ir.node("MatMul", [before.outputs[0], table])
    k = ir.Value(name="k", const_value=ir.tensor(np.array([NUM_CHOSEN])))
    top = ir.node("TopK", [scores.outputs[0], k], num_outputs=2)
    for value in (table, other, k):
        graph.initializers[value.name] = value
    graph.insert_before(experts.node, [before, scores, top])
    experts.node.replace_input_with(1, top.outputs[1])
    assert find_routers(graph) == {scores}
    graph.remove(experts.node)  # gathered experts leave the choice only
    assert find_routers(graph) == {scores}
