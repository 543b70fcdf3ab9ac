"""What a forward of two tokens tells, and which models it refuses."""

from __future__ import annotations

import pytest
import torch
import transformers

from twostroke.errors import ExportError
from twostroke_export import plug_point
from twostroke_export.observe import LayerGeometry, observe
from twostroke_export.rotary import Frequencies

SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def tiny(model_type: str, **changes: object) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.eval().requires_grad_(False)


def test_reads_the_geometry_of_each_layer():
    observed = observe(tiny("qwen3", head_dim=32))
    assert observed.layers == (LayerGeometry(num_heads=4, num_kv_heads=2, head_dim=32),) * 3


def test_leaves_the_model_as_it_was():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    before = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    observe(model)
    assert model.config._attn_implementation == "eager"
    assert transformers.models.llama.modeling_llama.apply_rotary_pos_emb is before


@pytest.mark.parametrize("model_type", ["falcon", "bloom"])
def test_attention_without_a_plug_point_is_refused(model_type):
    with pytest.raises(ExportError, match=f"'{model_type}' does not dispatch its attention"):
        observe(tiny(model_type, num_kv_heads=4))


def test_rotation_moves_inside_where_the_rotated_tensors_reach_attention():
    plan = observe(tiny("llama")).rotary
    assert plan is not None
    assert len(plan.layers) == 3
    assert len({id(layer) for layer in plan.layers}) == 1  # one pair of caches serves all
    assert not plan.layers[0].is_interleaved


def test_interleaved_pairs_are_recognised():
    assert observe(tiny("cohere")).rotary.layers[0].is_interleaved


@pytest.mark.parametrize(
    ("model_type", "width"),
    [("phi", 4), ("gpt_neox", 2), ("glm4", 8)],  # glm4's pairs are widened to what fits
)
def test_a_part_of_each_head_is_recognised(model_type, width):
    changes = {"head_dim": 16} if model_type == "glm4" else {}
    layers = observe(tiny(model_type, **changes)).rotary.layers
    assert layers[0].caches(8, 8)[0].shape == (8, width)
    assert all(layer is not None for layer in layers)


def test_cosines_that_hold_each_frequency_once_are_recognised():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    layers = observe(tiny("gpt_oss", head_dim=16, **experts)).rotary.layers
    assert layers[0].frequencies is Frequencies.WHOLE


def test_families_that_rotate_one_tensor_at_a_time_keep_their_own_code():
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "rotary_dim": 16}
    assert observe(tiny("gptj", **sizes)).rotary is None


def test_values_may_be_narrower_than_keys_and_not_wider():
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "num_key_value_heads": 4}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
    sizes = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, **ranks, **experts}
    layers = observe(tiny("deepseek_v3", v_head_dim=16, **sizes)).layers
    assert layers[0] == LayerGeometry(num_heads=4, num_kv_heads=4, head_dim=32)
    with pytest.raises(ExportError, match=r"values of 48.*no wider than keys"):
        observe(tiny("deepseek_v3", v_head_dim=48, **sizes))


def test_layers_that_do_not_rotate_stay_so():
    plan = observe(tiny("smollm3", num_hidden_layers=4)).rotary
    assert [layer is None for layer in plan.layers] == [False, False, False, True]


def test_local_and_global_layers_have_rotaries_of_their_own():
    plan = observe(tiny("gemma3_text", head_dim=16, num_hidden_layers=6)).rotary
    assert len({id(layer) for layer in plan.layers}) == 2


def test_a_rotation_of_another_convention_stays_outside(monkeypatch):
    modeling = transformers.models.llama.modeling_llama
    original = modeling.apply_rotary_pos_emb
    backwards = lambda q, k, cos, sin, **given: original(q, k, cos, -sin, **given)  # noqa: E731
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", backwards)
    assert observe(tiny("llama")).rotary is None


def test_a_rotation_that_is_followed_by_more_stays_outside(monkeypatch):
    modeling = transformers.models.llama.modeling_llama
    original = modeling.eager_attention_forward
    model = tiny("llama")
    monkeypatch.setattr(
        type(model.model.layers[0].self_attn),
        "forward",
        scaled_after_rotation(type(model.model.layers[0].self_attn).forward),
    )
    assert observe(model).rotary is None
    assert modeling.eager_attention_forward is original


def scaled_after_rotation(forward):
    """The forward of an attention layer whose rotated queries are multiplied by two."""
    modeling = transformers.models.llama.modeling_llama

    def changed(self, *args, **kwargs):
        rotate = modeling.apply_rotary_pos_emb

        def twice(*given, **options):
            q, k = rotate(*given, **options)
            return q * 2, k

        modeling.apply_rotary_pos_emb = twice
        try:
            return forward(self, *args, **kwargs)
        finally:
            modeling.apply_rotary_pos_emb = rotate

    return changed


class Attention(torch.nn.Module):
    """Stands for a model's attention module."""

    is_causal = True


@pytest.mark.parametrize(
    ("mask", "options", "expected"),
    [
        (torch.zeros(1), {}, "adds a mask or bias of its own"),
        (None, {"s_aux": torch.zeros(4)}, "gives its attention the tensor 's_aux'"),
    ],
)
def test_what_the_operator_cannot_express_is_refused(mask, options, expected):
    with pytest.raises(ExportError, match=f"Attention {expected}"):
        plug_point.refuse_unknown(Attention(), mask, options)


def test_bidirectional_attention_is_refused():
    module = Attention()
    module.is_causal = False
    with pytest.raises(ExportError, match="not causal"):
        plug_point.refuse_unknown(module, None, {"position_ids": torch.zeros(1)})
