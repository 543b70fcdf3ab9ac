"""Whole exports in the rarer precisions, opened by the engine on a CPU."""

from __future__ import annotations

import pytest
import torch

from twostroke.bundle import open_bundle
from twostroke.engine import SyncEvents
from twostroke.errors import ContractError, ExportError
from twostroke.model import Model
from twostroke.types import Request, SamplingParams, TokenEvent
from twostroke.verify import verify_bundle
from twostroke_backends.cpu import CpuBackend
from twostroke_export.load import Loaded
from twostroke_export.pipeline import export_recipes
from twostroke_export.prepare import Prepared
from twostroke_export.recipe import Recipe


@pytest.fixture(scope="module")
def bundles(tiny_llama, tmp_path_factory):
    """One load and two traces of each stroke: float32 first, then the rounded weights."""
    folder = tmp_path_factory.mktemp("precisions")
    recipes = {
        folder / "int8 cache": Recipe(has_int8_kv=True),
        folder / "exact but for its cache": Recipe("fp32", "fp32", has_int8_kv=True),
        folder / "bf16": Recipe("bf16", "bf16"),
        folder / "int8 in bf16": Recipe("int4", "int8", floats="bf16", has_int8_kv=True),
    }
    export_recipes(str(tiny_llama), recipes, context_tokens=96)
    return {out.name: out for out in recipes}


@pytest.mark.parametrize("name", ["int8 cache", "exact but for its cache"])
def test_an_int8_cache_is_a_quarter_and_the_engine_answers_as_at_export(bundles, name):
    manifest = open_bundle(bundles[name]).manifest
    assert manifest.kv_dtype == "int8"
    assert {graph.quantisation.activations for graph in manifest.graphs} == {"float32"}
    assert manifest.verification.measured_in is None
    assert 0 < manifest.verification.mean_kl < 2e-3
    checks = verify_bundle(bundles[name])
    assert checks[2].startswith("answers: ")


@pytest.mark.parametrize(("name", "cache"), [("bf16", "bfloat16"), ("int8 in bf16", "int8")])
def test_bfloat16_is_measured_in_float32_and_refused_on_a_cpu(bundles, name, cache):
    manifest = open_bundle(bundles[name]).manifest
    assert manifest.kv_dtype == cache
    assert manifest.quantisation.activations == "bfloat16"
    assert manifest.verification.measured_in == "float32"
    assert manifest.verification.mean_kl < 0.1
    assert not [file for file in bundles[name].iterdir() if file.is_dir()]  # no twin stays
    with pytest.raises(ContractError, match=r"computes in bfloat16, for which the backend 'cpu'"):
        verify_bundle(bundles[name])


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_rows_with_an_int8_cache_do_not_meet(bundles, is_handed_over, monkeypatch):
    """Sequences of mixed lengths at once answer as each alone, from one cache or over a copy."""
    if is_handed_over:  # two backends that do not tell that their memory is the same
        monkeypatch.delattr(CpuBackend, "memory_space")
    own = {"prefill": {"options": {"share_weights": False}}} if is_handed_over else {}
    prompts = [[(n * k) % 300 for n in range(1, k + 2)] for k in (3, 40, 17)]
    with Model.open(bundles["int8 cache"], backend="cpu", max_rows=3, **own) as model:
        engine = model._opened.engine
        num_copies = 2 if is_handed_over else 1
        # layers, sides, kv heads, head_dim: a byte each
        assert engine.memory_plan.kv_bytes_per_token == num_copies * 2 * 2 * 2 * 16
        alone = [greedy(engine, [prompt])[0] for prompt in prompts]
        assert greedy(engine, prompts) == alone
        assert len({tuple(ids) for ids in alone}) == 3


def greedy(engine, prompts) -> list[list[int]]:
    """The ids that follow each prompt, all asked for at once."""
    sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    streams = [
        SyncEvents(engine, [Request(f"row {number}", tuple(prompt), sampling)])
        for number, prompt in enumerate(prompts)
    ]
    return [
        [event.token_id for _, event in stream if isinstance(event, TokenEvent)]
        for stream in streams
    ]


def test_quantised_weights_compute_in_half_floats_on_a_cpu(tiny_llama, tmp_path):
    out = tmp_path / "out"
    recipe = Recipe("int8", "int4", block_size=16, floats="fp16", has_int8_kv=True)
    export_recipes(str(tiny_llama), {out: recipe}, context_tokens=96)
    manifest = open_bundle(out).manifest
    assert manifest.precision == "int8/int4"
    assert (manifest.quantisation.activations, manifest.kv_dtype) == ("float16", "int8")
    assert verify_bundle(out)[2].startswith("answers: ")


def test_weights_are_not_rounded_twice():
    model = torch.nn.Linear(4, 4)
    prepared = Prepared(None, Loaded(model, None), None, None, 8)
    prepared.cast("float16")
    prepared.cast("float16")
    assert model.weight.dtype == torch.float16
    with pytest.raises(ExportError, match="do not come from one load"):
        prepared.cast("bfloat16")
