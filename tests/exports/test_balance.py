"""Balancing moves factors between weights and never changes what a model computes."""

from __future__ import annotations

import pytest
import torch

from twostroke.types import Stroke
from twostroke_export.balance import balance, measure_rms
from twostroke_export.load import load
from twostroke_export.observe import observe
from twostroke_export.passes.channels import find_channels
from twostroke_export.passes.simplify import simplify
from twostroke_export.passes.skip_norm import fuse_skip_norm
from twostroke_export.source import resolve
from twostroke_export.trace import trace

IDS = list(range(3, 40))


def traced(folder):
    model = load(resolve(str(folder)), lambda _: None).model
    graph = trace(model, observe(model), Stroke.PREFILL, 256)
    simplify(graph)
    fuse_skip_norm(graph.graph)
    return model, graph.graph


@torch.no_grad()
def logits(model):
    return model(input_ids=torch.tensor([IDS]), use_cache=False).logits


@pytest.fixture(scope="module")
def llama(tiny_llama):
    return traced(tiny_llama)


def test_a_llama_layer_has_four_places(llama):
    _, graph = llama
    places = find_channels(graph)
    assert len(places) == 2 * 4  # two norms, a gate and attention in each of two layers
    assert sorted(len(place.readers) for place in places) == [1, 1, 1, 1, 2, 2, 3, 3]
    assert sorted(place.num_groups for place in places) == [1] * 6 + [2] * 2


def test_a_tied_head_is_left_alone(llama):
    model, graph = llama
    head = model.lm_head.weight.data_ptr()
    assert head == model.model.embed_tokens.weight.data_ptr()
    assert all(head not in place.pointers for place in find_channels(graph))
    assert model.model.norm.weight.data_ptr() not in {
        pointer for place in find_channels(graph) for pointer in place.pointers
    }


def test_llama_computes_the_same_from_other_weights(llama):
    model, graph = llama
    before, weight = logits(model), model.model.layers[0].mlp.down_proj.weight.detach().clone()
    assert balance(model, graph, IDS) == 8
    assert (logits(model) - before).abs().max() < 1e-4
    assert (model.model.layers[0].mlp.down_proj.weight - weight).abs().max() > 0.01


def test_balancing_twice_is_balancing_once(llama):
    model, graph = llama
    balance(model, graph, IDS)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    balance(model, graph, IDS)
    for name, value in model.named_parameters():
        assert torch.allclose(value, weights[name], rtol=1e-3, atol=1e-5), name


def test_balanced_channels_are_closer_in_size(make_model):
    folder = make_model("llama", tie_word_embeddings=False)
    model, graph = traced(folder)
    norm = model.model.layers[0].input_layernorm.weight
    norm.data[5] *= 100.0  # one channel drowns the others of its block
    query = model.model.layers[0].self_attn.q_proj.weight.data_ptr()

    def spread():
        rms = measure_rms(model, IDS)[query]
        return float(rms.max() / rms.median())

    before = spread()
    balance(model, graph, IDS)
    assert spread() < before / 5


@pytest.mark.parametrize("model_type", ["gpt2", "qwen2", "phi", "gemma2"])
def test_other_families_compute_the_same(make_model, model_type):
    model, graph = traced(make_model(model_type))
    before = logits(model)
    balance(model, graph, IDS)
    assert (logits(model) - before).abs().max() < 1e-4
