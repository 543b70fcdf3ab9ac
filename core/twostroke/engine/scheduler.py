"""Who gets a row, and what the next step does. Pure policy: no arrays, no sessions, no clock.

`waiting` says who is admitted next: a sequence is where a row is free and the KV budget can hold
the longest it may become, so nothing that was admitted ever runs out of memory half-way. Each
step decodes every sequence whose prompt is done and reads as much of prompts as `prefill_budget`
allows; a long prompt therefore delays running streams by a chunk, not by its length (chunked
prefill, Agrawal et al. 2023). Where several prompts are being read, the step's budget goes to the
one admitted first and, every other time, to the lowest priority number with the fewest tokens left;
what one leaves the next one gets. So the k-th shortest waits for about 2 k chunks however long the
others are, and a long one takes at most twice the steps it would take alone. Where graphs cannot go
on with a prompt that was begun, prompts are read whole, one longer than the budget as the only
prompt of its step.

Invariants (`check` proves them):
1. Waiting sequences have no row; prefilling and decoding ones have one each, all different.
2. A prefilling row is shorter than its prompt.
3. A decoding row holds every token of its sequence but the newest.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import takewhile

from twostroke.engine.kv_cache import KVCache, RowState
from twostroke.engine.plan import DecodeBatch as DecodeBatch
from twostroke.engine.plan import Plan as Plan
from twostroke.engine.plan import PrefillChunk as PrefillChunk
from twostroke.engine.plan import VerifyRun as VerifyRun
from twostroke.engine.prefill_budget import PrefillBudget
from twostroke.engine.prefix_store import PrefixStore
from twostroke.engine.prefixes import Prefixes
from twostroke.engine.sequence import Phase, Sequence
from twostroke.engine.spans import split_spans
from twostroke.engine.speculation import Speculation
from twostroke.engine.transfers import Transfer
from twostroke.engine.waiting import Waiting
from twostroke.errors import RequestError, UnavailableError


class Scheduler:
    """Owns the queue and the policy. Called by one thread at a time."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_queue: int,
        prefill_chunk_tokens: int,
        max_stall_s: float | None = None,
        max_span_rows: int | None = None,
        chunks_prompts: bool = True,
        reuse_prefixes: bool = True,
        reuse_answers: bool = True,
        reuse_scored: bool = True,
        share_prefixes: bool = False,
        speculation: Speculation | None = None,
        prefix_store: PrefixStore | None = None,
    ) -> None:
        self.cache = cache
        self.prefixes = Prefixes(
            cache,
            reuse=reuse_prefixes and chunks_prompts,
            has_answers=reuse_answers,
            has_scored=reuse_scored,
            has_scopes=not share_prefixes,
            packs_rows=max_span_rows != 1,
            store=prefix_store,
        )
        self.speculation = speculation
        self.max_queue = max_queue
        self.budget = PrefillBudget(prefill_chunk_tokens, max_stall_s)
        self._max_span_rows = max_span_rows
        self._chunks_prompts = chunks_prompts
        self._waiting = Waiting()
        self._prefilling: list[Sequence] = []  # in order of admission
        self._decoding: list[Sequence] = []
        self._is_turn_of_short = True  # whose turn the last step was that read of several prompts

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    def queue(self) -> list[Sequence]:
        """The sequences in the queue, about as they will be admitted."""
        return self._waiting.in_order()

    @property
    def num_running(self) -> int:
        """Sequences that were promised a row."""
        return len(self._prefilling) + len(self._decoding)

    def submit(self, sequence: Sequence) -> None:
        """Admits the sequence, or queues it. Raises as `submit_all`."""
        self.submit_all((sequence,))

    def submit_all(self, sequences: SequenceOf[Sequence]) -> None:
        """Admits the sequences or queues them: all, or none.

        Raises:
            RequestError: one could never fit the KV budget, or all never rows and queue.
            UnavailableError: the queue is full.
        """
        for sequence in sequences:
            self._check_size(sequence)
        num_places = self.max_queue + self.cache.num_rows
        if len(sequences) > num_places:
            raise RequestError(
                f"{len(sequences)} answers are asked for at once, rows and queue hold {num_places} "
                f"together. Ask for fewer, or raise scheduler.max_queue.",
                param="n",
            )
        num_to_wait = len(self._waiting) + len(sequences) - self._num_admissible(sequences)
        if sequences and num_to_wait > self.max_queue:
            raise UnavailableError(
                f"All rows are busy and {len(self._waiting)} requests wait already (the limit is "
                f"{self.max_queue}). Try again, or raise scheduler.max_queue."
            )
        for sequence in sequences:
            self._waiting.add(sequence)
        if len(self._waiting) == len(sequences):
            self._admit_waiting()

    def plan(self) -> Plan:
        """Admits what fits and says what to run next. An empty plan means: nothing to do."""
        self._admit_waiting()
        decode, verify = self._plan_decode()
        chunks, copies = self._plan_prefill(len(decode) + len(verify))
        room = self.cache.room
        extents = () if room is None else room.wanted(self.cache.needs())
        return Plan(tuple(chunks), tuple(decode), tuple(copies), tuple(verify), extents)

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

    def clear(self, *, is_lost: bool = False) -> None:
        """Forgets every sequence and frees every row, whatever the books say.

        `is_lost`: the memory of the rows is gone too.
        """
        for sequence in (*self._waiting, *self._prefilling, *self._decoding):
            sequence.row, sequence.phase = None, Phase.ENDED
            if self.speculation is not None:
                self.speculation.forget(sequence)
        self._waiting = Waiting()
        self._prefilling.clear()
        self._decoding.clear()
        self.cache.clear(is_lost=is_lost)
        self.prefixes.clear()

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

    def _check_size(self, sequence: Sequence) -> None:
        if sequence.max_total_tokens > self.cache.num_tokens:
            raise RequestError(
                f"Prompt and answer may reach {sequence.max_total_tokens} tokens, the KV cache "
                f"holds {self.cache.num_tokens}. Ask for fewer max_tokens, shorten the prompt or "
                f"raise kv.budget.",
                param="max_tokens",
                code="kv_budget_exceeded",
            )

    def _num_admissible(self, sequences: SequenceOf[Sequence]) -> int:
        """How many of them, in order, would be admitted at once."""
        if self._waiting:
            return 0
        promised = list(
            takewhile(self.cache.reserve, (sequence.max_total_tokens for sequence in sequences))
        )
        for num_tokens in promised:
            self.cache.cancel(num_tokens)
        return len(promised)

    def _admit_waiting(self) -> None:
        while (due := self._waiting.due) is not None and self._admit(due):
            self._waiting.admit(due)

    def _admit(self, sequence: Sequence) -> bool:
        if not self.cache.reserve(sequence.max_total_tokens):
            return False
        sequence.phase = Phase.PREFILL
        self._prefilling.append(sequence)
        return True

    def _plan_prefill(self, num_decode_runs: int) -> tuple[list[PrefillChunk], list[Transfer]]:
        budget = self.budget.step(num_decode_runs)
        chunks: list[PrefillChunk] = []
        copies: list[Transfer] = []
        for sequence in self._in_turn():
            if budget.left_tokens <= 0:
                break
            if sequence.row is None:
                ahead, others_decode = self._ahead_of(sequence), num_decode_runs > 0
                if self.prefixes.awaits(sequence, ahead, others_decode=others_decode):
                    continue
                transfers = self.prefixes.place(sequence)
                budget.pass_s(self.budget.transfers.predict_s(transfers))
                copies += transfers
            assert sequence.row is not None
            start = self.cache.length(sequence.row)
            num_left = len(sequence.prompt_ids) - start
            if self._chunks_prompts:
                num_tokens = budget.take(start, num_left)
            elif budget.has_room_for(start, num_left):
                budget.spend(start, num_tokens := num_left, is_last=True)
            else:
                break
            if not num_tokens:
                break
            token_ids = sequence.prompt_ids[start : start + num_tokens]
            is_last = num_tokens == num_left
            chunks.append(PrefillChunk(sequence, sequence.row, start, token_ids, is_last))
        return chunks, copies

    def _in_turn(self) -> list[Sequence]:
        """The sequences whose prompts are being read, in the order in which this step serves them.

        Mutates whose turn it is. One that shares a prefix with a leader waits for it in any order.
        """
        if len(self._prefilling) < 2:
            self._is_turn_of_short = not self._prefilling  # a newcomer needn't wait for a long one
            return list(self._prefilling)
        self._is_turn_of_short = not self._is_turn_of_short
        if not self._is_turn_of_short:
            return list(self._prefilling)
        return sorted(self._prefilling, key=lambda s: (s.priority, self._num_left(s)))

    def _ahead_of(self, sequence: Sequence) -> list[Sequence]:
        return list(takewhile(lambda other: other is not sequence, self._prefilling))

    def _num_left(self, sequence: Sequence) -> int:
        num_read = 0 if sequence.row is None else self.cache.length(sequence.row)
        return len(sequence.prompt_ids) - num_read

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
