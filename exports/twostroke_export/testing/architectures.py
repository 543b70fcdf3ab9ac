"""The architectures that parity is measured on: a name, a tiny config and what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twostroke.bundle.manifest import Dialect

MAX_TOKENS = 256
WINDOW_TOKENS = 16  # shorter than every prompt, so that it matters
_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": MAX_TOKENS}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "factor": 2.0,
    "original_max_position_embeddings": MAX_TOKENS // 2,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}
_TWO_HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}  # of 32
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_GLM_EXPERTS: dict[str, Any] = {  # a dense layer first, then scaled sigmoid weights by group
    "head_dim": 16,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_MOE_NOTE = "both strokes read the chosen experts only"
_OWN_NOTE = "attention code of its own: standard dialect only, one row at a time"
_GATHERED_NOTE = "every expert is computed in prefill; decode reads the chosen ones"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table.

    name: unique; model_type: transformers' name; changes: config values that differ from the tiny
    default; note: a limit the table tells; refusal: part of the sentence that refuses the
    architecture, None where the export must match; context_tokens: what is asked for at export;
    dialect: the one that is exported.
    """

    name: str
    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    refusal: str | None = None
    context_tokens: int | None = None
    dialect: Dialect = "fused"


def _plain(name: str, note: str = "", **changes: Any) -> Architecture:
    return Architecture(name, name, changes, note)


ARCHITECTURES = (
    _plain("llama"),
    Architecture("llama, llama3 rope scaling", "llama", {"rope_parameters": _LLAMA3_ROPE}),
    Architecture("mistral, sliding window", "mistral", {"sliding_window": WINDOW_TOKENS}),
    _plain("qwen2"),
    _plain("qwen3", head_dim=32),
    _plain("gemma", head_dim=16),
    _plain("gemma2", head_dim=16, sliding_window=WINDOW_TOKENS, query_pre_attn_scalar=16),
    _plain(
        "gemma3_text",
        "two layers with a window, one without",
        head_dim=16,
        num_hidden_layers=3,
        sliding_window=WINDOW_TOKENS,
        sliding_window_pattern=3,
    ),
    _plain("gemma4_text", head_dim=16, sliding_window=WINDOW_TOKENS),
    _plain("phi", **_TWO_HEADS),
    _plain("phi3"),
    Architecture(
        "phi3, long rope",
        "phi3",
        {"rope_parameters": _LONG_ROPE, "original_max_position_embeddings": MAX_TOKENS // 2},
        "up to the original length: the short factors",
    ),
    Architecture(
        "phi3, long rope beyond",
        "phi3",
        {
            "rope_parameters": {**_LONG_ROPE, "original_max_position_embeddings": 8},
            "original_max_position_embeddings": 8,  # shorter than every sequence of the checks
        },
        "asked for a context beyond the original length: the long factors",
        context_tokens=MAX_TOKENS,
    ),
    _plain("smollm3"),
    _plain("granite", embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=2.0),
    _plain("olmo2"),
    _plain("olmo3", sliding_window=WINDOW_TOKENS),
    _plain("cohere", logit_scale=1.0),
    _plain(
        "cohere2",
        logit_scale=1.0,
        head_dim=16,
        num_hidden_layers=4,
        sliding_window=WINDOW_TOKENS,
    ),
    _plain("starcoder2"),
    _plain("glm4", head_dim=16),
    _plain("nemotron"),
    _plain("stablelm", partial_rotary_factor=0.5, **_TWO_HEADS),
    _plain("exaone4", sliding_window=WINDOW_TOKENS),
    _plain("ernie4_5", head_dim=16),
    _plain("seed_oss", head_dim=16),
    _plain("hunyuan_v1_dense", head_dim=16),
    _plain("gpt_neox", rotary_pct=0.5, **_TWO_HEADS),
    _plain("gpt2", **_GPT2),
    _plain("opt", ffn_dim=128, word_embed_proj_dim=64),
    _plain("mixtral", _MOE_NOTE, **_EXPERTS),
    Architecture(
        "mixtral, another gate", "mixtral", {"hidden_act": "gelu", **_EXPERTS}, _GATHERED_NOTE
    ),
    _plain(
        "qwen2_moe",
        _MOE_NOTE,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=96,
        **_EXPERTS,
    ),
    _plain("qwen3_moe", _MOE_NOTE, head_dim=16, moe_intermediate_size=32, **_EXPERTS),
    _plain("olmoe", _MOE_NOTE, num_experts=4, num_experts_per_tok=2),
    _plain("granitemoe", _MOE_NOTE, **_EXPERTS),
    _plain("glm4_moe", _MOE_NOTE, **_GLM_EXPERTS),
    _plain("gpt_oss", _MOE_NOTE, head_dim=16, sliding_window=WINDOW_TOKENS, **_EXPERTS),
    _plain("phimoe", _MOE_NOTE, **_EXPERTS),
    _plain("deepseek_v3", "latent attention, its cache as wide as its keys", **_LATENT, **_ROUTED),
    Architecture("llama4_text", "llama4_text", {}, refusal="does not dispatch its experts"),
    Architecture("falcon", "falcon", {}, _OWN_NOTE, dialect="standard"),
    Architecture("bloom", "bloom", {"n_head": 4, "n_layer": 2}, _OWN_NOTE, dialect="standard"),
)
