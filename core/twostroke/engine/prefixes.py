"""Reuse of what the KV cache holds already: the longest common prefix with any row.

A sequence's prompt is compared with every row of its scope when its first chunk is planned, not
when it arrives, so that of many that begin alike only the first is computed: the others wait for
it (`awaits`), which is no loss, because it is ahead of them.

What is lost when a row is needed, `row_worth` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from twostroke.engine.kv_cache import KVCache, RowState
from twostroke.engine.placement import choose_row
from twostroke.engine.prefix_counts import PrefixCounts
from twostroke.engine.prefix_index import PrefixIndex, unshared_tokens
from twostroke.engine.prefix_store import PrefixStore, StoredPrefix
from twostroke.engine.row_worth import RowWorth
from twostroke.engine.sequence import Phase, Sequence
from twostroke.engine.token_bytes import common_tokens
from twostroke.engine.transfers import RowCopy, RowRestore, RowSave, Transfer

MIN_SHARED_TOKENS = 16
"""Fewer are computed as fast as they are copied, and not worth waiting for."""

MIN_STORED_TOKENS = 64
"""Fewer are not worth the bytes of a store, nor the reading of them."""

_NEWCOMER = -1


class Prefixes:
    """Gives sequences their rows and takes them back. Mutates the cache it is made for.

    Without `reuse` nothing is kept; without `has_answers` only prompts are, and without
    `has_scored` only those that were read as they usually are. `has_scopes` False takes all
    sequences to be of one scope.
    `packs_rows`: decode runs span rows, so neighbours are better. What has to leave the cache goes
    to the `store` where there is one.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        reuse: bool,
        packs_rows: bool,
        has_answers: bool = True,
        has_scored: bool = True,
        has_scopes: bool = True,
        store: PrefixStore | None = None,
    ) -> None:
        self.counts = PrefixCounts()
        self.store = store if reuse else None
        self._cache = cache
        self._reuse = reuse
        self._has_answers = has_answers
        self._has_scored = has_scored
        self._has_scopes = has_scopes
        self._packs_rows = packs_rows
        self._index = PrefixIndex(has_answers=has_answers)
        self._worth = RowWorth()

    def awaits(
        self, sequence: Sequence, ahead: Iterable[Sequence], *, others_decode: bool = False
    ) -> bool:
        """Whether one of those ahead will hold more of the prompt than any row does now.

        Much more where it was not begun; any more where it was, since then little is left to wait
        for. Each of `ahead` must be read before `sequence` or end, so that nobody waits for ever.
        While `others_decode`, who would stand still meanwhile, also whether what is stored of the
        prompt is still being read from a file.
        """
        if not self._may_reuse(sequence):
            return False
        _, num_held = self._longest(sequence)
        entry, num_held = self._longest_stored(sequence, num_held)
        if others_decode and self.store and entry and not self.store.is_at_hand(entry):
            return True
        for leader in ahead:
            if leader.phase is not Phase.PREFILL or not self._may_leave(leader):
                continue
            num_shared = min(self._shared(leader, sequence), len(sequence.prompt_ids) - 1)
            least_gain = MIN_SHARED_TOKENS if leader.row is None else 1
            if num_shared >= max(MIN_SHARED_TOKENS, num_held + least_gain):
                return True
        return False

    def place(self, sequence: Sequence) -> list[Transfer]:
        """Gives a sequence that was promised one a row, with all that can be reused in it.

        The transfers must be made in this order, before the row is used.
        """
        source, num_tokens, entry = None, 0, None
        if self._may_reuse(sequence):
            source, num_tokens = self._longest(sequence)
            entry, num_tokens = self._longest_stored(sequence, num_tokens)
            source = source if entry is None else None
        lost = self._row_to_lose(sequence, source, num_tokens)
        num_copied = num_tokens if entry is None else 0
        placement = choose_row(self._cache, source, num_copied, lost, packs_rows=self._packs_rows)
        row, transfers = placement.row, list[Transfer]()
        if lost is not None:
            transfers += self._lose(lost, is_used_up=lost == source)
        if placement.moved_to is not None:
            transfers.append(self._move(row, placement.moved_to))
            if row == source:
                self._touch(placement.moved_to)
        if entry is not None:
            transfers.append(RowRestore(entry, row, num_tokens, sequence))
        elif source is not None and placement.is_copied:
            transfers.append(RowCopy(source, row, num_tokens, sequence))
            self._touch(source)
        self._cache.take(row, sequence.max_total_tokens, length=num_tokens)
        self._index.drop(row)
        if self._may_leave(sequence):
            self._index.hold(row, self._scope(sequence), sequence)
        sequence.row, sequence.num_cached_tokens = row, num_tokens
        while self._cache.num_excess_tokens:
            transfers += self._lose(self._cheapest(sequence), is_used_up=False)
        self.counts.add(sequence, transfers)
        return transfers

    def end(self, sequence: Sequence, *, keep: bool) -> None:
        """Takes a row back; with `keep` what is in it stays until the room is needed."""
        row = sequence.row
        assert row is not None
        if not self._has_answers:
            self._cache.cut(row, len(sequence.prompt_ids))
        length = self._cache.length(row)
        is_kept = self._reuse and keep and length >= MIN_SHARED_TOKENS
        is_kept = is_kept and self._unshared().get(row, 0) > 0  # else another row holds it all
        self._cache.release(row, keep=is_kept)
        if not is_kept:
            self._index.drop(row)
            return
        self._index.keep(row, length)
        self._touch(row)
        unshared = self._unshared()
        for other in self._cache.rows(RowState.KEPT):
            if unshared[other] == 0:
                self._forget_kept(other)

    def take_back(self, sequence: Sequence) -> None:
        """Takes a row back that turned out to have no room; the sequence stays promised one.

        It is placed anew, as if it never had been.
        """
        row, num_tokens = sequence.row, sequence.max_total_tokens
        assert row is not None
        self._cache.release(row)
        self._cache.reserve(num_tokens)
        self._index.drop(row)
        self.counts.num_prompt_tokens -= len(sequence.prompt_ids)
        self.counts.num_cached_tokens -= sequence.num_cached_tokens
        self.counts.num_hits -= sequence.num_cached_tokens > 0
        sequence.row, sequence.num_cached_tokens = None, 0

    def forget(self, row: int, sequence: Sequence | None) -> None:
        """A transfer to a row failed: its sequence starts anew, a kept row is free."""
        if sequence is not None:
            self._cache.restart(row)
            self.counts.num_cached_tokens -= sequence.num_cached_tokens
            self.counts.num_hits -= 1
            sequence.num_cached_tokens = 0
        elif self._cache.state(row) is RowState.KEPT:  # it may have gone since
            self._forget_kept(row)

    def clear(self) -> None:
        """Forgets every row."""
        self._index = PrefixIndex(has_answers=self._has_answers)
        self._worth = RowWorth()

    def kept_rows(self) -> Iterator[RowSave]:
        """All that is kept, to be stored; what was used last comes last."""
        for row in self._worth.rows():
            yield from self._save(row)

    def check(self) -> None:
        """Proves that index and cache speak of the same rows. Raises AssertionError."""
        kept = self._cache.rows(RowState.KEPT)
        assert sorted(self._worth.rows()) == kept
        assert set(kept) <= set(self._index.rows())
        assert all(self._cache.state(row) is not RowState.FREE for row in self._index.rows())

    def _scope(self, sequence: Sequence) -> str:
        return sequence.scope if self._has_scopes else ""

    def _shared(self, leader: Sequence, sequence: Sequence) -> int:
        if self._scope(leader) != self._scope(sequence):
            return 0
        return common_tokens(leader.prompt_bytes, sequence.prompt_bytes)

    def _may_reuse(self, sequence: Sequence) -> bool:
        return self._reuse and sequence.reuses_prefix

    def _may_leave(self, sequence: Sequence) -> bool:
        return self._has_scored or sequence.reuses_prefix

    def _longest(self, sequence: Sequence) -> tuple[int | None, int]:
        """The row that holds the most of a prompt, and how much; the last token never counts.

        Of several a kept one, the shortest: it may be used up.
        """
        best: tuple[int, bool, int] = (MIN_SHARED_TOKENS - 1, False, 0)
        found = None
        for row in self._index.rows():
            length = self._cache.length(row)
            common = self._index.common(row, self._scope(sequence), sequence.prompt_bytes)
            num_tokens = min(common, length, len(sequence.prompt_ids) - 1)
            is_kept = self._cache.state(row) is RowState.KEPT
            rank = (num_tokens, is_kept, -length if is_kept else 0)
            if num_tokens >= MIN_SHARED_TOKENS and rank > best:
                found, best = row, rank
        return (None, 0) if found is None else (found, best[0])

    def _row_to_lose(self, sequence: Sequence, source: int | None, num_tokens: int) -> int | None:
        """A kept row to take the sequence or what must make room; None: a free row will do."""
        is_kept = source is not None and self._cache.state(source) is RowState.KEPT
        # Most of the row is what the sequence begins with: nothing is copied, little is lost.
        if source is not None and is_kept and 2 * self._unshared(sequence)[source] <= num_tokens:
            return source
        return None if self._cache.num_free_rows else self._cheapest(sequence)

    def _cheapest(self, newcomer: Sequence) -> int:
        """The kept row that is worth least."""
        return self._worth.cheapest(self._unshared(newcomer))

    def _unshared(self, newcomer: Sequence | None = None) -> dict[int, int]:
        """Of each known row the tokens that neither another one nor the newcomer's will hold."""
        lengths = {row: self._cache.length(row) for row in self._index.rows()}
        contents = self._index.contents(lengths)
        if newcomer is not None:
            contents[_NEWCOMER] = (self._scope(newcomer), newcomer.prompt_bytes)
        return unshared_tokens(contents)

    def _lose(self, row: int, *, is_used_up: bool) -> list[Transfer]:
        transfers: list[Transfer] = []
        if not is_used_up:
            transfers += self._save(row)
            self._worth.note_loss(row, self._unshared())
        self._forget_kept(row)
        return transfers

    def _save(self, row: int) -> list[RowSave]:
        """Stores a kept row where that is worth it."""
        if self.store is None or self._unshared()[row] < MIN_STORED_TOKENS:
            return []
        length = self._cache.length(row)
        scope, ids = self._index.contents({row: length})[row]
        return [RowSave(row, length, scope, ids)]

    def _longest_stored(self, sequence: Sequence, num_held: int) -> tuple[StoredPrefix | None, int]:
        """An entry with much more of a prompt than the `num_held` tokens that a row has."""
        if self.store is None:
            return None, num_held
        entry, common = self.store.longest(self._scope(sequence), sequence.prompt_bytes)
        num_tokens = min(common, len(sequence.prompt_ids) - 1)
        if entry is None or num_tokens < num_held + MIN_STORED_TOKENS:
            return None, num_held
        return entry, num_tokens

    def _forget_kept(self, row: int) -> None:
        self._worth.forget(row)
        self._index.drop(row)
        self._cache.evict(row)

    def _move(self, source: int, target: int) -> RowCopy:
        copy = RowCopy(source, target, self._cache.length(source), None)
        self._cache.move(source, target)
        self._index.move(source, target)
        self._worth.move(source, target)
        return copy

    def _touch(self, row: int) -> None:
        if self._cache.state(row) is RowState.KEPT:
            self._worth.use(row)
