"""The arrays of a KV cache that graphs write in place, allocated once on a backend's device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from twostroke.backends.protocol import Array, Backend, Buffer, GivesBack, storage_dtype
from twostroke.backends.split import layer_backend
from twostroke.bundle.contract import past_names, present_names
from twostroke.bundle.manifest import KVLayer


class KVStore(Protocol):
    """A KV cache of either layout, as a hand-over sees it: rows that are read and filled."""

    dtype: str

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """Keys and values by past name, [1, kv_heads, num_tokens, head_dim]; perhaps views."""
        ...

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Makes `values`, as `read_row` answers them, the row's contents. Mutates the row."""
        ...

    def num_readable(self, row: int) -> int:
        """The most tokens that `read_row` can answer for a row."""
        ...

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row; what lay there is undefined then.

        False where the backend cannot. Mutates the row; not while a run uses it.
        """
        ...


class KVBuffers:
    """Keys and values of all rows and layers, [rows, kv_heads, capacity, head_dim] each.

    Where the backend has no views of rows, each row is an allocation of its own,
    [1, kv_heads, capacity, head_dim].
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[KVLayer],
        dtype: str,
        *,
        num_rows: int,
        capacity_tokens: int,
    ) -> None:
        self.dtype = dtype
        self.capacity_tokens = capacity_tokens
        self.has_row_views = backend.has_row_views
        num_blocks, block_rows = (1, num_rows) if backend.has_row_views else (num_rows, 1)
        shapes = {
            name: (block_rows, layer.num_kv_heads, capacity_tokens, layer.head_dim)
            for number, layer in enumerate(layers)
            for name in past_names(number)
        }
        owners = {
            name: layer_backend(backend, number)
            for number in range(len(layers))
            for name in past_names(number)
        }
        self._blocks = tuple(
            {name: owners[name].allocate(shape, dtype) for name, shape in shapes.items()}
            for _ in range(num_blocks)
        )

    def span(self, start: int, count: int) -> Mapping[str, Buffer]:
        """The rows [start, start + count) of every layer and side, by past name.

        Without row views `count` must be 1.
        """
        if self.has_row_views:
            return {name: buffer.rows(start, count) for name, buffer in self._blocks[0].items()}
        assert count == 1
        return self._blocks[start]

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """The first tokens of a row; see `KVStore`."""
        for name, buffer in self.span(row, 1).items():
            yield name, buffer.read()[:, :, :num_tokens]

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Fills the first positions of a row; what lies behind them is undefined afterwards."""
        buffers = self.span(row, 1)
        for name, tokens in values:
            fill_tokens(tokens, buffers[name])

    def num_readable(self, row: int) -> int:
        """The whole row: what is in it is known to whoever wrote it."""
        return self.capacity_tokens

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row; see `KVStore`."""
        buffers = self.span(row, 1).values()
        given = [isinstance(b, GivesBack) and b.give_back(num_tokens) for b in buffers]
        return all(given)


def fill_tokens(tokens: Array, target: Buffer) -> None:
    """Copies [1, kv_heads, tokens, head_dim] to the front of [1, kv_heads, capacity, head_dim].

    Mutates `target`; what lies behind the tokens in it is undefined afterwards.
    """
    num_tokens = tokens.shape[2]
    contents = target.read()  # [1, kv_heads, capacity, head_dim]
    if contents.flags.writeable and np.may_share_memory(contents, target.read()):
        # Host memory: a row of a long context is mostly empty, so only its tokens are copied.
        contents[:, :, :num_tokens] = tokens
    else:
        whole = np.zeros(target.shape, storage_dtype(target.dtype))
        whole[:, :, :num_tokens] = tokens
        target.write(whole)


def present_of(past: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Buffers by past name, by the names of the present outputs."""
    renamed = {}
    for layer in range(len(past) // 2):
        for past_name, present_name in zip(past_names(layer), present_names(layer), strict=True):
            renamed[present_name] = past[past_name]
    return renamed
