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

from twostroke.backends.protocol import Array, Backend, Buffer, GivesBack, ReshapableBuffer
from twostroke.backends.split import layer_backend
from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import KVLayer
from twostroke.engine.kv_copies import copy_tokens, fill_tokens, read_tokens
from twostroke.engine.kv_extent import Extent
from twostroke.errors import EngineError

_Set = dict[str, Buffer]

_SLACK_TOKENS = 1024
"""Memory for so many tokens may lie behind a row's own before it is returned: returning it costs a
call to the system for each layer and side, and rows that grow would soon touch it again."""


class ConcatenatedKV:
    """Keys and values of rows that grow, [1, kv_heads, length, head_dim] a row, layer and side.

    Buffers that can be seen in other shapes are allocated for as many tokens as rows have room for;
    where a backend has no such views, a row's buffers are allocated anew for each run.

    Invariant: `_lengths[row]` is the number of tokens in `_rows[row]`. `_touched[i]` tokens of
    block i may have memory behind them: the spare goes from row to row, so what a long row once
    touched would wander on to short ones, whose books know nothing of it; they give it back.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[KVLayer],
        dtype: str,
        extent: Extent,
    ) -> None:
        self.dtype = dtype
        self._backend = backend
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
        self._lengths = [0] * extent.num_rows
        self._empty = self._allocate(0, on_host=True)
        self._rows: list[_Set] = [self._empty] * extent.num_rows
        self._row_tokens = extent.row_tokens
        # The memory of each row, the last one the spare; none where it cannot be seen in shapes.
        self._blocks: list[dict[str, ReshapableBuffer]] = []
        if all(isinstance(buffer, ReshapableBuffer) for buffer in self._allocate(1).values()):
            self._blocks = [self._new_block() for _ in range(extent.num_rows + 1)]
        self._touched = [0] * len(self._blocks)
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
        self._shorten(row, num_tokens)
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
            self._swap_spare(row, num_tokens)

    def _swap_spare(self, row: int, num_tokens: int) -> None:
        """Makes the spare block, into which so many tokens were written, a row's."""
        touched = max(self._touched[-1], num_tokens)
        if touched > 2 * num_tokens + _SLACK_TOKENS:
            self._give_block_back(-1, num_tokens)
            touched = num_tokens
        self._touched[row], self._touched[-1] = touched, self._touched[row]
        self._blocks[row], self._blocks[-1] = self._blocks[-1], self._blocks[row]

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """The first tokens of a row; see `KVStore`."""
        for name, buffer in self._rows[row].items():
            yield name, read_tokens(buffer, num_tokens)

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Replaces a row; `values` may be views of the same row."""
        num_tokens = 0
        written: _Set = {}
        for name, tokens in values:  # [1, kv_heads, tokens, head_dim]
            if not written:
                num_tokens = tokens.shape[2]
                written = dict(self.present(num_tokens))
            fill_tokens(tokens, written[name])
        self.keep(row, num_tokens)

    def copy_row(self, source: int, target: int, num_tokens: int) -> None:
        """Replaces a row by the first tokens of another; see `KVStore`."""
        written = self.present(num_tokens)
        for name, buffer in self._rows[source].items():
            copy_tokens(buffer, written[name], num_tokens)
        self.keep(target, num_tokens)

    def num_readable(self, row: int) -> int:
        """What the row holds."""
        return self._lengths[row] if row < len(self._lengths) else 0

    @property
    def extent(self) -> Extent:
        """Rows, and tokens that the memory of each has room for."""
        sizes = [self._num_tokens(block, name) for block in self._blocks for name in block]
        return Extent(len(self._rows), min(sizes, default=self._row_tokens))

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """Replaces the memory of rows and spare, a buffer at a time; see `KVStore`."""
        if self._backend.touches_lazily:
            return
        for row in range(min(extent.num_rows, len(self._rows))):
            self._shorten(row, min(lengths[row], self._lengths[row]))
        self._row_tokens, self._written = extent.row_tokens, self._empty
        del self._rows[extent.num_rows :], self._lengths[extent.num_rows :]
        if self._blocks:
            self._resize_blocks(extent.num_rows)
        num_more = extent.num_rows - len(self._rows)
        self._rows += [self._empty] * num_more
        self._lengths += [0] * num_more

    def _resize_blocks(self, num_rows: int) -> None:
        """Gives the blocks of the rows that are left, and the spare, their size, and adds more."""
        del self._blocks[num_rows:-1], self._touched[num_rows:-1]
        for row, num_tokens in enumerate(self._lengths):
            for name in self._blocks[row]:
                self._resize_buffer(row, name, num_tokens)
        for name in self._blocks[-1]:
            self._resize_buffer(-1, name, 0)
        while len(self._blocks) < num_rows + 1:
            self._blocks.insert(-1, self._new_block())
            self._touched.insert(-1, 0)

    def _shorten(self, row: int, num_tokens: int) -> None:
        """Forgets what a row holds behind its first tokens."""
        if num_tokens == 0:
            self._rows[row], self._lengths[row] = self._empty, 0
        elif num_tokens < self._lengths[row]:
            self.fill_row(row, self.read_row(row, num_tokens))

    def _resize_buffer(self, block: int, name: str, num_tokens: int) -> None:
        """Gives a block's buffer the wanted size, with the first tokens of its row."""
        if self._num_tokens(self._blocks[block], name) == self._row_tokens:
            return
        num_heads, head_dim = self._shapes[name]
        new = self._owners[name].allocate((1, num_heads, self._row_tokens, head_dim), self.dtype)
        memory = cast("ReshapableBuffer", new)
        if num_tokens:
            view = memory.reshaped((1, num_heads, num_tokens, head_dim))
            copy_tokens(self._rows[block][name], view, num_tokens)
            self._rows[block][name] = view
        self._blocks[block][name] = memory

    def _num_tokens(self, block: dict[str, ReshapableBuffer], name: str) -> int:
        return block[name].shape[2]

    def _new_block(self) -> dict[str, ReshapableBuffer]:
        return cast("dict[str, ReshapableBuffer]", self._allocate(self._row_tokens))

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns a row's memory behind its first tokens, and what a row was replaced in.

        An empty row returns all; of others the tokens lie together at the front of their memory.
        """
        if num_tokens == 0:
            self._shorten(row, 0)
        if not self._blocks:
            return True  # a row has just the memory that it needs
        held = self._lengths[row]
        given = [self._give_block_back(row, held), self._give_block_back(-1, 0)]
        self._touched[row], self._touched[-1] = held, 0
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
