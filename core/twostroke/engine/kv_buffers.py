"""The arrays of a KV cache that graphs write in place, on a backend's device.

Where untouched memory is free they are allocated once and for all; elsewhere they are as large as
they have to be (`kv_extent`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from twostroke.backends.protocol import Array, Backend, Buffer, GivesBack
from twostroke.backends.split import layer_backend
from twostroke.bundle.contract import past_names, present_names
from twostroke.bundle.manifest import KVLayer
from twostroke.engine.kv_copies import copy_tokens, fill_tokens, read_tokens
from twostroke.engine.kv_extent import Extent


class KVStore(Protocol):
    """A KV cache of either layout, as a hand-over sees it: rows that are read and filled."""

    dtype: str

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """Keys and values by past name, [1, kv_heads, num_tokens, head_dim]; perhaps views."""
        ...

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Makes `values`, as `read_row` answers them, the row's contents. Mutates the row."""
        ...

    def copy_row(self, source: int, target: int, num_tokens: int) -> None:
        """Makes the first tokens of one row the contents of another. Mutates the target row."""
        ...

    def num_readable(self, row: int) -> int:
        """The most tokens that `read_row` can answer for a row."""
        ...

    @property
    def extent(self) -> Extent:
        """The rows that are there, and the tokens that each has room for."""
        ...

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """Makes room for `extent`, no more; rows keep their first `lengths[row]` tokens.

        Takes one array more than before or after while it works. Buffers that were answered before
        are not the row's any more. Does nothing where untouched memory is free. When it fails some
        arrays have changed: call it again, with the extent that there was.
        """
        ...

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row; what lay there is undefined then.

        False where the backend cannot. Mutates the row; not while a run uses it.
        """
        ...


class KVBuffers:
    """Keys and values of all rows and layers, [rows, kv_heads, row_tokens, head_dim] each.

    Where the backend has no views of rows, each row is an allocation of its own,
    [1, kv_heads, row_tokens, head_dim].
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[KVLayer],
        dtype: str,
        extent: Extent,
    ) -> None:
        self.dtype = dtype
        self.has_row_views = backend.has_row_views
        self._backend = backend
        self._layers = {
            name: layer for number, layer in enumerate(layers) for name in past_names(number)
        }
        self._owners = {
            name: layer_backend(backend, number)
            for number in range(len(layers))
            for name in past_names(number)
        }
        self._blocks: list[dict[str, Buffer]] = []
        self._extent: Extent | None = None  # measured when it is next asked for
        self._add_blocks(extent)

    @property
    def extent(self) -> Extent:
        """Rows and tokens that every array has room for."""
        if self._extent is None:
            self._extent = self._measured()
        return self._extent

    def _measured(self) -> Extent:
        shapes = [buffer.shape for block in self._blocks for buffer in block.values()]
        num_rows = min(s[0] for s in shapes) if self.has_row_views else len(self._blocks)
        return Extent(num_rows, min(s[2] for s in shapes))

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
            yield name, read_tokens(buffer, num_tokens)

    def fill_row(self, row: int, values: Iterator[tuple[str, Array]]) -> None:
        """Fills the first positions of a row; what lies behind them is undefined afterwards."""
        buffers = self.span(row, 1)
        for name, tokens in values:
            fill_tokens(tokens, buffers[name])

    def copy_row(self, source: int, target: int, num_tokens: int) -> None:
        """Copies the first tokens of a row; see `KVStore`."""
        buffers = self.span(target, 1)
        for name, buffer in self.span(source, 1).items():
            copy_tokens(buffer, buffers[name], num_tokens)

    def num_readable(self, row: int) -> int:
        """The whole row: what is in it is known to whoever wrote it."""
        extent = self.extent
        return extent.row_tokens if row < extent.num_rows else 0

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """Replaces the arrays one by one; see `KVStore`."""
        if self._backend.touches_lazily:
            return
        self._extent = None
        if not self.has_row_views:
            del self._blocks[extent.num_rows :]
        for number, block in enumerate(self._blocks):
            kept = lengths if self.has_row_views else lengths[number : number + 1]
            for name in block:
                self._resize_array(block, name, extent, kept)
        self._add_blocks(extent)

    def _resize_array(
        self, block: dict[str, Buffer], name: str, extent: Extent, lengths: Sequence[int]
    ) -> None:
        old, shape = block[name], self._shape(name, extent)
        if tuple(old.shape) == shape:
            return
        new = self._owners[name].allocate(shape, self.dtype)
        for row, length in enumerate(lengths[: min(shape[0], old.shape[0])]):
            num_tokens = min(length, shape[2], old.shape[2])
            if num_tokens and self.has_row_views:
                copy_tokens(old.rows(row, 1), new.rows(row, 1), num_tokens)
            elif num_tokens:
                copy_tokens(old, new, num_tokens)
        block[name] = new

    def _add_blocks(self, extent: Extent) -> None:
        while len(self._blocks) < (1 if self.has_row_views else extent.num_rows):
            block = {
                name: owner.allocate(self._shape(name, extent), self.dtype)
                for name, owner in self._owners.items()
            }
            self._blocks.append(block)

    def _shape(self, name: str, extent: Extent) -> tuple[int, int, int, int]:
        layer, rows = self._layers[name], extent.num_rows if self.has_row_views else 1
        return rows, layer.num_kv_heads, extent.row_tokens, layer.head_dim

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row; see `KVStore`."""
        buffers = self.span(row, 1).values()
        given = [isinstance(b, GivesBack) and b.give_back(num_tokens) for b in buffers]
        return all(given)


def present_of(past: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Buffers by past name, by the names of the present outputs."""
    renamed = {}
    for layer in range(len(past) // 2):
        for past_name, present_name in zip(past_names(layer), present_names(layer), strict=True):
            renamed[present_name] = past[past_name]
    return renamed
