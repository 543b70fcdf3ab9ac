"""What an engine does when nobody asks for anything: memory goes back, the books are proved."""

from __future__ import annotations

import logging

import pytest

from twostroke.engine import EngineLimits
from twostroke.engine.kv_cache import RowState
from twostroke.engine.scheduler import Scheduler
from twostroke.errors import EngineError, UnavailableError
from twostroke.testing.engines import echo_request
from twostroke.types import FailedEvent, SamplingParams

from .conftest import PLACEMENTS

GREEDY = SamplingParams(temperature=0.0)
LIMITS = EngineLimits(max_rows=4, prefill_chunk_tokens=16, kv_budget_bytes=2**20)
LONG = "a prompt that is long enough to be kept, and long enough to be worth reading once only"


def serve(echo, recorder, request_id, text):
    """Serves one prompt step by step, without the rest that follows."""
    sink = recorder()
    echo.engine.submit(echo_request(request_id, text, GREEDY), sink, arrived_at=0.0)
    while not sink.ends:
        echo.engine.run_step()
    return sink


@pytest.fixture
def idling(make_engine):
    """An engine whose steps the test decides; without work the next one is a rest."""

    def make(**options):
        return make_engine(started=False, limits=LIMITS, idle_after_s=0.0, **options)

    return make


