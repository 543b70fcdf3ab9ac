"""Bundles for the echo backend: a byte-level tokenizer, a chat template, graphs of a few bytes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from twostroke.bundle import seal, sealing
from twostroke.bundle.manifest import (
    Architecture,
    Dialect,
    GenerationDefaults,
    KVLayer,
    Manifest,
    Quantisation,
    Tokens,
    both_strokes,
)
from twostroke.testing.echo_graph import EchoGraph

BOS, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SEPARATOR = "→"
"""Not a special token: it shows in the text of an answer."""

SEPARATOR_ID = 3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """A tokenizer with one token for each byte, three special tokens and the separator.

    Ids: 0 `<|endoftext|>`, 1 `<|im_start|>`, 2 `<|im_end|>`, 3 the separator, 4 to 259 the bytes.
    """
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {BOS: 0, IM_START: 1, IM_END: 2, SEPARATOR: SEPARATOR_ID}
    vocab |= {letter: len(vocab) + number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([BOS, IM_START, IM_END])
    tokenizer.add_tokens([AddedToken(SEPARATOR, normalized=False)])
    return tokenizer


def make_echo_bundle(
    folder: Path,
    *,
    context_tokens: int = 512,
    name: str = "echo",
    position_ids: bool = False,
    attention_mask: bool = False,
    logits: str = "chosen",
    dialects: tuple[Dialect, ...] = ("fused",),
    num_layers: int = 2,
    eos_ids: tuple[int, ...] = (2,),
    generation: GenerationDefaults | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    read_delay_s_per_token: float = 0.0,
) -> Path:
    """Writes a sealed bundle at `folder` (which must not exist) and answers its path.

    Its generation defaults say temperature 0, so that an answer is the same each time unless a
    request asks for more. Each of `dialects` gets a pair of graphs, which are told the lengths of
    their rows by an attention mask where `attention_mask` says so, and answer the `logits` that
    `EchoGraph` describes. Prefill takes `read_delay_s_per_token` longer than it must. `eos_ids` may
    hold more than the one the graphs answer (the first).

    Raises:
        BundleError: `folder` exists.
    """
    tokenizer = byte_tokenizer()
    graph = EchoGraph(
        vocab_size=tokenizer.get_vocab_size(),
        num_layers=num_layers,
        num_kv_heads=1,
        head_dim=2,
        separator_id=SEPARATOR_ID,
        eos_id=eos_ids[0],
        position_ids=position_ids,
        attention_mask=attention_mask,
        logits=logits,
        read_delay_s_per_token=read_delay_s_per_token,
    )
    manifest = Manifest(
        name=name,
        architecture=_architecture(graph),
        context_tokens=context_tokens,
        kv_layers=(KVLayer(num_kv_heads=1, head_dim=graph.head_dim),) * num_layers,
        graphs=tuple(
            fact
            for dialect in dialects
            for fact in both_strokes(Quantisation(precision="fp32"), dialect=dialect)
        ),
        tokens=Tokens(eos_ids=eos_ids),
        generation=generation or GenerationDefaults(temperature=0.0),
    )
    with sealing(folder) as out:
        _write_graphs(out, graph, manifest)
        tokenizer.save(str(out / "tokenizer.json"))
        if chat_template is not None:
            (out / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        seal(out, manifest)
    return folder


def _write_graphs(folder: Path, graph: EchoGraph, manifest: Manifest) -> None:
    for fact in manifest.graphs:
        text = json.dumps(dataclasses.asdict(graph) | {"dialect": fact.dialect})
        (folder / fact.file).write_text(text, encoding="utf-8")


def _architecture(graph: EchoGraph) -> Architecture:
    return Architecture(
        model_type="echo",
        num_layers=graph.num_layers,
        hidden_size=graph.head_dim,
        num_heads=1,
        vocab_size=graph.vocab_size,
        num_parameters=0,
    )
