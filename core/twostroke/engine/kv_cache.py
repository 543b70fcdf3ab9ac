"""Which rows of the KV cache are taken, how long they are, what is promised to them.

Only numbers live here; the arrays belong to the runner.

Invariants (`check` proves them):
1. Every row is either free or taken, never both.
2. A free row has length 0 and nothing reserved.
3. A taken row has 0 <= length <= reserved <= row_tokens.
4. The reservations of all rows together are at most `num_tokens`.
"""

from __future__ import annotations

import heapq


class KVCache:
    """Row numbers, lengths and reservations of `num_rows` rows of `row_tokens` tokens each.

    `num_tokens` bounds what all rows may reserve together (the memory budget).
    """

    def __init__(self, num_rows: int, row_tokens: int, num_tokens: int) -> None:
        self.num_rows = num_rows
        self.row_tokens = row_tokens
        self.num_tokens = num_tokens
        self._free = list(range(num_rows))  # a heap: the lowest free row is taken first
        self._lengths = [0] * num_rows
        self._reserved = [0] * num_rows
        self._longest = [0] * num_rows  # since the start: memory is taken when it is first written
        self._num_reserved_tokens = 0

    def reserve(self, num_tokens: int) -> int | None:
        """Takes the lowest free row for a sequence that may grow to `num_tokens`.

        The lowest row is chosen so that the rows in use lie close together: a decode step pays
        for every row between the first and the last. None where no row or no budget is left.
        """
        if not self._free or self._num_reserved_tokens + num_tokens > self.num_tokens:
            return None
        row = heapq.heappop(self._free)
        self._reserved[row] = num_tokens
        self._num_reserved_tokens += num_tokens
        return row

    def advance(self, row: int, num_tokens: int) -> None:
        """Notes that `num_tokens` more tokens were written to `row`."""
        length = self._lengths[row] + num_tokens
        if length > self._reserved[row]:
            raise AssertionError(f"row {row} grew to {length} of {self._reserved[row]} tokens")
        self._lengths[row] = length
        self._longest[row] = max(self._longest[row], length)

    def release(self, row: int) -> None:
        """Frees `row`. Its length becomes 0, so that it costs no attention inside a span."""
        if self._reserved[row] == 0:
            raise AssertionError(f"row {row} was freed twice")
        self._num_reserved_tokens -= self._reserved[row]
        self._lengths[row] = 0
        self._reserved[row] = 0
        heapq.heappush(self._free, row)

    def length(self, row: int) -> int:
        """Tokens in `row`."""
        return self._lengths[row]

    def span_lengths(self, start: int, count: int) -> list[int]:
        """Tokens in each of the rows [start, start + count)."""
        return self._lengths[start : start + count]

    @property
    def num_free_rows(self) -> int:
        """Rows that no sequence holds."""
        return len(self._free)

    @property
    def num_used_tokens(self) -> int:
        """Tokens written to the rows in use."""
        return sum(self._lengths)

    @property
    def num_touched_tokens(self) -> int:
        """Tokens that rows hold or held at their longest."""
        return sum(self._longest)

    def check(self) -> None:
        """Proves the invariants above. Raises AssertionError naming the row at fault."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError(f"a row is free twice: {sorted(self._free)}")
        for row, (length, reserved) in enumerate(zip(self._lengths, self._reserved, strict=True)):
            if row in free and (length or reserved):
                raise AssertionError(f"row {row} is free with {length} of {reserved} tokens")
            if row not in free and not 0 <= length <= reserved <= self.row_tokens:
                raise AssertionError(f"row {row} holds {length} of {reserved} tokens")
            if row not in free and reserved == 0:
                raise AssertionError(f"row {row} is taken with nothing reserved")
        total = sum(self._reserved)
        if total != self._num_reserved_tokens or total > self.num_tokens:
            raise AssertionError(f"{total} tokens are reserved of {self.num_tokens}")
