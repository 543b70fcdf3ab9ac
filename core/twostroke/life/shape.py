"""The shape of a decoder: what its weights, its cache and its attention are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twostroke.bundle.manifest import KVLayer
from twostroke.life.weights import Matrices


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder as a config describes it.

    `windows` holds, for each layer, how many tokens its attention sees at most; None: all.
    `ffn_size` is that of the dense layers, of which there are `num_dense`; `num_experts` 0 means
    that there are no others. `is_gated`: the feed-forward has a gate beside up and down.
    `num_positions` is the length of a table of learned positions, 0 where there is none.
    """

    model_type: str
    context_tokens: int
    vocab_size: int
    hidden_size: int
    num_heads: int
    layers: tuple[KVLayer, ...]
    windows: tuple[int | None, ...]
    ffn_size: int
    is_gated: bool
    is_tied: bool
    num_experts: int = 0
    num_active_experts: int = 0
    expert_size: int = 0
    shared_size: int = 0
    num_dense: int = 0
    num_positions: int = 0
    embedding_size: int = 0  # where it is not the hidden size

    @property
    def num_layers(self) -> int:
        """Attention layers."""
        return len(self.layers)

    def matrices(self, context_tokens: int) -> Iterator[Matrices]:
        """Every parameter, and the rotary tables of a graph for `context_tokens`."""
        hidden, width = self.hidden_size, self.embedding_size or self.hidden_size
        yield from self._attention()
        yield from self._feed_forward()
        if self.is_tied:
            yield Matrices("tied", self.vocab_size, width)
        else:
            yield Matrices("embedding", self.vocab_size, width)
            yield Matrices("head", self.vocab_size, width)
        if width != hidden:
            yield Matrices("layer", hidden, width, 2)
        yield Matrices("vector", 1, hidden, 2 * self.num_layers + 1)
        if self.num_positions:
            yield Matrices("vector", self.num_positions, hidden)
        else:
            yield Matrices("rotary", context_tokens, self.layers[0].head_dim // 2, 2)

    def widest_products(self) -> tuple[int, ...]:
        """Columns of the values that are alive together in a layer, the widest."""
        kv = max(2 * layer.num_kv_heads * layer.head_dim for layer in self.layers)
        query = self.num_heads * max(layer.head_dim for layer in self.layers)
        ffn = max(self.ffn_size, self.shared_size, self.num_active_experts * self.expert_size)
        widths = (2 * ffn if self.is_gated else ffn, query + kv)
        return tuple(sorted(widths, reverse=True))

    def _attention(self) -> Iterator[Matrices]:
        for layer, count in _counted(self.layers):
            query = self.num_heads * layer.head_dim
            yield Matrices("layer", query, self.hidden_size, count)
            yield Matrices(
                "layer", layer.num_kv_heads * layer.head_dim, self.hidden_size, 2 * count
            )
            yield Matrices("layer", self.hidden_size, query, count)

    def _feed_forward(self) -> Iterator[Matrices]:
        hidden, num_up = self.hidden_size, 2 if self.is_gated else 1
        num_sparse = self.num_layers - self.num_dense if self.num_experts else 0
        num_dense = self.num_layers - num_sparse
        for size, count in ((self.ffn_size, num_dense), (self.shared_size, num_sparse)):
            if size and count:
                yield Matrices("layer", size, hidden, num_up * count)
                yield Matrices("layer", hidden, size, count)
        if num_sparse:
            chosen = (self.num_experts, self.num_active_experts)
            yield Matrices("router", self.num_experts, hidden, num_sparse)
            each = num_sparse * self.num_experts
            yield Matrices("expert", self.expert_size, hidden, num_up * each, *chosen)
            yield Matrices("expert", hidden, self.expert_size, each, *chosen)


def _counted(layers: Sequence[KVLayer]) -> Iterator[tuple[KVLayer, int]]:
    kinds = {(layer.num_kv_heads, layer.head_dim): layer for layer in layers}
    for layer in kinds.values():
        yield layer, sum(other == layer for other in layers)
