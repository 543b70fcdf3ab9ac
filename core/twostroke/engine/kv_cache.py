"""Which rows of the KV cache are taken, how long they are, what is promised to them.

Only numbers live here; the arrays belong to the runner.

A sequence is promised its tokens when it is admitted (`reserve`) and gets a row when its prompt is
begun (`take`): only then is it known which row holds the most of it already. When it ends, its row
may be *kept*: the tokens stay, nothing is promised to it any more, and it goes as soon as a
sequence needs the row or the memory.

On a device the arrays are as large as they have to be; `room` knows how large they are.

Invariants (`check` proves them):
1. Every row is free, taken or kept.
2. A free row has length 0 and nothing reserved.
3. A taken row has 0 <= length <= reserved <= row_tokens.
4. A kept row has 0 < length <= row_tokens and nothing reserved.
5. At most `num_rows` sequences hold a promise, of at most `num_tokens` together.
6. What taken rows may become and what kept rows hold is at most `num_tokens` together.
7. A row has touched at least as many tokens as it holds.
8. Where there are buckets, every row that is not free has room for what it may become.
"""

from __future__ import annotations

import enum

from twostroke.engine.kv_extent import Buckets, Room


class RowState(enum.Enum):
    """Who has a row."""

    FREE = "free"
    TAKEN = "taken"  # a sequence that runs
    KEPT = "kept"  # nobody; what a sequence left there may be of use


