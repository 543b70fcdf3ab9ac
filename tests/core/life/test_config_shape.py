"""Shapes of real models, whose sizes their makers tell, from the numbers in their configs."""

from __future__ import annotations

import pytest

from twostroke.errors import ExportError
from twostroke.life.config_shape import shape_of
from twostroke.life.weights import weigh

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
GEMMA3_1B = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA_8B, 8.03e9, 8.03e9),
        (MIXTRAL, 46.7e9, 12.9e9),
        (QWEN3_30B, 30.5e9, 3.3e9),
        (GPT2, 124.4e6, 124.4e6),
        (GEMMA3_1B, 1.0e9, 1.0e9),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_are_those_that_the_makers_tell(config, total, active):
    shape = shape_of(config, "config.json")
    weights = weigh(shape.matrices(shape.context_tokens), "fp32")
    assert weights.num_parameters == pytest.approx(total, rel=0.015)
    assert weights.num_active == pytest.approx(active, rel=0.02)


def test_head_dim_is_given_or_derived():
    assert shape_of(LLAMA_8B, "c").layers[0].head_dim == 128
    assert shape_of(QWEN3_30B, "c").layers[0].head_dim == 128  # 2048 / 32 would be 64


def test_windows_by_layer_type_by_pattern_and_for_all():
    windows = shape_of(GEMMA3_1B, "c").windows
    assert windows[:6] == (512,) * 5 + (None,)
    typed = GEMMA3_1B | {"num_hidden_layers": 2}
    typed["layer_types"] = ["full_attention", "sliding_attention"]
    assert shape_of(typed, "c").windows == (None, 512)
    assert set(shape_of(MIXTRAL | {"sliding_window": 4096}, "c").windows) == {4096}
    off = LLAMA_8B | {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": False}
    assert set(shape_of(off, "c").windows) == {None}


def test_the_text_part_of_a_larger_config_counts():
    assert shape_of({"model_type": "gemma3", "text_config": GEMMA3_1B}, "c").hidden_size == 1152


def test_some_layers_of_a_mixture_may_be_dense():
    mixed = QWEN3_30B | {"num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2}
    assert shape_of(mixed, "c").num_dense == 3  # 0 and 2 by the step, 1 by name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"hidden_size": "many"}, "hidden_size must be a positive whole number, not 'many'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive"),
        ({"vocab_size": True}, "vocab_size must be"),
        ({"is_encoder_decoder": True}, "an encoder-decoder model"),
        ({"kv_lora_rank": 512}, "latent attention (kv_lora_rank)"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, said):
    with pytest.raises(ExportError) as failed:
        shape_of(LLAMA_8B | change, "here/config.json")
    assert said in str(failed.value)
    assert "here/config.json" in str(failed.value)
