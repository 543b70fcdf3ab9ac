"""Who gets a row, and what the next step does. Pure policy: no arrays, no sessions, no clock.

First come, first served. A sequence is admitted when a row is free and the KV budget can hold
the longest it may become, so nothing that was admitted ever runs out of memory half-way. Each
step spends up to `prefill_chunk_tokens` prompt tokens on the oldest prompts and decodes every
sequence whose prompt is done; a long prompt therefore delays running streams by one chunk, not
by its length (chunked prefill, Agrawal et al. 2023). Where graphs cannot go on with a prompt that
was begun, prompts are read whole, one longer than the budget as the only prompt of its step.

Invariants (`check` proves them):
1. Waiting sequences have no row; prefilling and decoding ones have one each, all different.
2. A prefilling row is shorter than its prompt.
3. A decoding row holds every token of its sequence but the newest.
4. At most one row is partly prefilled: prompts are read in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from twostroke.engine.kv_cache import KVCache, RowState
from twostroke.engine.prefixes import Prefixes, RowCopy
from twostroke.engine.sequence import Phase, Sequence
from twostroke.engine.spans import split_spans
from twostroke.engine.speculation import Speculation
from twostroke.errors import RequestError, UnavailableError
from twostroke.types import TokenId


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, start + len(token_ids)) of one sequence, for its row."""

    sequence: Sequence
    row: int
    start: int
    token_ids: tuple[TokenId, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One run of the decode graph over rows [start, start + len(sequences)).

    `sequences[i]` is the one in row `start + i`, None where that row must not decode.
    """

    start: int
    sequences: tuple[Sequence | None, ...]


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The newest token of a decoding sequence and its draft, for positions from `start` of its row.

    As many of them enter the row as turn out to be what the sequence says.
    """

    sequence: Sequence
    row: int
    start: int
    token_ids: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does: copies of prefixes in their order, prompt chunks, decode batches, drafts.

    A sequence whose draft is verified is in no decode batch of the same step.
    """

    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[DecodeBatch, ...] = ()
    copies: tuple[RowCopy, ...] = ()
    verify: tuple[VerifyRun, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode or self.verify)


class Scheduler:
    """Owns the queue and the policy. Called by one thread at a time."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_queue: int,
        prefill_chunk_tokens: int,
        max_span_rows: int | None = None,
        chunks_prompts: bool = True,
        reuse_prefixes: bool = True,
        share_prefixes: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        self.cache = cache
        self.prefixes = Prefixes(
            cache,
            reuse=reuse_prefixes and chunks_prompts,
            has_scopes=not share_prefixes,
            packs_rows=max_span_rows != 1,
        )
        self.speculation = speculation
        self._max_queue = max_queue
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._max_span_rows = max_span_rows
        self._chunks_prompts = chunks_prompts
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []  # in order of admission
        self._decoding: list[Sequence] = []

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that were promised a row."""
        return len(self._prefilling) + len(self._decoding)

    def submit(self, sequence: Sequence) -> None:
        """Admits the sequence, or queues it.

        Raises:
            RequestError: it could never fit the KV budget.
            UnavailableError: the queue is full.
        """
        if sequence.max_total_tokens > self.cache.num_tokens:
            raise RequestError(
                f"Prompt and answer may reach {sequence.max_total_tokens} tokens, the KV cache "
                f"holds {self.cache.num_tokens}. Ask for fewer max_tokens, shorten the prompt or "
                f"raise kv.budget.",
                param="max_tokens",
                code="kv_budget_exceeded",
            )
        if not self._waiting and self._admit(sequence):
            return
        if len(self._waiting) >= self._max_queue:
            raise UnavailableError(
                f"All rows are busy and {len(self._waiting)} requests wait already (the limit is "
                f"{self._max_queue}). Try again, or raise scheduler.max_queue."
            )
        self._waiting.append(sequence)

    def plan(self) -> Plan:
        """Admits what fits and says what to run next. An empty plan means: nothing to do."""
        while self._waiting and self._admit(self._waiting[0]):
            self._waiting.popleft()
        chunks, copies = self._plan_prefill()
        batches, verify = self._plan_decode()
        return Plan(tuple(chunks), tuple(batches), tuple(copies), tuple(verify))

    def commit_prefill(self, chunk: PrefillChunk) -> None:
        """Notes that a planned chunk is in its row; after the last one the sequence decodes."""
        self.cache.advance(chunk.row, len(chunk.token_ids))
        if self.speculation is not None:
            self.speculation.read(chunk.sequence, chunk.start + len(chunk.token_ids))
        if chunk.is_last:
            self._prefilling.remove(chunk.sequence)
            self._decoding.append(chunk.sequence)
            chunk.sequence.phase = Phase.DECODE

    def commit_decode(self, sequence: Sequence) -> None:
        """Notes that the sequence's newest token is in its row."""
        assert sequence.row is not None
        self.cache.advance(sequence.row, 1)

    def end(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Forgets the sequence, whatever its phase. Ending twice is harmless.

        What is in its row may be reused by others, unless a fault makes `keep` False.
        """
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        elif sequence.phase is Phase.PREFILL:
            self._prefilling.remove(sequence)
        elif sequence.phase is Phase.DECODE:
            self._decoding.remove(sequence)
        if sequence.row is not None:
            self.prefixes.end(sequence, keep=keep)
        elif sequence.phase is Phase.PREFILL:
            self.cache.cancel(sequence.max_total_tokens)
        if self.speculation is not None:
            self.speculation.forget(sequence)
        sequence.row = None
        sequence.phase = Phase.ENDED

    def check(self) -> None:
        """Proves the invariants of the scheduler and its cache. Raises AssertionError."""
        self.cache.check()
        assert all(s.phase is Phase.WAITING and s.row is None for s in self._waiting)
        running = [*self._prefilling, *self._decoding]
        rows = [s.row for s in running if s.row is not None]
        assert sorted(rows) == self.cache.rows(RowState.TAKEN)
        self.prefixes.check()
        lengths = {id(s): self.cache.length(s.row) for s in running if s.row is not None}
        for sequence in self._prefilling:
            assert sequence.phase is Phase.PREFILL
            assert lengths.get(id(sequence), 0) < len(sequence.prompt_ids)
        for sequence in self._decoding:
            assert sequence.phase is Phase.DECODE
            assert lengths[id(sequence)] == sequence.num_tokens - 1
        assert sum(lengths.get(id(s), 0) > 0 for s in self._prefilling) <= 1

    def _admit(self, sequence: Sequence) -> bool:
        if not self.cache.reserve(sequence.max_total_tokens):
            return False
        sequence.phase = Phase.PREFILL
        self._prefilling.append(sequence)
        return True

    def _plan_prefill(self) -> tuple[list[PrefillChunk], list[RowCopy]]:
        budget_tokens = self._prefill_chunk_tokens
        chunks: list[PrefillChunk] = []
        copies: list[RowCopy] = []
        for number, sequence in enumerate(self._prefilling):
            if budget_tokens <= 0:
                break
            if sequence.row is None:
                if self.prefixes.awaits(sequence, self._prefilling[:number]):
                    continue
                copies += self.prefixes.place(sequence)
            assert sequence.row is not None
            start = self.cache.length(sequence.row)
            token_ids = sequence.prompt_ids[start : start + budget_tokens]
            if not self._chunks_prompts:
                token_ids = sequence.prompt_ids
                if chunks and len(token_ids) > budget_tokens:
                    break
            is_last = start + len(token_ids) == len(sequence.prompt_ids)
            chunks.append(PrefillChunk(sequence, sequence.row, start, token_ids, is_last))
            budget_tokens -= len(token_ids)
        return chunks, copies

    def _plan_decode(self) -> tuple[list[DecodeBatch], list[VerifyRun]]:
        by_row = {s.row: s for s in self._decoding if s.row is not None}
        verify: list[VerifyRun] = []
        if self.speculation is not None and by_row:
            for row, draft in self.speculation.choose(by_row, self._spans).items():
                sequence = by_row.pop(row)
                token_ids = (sequence.answer_ids[-1], *draft)
                verify.append(VerifyRun(sequence, row, self.cache.length(row), token_ids))
        batches = [
            DecodeBatch(start, tuple(by_row.get(row) for row in range(start, start + count)))
            for start, count in self._spans(sorted(by_row))
        ]
        return batches, verify

    def _spans(self, rows: list[int]) -> list[tuple[int, int]]:
        return split_spans(rows, max_span_rows=self._max_span_rows, length=self.cache.length)
