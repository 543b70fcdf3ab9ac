"""The experts functions that are traced compute what the model's own code computes."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.experts import choosing_experts

SIZES = {"num_experts_per_tok": 2, "num_local_experts": 4}
SHAPES = {
    "mixtral": SIZES,
    "gpt_oss": {**SIZES, "head_dim": 16},  # transposed weights, biases and a gate of its own
}
IDS = torch.tensor([[5, 17, 90, 3, 3]])


@pytest.fixture(params=SHAPES)
def model(request, make_model):
    folder = make_model(request.param, **SHAPES[request.param])
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    ).eval()


@pytest.mark.parametrize("stroke", Stroke)
def test_the_logits_stay(model, stroke):
    with torch.no_grad():
        theirs = model(IDS).logits
        with choosing_experts(model, stroke):
            assert model.config._experts_implementation != "eager"
            mine = model(IDS).logits
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert model.config._experts_implementation == "eager"


def test_a_dense_model_is_left_alone(tiny_llama):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    before = model.config._experts_implementation
    with choosing_experts(model, Stroke.DECODE):
        assert model.config._experts_implementation == before


def test_experts_without_a_plug_point_are_refused(model, monkeypatch):
    monkeypatch.setattr(
        type(model), "_can_set_experts_implementation", classmethod(lambda _: False)
    )
    with pytest.raises(ExportError, match="does not dispatch its experts"):
        choosing_experts(model, Stroke.DECODE).__enter__()
