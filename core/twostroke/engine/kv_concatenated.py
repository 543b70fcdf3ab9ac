"""A KV cache for graphs that answer a longer cache for each one they are given.

Such a graph reads a row's past [1, kv_heads, past, head_dim] and writes its present
[1, kv_heads, past + sequence, head_dim] somewhere else. One set of buffers more than there are
rows is therefore enough: a run writes into the spare set, which then becomes the row's, and the
row's old set is the next spare. Nothing is copied, and a run that fails leaves the row as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from twostroke.backends.protocol import Array, Backend, Buffer, GivesBack, ReshapableBuffer
from twostroke.backends.split import layer_backend
from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import KVLayer
from twostroke.errors import EngineError

_Set = dict[str, Buffer]


class ConcatenatedKV:
    """Keys and values of rows that grow, [1, kv_heads, length, head_dim] a row, layer and side.

    Buffers that can be seen in other shapes are allocated once for `capacity_tokens`; where a
    backend has no such views, a row's buffers are allocated anew for each run.

    Invariant: `_lengths[row]` is the number of tokens in `_rows[row]`.
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
        self._owners = {
            name: layer_backend(backend, number)
            for number in range(len(layers))
            for name in past_names(number)
        }
        self._shapes = {
            name: (layer.num_kv_heads, layer.head_dim)
            for number, layer in enumerate(layers)
            for name in past_names(number)
        }
        self._lengths = [0] * num_rows
        self._empty = self._allocate(0, on_host=True)
        self._rows: list[_Set] = [self._empty] * num_rows
        # The memory of each row, the last one the spare; none where it cannot be seen in shapes.
        self._blocks: list[dict[str, ReshapableBuffer]] = []
        if all(isinstance(buffer, ReshapableBuffer) for buffer in self._allocate(1).values()):
            blocks = [self._allocate(capacity_tokens) for _ in range(num_rows + 1)]
            self._blocks = cast("list[dict[str, ReshapableBuffer]]", blocks)
        self._written: _Set = self._empty

    def past(self, row: int, num_tokens: int) -> Mapping[str, Buffer]:
        """The first tokens of a row, by past name. A row that holds more forgets the rest.

        Raises:
            EngineError: the row holds fewer.
        """
        if num_tokens == 0:
            return self._empty
        held = self._lengths[row]
        if num_tokens > held:
            raise EngineError(f"Row {row} of the KV cache holds {held} tokens, not {num_tokens}.")
        if num_tokens < held:
            self.fill_row(row, self.read_row(row, num_tokens))
        return self._rows[row]

    def present(self, num_tokens: int) -> Mapping[str, Buffer]:
        """Buffers, by past name, for what a run writes: a row of `num_tokens`."""
        self._written = self._view(-1, num_tokens)
        return self._written

    def keep(self, row: int, num_tokens: int) -> None:
        """Makes what was written to `present(num_tokens)` the contents of a row."""
        self._rows[row], self._lengths[row] = self._written, num_tokens
        self._written = self._empty
        if self._blocks:
            self._blocks[row], self._blocks[-1] = self._blocks[-1], self._blocks[row]

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """The first tokens of a row; see `KVStore`."""
        for name, buffer in self._rows[row].items():
            yield name, buffer.read()[:, :, :num_tokens]

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Replaces a row; `values` may be views of the same row."""
        num_tokens = 0
        written: _Set = {}
        for name, tokens in values:  # [1, kv_heads, tokens, head_dim]
            if not written:
                num_tokens = tokens.shape[2]
                written = dict(self.present(num_tokens))
            written[name].write(np.ascontiguousarray(tokens))
        self.keep(row, num_tokens)

    def num_readable(self, row: int) -> int:
        """What the row holds."""
        return self._lengths[row]

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns a row's memory behind its first tokens, and what a row was replaced in.

        An empty row returns all; of others the tokens lie together at the front of their memory.
        """
        if num_tokens == 0:
            self._rows[row], self._lengths[row] = self._empty, 0
        if not self._blocks:
            return True  # a row has just the memory that it needs
        held = self._lengths[row]
        given = [self._give_block_back(row, held), self._give_block_back(-1, 0)]
        return all(given)

    def _give_block_back(self, block: int, num_tokens: int) -> bool:
        given = []
        for name, (num_heads, head_dim) in self._shapes.items():
            memory = self._blocks[block][name]
            num_positions = math.prod(memory.shape) // head_dim
            flat = memory.reshaped((1, 1, num_positions, head_dim))
            num_used = num_heads * num_tokens
            given.append(isinstance(flat, GivesBack) and flat.give_back(num_used))
        return all(given)

    def _view(self, block: int, num_tokens: int) -> _Set:
        if not self._blocks:
            return self._allocate(num_tokens)
        memory = self._blocks[block]
        return {
            name: memory[name].reshaped((1, num_heads, num_tokens, head_dim))
            for name, (num_heads, head_dim) in self._shapes.items()
        }

    def _allocate(self, num_tokens: int, *, on_host: bool = False) -> _Set:
        return {
            name: self._owners[name].allocate(
                (1, num_heads, num_tokens, head_dim), self.dtype, on_host=on_host
            )
            for name, (num_heads, head_dim) in self._shapes.items()
        }