class KVCache:
    """States, lengths and reservations of `num_rows` rows of `row_tokens` tokens each.

    `num_tokens` bounds what all rows may hold together (the memory budget). `buckets` are the sizes
    of the arrays where memory costs what is allocated; None: it costs what was written.
    """

    def __init__(
        self, num_rows: int, row_tokens: int, num_tokens: int, buckets: Buckets | None = None
    ) -> None:
        self.num_rows = num_rows
        self.row_tokens = row_tokens
        self.num_tokens = num_tokens
        self._states = [RowState.FREE] * num_rows
        self._lengths = [0] * num_rows
        self._reserved = [0] * num_rows
        self._longest = [0] * num_rows  # since its memory was last given back
        self.num_longest_tokens = 0  # of all rows that ever were
        self._longest_written = 0  # of all rows, since anything was given back
        self._num_promises = 0
        self._num_promised_tokens = 0
        self.room = None if buckets is None else Room(buckets)

    def reserve(self, num_tokens: int) -> bool:
        """Promises a row to a sequence that may grow to `num_tokens`.

        Kept rows are no hindrance. False where no row or no budget is left.
        """
        if not self.has_room_for(num_tokens):
            return False
        self._num_promises += 1
        self._num_promised_tokens += num_tokens
        return True

    def has_room_for(self, num_tokens: int) -> bool:
        """Whether `reserve` would succeed."""
        has_budget = self._num_promised_tokens + num_tokens <= self.num_tokens
        return has_budget and self._num_promises < self.num_rows

    def cancel(self, num_tokens: int) -> None:
        """Takes back a promise that got no row."""
        self._num_promises -= 1
        self._num_promised_tokens -= num_tokens

    def take(self, row: int, num_tokens: int, *, length: int = 0) -> None:
        """Gives `row`, free or kept, to a sequence that was promised `num_tokens`.

        The sequence begins with `length` tokens: what it keeps of the row, or is copied there.
        """
        if self._states[row] is RowState.TAKEN or length > num_tokens:
            raise AssertionError(f"row {row} cannot be taken with {length} of {num_tokens} tokens")
        self._states[row] = RowState.TAKEN
        self._reserved[row] = num_tokens
        self._set_length(row, length)

    def advance(self, row: int, num_tokens: int) -> None:
        """Notes that `num_tokens` more tokens were written to `row`."""
        length = self._lengths[row] + num_tokens
        if length > self._reserved[row]:
            raise AssertionError(f"row {row} grew to {length} of {self._reserved[row]} tokens")
        self._set_length(row, length)

    def restart(self, row: int) -> None:
        """Notes that nothing in a taken row is to be trusted."""
        if self._states[row] is not RowState.TAKEN:
            raise AssertionError(f"row {row} is {self._states[row].value}, not taken")
        self._lengths[row] = 0

    def cut(self, row: int, num_tokens: int) -> None:
        """Notes that of a taken row only the first tokens are of use, where it has more."""
        if self._states[row] is not RowState.TAKEN:
            raise AssertionError(f"row {row} is {self._states[row].value}, not taken")
        self._lengths[row] = min(self._lengths[row], num_tokens)

    def release(self, row: int, *, keep: bool = False) -> None:
        """Ends the promise to the sequence in `row`; the row is kept or free afterwards.

        The length of a free row is 0, so that it costs no attention inside a span.
        """
        if self._states[row] is not RowState.TAKEN:
            raise AssertionError(f"row {row} is {self._states[row].value}, so it was freed twice")
        self.cancel(self._reserved[row])
        self._reserved[row] = 0
        self._states[row] = RowState.KEPT
        if not keep or not self._lengths[row]:
            self.evict(row)

    def evict(self, row: int) -> None:
        """Frees a kept row."""
        if self._states[row] is not RowState.KEPT:
            raise AssertionError(f"row {row} is {self._states[row].value}, not kept")
        self._states[row] = RowState.FREE
        self._lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """Notes that a kept row's tokens are in a free row from now on; `source` is free then."""
        if self._states[target] is not RowState.FREE:
            raise AssertionError(f"row {target} is {self._states[target].value}, not free")
        length = self._lengths[source]
        self.evict(source)
        self._states[target] = RowState.KEPT
        self._set_length(target, length)

    def state(self, row: int) -> RowState:
        """Whether `row` is free, taken or kept."""
        return self._states[row]

    def rows(self, state: RowState) -> list[int]:
        """The rows in a state, in ascending order."""
        return [row for row, its in enumerate(self._states) if its is state]

    def length(self, row: int) -> int:
        """Tokens in `row`."""
        return self._lengths[row]

    def span_lengths(self, start: int, count: int) -> list[int]:
        """Tokens in each of the rows [start, start + count)."""
        return self._lengths[start : start + count]

    @property
    def num_free_rows(self) -> int:
        """Rows that hold nothing and are nobody's."""
        return self._states.count(RowState.FREE)

    @property
    def num_kept_rows(self) -> int:
        """Rows that are nobody's and hold what a sequence left there."""
        return self._states.count(RowState.KEPT)

    @property
    def num_used_tokens(self) -> int:
        """Tokens written to the rows of sequences that run."""
        return sum(self._lengths) - self.num_kept_tokens

    @property
    def num_kept_tokens(self) -> int:
        """Tokens in kept rows."""
        return sum(self._lengths[row] for row in self.rows(RowState.KEPT))

    @property
    def num_touched_tokens(self) -> int:
        """Tokens that memory is taken for.

        With buckets what is allocated; else what rows hold, or held at their longest since their
        memory was given back.
        """
        return sum(self._longest) if self.room is None else self.room.extent.num_tokens

    @property
    def num_spare_tokens(self) -> int:
        """Tokens that a spare row has memory for, where graphs write a longer row into one.

        It goes with whatever is given back.
        """
        return self._longest_written if self.room is None else self.room.extent.row_tokens

    def needs(self) -> list[int]:
        """What each row holds or may become, in tokens; 0 for a free one."""
        return [max(*both) for both in zip(self._lengths, self._reserved, strict=True)]

    def idle_tails(self) -> list[tuple[int, int]]:
        """Rows that touched more than they can still be asked for, and how many tokens that is.

        What lies behind a free row's start, a kept row's tokens or a taken row's promise is of no
        use to anybody.
        """
        if self.room is not None:
            return []  # all rows are as long as the longest
        needs = enumerate(self.needs())
        return [(row, need) for row, need in needs if self._longest[row] > need]

    def note_given_back(self, row: int, num_tokens: int) -> int:
        """Notes that the memory behind the first tokens of a row is the system's again.

        Answers how many touched tokens that were.
        """
        num_given = max(0, self._longest[row] - num_tokens)
        self._longest[row] -= num_given
        self._longest_written = 0
        return num_given

    def clear(self, *, is_lost: bool = False) -> None:
        """Frees every row and forgets every promise; `is_lost`: also what was touched."""
        if is_lost:
            self._longest, self._longest_written = [0] * self.num_rows, 0
            if self.room is not None:
                self.room.clear()
        self._states = [RowState.FREE] * self.num_rows
        self._lengths = [0] * self.num_rows
        self._reserved = [0] * self.num_rows
        self._num_promises = self._num_promised_tokens = 0

    @property
    def num_excess_tokens(self) -> int:
        """By how many tokens kept rows and the promises of taken ones break the budget."""
        return max(0, sum(self._reserved) + self.num_kept_tokens - self.num_tokens)

    def check(self) -> None:
        """Proves the invariants above. Raises AssertionError naming the row at fault."""
        rows = zip(self._states, self._lengths, self._reserved, strict=True)
        for row, (state, length, reserved) in enumerate(rows):
            is_right = {
                RowState.FREE: length == reserved == 0,
                RowState.TAKEN: 0 <= length <= reserved <= self.row_tokens and reserved > 0,
                RowState.KEPT: 0 < length <= self.row_tokens and reserved == 0,
            }[state]
            if not is_right:
                raise AssertionError(f"row {row} is {state.value} with {length} of {reserved}")
            if self._longest[row] < length:
                raise AssertionError(f"row {row} touched {self._longest[row]} and holds {length}")
        num_taken, taken_tokens = self._states.count(RowState.TAKEN), sum(self._reserved)
        if not num_taken <= self._num_promises <= self.num_rows:
            raise AssertionError(f"{self._num_promises} promises for {num_taken} taken rows")
        if not taken_tokens <= self._num_promised_tokens <= self.num_tokens:
            raise AssertionError(f"{self._num_promised_tokens} tokens promised, {taken_tokens} due")
        if self.num_excess_tokens:
            raise AssertionError(f"{self.num_excess_tokens} tokens more than {self.num_tokens}")
        if self.room is not None and (unfit := self.room.unfit(self.needs())):
            raise AssertionError(f"rows {unfit} lie outside of {self.room.extent}")

    def _set_length(self, row: int, length: int) -> None:
        self._lengths[row] = length
        self._longest[row] = max(self._longest[row], length)
        self._longest_written = max(self._longest_written, length)
        self.num_longest_tokens = max(self.num_longest_tokens, length)
