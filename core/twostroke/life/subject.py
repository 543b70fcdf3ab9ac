"""What a plan is made of: the facts of a bundle, or of a model that is not exported yet."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.bundle import Bundle
from twostroke.bundle.manifest import KVLayer
from twostroke.errors import ConfigError
from twostroke.life.bundle_weights import (
    loaded_bytes,
    stored_weights_bytes,
    weigh_graph,
    widest_products,
)
from twostroke.life.memory import kv_bytes_per_token
from twostroke.life.operations import run_ops
from twostroke.life.shape import ModelShape
from twostroke.life.weights import Weights, weigh
from twostroke.types import Stroke

_FLOATS = {"fp16": "float16", "bf16": "bfloat16"}  # in which an export keeps its cache


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as a plan sees it.

    `weights` are those that decode reads, `prefill_weights` those of prefill; `stored_bytes` is
    what both take on disk, `loaded_bytes` in memory. `windows` holds for each layer how many tokens
    it sees at most (None: all).
    """

    name: str
    model_type: str
    precision: str
    context_tokens: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    num_parameters: int
    kv_layers: tuple[KVLayer, ...]
    kv_dtype: str
    windows: tuple[int | None, ...]
    widest: tuple[int, ...]
    weights: Weights
    prefill_weights: Weights
    stored_bytes: int
    loaded_bytes: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes a token takes in the cache."""
        return kv_bytes_per_token(self.kv_layers, self.kv_dtype)

    def kv_read_bytes(self, num_tokens: int) -> int:
        """What a decode step reads of the cache of a sequence of `num_tokens`."""
        seen = (min(num_tokens, window or num_tokens) for window in self.windows)
        return sum(
            tokens * kv_bytes_per_token((layer,), self.kv_dtype)
            for tokens, layer in zip(seen, self.kv_layers, strict=True)
        )

    def prefill_ops(self, num_tokens: int) -> float:
        """Multiplications and additions of reading a prompt; see `run_ops`."""
        return run_ops(
            self.prefill_weights,
            self.kv_layers,
            num_heads=self.num_heads,
            num_tokens=num_tokens,
            windows=self.windows,
        )


def subject_of_shape(
    name: str, shape: ModelShape, precision: str, *, kv_dtype: str | None, packs: bool, shares: bool
) -> Subject:
    """A model that is not exported yet, as an export to `precision` would make it.

    `packs` and `shares` as for `loaded_bytes`; `kv_dtype` None is what that export keeps.
    """
    weights = weigh(shape.matrices(shape.context_tokens), precision, packs=packs)
    loaded = weights.loaded_bytes if shares else weights.loaded_bytes + weights.packed_bytes
    return Subject(
        name=name,
        model_type=shape.model_type,
        precision=precision,
        context_tokens=shape.context_tokens,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        vocab_size=shape.vocab_size,
        num_parameters=weights.num_parameters,
        kv_layers=shape.layers,
        kv_dtype=kv_dtype or _FLOATS.get(precision, "float32"),
        windows=shape.windows,
        widest=shape.widest_products(),
        weights=weights,
        prefill_weights=weights,
        stored_bytes=weights.stored_bytes,
        loaded_bytes=loaded,
    )


def subject_of_bundle(bundle: Bundle, *, packs: bool, shares: bool) -> Subject:
    """A bundle (or the graphs of another tool) as it lies on disk.

    Raises:
        BundleError: a graph cannot be read.
    """
    manifest = bundle.manifest
    shape = manifest.architecture
    paths = [bundle.graph(stroke) for stroke in Stroke]
    prefill, decode = (
        weigh_graph(path, vocab_size=shape.vocab_size, packs=packs) for path in paths
    )
    loaded = loaded_bytes(
        dict.fromkeys(paths), vocab_size=shape.vocab_size, packs=packs, shares=shares
    )
    return Subject(
        name=manifest.name,
        model_type=shape.model_type,
        precision=manifest.precision,
        context_tokens=manifest.context_tokens,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        vocab_size=shape.vocab_size,
        num_parameters=shape.num_parameters or decode.num_parameters,
        kv_layers=manifest.kv_layers,
        kv_dtype=manifest.kv_dtype,
        windows=(None,) * len(manifest.kv_layers),
        widest=widest_products(paths[0], shape.vocab_size),
        weights=decode,
        prefill_weights=prefill,
        stored_bytes=stored_weights_bytes(bundle),
        loaded_bytes=sum(loaded),
    )


def check_context(subject: Subject, context_tokens: int | None) -> int:
    """The context that is planned: the model's own, or a shorter one.

    Raises:
        ConfigError: longer than the model's, or no context.
    """
    if context_tokens is None:
        return subject.context_tokens
    if not 2 <= context_tokens <= subject.context_tokens:
        raise ConfigError(
            [
                f"a context of {context_tokens} tokens cannot be planned: {subject.name} takes "
                f"from 2 to {subject.context_tokens}"
            ]
        )
    return context_tokens
