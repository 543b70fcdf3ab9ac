"""What the JSON files beside foreign graphs say of the model: shape, context, ids, defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twostroke.bundle.foreign_files import GENAI_CONFIG
from twostroke.bundle.foreign_json import Json, number, read_json, read_optional, table
from twostroke.bundle.foreign_tokens import generation_defaults, special_tokens
from twostroke.bundle.manifest import GenerationDefaults, Tokens
from twostroke.errors import BundleError

# The same fact under the names that families give it.
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_HEAD_DIM = ("head_dim", "head_size")
# Parts that a genai folder has beside a decoder, and what they make of the model.
_OTHER_PARTS = {
    "encoder": "an encoder-decoder model",
    "encoder_decoder_init": "an encoder-decoder model",
    "vision": "a vision model",
    "speech": "a speech model",
    "embedding": "a model with separate embeddings",
}
_GENAI_NAMES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


@dataclass(frozen=True, slots=True)
class ForeignFacts:
    """What no graph says. `head_dim` and `num_kv_heads` serve where a graph leaves them free."""

    model_type: str
    context_tokens: int
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokens: Tokens
    generation: GenerationDefaults


def read_facts(root: Path) -> ForeignFacts:
    """Reads genai_config.json where there is one, else config.json, and their companions.

    Raises:
        BundleError: a file is missing, no JSON, lacks a fact, or describes no plain decoder.
    """
    companions = [read_optional(root, "generation_config.json")]
    if (root / GENAI_CONFIG).exists():
        config = _genai(root)
        search = table(config, "search")
        model = table(config, "model")
        shape: Json = {**table(model, "decoder"), **model}
        where, sources = root / GENAI_CONFIG, [model, *companions]
        context = number(where, model, ("context_length",))
        generation = generation_defaults(search, is_greedy_unless_told=True)
    else:
        where = root / "config.json"
        shape = _decoder(root)
        context, sources = number(where, shape, _CONTEXT), [shape, *companions]
        generation = generation_defaults(companions[0])
    num_heads = number(where, shape, _HEADS)
    hidden_size = number(where, shape, _HIDDEN)
    vocab_size = number(where, shape, ("vocab_size",))
    return ForeignFacts(
        model_type=str(shape.get("model_type") or shape.get("type") or "unknown"),
        context_tokens=context,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=number(where, shape, _KV_HEADS, default=num_heads),
        head_dim=number(where, shape, _HEAD_DIM, default=max(1, hidden_size // num_heads)),
        tokens=special_tokens(root, where, sources, vocab_size),
        generation=generation,
    )


def genai_graph(root: Path) -> str:
    """The file name of a genai folder's graph.

    Raises:
        BundleError: as `read_facts`; or the graph's tensors have names that the engine can't feed.
    """
    decoder = table(table(_genai(root), "model"), "decoder")
    for side, names in _GENAI_NAMES.items():
        for key, wanted in names.items():
            found = table(decoder, side).get(key, wanted)
            if found != wanted:
                raise BundleError(
                    f"{root / GENAI_CONFIG} calls {key} {found!r}; twostroke feeds {wanted!r} "
                    f"only, the name that the model builder gives it."
                )
    name = decoder.get("filename")
    if not isinstance(name, str) or not name:
        raise BundleError(f"{root / GENAI_CONFIG} names no file of the decoder (model.decoder).")
    return name


def _genai(root: Path) -> Json:
    config = read_json(root, GENAI_CONFIG)
    model = table(config, "model")
    for part, what in _OTHER_PARTS.items():
        if part in model:
            raise BundleError(
                f"{root / GENAI_CONFIG} describes {what} ({model.get('type')}, with a part "
                f"{part!r}); twostroke serves models that are a decoder alone."
            )
    if "pipeline" in table(model, "decoder"):
        raise BundleError(
            f"{root / GENAI_CONFIG} cuts the decoder into a pipeline of graphs; twostroke serves "
            f"a decoder in one graph. Build it again for another execution provider."
        )
    return config


def _decoder(root: Path) -> Json:
    config = read_json(root, "config.json")
    if config.get("is_encoder_decoder"):
        raise BundleError(
            f"{root / 'config.json'} describes an encoder-decoder model "
            f"({config.get('model_type')}); twostroke serves models that are a decoder alone."
        )
    return {**config, **table(config, "text_config")}
