from __future__ import annotations

import pytest

from twostroke.engine.kv_cache import KVCache
from twostroke.engine.scheduler import Plan, Scheduler
from twostroke.engine.sequence import Phase, Sequence
from twostroke.errors import RequestError, UnavailableError


def make(
    num_rows: int = 2, num_tokens: int = 1000, max_queue: int = 8, chunk: int = 4
) -> Scheduler:
    cache = KVCache(num_rows, row_tokens=100, num_tokens=num_tokens)
    return Scheduler(cache, max_queue=max_queue, prefill_chunk_tokens=chunk)


def sequence(name: str, num_prompt_tokens: int, max_total_tokens: int = 50) -> Sequence:
    return Sequence(name, tuple(range(num_prompt_tokens)), max_total_tokens)


def run(scheduler: Scheduler, plan: Plan) -> None:
    """Pretends to run a plan: every sequence that gets logits gets a token."""
    for chunk in plan.prefill:
        scheduler.commit_prefill(chunk)
        if chunk.is_last:
            chunk.sequence.answer_ids.append(1)
    for batch in plan.decode:
        for decoding in batch.sequences:
            if decoding is not None:
                scheduler.commit_decode(decoding)
                decoding.answer_ids.append(1)
    scheduler.check()


def chunks(plan: Plan) -> list[tuple[str, int, int, bool]]:
    return [(c.sequence.request_id, c.start, len(c.token_ids), c.is_last) for c in plan.prefill]


def decoding(plan: Plan) -> list[list[str | None]]:
    return [[s and s.request_id for s in batch.sequences] for batch in plan.decode]


def test_a_long_prompt_is_read_in_chunks_while_others_decode():
    scheduler = make()
    scheduler.submit(sequence("short", 2))
    run(scheduler, scheduler.plan())
    scheduler.submit(sequence("long", 10))
    seen = []
    for _ in range(4):
        plan = scheduler.plan()
        seen.append((chunks(plan), decoding(plan)))
        run(scheduler, plan)
    assert seen == [
        ([("long", 0, 4, False)], [["short"]]),
        ([("long", 4, 4, False)], [["short"]]),
        ([("long", 8, 2, True)], [["short"]]),
        ([], [["short", "long"]]),
    ]


def test_prompts_share_the_budget_of_a_step_oldest_and_shortest_first_by_turns():
    scheduler = make(num_rows=4, chunk=6)
    for name, length in (("a", 2), ("b", 3), ("c", 3), ("d", 1)):
        scheduler.submit(sequence(name, length))
    plan = scheduler.plan()
    assert chunks(plan) == [("a", 0, 2, True), ("b", 0, 3, True), ("c", 0, 1, False)]
    run(scheduler, plan)
    assert chunks(scheduler.plan()) == [("d", 0, 1, True), ("c", 1, 2, True)]


def test_the_queue_is_bounded_and_counts_only_those_who_wait():
    scheduler = make(num_rows=2, max_queue=1)
    for name in "abc":
        scheduler.submit(sequence(name, 3))
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    with pytest.raises(UnavailableError, match=r"1 requests wait already \(the limit is 1\)"):
        scheduler.submit(sequence("d", 3))
    scheduler.check()


def test_no_queue_at_all_still_serves_what_has_a_row():
    scheduler = make(num_rows=1, max_queue=0)
    scheduler.submit(sequence("a", 3))
    with pytest.raises(UnavailableError):
        scheduler.submit(sequence("b", 3))


def test_the_first_in_the_queue_is_never_overtaken():
    scheduler = make(num_rows=4, num_tokens=100)
    first, large, small = sequence("a", 3, 60), sequence("b", 3, 50), sequence("c", 3, 10)
    for one in (first, large, small):
        scheduler.submit(one)
    run(scheduler, scheduler.plan())
    assert (large.phase, small.phase) == (Phase.WAITING, Phase.WAITING)
    scheduler.end(first)
    run(scheduler, scheduler.plan())
    assert Phase.WAITING not in (large.phase, small.phase)


def test_what_can_never_fit_the_budget_is_refused_with_both_numbers():
    scheduler = make(num_tokens=40)
    with pytest.raises(RequestError, match="may reach 50 tokens, the KV cache holds 40"):
        scheduler.submit(sequence("a", 3, 50))
    assert scheduler.num_waiting == 0


def test_a_freed_row_leaves_a_hole_that_the_next_sequence_fills():
    scheduler = make(num_rows=3, chunk=9)
    a, b, c = (sequence(name, 3) for name in "abc")
    for one in (a, b, c):
        scheduler.submit(one)
    run(scheduler, scheduler.plan())
    scheduler.end(b)
    assert decoding(scheduler.plan()) == [["a", None, "c"]]
    scheduler.submit(sequence("d", 3))
    run(scheduler, scheduler.plan())
    assert decoding(scheduler.plan()) == [["a", "d", "c"]]


def test_ending_frees_the_row_in_every_phase_and_twice_is_harmless():
    scheduler = make(num_rows=1)
    running, waiting = sequence("a", 10), sequence("b", 3)
    scheduler.submit(running)
    scheduler.submit(waiting)
    scheduler.end(waiting)
    run(scheduler, scheduler.plan())
    scheduler.end(running)
    scheduler.end(running)
    assert not scheduler.plan()
    assert scheduler.cache.num_free_rows == 1
    scheduler.check()


def test_check_catches_a_sequence_whose_row_is_too_short():
    scheduler = make()
    one = sequence("a", 3)
    scheduler.submit(one)
    run(scheduler, scheduler.plan())
    one.answer_ids.append(1)
    with pytest.raises(AssertionError):
        scheduler.check()


def test_prompts_that_cannot_be_cut_are_read_whole():
    cache = KVCache(4, row_tokens=100, num_tokens=1000)
    scheduler = Scheduler(cache, max_queue=8, prefill_chunk_tokens=4, chunks_prompts=False)
    for name, length in (("long", 10), ("one", 1), ("three", 3), ("four", 4)):
        scheduler.submit(sequence(name, length))
    seen = []
    for _ in range(3):
        plan = scheduler.plan()
        seen.append(chunks(plan))
        run(scheduler, plan)
    assert seen == [
        [("long", 0, 10, True)],
        [("one", 0, 1, True), ("three", 0, 3, True)],
        [("four", 0, 4, True)],
    ]