@pytest.mark.parametrize("options", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_kept_row_loses_its_tail_only_and_serves_on(idling, recorder, options):
    echo = idling(**options)
    first = serve(echo, recorder, "first", LONG)
    touched = echo.engine.stats().kv_tokens_touched
    assert echo.engine.run_step()  # the rest
    stats = echo.engine.stats()
    assert stats.kv_tokens_touched == stats.kv_tokens_kept
    assert stats.num_given_back_tokens == touched - stats.kv_tokens_kept
    again = serve(echo, recorder, "again", LONG)
    assert again.token_ids == first.token_ids
    assert echo.engine.stats().num_prefix_hits == (stats.kv_tokens_kept > 0)
    other = serve(echo, recorder, "other", LONG[:40] + " is another")
    echo.engine.run_step()
    assert serve(echo, recorder, "more", LONG[:40] + " is another").token_ids == other.token_ids
    echo.engine.check()


def test_rows_that_are_not_kept_go_back_whole(make_engine, recorder):
    limits = EngineLimits(max_rows=2, kv_budget_bytes=2**20, reuse_prefixes="off")
    echo = make_engine(started=False, limits=limits, idle_after_s=0.0)
    serve(echo, recorder, "only", LONG)
    touched = echo.engine.stats().kv_tokens_touched
    assert touched >= len(LONG)
    echo.engine.run_step()
    assert echo.engine.stats().kv_tokens_touched == 0
    assert echo.engine.stats().num_given_back_tokens == touched


def test_an_engine_rests_once_until_there_is_work_again(idling, recorder, monkeypatch):
    echo = idling()
    checks = []
    check = echo.engine._runner.check
    monkeypatch.setattr(
        echo.engine._runner, "check", lambda rows: (checks.append(rows), check(rows))
    )
    serve(echo, recorder, "first", LONG)
    echo.engine.run_step()
    assert len(checks) == 1
    serve(echo, recorder, "second", LONG)  # waits for nothing: had it rested again, it would hang
    echo.engine.run_step()
    assert len(checks) == 2


def test_memory_goes_back_at_once_where_old_rows_hold_more_than_the_budget(make_engine, recorder):
    limits = EngineLimits(max_rows=8, kv_budget_bytes=2**13, context_tokens=100)
    echo = make_engine(started=False, limits=limits, idle_after_s=3600.0)
    cache = echo.engine._intake._scheduler.cache
    for number in range(12):
        serve(echo, recorder, f"r{number}", f"{number:02d}" * 30)
        assert cache.num_touched_tokens <= cache.num_tokens
    assert echo.engine.stats().num_given_back_tokens > 0


def test_a_backend_that_cannot_give_back_is_asked_once(make_engine, recorder, monkeypatch, caplog):
    limits = EngineLimits(max_rows=2, kv_budget_bytes=2**20, reuse_prefixes="off")
    echo = make_engine(started=False, limits=limits, idle_after_s=0.0)
    asked = []
    monkeypatch.setattr(
        echo.engine._runner, "give_back", lambda row, tokens: asked.append(row) is not None
    )
    with caplog.at_level(logging.INFO, "twostroke.engine.upkeep"):
        for number in range(3):
            serve(echo, recorder, f"r{number}", f"{number}{LONG}")
            touched = echo.engine.stats().kv_tokens_touched
            echo.engine.run_step()
    assert len(asked) == 1
    assert echo.engine.stats().kv_tokens_touched == touched
    assert "cannot return it" in caplog.text


def test_wrong_books_are_told_and_the_engine_starts_over(idling, recorder, caplog):
    echo = idling()
    first = serve(echo, recorder, "first", LONG)
    cache = echo.engine._intake._scheduler.cache
    (free, *_) = cache.rows(RowState.FREE)
    cache._lengths[free] = 3
    with caplog.at_level(logging.CRITICAL):
        echo.engine.run_step()
    assert f"row {free} is free with 3 of 0" in caplog.text
    echo.engine.check()
    assert echo.engine.stats().kv_tokens_kept == 0
    assert serve(echo, recorder, "second", LONG).token_ids == first.token_ids


def test_a_request_that_the_books_lost_fails_and_others_are_served(idling, recorder, caplog):
    echo = idling()
    serve(echo, recorder, "first", LONG)
    lost = recorder()
    echo.engine.submit(echo_request("lost", LONG, GREEDY), lost, arrived_at=0.0)
    echo.engine._intake._scheduler.clear()
    echo.engine.run_step()
    (end,) = lost.ends
    assert isinstance(end, FailedEvent)
    assert isinstance(end.error, EngineError)
    assert "1 requests wait and nothing is to be run" in str(end.error)
    assert echo.engine.stats().num_failed == 1
    assert serve(echo, recorder, "later", LONG).reason == "stop"


@pytest.mark.parametrize("placement", ["two backends", "concatenating"])
def test_tokens_that_a_cache_lacks_are_noticed(idling, recorder, caplog, placement):
    echo = idling(**PLACEMENTS[placement])
    first = serve(echo, recorder, "first", LONG)
    stores = echo.engine._runner._kv
    kept = [*stores._held.values()]
    if placement == "concatenating":
        kept = [store._lengths for store in stores._stores.values()]
    for lengths in kept:
        lengths[:] = [0] * len(lengths)
    with caplog.at_level(logging.CRITICAL):
        echo.engine.run_step()
    assert "books are wrong" in caplog.text
    assert serve(echo, recorder, "second", LONG).token_ids == first.token_ids


def test_books_that_stay_wrong_stop_the_engine_honestly(make_engine, recorder, monkeypatch, caplog):
    echo = make_engine(started=False, limits=LIMITS, idle_after_s=0.0)
    monkeypatch.setattr(Scheduler, "clear", lambda self: None)
    serve(echo, recorder, "first", LONG)
    echo.engine._intake._scheduler.cache._lengths[3] = 3
    with caplog.at_level(logging.CRITICAL):
        echo.engine.start()
        echo.engine._loop._thread.join(timeout=30)
    assert not echo.engine._loop._thread.is_alive()
    assert "the engine has stopped" in caplog.text
    with pytest.raises(UnavailableError):
        echo.engine.submit(echo_request("late", LONG), recorder(), arrived_at=0.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_sessions_freed_goes_back_where_they_keep_copies_of_rows(
    idling, recorder, monkeypatch, keeps
):
    trims = []
    monkeypatch.setattr("twostroke.engine.upkeep.give_memory_back", lambda: trims.append(None))
    echo = idling()
    monkeypatch.setattr(echo.engine._loop._upkeep, "_sessions_keep_rows", keeps)
    serve(echo, recorder, "first", LONG)
    assert not trims
    echo.engine.run_step()
    assert len(trims) == keeps
