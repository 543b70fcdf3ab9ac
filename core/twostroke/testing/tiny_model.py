"""The tiny model of the tests: its shape, its random weights, and what it computes, in numpy.

Two layers of grouped-query attention with rotary embeddings and a feed-forward with residuals,
without norms. `tiny_logits` is the reference that backends are held against: float64, plain
formulas, no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Array
from twostroke.bundle.manifest import Dialect
from twostroke.testing.bundles import byte_tokenizer
from twostroke.types import TokenId

Doubles = npt.NDArray[np.float64]

_ROPE_BASE = 10000.0
_SPARE_POSITIONS = 16  # the rotary caches reach a little further than the context


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The shape of the graphs, of which each of `dialects` gets a pair.

    `extra_prefill_weight` gives prefill a tensor of its own.
    """

    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 128
    context_tokens: int = 256
    kv_dtype: str = "float32"
    seed: int = 0
    extra_prefill_weight: bool = False
    dialects: tuple[Dialect, ...] = ("fused",)

    @property
    def vocab_size(self) -> int:
        """As many as the byte tokenizer has."""
        return int(byte_tokenizer().get_vocab_size())


def tiny_weights(model: TinyModel) -> dict[str, Array]:
    """Every weight by name, in the dtype of the model.

    Matrices are [in, out], random and scaled so that activations keep their size; the rotary
    caches are [context + 16, head_dim / 2].
    """
    m, random = model, np.random.default_rng(model.seed)
    q_size, kv_size = m.num_heads * m.head_dim, m.num_kv_heads * m.head_dim
    shapes = {"embedding": (m.vocab_size, m.hidden_size)}
    for number in range(m.num_layers):
        name = f"layer.{number}"
        shapes |= {
            f"{name}.q.weight": (m.hidden_size, q_size),
            f"{name}.k.weight": (m.hidden_size, kv_size),
            f"{name}.v.weight": (m.hidden_size, kv_size),
            f"{name}.o.weight": (q_size, m.hidden_size),
            f"{name}.up.weight": (m.hidden_size, m.ffn_size),
            f"{name}.down.weight": (m.ffn_size, m.hidden_size),
        }
    shapes["head.weight"] = (m.hidden_size, m.vocab_size)
    half = m.head_dim // 2
    rates = _ROPE_BASE ** (-np.arange(half) / half)
    angles = np.arange(m.context_tokens + _SPARE_POSITIONS)[:, None] * rates
    weights = {"rope.cos": np.cos(angles), "rope.sin": np.sin(angles)}
    for name, shape in shapes.items():
        weights[name] = random.standard_normal(shape) / np.sqrt(shape[0])
    return {name: values.astype(m.kv_dtype) for name, values in weights.items()}


def tiny_logits(model: TinyModel, token_ids: Sequence[TokenId]) -> Doubles:
    """The logits that follow each of the tokens, [len(token_ids), vocab], in float64."""
    m = model
    weights = {name: values.astype(np.float64) for name, values in tiny_weights(m).items()}
    x = weights["embedding"][list(token_ids)]  # [sequence, hidden]
    for number in range(m.num_layers):
        layer = {
            name: weights[f"layer.{number}.{name}.weight"]
            for name in ("q", "k", "v", "o", "up", "down")
        }
        q = _rotated(_heads(x @ layer["q"], m.num_heads), weights)  # [heads, sequence, dim]
        k = _rotated(_heads(x @ layer["k"], m.num_kv_heads), weights)
        v = _heads(x @ layer["v"], m.num_kv_heads)
        x = x + _attention(q, k, v) @ layer["o"]
        x = x + np.tanh(x @ layer["up"]) @ layer["down"]
    logits: Doubles = x @ weights["head.weight"]
    return logits


def _heads(x: Doubles, num_heads: int) -> Doubles:
    """[sequence, heads * dim] to [heads, sequence, dim]."""
    return x.reshape(len(x), num_heads, -1).transpose(1, 0, 2)


def _rotated(x: Doubles, weights: dict[str, Doubles]) -> Doubles:
    """Rotary embedding in halves (Su et al. 2021) of [heads, sequence, dim]."""
    length = x.shape[1]
    cos, sin = weights["rope.cos"][:length], weights["rope.sin"][:length]  # [sequence, dim / 2]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(q: Doubles, k: Doubles, v: Doubles) -> Doubles:
    """Causal attention (Vaswani et al. 2017) with grouped heads: [sequence, heads * dim]."""
    num_heads, length, head_dim = q.shape
    groups = num_heads // len(k)
    k, v = np.repeat(k, groups, axis=0), np.repeat(v, groups, axis=0)  # [heads, sequence, dim]
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(head_dim)  # [heads, sequence, sequence]
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    joined: Doubles = mixed.transpose(1, 0, 2).reshape(length, num_heads * head_dim)
    return joined
