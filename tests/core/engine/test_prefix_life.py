"""Random lives of the scheduler with rows that are played: nobody ever reads another's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twostroke.engine import prefixes
from twostroke.engine.kv_cache import KVCache
from twostroke.engine.scheduler import Plan, Scheduler
from twostroke.engine.sequence import Sequence

NUM_ROWS, ROW_TOKENS = 4, 30
IDLE = -1  # what a row is fed that must not decode


@dataclass
class Rows:
    """What the arrays would hold: scope and token of each position of each row."""

    held: list[list[tuple[str, int] | None]] = field(
        default_factory=lambda: [[None] * (ROW_TOKENS + 1) for _ in range(NUM_ROWS)]
    )

    def write(self, row: int, start: int, scope: str, ids: tuple[int, ...]) -> None:
        self.held[row][start : start + len(ids)] = [(scope, token) for token in ids]

    def check(self, row: int, scope: str, ids: list[int]) -> None:
        assert self.held[row][: len(ids)] == [(scope, token) for token in ids]


class PrefixLife(RuleBasedStateMachine):
    """Prompts over two ids in two scopes, so that they begin alike all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = prefixes.MIN_SHARED_TOKENS
        prefixes.MIN_SHARED_TOKENS = 2
        cache = KVCache(NUM_ROWS, ROW_TOKENS, num_tokens=80)
        self.scheduler = Scheduler(cache, max_queue=9, prefill_chunk_tokens=4)
        self.rows = Rows()
        self.alive: list[Sequence] = []
        self.num_made = 0

    @precondition(lambda self: self.scheduler.num_waiting < 9)
    @rule(
        prompt=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=20),
        scope=st.sampled_from("aab"),
        num_answer=st.integers(1, 10),
        reuses=st.sampled_from([True, True, True, False]),
    )
    def submit(self, prompt: list[int], scope: str, num_answer: int, reuses: bool) -> None:
        self.num_made += 1
        sequence = Sequence(
            f"r{self.num_made}",
            tuple(prompt),
            len(prompt) + num_answer,
            scope=scope,
            reuses_prefix=reuses,
        )
        self.scheduler.submit(sequence)
        self.alive.append(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.alive.remove(sequence)
        self.scheduler.end(sequence, keep=keep)

    @precondition(lambda self: self.alive)
    @rule(num_steps=st.integers(1, 8))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            plan = self.scheduler.plan()
            assert plan or not self.alive  # nobody waits for ever
            self.run(plan)

    def run(self, plan: Plan) -> None:
        for copy in plan.copies:
            source = self.rows.held[copy.source_row][: copy.num_tokens]
            self.rows.held[copy.target_row] = source + [None] * (ROW_TOKENS + 1 - len(source))
        for chunk in plan.prefill:
            sequence = chunk.sequence
            self.rows.check(chunk.row, sequence.scope, list(sequence.prompt_ids[: chunk.start]))
            assert chunk.start == 0 or sequence.reuses_prefix or sequence.num_cached_tokens == 0
            self.rows.write(chunk.row, chunk.start, sequence.scope, chunk.token_ids)
            self.scheduler.commit_prefill(chunk)
            if chunk.is_last:
                self.accept(sequence)
        for batch in plan.decode:
            lengths = self.scheduler.cache.span_lengths(batch.start, len(batch.sequences))
            for row, (sequence, length) in enumerate(
                zip(batch.sequences, lengths, strict=True), batch.start
            ):
                if sequence is None:
                    self.rows.write(row, length, "", (IDLE,))
                    continue
                ids = [*sequence.prompt_ids, *sequence.answer_ids]
                self.rows.check(row, sequence.scope, ids[:-1])
                self.rows.write(row, length, sequence.scope, (ids[-1],))
                self.scheduler.commit_decode(sequence)
                self.accept(sequence)

    def accept(self, sequence: Sequence) -> None:
        sequence.answer_ids.append(1 + sequence.num_tokens % 2)
        if sequence.is_full:
            self.alive.remove(sequence)
            self.scheduler.end(sequence)

    @invariant()
    def what_is_kept_is_what_the_index_says(self) -> None:
        self.scheduler.check()
        cache, index = self.scheduler.cache, self.scheduler.prefixes._index
        lengths = {row: cache.length(row) for row in index.rows()}
        for row, (scope, ids) in index.contents(lengths).items():
            self.rows.check(row, scope, list(memoryview(ids).cast("I")))

    def teardown(self) -> None:
        for _ in range(500):
            if self.alive:
                self.run(self.scheduler.plan())
        assert not self.alive
        prefixes.MIN_SHARED_TOKENS = self.shared


TestPrefixLife = PrefixLife.TestCase
TestPrefixLife.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
