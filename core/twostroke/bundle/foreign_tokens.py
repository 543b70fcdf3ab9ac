"""Ids with a meaning and the defaults of sampling, as the files beside foreign graphs name them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twostroke.bundle.foreign_json import Json, ids, read_json, read_optional, table
from twostroke.bundle.manifest import GenerationDefaults, Tokens
from twostroke.errors import BundleError


def special_tokens(root: Path, where: Path, sources: Iterable[Json], vocab_size: int) -> Tokens:
    """Whatever says that a sequence ends ends it: config, generation config and tokenizer.

    `sources` are the JSON objects that may name ids, the model's own (the file `where`) first.

    Raises:
        BundleError: an id lies outside of the vocabulary.
    """
    of_tokenizer = _tokenizer_ids(root)
    given = [*sources, of_tokenizer]
    eos = {token_id for source in given for token_id in ids(source.get("eos_token_id"))}
    # A tokenizer that says what it begins with knows better than the model's config.
    begins = of_tokenizer if "bos_token_id" in of_tokenizer else given[0]
    bos = next(iter(ids(begins.get("bos_token_id"))), None)
    pad = next((i for source in reversed(given) for i in ids(source.get("pad_token_id"))), None)
    outside = [i for i in (*eos, bos, pad) if i is not None and i >= vocab_size]
    if outside:
        raise BundleError(
            f"{where} (or a file beside it) names the special id {outside[0]}, but the vocabulary "
            f"has only {vocab_size} ids. Correct it there."
        )
    return Tokens(eos_ids=tuple(sorted(eos)), bos_id=bos, pad_id=pad)


def _tokenizer_ids(root: Path) -> dict[str, int | None]:
    """`bos_token_id` and the like of tokenizer_config.json, by the texts in tokenizer.json."""
    config = read_optional(root, "tokenizer_config.json")
    tokenizer = read_json(root, "tokenizer.json")
    known = dict(table(table(tokenizer, "model"), "vocab"))
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            known[token["content"]] = token.get("id")
    found: dict[str, int | None] = {}
    for kind in ("bos", "eos", "pad"):
        if f"{kind}_token" not in config:
            continue
        value = config[f"{kind}_token"]
        text = value.get("content") if isinstance(value, dict) else value
        token_id = known.get(text) if isinstance(text, str) else None
        found[f"{kind}_token_id"] = token_id if isinstance(token_id, int) else None
    return found


def generation_defaults(given: Json, *, is_greedy_unless_told: bool = False) -> GenerationDefaults:
    """What the model recommends; without sampling its temperature and filters mean nothing."""
    values: dict[str, Any] = {}
    for name in GenerationDefaults.model_fields:
        kinds = int if name == "top_k" else (int, float)
        if isinstance(given.get(name), kinds) and not isinstance(given[name], bool):
            values[name] = given[name]
    samples = given.get("do_sample")
    if samples is False or (samples is None and is_greedy_unless_told):
        values["temperature"] = 0.0
    return GenerationDefaults(**values)
