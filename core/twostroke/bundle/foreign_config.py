"""What the JSON files beside foreign graphs say of the model: shape, context, ids, defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke.bundle.foreign_files import GENAI_CONFIG, check_file
from twostroke.bundle.manifest import GenerationDefaults, Tokens
from twostroke.errors import BundleError

Json = Mapping[str, Any]

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
    companions = [_optional(root, "generation_config.json")]
    if (root / GENAI_CONFIG).exists():
        config = _genai(root)
        search = _table(config, "search")
        model = _table(config, "model")
        shape: Json = {**_table(model, "decoder"), **model}
        where, sources = root / GENAI_CONFIG, [model, *companions]
        context = _number(where, model, ("context_length",))
        generation = _defaults(search, is_greedy_unless_told=True)
    else:
        where = root / "config.json"
        shape = _decoder(root)
        context, sources = _number(where, shape, _CONTEXT), [shape, *companions]
        generation = _defaults(companions[0])
    num_heads = _number(where, shape, _HEADS)
    hidden_size = _number(where, shape, _HIDDEN)
    vocab_size = _number(where, shape, ("vocab_size",))
    return ForeignFacts(
        model_type=str(shape.get("model_type") or shape.get("type") or "unknown"),
        context_tokens=context,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_number(where, shape, _KV_HEADS, default=num_heads),
        head_dim=_number(where, shape, _HEAD_DIM, default=max(1, hidden_size // num_heads)),
        tokens=_tokens(root, where, sources, vocab_size),
        generation=generation,
    )


def genai_graph(root: Path) -> str:
    """The file name of a genai folder's graph.

    Raises:
        BundleError: as `read_facts`; or the graph's tensors have names that the engine can't feed.
    """
    decoder = _table(_table(_genai(root), "model"), "decoder")
    for side, names in _GENAI_NAMES.items():
        for key, wanted in names.items():
            found = _table(decoder, side).get(key, wanted)
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
    model = _table(config, "model")
    for part, what in _OTHER_PARTS.items():
        if part in model:
            raise BundleError(
                f"{root / GENAI_CONFIG} describes {what} ({model.get('type')}, with a part "
                f"{part!r}); twostroke serves models that are a decoder alone."
            )
    if "pipeline" in _table(model, "decoder"):
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
    return {**config, **_table(config, "text_config")}


def _tokens(root: Path, where: Path, sources: Iterable[Json], vocab_size: int) -> Tokens:
    """Whatever says that a sequence ends ends it: config, generation config and tokenizer."""
    of_tokenizer = _tokenizer_ids(root)
    given = [*sources, of_tokenizer]
    eos = {token_id for source in given for token_id in _ids(source.get("eos_token_id"))}
    # A tokenizer that says what it begins with knows better than the model's config.
    begins = of_tokenizer if "bos_token_id" in of_tokenizer else given[0]
    bos = next(iter(_ids(begins.get("bos_token_id"))), None)
    pad = next((i for source in reversed(given) for i in _ids(source.get("pad_token_id"))), None)
    outside = [i for i in (*eos, bos, pad) if i is not None and i >= vocab_size]
    if outside:
        raise BundleError(
            f"{where} (or a file beside it) names the special id {outside[0]}, but the vocabulary "
            f"has only {vocab_size} ids. Correct it there."
        )
    return Tokens(eos_ids=tuple(sorted(eos)), bos_id=bos, pad_id=pad)


def _tokenizer_ids(root: Path) -> dict[str, int | None]:
    """`bos_token_id` and the like of tokenizer_config.json, by the texts in tokenizer.json."""
    config = _optional(root, "tokenizer_config.json")
    tokenizer = read_json(root, "tokenizer.json")
    vocab = _table(_table(tokenizer, "model"), "vocab")
    added = {
        token.get("content"): token.get("id")
        for token in tokenizer.get("added_tokens") or ()
        if isinstance(token, dict)
    }
    found: dict[str, int | None] = {}
    for kind in ("bos", "eos", "pad"):
        if f"{kind}_token" not in config:
            continue
        value = config[f"{kind}_token"]
        text = value.get("content") if isinstance(value, dict) else value
        token_id = added.get(text, vocab.get(text) if isinstance(text, str) else None)
        found[f"{kind}_token_id"] = token_id if isinstance(token_id, int) else None
    return found


def _defaults(given: Json, *, is_greedy_unless_told: bool = False) -> GenerationDefaults:
    """What the model recommends; without sampling its temperature and filters mean nothing."""
    values = {
        name: given[name]
        for name in GenerationDefaults.model_fields
        if isinstance(given.get(name), (int, float)) and not isinstance(given[name], bool)
    }
    samples = given.get("do_sample")
    if samples is False or (samples is None and is_greedy_unless_told):
        values["temperature"] = 0.0
    return GenerationDefaults(**values)


def read_json(root: Path, name: str) -> Json:
    """A JSON object of the folder.

    Raises:
        BundleError: the file is missing, a link, or holds something else.
    """
    check_file(root, name, named_by="the model")
    path = root / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON: {error}. Copy it again.") from None
    if not isinstance(found, dict):
        raise BundleError(f"{path} must hold a JSON object. Copy it again.")
    return found


def _optional(root: Path, name: str) -> Json:
    return read_json(root, name) if (root / name).exists() else {}


def _table(config: Json, name: str) -> Json:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _number(where: Path, config: Json, names: tuple[str, ...], default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is not None:
        return default
    raise BundleError(
        f"{where} does not say {names[0]}, which serving needs. Add it, as the source model has it."
    )


def _ids(value: object) -> list[int]:
    """One id, several, or none (null, or a negative number)."""
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
