"""A few families, each odd in its own way; `make parity` holds all of them to transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from twostroke.bundle import open_bundle
from twostroke.bundle.contract import POSITION_IDS, check_contract
from twostroke.types import Stroke
from twostroke_export.pipeline import export_all
from twostroke_export.runner import TwoGraphs

TOLERANCE = 1e-4
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
# Sizes that differ from the default, and whether the rotation moves inside attention.
FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "llama": ({}, True),
    "qwen3": ({"head_dim": 32}, True),
    "gemma3_text": ({"head_dim": 16, "sliding_window": 16}, True),
    "gpt2": (GPT2, False),
}


@dataclass
class Exported:
    """A family's source model beside its bundle."""

    model: Any
    root: Path
    is_rotary_inside: bool

    def graphs(self, num_rows: int = 1, capacity_tokens: int = 80) -> TwoGraphs:
        manifest = open_bundle(self.root).manifest
        return TwoGraphs(
            self.root,
            manifest.kv_layers,
            manifest.kv_dtype,
            num_rows=num_rows,
            capacity_tokens=capacity_tokens,
        )

    def source_logits(self, ids: list[int]) -> np.ndarray:
        """[tokens, vocab] of the source model."""
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request, make_model, tmp_path_factory) -> Exported:
    from transformers import AutoModelForCausalLM

    changes, is_rotary_inside = FAMILIES[request.param]
    folder = make_model(request.param, **changes)
    out = tmp_path_factory.mktemp("bundles") / request.param
    export_all(str(folder), {"fp32": out})
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return Exported(model, out, is_rotary_inside)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, length).tolist()


def close(mine: np.ndarray, theirs: np.ndarray) -> bool:
    return mine.argmax() == theirs.argmax() and float(np.abs(mine - theirs).max()) < TOLERANCE


def test_prefill_and_sixteen_greedy_steps(exported):
    graphs, ids = exported.graphs(), prompt(37)
    logits = graphs.prefill([ids])[0]
    for _ in range(16):
        assert close(logits, exported.source_logits(ids)[-1])
        ids.append(int(logits.argmax()))
        logits = graphs.decode([ids[-1]])[0]
    assert close(logits, exported.source_logits(ids)[-1])


def test_prefill_in_chunks(exported):
    graphs, ids = exported.graphs(), prompt(37)
    for start, end in ((0, 16), (16, 17), (17, 37)):
        logits = graphs.prefill([ids[start:end]])[0]
        assert close(logits, exported.source_logits(ids[:end])[-1])


def test_ragged_rows(exported):
    rows = [prompt(length, seed) for seed, length in enumerate((5, 37, 18))]
    graphs = exported.graphs(num_rows=3)
    logits = graphs.prefill(rows)
    for _ in range(4):
        for row, mine in zip(rows, logits, strict=True):
            assert close(mine, exported.source_logits(row)[-1])
            row.append(int(mine.argmax()))
        logits = graphs.decode([row[-1] for row in rows])


def test_the_last_position_and_one_more(exported):
    """The engine lets an idle row write behind its last token, even where its context is full."""
    graphs, ids = exported.graphs(capacity_tokens=264), prompt(256)
    graphs.prefill([ids[:255]])
    assert close(graphs.decode(ids[255:])[0], exported.source_logits(ids)[-1])
    assert np.isfinite(graphs.decode([0])).all()


def test_graphs_keep_the_contract(exported):
    bundle = open_bundle(exported.root)
    for stroke in Stroke:
        graph = onnx.load(bundle.graph(stroke), load_external_data=False).graph
        inputs = {value.name: value for value in graph.input}
        outputs = [value.name for value in graph.output]
        check_contract(stroke, stroke, inputs, outputs, len(bundle.manifest.kv_layers))
        assert (POSITION_IDS in inputs) is not exported.is_rotary_inside
        dims = inputs["input_ids"].type.tensor_type.shape.dim
        assert dims[0].dim_param == "batch"
        assert dims[1].dim_param == "sequence" if stroke is Stroke.PREFILL else dims[1].dim_value


def test_both_graphs_name_one_data_file(exported):
    bundle = open_bundle(exported.root)
    weights = []
    for stroke in Stroke:
        graph = onnx.load(bundle.graph(stroke), load_external_data=False).graph
        stored = {
            tensor.name: {entry.key: entry.value for entry in tensor.external_data}
            for tensor in graph.initializer
            if tensor.external_data
        }
        assert {place["location"] for place in stored.values()} == {"weights.bin"}
        weights.append({name: (place["offset"], place["length"]) for name, place in stored.items()})
    assert weights[0] == weights[1]
