"""Bits chosen by what they cost: right measurements, a right order, and nothing left changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twostroke.types import Stroke
from twostroke_export.groups import find_groups
from twostroke_export.importance import measure_importance
from twostroke_export.load import load
from twostroke_export.mixed import choose_bits
from twostroke_export.observe import observe
from twostroke_export.passes.fuse import pack
from twostroke_export.passes.simplify import simplify
from twostroke_export.passes.skip_norm import fuse_skip_norm
from twostroke_export.precision import MIXED, lowering
from twostroke_export.prefix import Prefix
from twostroke_export.quantise import dequantise, quantise
from twostroke_export.source import resolve
from twostroke_export.stand_in import standing_in
from twostroke_export.trace import trace

IDS = list(range(3, 67))
PLAIN = lowering(MIXED)


def prepared(folder):
    model = load(resolve(str(folder)), lambda _: None).model
    graph = trace(model, observe(model), Stroke.PREFILL, 256)
    simplify(graph)
    fuse_skip_norm(graph.graph)
    return model, find_groups(graph.graph, lambda graph: pack(graph, PLAIN))


@pytest.fixture(scope="module")
def llama(tiny_llama):
    return prepared(tiny_llama)


@torch.no_grad()
def log_probs(model):
    return torch.log_softmax(model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0], -1)


def divergence(model, lossy):
    """KL when the matrices named in `lossy` have 4 bits, the plain way: weights are overwritten."""
    before = log_probs(model)
    own = {}
    for name in lossy:
        parameter = dict(model.named_parameters())[name]
        own[name] = parameter.data.clone()
        rows = parameter.data.numpy()
        parameter.data = torch.from_numpy(
            dequantise(quantise(rows, PLAIN.blocks(4)), rows.shape[1])
        )
    after = log_probs(model)
    for name, data in own.items():
        dict(model.named_parameters())[name].data = data
    return float((before.exp() * (before - after)).sum(-1).mean())


def test_groups_are_what_is_packed(llama):
    _, groups = llama
    assert [group.label for group in groups] == [
        f"model.layers.{number}.{name}"
        for number in range(2)
        for name in (
            "self_attn.q_proj+k_proj+v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj+up_proj",
            "mlp.down_proj",
        )
    ]
    qkv = groups[0]
    assert [(one.num_out, one.num_in) for one in qkv.matrices] == [(64, 64), (32, 64), (32, 64)]
    assert qkv.num_bytes(PLAIN.blocks(8)) == 128 * (64 + 2 * 4)


def test_the_cheapest_bytes_are_promoted_first(llama):
    model, groups = llama
    costs = [divergence(model, group.names) for group in groups]
    sizes = [g.num_bytes(PLAIN.blocks(8)) - g.num_bytes(PLAIN.blocks(4)) for g in groups]
    ranked = sorted(range(len(groups)), key=lambda i: -costs[i] / sizes[i])
    all_low = divergence(model, [name for group in groups for name in group.names])
    mixture = choose_bits(model, groups, IDS, PLAIN, target_kl=all_low / 2)
    num_promoted = sum(bits == 8 for bits in mixture.group_bits.values())
    assert 0 < num_promoted < len(groups)
    promoted = {groups[i].label for i in ranked[:num_promoted]}
    assert {label for label, bits in mixture.group_bits.items() if bits == 8} == promoted
    low = [name for name, bits in mixture.bits.items() if bits == 4]
    assert mixture.mean_kl == pytest.approx(divergence(model, low), rel=1e-3)
    assert mixture.mean_kl <= all_low / 2
    one_fewer = [name for i in ranked[num_promoted - 1 :] for name in groups[i].names]
    assert divergence(model, one_fewer) > all_low / 2


def test_the_extremes(llama):
    model, groups = llama
    lax = choose_bits(model, groups, IDS, PLAIN, target_kl=100.0)
    assert set(lax.group_bits.values()) == {4}
    strict = choose_bits(model, groups, IDS, PLAIN, target_kl=1e-9)
    assert set(strict.group_bits.values()) == {8}
    assert strict.mean_kl == pytest.approx(0, abs=1e-6)


def test_the_budget_is_kept(llama):
    model, groups = llama
    low, high = (sum(g.num_bytes(PLAIN.blocks(bits)) for g in groups) for bits in (4, 8))
    budget = (low + high) // 2
    mixture = choose_bits(model, groups, IDS, PLAIN, target_kl=1e-9, budget_bytes=budget)
    spent = sum(g.num_bytes(PLAIN.blocks(mixture.group_bits[g.label])) for g in groups)
    assert low < spent <= budget
    smallest = min(g.num_bytes(PLAIN.blocks(8)) - g.num_bytes(PLAIN.blocks(4)) for g in groups)
    assert budget - spent < 6 * smallest


def test_it_answers_the_same_twice_and_leaves_the_model_as_it_was(llama):
    model, groups = llama
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    seen: list[float] = []
    one, other = (
        choose_bits(model, groups, IDS, PLAIN, target_kl=0.01, report=seen.append) for _ in "ab"
    )
    assert one == other
    assert seen[: len(seen) // 2] == sorted(seen[: len(seen) // 2])
    assert seen[-1] == 1.0
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]), name
    assert not any(layer.__dict__.get("forward") for layer in model.model.layers)


def test_a_matrix_whose_use_cannot_be_seen_gets_eight_bits(llama, monkeypatch):
    model, groups = llama
    down = model.model.layers[1].mlp.down_proj
    monkeypatch.setattr(
        model.model.layers[1].mlp,
        "forward",
        lambda x: torch.nn.functional.linear(
            torch.nn.functional.silu(x @ model.model.layers[1].mlp.gate_proj.weight.T),
            down.weight,
        ),
    )
    mixture = choose_bits(model, groups, IDS, PLAIN, target_kl=0.05)
    assert mixture.bits["model.layers.1.mlp.down_proj.weight"] == 8


def test_a_run_from_a_later_layer_on_is_a_whole_run(llama):
    model, _ = llama
    prefix = Prefix(model, IDS)
    name = "model.layers.1.mlp.down_proj.weight"
    with standing_in(model, {name: lambda: torch.zeros(64, 128)}) as used:
        whole = prefix.divergence()
        with prefix.skipping_to(name):
            assert prefix.divergence() == pytest.approx(whole, rel=1e-5)
    assert used == {name}
    assert whole > 0.01
    assert prefix.divergence() == 0.0


def test_weights_come_back_when_a_run_fails(llama):
    model, _ = llama
    name = "model.layers.0.mlp.down_proj.weight"
    before = dict(model.named_parameters())[name].detach().clone()
    with pytest.raises(RuntimeError), standing_in(model, {name: lambda: torch.zeros(3, 3)}):
        log_probs(model)
    assert torch.equal(dict(model.named_parameters())[name], before)


def test_importance_is_the_mean_square_of_what_a_matrix_is_given(llama):
    model, _ = llama
    given = []
    query = model.model.layers[1].self_attn.q_proj
    hook = query.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    importance = measure_importance(model, IDS)
    hook.remove()
    expected = given[0][0].square().mean(0).numpy()
    found = importance["model.layers.1.self_attn.q_proj.weight"]
    assert np.allclose(found, expected + 1e-3 * expected.mean(), rtol=1e-4)


@pytest.mark.parametrize("model_type", ["gpt2", "mixtral"])
def test_other_families(make_model, model_type):
    changes = {"num_local_experts": 4} if model_type == "mixtral" else {}
    model, groups = prepared(make_model(model_type, **changes))
    before = log_probs(model)
    target_kl = choose_bits(model, groups, IDS, PLAIN, target_kl=100.0).mean_kl / 2
    mixture = choose_bits(model, groups, IDS, PLAIN, target_kl=target_kl)
    assert set(mixture.group_bits.values()) == {4, 8}
    assert 0 < mixture.mean_kl <= target_kl
    assert torch.equal(log_probs(model), before)
    if model_type == "mixtral":
        assert any("experts" in label for label in mixture.group_bits)
