"""What is reused, what is copied, who waits for whom, and what is lost when rows are needed."""

from __future__ import annotations

import pytest

from twostroke.engine.kv_cache import RowState

from .prefix_plans import chunks, copies, ids, make, run, serve, submit


def test_the_second_turn_of_a_chat_computes_only_what_is_new():
    scheduler = make()
    serve(scheduler, "first", ids(100, 40))  # its row holds the answer's first token too
    second = submit(scheduler, "second", (*ids(100, 40), 9, *ids(500, 7)))
    plan = run(scheduler)
    assert (chunks(plan), copies(plan)) == ([("second", 0, 41, 7)], [])
    assert second.num_cached_tokens == 41


def test_the_newest_token_of_an_answer_is_not_in_the_row():
    scheduler = make()
    serve(scheduler, "first", ids(100, 40))  # answered 9 9: the second 9 was never fed
    submit(scheduler, "second", (*ids(100, 40), 9, 9, 1))
    assert chunks(run(scheduler)) == [("second", 0, 41, 2)]


def test_at_least_the_last_token_of_a_prompt_is_computed():
    scheduler = make()
    serve(scheduler, "first", ids(100, 40))
    submit(scheduler, "again", ids(100, 40))
    assert chunks(run(scheduler)) == [("again", 0, 39, 1)]


def test_a_short_common_prefix_is_not_worth_it():
    scheduler = make()
    serve(scheduler, "first", ids(100, 40))
    submit(scheduler, "second", (*ids(100, 15), 1, 2))
    assert chunks(run(scheduler)) == [("second", 1, 0, 17)]


def test_of_many_that_begin_alike_only_the_first_is_computed():
    scheduler = make(chunk=200)
    for name in "abc":
        submit(scheduler, name, (*ids(100, 150), ord(name), 1, 2))
    assert chunks(run(scheduler)) == [("a", 0, 0, 153)]
    plan = run(scheduler)
    assert chunks(plan) == [("b", 1, 150, 3), ("c", 2, 150, 3)]
    assert copies(plan) == [(0, 1, 150), (0, 2, 150)]
    assert scheduler.prefixes.counts.num_cached_tokens == 300
    assert scheduler.prefixes.counts.num_hits == 2


def test_a_follower_goes_on_as_soon_as_its_part_is_read():
    scheduler = make(chunk=64)
    leader = submit(scheduler, "leader", ids(100, 300))
    submit(scheduler, "follower", (*ids(100, 60), 1))
    assert chunks(run(scheduler)) == [("leader", 0, 0, 64)]
    scheduler.end(leader)
    plan = run(scheduler)
    assert chunks(plan) == [("follower", 0, 60, 1)]
    assert copies(plan) == []  # the rest of the leader's row is of no use


def test_those_that_share_nothing_overtake_the_waiting():
    scheduler = make(chunk=100)
    submit(scheduler, "leader", ids(100, 60))
    submit(scheduler, "follower", (*ids(100, 50), 1))
    submit(scheduler, "other", ids(500, 20))
    assert [name for name, *_ in chunks(run(scheduler))] == ["leader", "other"]
    assert chunks(run(scheduler)) == [("follower", 2, 50, 1)]


@pytest.mark.parametrize("keep", [True, False])
def test_where_the_leader_ends_the_follower_goes_on_with_what_there_is(keep):
    scheduler = make(chunk=32)
    leader = submit(scheduler, "leader", ids(100, 90))
    submit(scheduler, "follower", ids(100, 80))
    run(scheduler)
    assert [name for name, *_ in chunks(run(scheduler))] == ["leader"]
    scheduler.end(leader, keep=keep)
    start = 64 if keep else 0
    assert chunks(run(scheduler)) == [("follower", 0, start, min(32, 80 - start))]


def test_a_leader_that_never_began_is_not_waited_for():
    scheduler = make(chunk=64)
    submit(scheduler, "long", ids(500, 64))
    leader = submit(scheduler, "leader", ids(100, 60))
    submit(scheduler, "follower", ids(100, 50))
    run(scheduler)
    scheduler.end(leader)
    assert chunks(run(scheduler)) == [("follower", 1, 0, 50)]
    assert scheduler.num_running == 2


def test_scopes_share_nothing_and_wait_for_nobody():
    scheduler = make(chunk=200)
    serve(scheduler, "old", ids(100, 40), scope="a")
    submit(scheduler, "b", ids(100, 40), scope="b")
    submit(scheduler, "c", ids(100, 40), scope="c")
    assert [start for *_, start, _ in chunks(run(scheduler))] == [0, 0]


def test_a_prompt_that_is_scored_is_read_from_its_first_token():
    scheduler = make()
    serve(scheduler, "first", ids(100, 40))
    submit(scheduler, "scored", ids(100, 40), reuses_prefix=False)
    submit(scheduler, "next", ids(100, 40))
    assert chunks(run(scheduler)) == [("scored", 1, 0, 40), ("next", 0, 39, 1)]


def test_a_long_row_is_copied_rather_than_cut_while_rows_are_free():
    scheduler = make(chunk=500)
    serve(scheduler, "long", ids(100, 300), max_total_tokens=400)
    submit(scheduler, "short", (*ids(100, 30), 1))
    plan = run(scheduler)
    assert (chunks(plan), copies(plan)) == ([("short", 1, 30, 1)], [(0, 1, 30)])
    assert scheduler.cache.length(0) == 301


