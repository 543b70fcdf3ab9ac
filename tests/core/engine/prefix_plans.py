"""A scheduler without a runner, for tests of prefixes: requests, and what steps plan for them."""

from __future__ import annotations

from twostroke.engine.kv_cache import KVCache
from twostroke.engine.scheduler import Plan, Scheduler
from twostroke.engine.sequence import Phase, Sequence


def make(num_rows: int = 4, num_tokens: int = 10_000, chunk: int = 64, **options) -> Scheduler:
    cache = KVCache(num_rows, row_tokens=1000, num_tokens=num_tokens)
    return Scheduler(cache, max_queue=8, prefill_chunk_tokens=chunk, **options)


def ids(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def submit(scheduler: Scheduler, name: str, prompt: tuple[int, ...], **facts) -> Sequence:
    sequence = Sequence(name, prompt, facts.pop("max_total_tokens", 200), **facts)
    scheduler.submit(sequence)
    return sequence


def run(scheduler: Scheduler, plan: Plan | None = None) -> Plan:
    """Pretends to run a plan; every sequence gets the token 9 when it gets logits."""
    plan = plan or scheduler.plan()
    for chunk in plan.prefill:
        scheduler.commit_prefill(chunk)
        if chunk.is_last:
            chunk.sequence.answer_ids.append(9)
    for batch in plan.decode:
        for sequence in batch.sequences:
            if sequence is not None:
                scheduler.commit_decode(sequence)
                sequence.answer_ids.append(9)
    scheduler.check()
    return plan


def serve(scheduler: Scheduler, name: str, prompt: tuple[int, ...], **facts) -> Sequence:
    """A whole prompt and one decode step, then the end."""
    sequence = submit(scheduler, name, prompt, **facts)
    while sequence.phase is not Phase.DECODE:
        run(scheduler)
    run(scheduler)
    scheduler.end(sequence)
    scheduler.check()
    return sequence


def chunks(plan: Plan) -> list[tuple[str, int, int, int]]:
    """Name, row, start and number of tokens."""
    return [(c.sequence.request_id, c.row, c.start, len(c.token_ids)) for c in plan.prefill]


def copies(plan: Plan) -> list[tuple[int, int, int]]:
    return [(c.source_row, c.target_row, c.num_tokens) for c in plan.copies]
