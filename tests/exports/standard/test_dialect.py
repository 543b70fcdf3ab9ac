"""The standard dialect of whole models: plain operators, the same numbers, the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from twostroke.bundle import Bundle, open_bundle
from twostroke.types import Stroke
from twostroke_export.passes.standard.standardise import OPSET
from twostroke_export.pipeline import export_recipes
from twostroke_export.recipe import Recipe
from twostroke_export.runner import TwoGraphs
from twostroke_export.testing.parity_checks import prompt

TOLERANCE = 1e-4
BOTH = ("fused", "standard")
WINDOW = {"head_dim": 16, "sliding_window": 16}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 16},  # soft caps
    "gemma3_text": WINDOW,
    "phi": {},  # a rotary of half the head, biases
    "qwen3_moe": {"head_dim": 16, "moe_intermediate_size": 32, **EXPERTS},
    "gpt_oss": {**WINDOW, **EXPERTS},  # sinks
}


@dataclass
class Exported:
    """A family's source model beside its bundle of both dialects."""

    model: Any
    bundle: Bundle

    def graphs(self, dialects: Any = "standard", num_rows: int = 1) -> TwoGraphs:
        manifest = self.bundle.manifest
        return TwoGraphs(
            self.bundle.root,
            manifest.kv_layers,
            manifest.kv_dtype,
            num_rows=num_rows,
            capacity_tokens=80,
            dialects=dialects,
        )

    def source_logits(self, ids: list[int]) -> np.ndarray:
        """[tokens, vocab] of the source model."""
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    def check(self, ids: list[int], logits: np.ndarray) -> None:
        """That these logits [vocab] follow `ids`."""
        theirs = self.source_logits(ids)[-1]
        assert logits.argmax() == theirs.argmax()
        assert np.abs(logits - theirs).max() < TOLERANCE


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, make_model, tmp_path_factory) -> Exported:
    from transformers import AutoModelForCausalLM

    folder = make_model(request.param, **FAMILIES[request.param])
    out = tmp_path_factory.mktemp("bundles") / request.param
    export_recipes(str(folder), {out: Recipe("fp32", "fp32", BOTH)})
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    )
    return Exported(model.eval(), open_bundle(out))


def proto(bundle: Bundle, stroke: Stroke, dialect: str = "standard") -> onnx.GraphProto:
    return onnx.load(bundle.graph(stroke, dialect), load_external_data=False).graph


def test_every_operator_is_onnx_s_own(exported):
    for stroke in Stroke:
        path = exported.bundle.graph(stroke, "standard")
        model = onnx.load(path, load_external_data=False)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
        assert {node.domain for node in model.graph.node} == {""}
        onnx.checker.check_model(path, full_check=True)  # operators, attributes, types, shapes


def test_the_contract(exported):
    for stroke in Stroke:
        graph = proto(exported.bundle, stroke)
        names = [value.name for value in graph.input]
        expected = ["input_ids", "position_ids"]
        expected += ["logit_index"] if stroke is Stroke.PREFILL else []
        assert names[: len(expected)] == expected
        assert all(name.startswith("past_key_values.") for name in names[len(expected) :])
        sizes = {v.name: dims(v) for v in (*graph.input, *graph.output)}
        layer = exported.bundle.manifest.kv_layers[0]
        heads = ["batch", layer.num_kv_heads, "past", layer.head_dim]
        assert sizes["past_key_values.0.key"] == heads
        assert sizes["present.1.value"] == [*heads[:2], "total", heads[3]]
        assert len(sizes) == len(expected) + 1 + 4 * len(exported.bundle.manifest.kv_layers)


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_prefill_and_sixteen_greedy_steps(exported):
    graphs, ids = exported.graphs(), prompt(37)
    logits = graphs.prefill([ids])[0]
    for _ in range(16):
        exported.check(ids, logits)
        ids.append(int(logits.argmax()))
        logits = graphs.decode([ids[-1]])[0]
    exported.check(ids, logits)


def test_prefill_in_chunks(exported):
    graphs, ids = exported.graphs(), prompt(37)
    for start, end in ((0, 16), (16, 17), (17, 37)):
        exported.check(ids[:end], graphs.prefill([ids[start:end]])[0])


def test_logits_of_every_position(exported):
    graphs, ids = exported.graphs(), prompt(37)
    mine = np.concatenate([graphs.score(ids[:20]), graphs.score(ids[20:])])
    np.testing.assert_allclose(mine, exported.source_logits(ids), atol=TOLERANCE)


