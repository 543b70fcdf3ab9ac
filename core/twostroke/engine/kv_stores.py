"""The KV caches of both strokes: one where they share it, otherwise two that exchange rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from twostroke.backends.protocol import Array
from twostroke.engine.handover import hand_over
from twostroke.engine.kv_buffers import KVStore
from twostroke.engine.kv_extent import Extent
from twostroke.types import Stroke


class KVStores:
    """Knows which tokens of a row each stroke's cache holds, and brings them where they are needed.

    With one cache there is nothing to know: it holds what was written. With two, each run adds to
    the cache of its own graph only, so either may lack what the other has.
    """

    def __init__(self, prefill: KVStore, decode: KVStore, num_rows: int) -> None:
        self._stores = {Stroke.PREFILL: prefill, Stroke.DECODE: decode}
        self.is_one = prefill is decode
        self._held = {stroke: [0] * num_rows for stroke in Stroke}
        self._handed_bytes, self._handed_s = 0, 0.0

    def need(self, stroke: Stroke, row: int, num_tokens: int) -> None:
        """Sees to it that a stroke's cache holds the first tokens of a row. Mutates that row.

        The row must hold them in one of the caches.
        """
        if not self.is_one and self._held[stroke][row] < num_tokens:
            self._fill(stroke, row, row, num_tokens)

    def wrote(self, stroke: Stroke, row: int, start: int, end: int) -> None:
        """Notes that a run wrote positions [start, end) of a row; what was behind them is void."""
        if self.is_one:
            return
        held = self._held[stroke]
        if held[row] >= start:  # not for a row that was fed along with its neighbours
            held[row] = end
        other = self._held[_other(stroke)]
        other[row] = min(other[row], start)

    def copy_row(self, stroke: Stroke, source: int, target: int, num_tokens: int) -> None:
        """Makes the first tokens of one row those of another, for a stroke that goes on with them.

        Copies once for each layer and side. Mutates the target row in that stroke's cache.
        """
        if self.is_one:
            self._stores[stroke].copy_row(source, target, num_tokens)
        else:
            self._fill(stroke, source, target, num_tokens)
            self._held[_other(stroke)][target] = 0

    def give_back(self, row: int, num_tokens: int) -> bool:
        """Returns the memory behind the first tokens of a row; they stay. Mutates the row.

        False where a cache cannot.
        """
        for held in self._held.values():
            held[row] = min(held[row], num_tokens)
        given = [store.give_back(row, num_tokens) for _, store in self._each()]
        return all(given)

    @property
    def extent(self) -> Extent:
        """Rows and tokens a row that every cache has room for."""
        extents = [store.extent for _, store in self._each()]
        return Extent(min(e.num_rows for e in extents), min(e.row_tokens for e in extents))

    def resize(self, extent: Extent, lengths: Sequence[int]) -> None:
        """Makes room for `extent`; rows keep their first `lengths[row]` tokens. All or nothing.

        Raises:
            OutOfMemoryError, BackendError: a device refused. Whatever it also refuses to take back,
                every row still has room for what it keeps.
        """
        before = {stroke: store.extent for stroke, store in self._each()}
        try:
            for stroke, store in self._each():
                store.resize(extent, self._kept(stroke, lengths))
        except Exception:
            for stroke, store in self._each():
                with suppress(Exception):  # it is told of the first fault
                    store.resize(before[stroke], self._kept(stroke, lengths))
            raise
        finally:
            if not self.is_one:
                self._held = {stroke: self._kept(stroke, lengths) for stroke in Stroke}

    def _kept(self, stroke: Stroke, lengths: Sequence[int]) -> list[int]:
        if self.is_one:
            return list(lengths)
        return [min(both) for both in zip(self._held[stroke], lengths, strict=True)]

    def _each(self) -> list[tuple[Stroke, KVStore]]:
        return list(self._stores.items())[: 1 if self.is_one else 2]

    def check(self, lengths: Sequence[int]) -> None:
        """Proves that every row can be read to its length. Raises AssertionError."""
        for row, length in enumerate(lengths):
            held = max(held[row] for held in self._held.values())
            if not self.is_one and held < length:
                raise AssertionError(f"no cache holds the {length} tokens of row {row}: {held}")
            for stroke, store in self._stores.items():
                claimed = length if self.is_one else self._held[stroke][row]
                if store.num_readable(row) < claimed:
                    raise AssertionError(
                        f"the {stroke.value} cache holds {store.num_readable(row)} tokens of row "
                        f"{row}, not {claimed}"
                    )

    def read_row(self, row: int, num_tokens: int) -> Iterator[tuple[str, Array]]:
        """The first tokens of a row, from whichever cache holds them; see `KVStore`."""
        held = self._held[Stroke.PREFILL][row]
        is_prefilled = not self.is_one and held >= num_tokens
        return self._stores[Stroke.PREFILL if is_prefilled else Stroke.DECODE].read_row(
            row, num_tokens
        )

    def fill_row(
        self, stroke: Stroke, row: int, values: Iterator[tuple[str, Array]], num_tokens: int
    ) -> None:
        """Makes `values` the contents of a row, for a stroke that goes on with them."""
        for each in Stroke:
            self._held[each][row] = 0
        self._stores[stroke].fill_row(row, values)
        self._held[stroke][row] = num_tokens

    def take_handed(self) -> tuple[int, float]:
        """Bytes that went from one cache to the other since the last call, and the seconds."""
        handed = self._handed_bytes, self._handed_s
        self._handed_bytes, self._handed_s = 0, 0.0
        return handed

    def _fill(self, stroke: Stroke, source: int, target: int, num_tokens: int) -> None:
        holder = stroke if self._held[stroke][source] >= num_tokens else _other(stroke)
        self._held[stroke][target] = 0  # until it is filled
        began = time.perf_counter()
        num_bytes = hand_over(
            self._stores[holder], self._stores[stroke], source, num_tokens, target_row=target
        )
        if holder is not stroke:
            self._handed_bytes += num_bytes
            self._handed_s += time.perf_counter() - began
        self._held[stroke][target] = num_tokens


def _other(stroke: Stroke) -> Stroke:
    return Stroke.DECODE if stroke is Stroke.PREFILL else Stroke.PREFILL
