"""Prompts are reused and answers are not, where decoding writes other bits than reading would."""

from __future__ import annotations

from twostroke.engine.prefix_store import PrefixStore, StoredPrefix
from twostroke.engine.scheduler import Scheduler
from twostroke.engine.sequence import Phase
from twostroke.engine.token_bytes import token_bytes
from twostroke.engine.transfers import RowRestore

from .prefix_plans import chunks, copies, ids, make, run, serve, submit


def test_without_answers_only_prompts_are_kept():
    scheduler = make(chunk=500, reuse_answers=False)
    first = serve(scheduler, "first", ids(100, 40))
    assert scheduler.cache.num_kept_tokens == 40, "not the token that was decoded"
    submit(scheduler, "second", (*first.prompt_ids, *first.answer_ids, *ids(500, 20)))
    assert chunks(run(scheduler)) == [("second", 0, 40, 22)]


def test_without_answers_a_running_row_gives_its_prompt_only():
    scheduler = make(chunk=500, reuse_answers=False)
    running = submit(scheduler, "running", ids(100, 40))
    run(scheduler)
    run(scheduler)
    submit(scheduler, "second", (*running.prompt_ids, *running.answer_ids, *ids(500, 20)))
    plan = run(scheduler)
    assert copies(plan) == [(0, 1, 40)]
    assert chunks(plan) == [("second", 1, 40, 22)]


def test_a_third_turn_reads_the_last_answer_only():
    scheduler = make(chunk=500, reuse_answers=False)
    prompt = ids(100, 40)
    for start, num_read in ((0, 40), (40, 22), (62, 22)):
        sequence = submit(scheduler, f"turn {start}", prompt)
        assert chunks(run(scheduler)) == [(f"turn {start}", 0, start, num_read)]
        run(scheduler)
        scheduler.end(sequence)
        prompt = (*prompt, *sequence.answer_ids, *ids(500 + start, 20))


def test_without_answers_a_store_gets_no_answers_either():
    store = PrefixStore(10**6)
    scheduler = make(chunk=500, reuse_answers=False, prefix_store=store, num_rows=1)
    first = serve(scheduler, "first", ids(100, 80))
    submit(scheduler, "other", ids(500, 30))
    (save,) = run(scheduler).copies
    assert (save.num_tokens, save.ids) == (80, first.prompt_bytes)


def test_without_scored_ones_prompts_that_were_scored_leave_nothing():
    scheduler = make(chunk=30, reuse_scored=False)
    scored = submit(scheduler, "scored", ids(100, 40), reuses_prefix=False)
    submit(scheduler, "a", ids(100, 40))
    assert chunks(run(scheduler)) == [("scored", 0, 0, 30)]
    while scored.phase is not Phase.DECODE:
        run(scheduler)
    while scheduler.num_running == 2 and scheduler.plan().prefill:
        run(scheduler)
    assert scheduler.prefixes.counts.num_cached_tokens == 0
    scheduler.end(scored)
    assert scheduler.cache.num_kept_rows == 0
    scheduler.check()


class Library:
    """Files whose contents come when the test says so."""

    def __init__(self, *prompts: tuple[int, ...]) -> None:
        self.entries = [StoredPrefix("", token_bytes(prompt), 1) for prompt in prompts]
        self.has_come = False
        self.num_asked = 0

    def scan(self) -> list[StoredPrefix]:
        return self.entries

    def fetch(self, entry: StoredPrefix) -> bool:
        self.num_asked += 1
        return self.has_come


def with_a_file_of(prompt: tuple[int, ...]) -> tuple[Scheduler, Library]:
    library = Library(prompt)
    return make(chunk=500, prefix_store=PrefixStore(100, library)), library


def test_a_prompt_waits_for_its_file_while_others_decode():
    scheduler, library = with_a_file_of(ids(100, 90))
    submit(scheduler, "running", ids(500, 20))
    run(scheduler)
    submit(scheduler, "filed", ids(100, 100))
    submit(scheduler, "other", ids(700, 20))
    plan = run(scheduler)
    assert chunks(plan) == [("other", 1, 0, 20)], "nobody else waits"
    assert plan.decode
    assert not plan.copies
    assert chunks(run(scheduler)) == []
    library.has_come = True
    plan = run(scheduler)
    assert chunks(plan) == [("filed", 2, 90, 10)]
    assert [type(copy) for copy in plan.copies] == [RowRestore]


def test_where_nobody_decodes_a_file_is_read_at_once():
    scheduler, library = with_a_file_of(ids(100, 90))
    submit(scheduler, "filed", ids(100, 100))
    assert chunks(run(scheduler)) == [("filed", 0, 90, 10)]
    assert not library.num_asked


def test_a_file_does_not_keep_a_prompt_waiting_when_the_others_have_ended():
    scheduler, _ = with_a_file_of(ids(100, 90))
    running = submit(scheduler, "running", ids(500, 20))
    run(scheduler)
    submit(scheduler, "filed", ids(100, 100))
    assert chunks(run(scheduler)) == []
    scheduler.end(running)
    assert chunks(run(scheduler)) == [("filed", 1, 90, 10)]