def test_rows_of_one_length(exported):
    rows = [prompt(20), prompt(20, 50)]
    graphs = exported.graphs(num_rows=2)
    for chunk in (slice(0, 12), slice(12, 20)):
        logits = graphs.prefill([row[chunk] for row in rows])
    for _ in range(3):
        for row, mine in zip(rows, logits, strict=True):
            exported.check(row, mine)
            row.append(int(mine.argmax()))
        logits = graphs.decode([row[-1] for row in rows])


@pytest.mark.parametrize("prefill", BOTH)
def test_decode_goes_on_with_the_other_dialect_s_cache(exported, prefill):
    decode = "standard" if prefill == "fused" else "fused"
    graphs = exported.graphs({Stroke.PREFILL: prefill, Stroke.DECODE: decode})
    ids = prompt(37)
    for start, end in ((0, 20), (20, 37)):
        logits = graphs.prefill([ids[start:end]])[0]
    for _ in range(4):
        ids.append(int(logits.argmax()))
        logits = graphs.decode([ids[-1]])[0]
        exported.check(ids, logits)


def test_both_dialects_read_the_same_bytes(exported):
    places = [stored(proto(exported.bundle, s, d)) for s in Stroke for d in BOTH]
    assert places[0]
    assert all(place == places[0] for place in places)


def stored(graph: onnx.GraphProto) -> set[tuple[str, ...]]:
    """Location, offset and length of every tensor of the data file."""
    return {
        tuple(entry.value for entry in tensor.external_data)
        for tensor in graph.initializer
        if tensor.external_data
    }


def test_the_manifest_tells_of_both(exported):
    manifest = exported.bundle.manifest
    assert manifest.dialects == BOTH
    assert [(v.dialect, v.num_argmax_equal) for v in manifest.verifications] == [
        ("fused", 17),
        ("standard", 17),
    ]
    assert max(v.decode_max_abs_diff for v in manifest.verifications) < TOLERANCE


@pytest.fixture(scope="module")
def precisions(tiny_llama, tmp_path_factory) -> dict[str, Bundle]:
    """Bundles of both dialects by precision, and `alone`: int8 in the standard one only."""
    folder = tmp_path_factory.mktemp("precisions")
    recipes = {folder / name: Recipe(name, name, BOTH) for name in ("int8", "int4", "fp16")}
    export_recipes(
        str(tiny_llama), {**recipes, folder / "alone": Recipe("int8", "int8", ("standard",))}
    )
    return {path.name: open_bundle(path) for path in folder.iterdir()}


@pytest.mark.parametrize("precision", ["int8", "int4", "fp16"])
def test_other_precisions(precisions, precision):
    bundle = precisions[precision]
    fused, standard = bundle.manifest.verifications
    assert standard.mean_kl == pytest.approx(fused.mean_kl, rel=0.5)
    for stroke in Stroke:
        mine, theirs = (stored_bytes(proto(bundle, stroke, dialect)) for dialect in BOTH[::-1])
        assert theirs <= mine
        zeros = len(mine - theirs)  # what they add
        assert zeros * 50 < (bundle.root / "weights.bin").stat().st_size


def stored_bytes(graph: onnx.GraphProto) -> set[int]:
    """Which bytes of the data file a graph reads: one may read halves of what another reads."""
    places = [range(int(at), int(at) + int(length)) for _, at, length in stored(graph)]
    return {byte for place in places for byte in place}


def test_gate_and_up_are_products_of_their_own(precisions):
    for precision in ("int8", "int4"):
        for stroke in Stroke:
            fused, standard = (proto(precisions[precision], stroke, dialect) for dialect in BOTH)
            num_layers = len(precisions[precision].manifest.kv_layers)
            num_packed = sum(node.op_type == "MatMulNBits" for node in fused.node)
            num_apart = sum(node.op_type == "MatMul" for node in standard.node)
            assert num_apart == num_packed + (1 + 2) * num_layers  # attention's two are explicit


def test_a_bundle_of_the_standard_dialect_alone(precisions):
    bundle = precisions["alone"]
    assert [verification.dialect for verification in bundle.manifest.verifications] == ["standard"]
    assert sorted(path.name for path in bundle.root.glob("*.onnx")) == [
        "decode.standard.onnx",
        "prefill.standard.onnx",
    ]
