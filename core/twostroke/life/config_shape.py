"""Reads a model's shape from its config.json alone: no weights, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.bundle.manifest import KVLayer
from twostroke.errors import ExportError
from twostroke.life.shape import ModelShape

Json = Mapping[str, Any]

# The same fact under the names that families give it.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_HEAD_DIM = ("head_dim", "head_size", "attention_head_dim")
_FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_OWN_FFN = {"gpt2": ("n_inner",), "falcon": ("ffn_hidden_size",), "bloom": ()}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")
_EXPERT_SIZE = ("moe_intermediate_size", "expert_intermediate_size")
_SHARED_SIZE = ("shared_expert_intermediate_size", "shared_intermediate_size")
_MULTI_HEAD = frozenset({"gpt2", "gpt_neox", "gptj", "opt", "codegen", "bloom"})  # a key each
_UNGATED = _MULTI_HEAD | {"phi", "starcoder2", "gpt_bigcode", "falcon", "mpt", "nemotron"}
# Where a config is silent. transformers writes the flag only where it differs from true.
_UNTIED = frozenset(
    {"llama", "mistral", "mixtral", "phi", "phi3", "gpt_neox", "gptj", "qwen2", "qwen3"}
)
_LEARNED_POSITIONS = {"gpt2": 0, "gpt_bigcode": 0, "opt": 2}  # rows before the first position
_UNKNOWN_KINDS = {  # a key that tells of another kind of layer, and what that is
    "kv_lora_rank": "latent attention",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "linear_num_key_heads": "linear attention",
    "conv_L_cache": "convolutions",
    "hidden_size_per_layer_input": "embeddings for each layer",
    "global_head_dim": "heads of two sizes",
}


def shape_of(config: Json, where: str) -> ModelShape:
    """The shape that a config describes; `where` names it in messages.

    Raises:
        ExportError: a number is missing or senseless, or the model is no plain decoder.
    """
    config = {**config, **_table(config, "text_config")}
    _refuse(config, where)
    model_type = str(config.get("model_type") or "unknown")
    hidden, num_heads = _number(config, _HIDDEN, where), _number(config, _HEADS, where)
    num_layers = _number(config, _LAYERS, where)
    num_kv_heads = _num_kv_heads(config, model_type, num_heads, where)
    head_dim = _number(config, _HEAD_DIM, where, max(1, hidden // num_heads))
    ffn = _number(config, _OWN_FFN.get(model_type, _FFN), where, 4 * hidden)
    num_experts = _number(config, _EXPERTS, where, 0)
    expert_size = _number(config, _EXPERT_SIZE, where, ffn)
    context = _number(config, _CONTEXT, where, 4096)
    offset = _LEARNED_POSITIONS.get(model_type)
    width = _number(config, ("word_embed_proj_dim",), where, hidden)
    return ModelShape(
        model_type=model_type,
        context_tokens=context,
        vocab_size=_number(config, ("vocab_size",), where),
        hidden_size=hidden,
        num_heads=num_heads,
        layers=(KVLayer(num_kv_heads=num_kv_heads, head_dim=head_dim),) * num_layers,
        windows=_windows(config, num_layers, where),
        ffn_size=ffn,
        is_gated=model_type not in _UNGATED,
        is_tied=config.get("tie_word_embeddings", model_type not in _UNTIED) is True,
        num_experts=num_experts,
        num_active_experts=_number(config, _ACTIVE, where, 1) if num_experts else 0,
        expert_size=expert_size if num_experts else 0,
        shared_size=_shared(config, expert_size, where) if num_experts else 0,
        num_dense=_num_dense(config, num_layers, where) if num_experts else num_layers,
        num_positions=0 if offset is None else context + offset,
        embedding_size=0 if width == hidden else width,
    )


def _refuse(config: Json, where: str) -> None:
    if config.get("is_encoder_decoder"):
        raise ExportError(f"{where} describes an encoder-decoder model; plans are for decoders.")
    for key, kind in _UNKNOWN_KINDS.items():
        if config.get(key):
            raise ExportError(
                f"{where} describes {kind} ({key}), which twostroke cannot count from a config; "
                f"export the model and plan its bundle."
            )


def _num_kv_heads(config: Json, model_type: str, num_heads: int, where: str) -> int:
    if model_type in _MULTI_HEAD:
        return num_heads
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return _number(config, _KV_HEADS, where, num_heads)


def _windows(config: Json, num_layers: int, where: str) -> tuple[int | None, ...]:
    """How far each layer sees: by its type where types are given, else one for all."""
    window = _number(config, ("sliding_window",), where, 0) or None
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == num_layers:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if config.get("use_sliding_window") is False:
        return (None,) * num_layers
    pattern = _number(config, ("sliding_window_pattern",), where, 0)
    if str(config.get("model_type", "")).startswith("gemma2"):
        pattern = pattern or 2
    if pattern > 1:  # every last layer of the pattern sees all
        return tuple(window if (n + 1) % pattern else None for n in range(num_layers))
    return (window,) * num_layers


def _shared(config: Json, expert_size: int, where: str) -> int:
    num_shared = _number(config, ("n_shared_experts",), where, 0)
    return _number(config, _SHARED_SIZE, where, 0) or num_shared * expert_size


def _num_dense(config: Json, num_layers: int, where: str) -> int:
    """Layers without experts in a model that has some."""
    dense = set(range(_number(config, ("first_k_dense_replace",), where, 0)))
    only = config.get("mlp_only_layers")
    dense |= {n for n in only if isinstance(n, int)} if isinstance(only, list) else set()
    step = _number(config, ("decoder_sparse_step",), where, 1)
    dense |= {n for n in range(num_layers) if (n + 1) % step}
    return len(dense & set(range(num_layers)))


def _number(config: Json, names: tuple[str, ...], where: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and len(set(map(str, value))) == 1:
            value = value[0]  # one number for each layer, all alike
        if value is None or (value == 0 and default is not None):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ExportError(f"{where}: {name} must be a positive whole number, not {value!r}.")
        return value
    if default is None:
        raise ExportError(f"{where} does not say {names[0]}; is it a language model's config?")
    return default


def _table(config: Json, name: str) -> Json:
    found = config.get(name)
    return found if isinstance(found, dict) else {}
