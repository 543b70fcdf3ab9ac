"""A row of the KV cache as bytes and back: layer by layer, key then value, [heads, tokens, dim]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from twostroke.backends.protocol import Array, storage_dtype
from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import KVLayer
from twostroke.engine.prefix_store import Contents


def pack_row(
    values: Iterator[tuple[str, Array]], layers: Sequence[KVLayer], dtype: str, num_tokens: int
) -> Contents:
    """A copy of what `KVStore.read_row` answers for `num_tokens`, in its order; copied once."""
    kind = storage_dtype(dtype)
    num_elements = sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * num_tokens
    packed, place = np.empty(num_elements, kind), 0
    for _, tokens in values:  # [1, kv_heads, num_tokens, head_dim]
        packed[place : place + tokens.size].reshape(tokens.shape)[...] = tokens
        place += tokens.size
    return packed.view(np.uint8).data


def unpack_row(
    contents: Contents, layers: Sequence[KVLayer], dtype: str, num_stored: int, num_tokens: int
) -> Iterator[tuple[str, Array]]:
    """The first `num_tokens` of `num_stored` tokens, as `KVStore.fill_row` takes them: views.

    Raises:
        ValueError: the contents are too short.
    """
    place, kind = 0, storage_dtype(dtype)
    for number, layer in enumerate(layers):
        shape = (1, layer.num_kv_heads, num_stored, layer.head_dim)
        for name in past_names(number):
            values = np.frombuffer(contents, kind, math.prod(shape), place)
            place += values.nbytes
            yield name, values.reshape(shape)[:, :, :num_tokens]
