"""A row of the KV cache as bytes and back: layer by layer, key then value, [heads, tokens, dim]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from twostroke.backends.protocol import Array, storage_dtype
from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import KVLayer


def pack_row(values: Iterator[tuple[str, Array]]) -> bytes:
    """The bytes of what `KVStore.read_row` answers, in its order."""
    return b"".join(np.ascontiguousarray(tokens).data for _, tokens in values)


def unpack_row(
    contents: bytes, layers: Sequence[KVLayer], dtype: str, num_stored: int, num_tokens: int
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