def test_the_last_row_is_used_even_if_it_is_worth_keeping():
    scheduler = make(num_rows=1, chunk=500)
    serve(scheduler, "long", ids(100, 300), max_total_tokens=400)
    submit(scheduler, "short", (*ids(100, 30), 1))
    plan = run(scheduler)
    assert (chunks(plan), copies(plan)) == ([("short", 0, 30, 1)], [])


def test_what_is_kept_between_running_rows_makes_room():
    scheduler = make(num_rows=4, chunk=500)
    first, middle, last = (submit(scheduler, n, ids(100 * i, 40)) for i, n in enumerate("abc", 1))
    run(scheduler)
    scheduler.end(middle)
    submit(scheduler, "d", ids(500, 20))
    plan = run(scheduler)
    assert copies(plan) == [(1, 3, 40)]
    assert chunks(plan) == [("d", 1, 0, 20)]
    assert scheduler.cache.rows(RowState.KEPT) == [3]
    scheduler.end(first)
    scheduler.end(last)
    submit(scheduler, "again", (*ids(200, 40), 1))
    assert [start for *_, start, _ in chunks(run(scheduler))] == [40]


def test_the_cheapest_of_the_least_recently_used_rows_goes_first():
    scheduler = make(num_rows=3, chunk=500)
    for start, count in ((100, 90), (300, 50), (500, 60)):
        serve(scheduler, str(start), ids(start, count))
    serve(scheduler, "new", ids(700, 40))  # the row of 50 goes, the cheapest
    found = [scheduler.cache.length(row) for row in range(3)]
    assert found == [91, 41, 61]
    serve(scheduler, "newer", ids(900, 40))  # all have been there longer than the row of 40
    assert [scheduler.cache.length(row) for row in range(3)] == [91, 41, 41]
    serve(scheduler, "newest", ids(1100, 40))
    assert [scheduler.cache.length(row) for row in range(3)] == [41, 41, 41]


def test_a_row_that_another_holds_as_well_is_not_kept_twice():
    scheduler = make(chunk=500)
    first, second = (submit(scheduler, name, ids(100, 40)) for name in "ab")
    run(scheduler)
    run(scheduler)
    scheduler.end(first)
    scheduler.end(second)
    assert scheduler.cache.num_kept_rows == 1
    serve(scheduler, "longer", (*ids(100, 40), 9, 9, 7))
    assert scheduler.cache.num_kept_rows == 1


def test_kept_rows_give_way_to_the_budget():
    scheduler = make(num_tokens=400, chunk=500)
    serve(scheduler, "a", ids(100, 150))
    serve(scheduler, "b", ids(300, 140))
    assert scheduler.cache.num_kept_tokens == 151 + 141
    submit(scheduler, "large", ids(500, 20), max_total_tokens=400)
    run(scheduler)
    assert scheduler.cache.num_kept_tokens == 0


def test_a_prefix_survives_the_eviction_of_its_source_by_its_own_copy():
    scheduler = make(num_tokens=400, chunk=500)
    serve(scheduler, "long", ids(100, 300), max_total_tokens=400)
    submit(scheduler, "short", (*ids(100, 30), 1), max_total_tokens=350)
    plan = run(scheduler)
    assert (chunks(plan), copies(plan)) == ([("short", 1, 30, 1)], [(0, 1, 30)])
    assert scheduler.cache.num_kept_rows == 0


def test_a_row_that_a_copy_failed_to_fill_is_nobodys_source():
    scheduler = make(chunk=500)
    leader = submit(scheduler, "leader", ids(100, 40))
    run(scheduler)
    follower = submit(scheduler, "follower", ids(100, 40))
    plan = scheduler.plan()
    scheduler.prefixes.forget(plan.copies[0].target_row, follower)
    scheduler.end(follower, keep=True)
    scheduler.check()
    assert scheduler.cache.num_kept_rows == 0
    scheduler.end(leader)
    scheduler.prefixes.forget(0, None)
    scheduler.check()
    assert chunks(run(scheduler)) == []
    submit(scheduler, "next", ids(100, 40))
    assert chunks(run(scheduler)) == [("next", 0, 0, 40)]


@pytest.mark.parametrize("options", [{"reuse_prefixes": False}, {"chunks_prompts": False}])
def test_without_reuse_nothing_is_kept(options):
    scheduler = make(chunk=500, **options)
    serve(scheduler, "first", ids(100, 40))
    assert scheduler.cache.num_free_rows == 4
    submit(scheduler, "a", ids(100, 40))
    submit(scheduler, "b", ids(100, 40))
    assert chunks(run(scheduler)) == [("a", 0, 0, 40), ("b", 1, 0, 40)]


@pytest.mark.parametrize(("num_idle", "num_runs"), [(700, 1), (900, 2)])
def test_an_idle_row_of_many_tokens_is_left_out_of_a_run(num_idle, num_runs):
    scheduler = make(chunk=2000)
    submit(scheduler, "a", ids(100, 20))
    idle = submit(scheduler, "idle", ids(1000, num_idle), max_total_tokens=1000)
    submit(scheduler, "b", ids(200, 20))
    run(scheduler)
    scheduler.end(idle)
    assert len(scheduler.plan().decode) == num_runs
