"""A prompt that is given up is not read to its end, and no other run is hurt."""

from __future__ import annotations

import threading

import pytest

from twostroke.engine import EngineLimits
from twostroke.engine.interruption import Interruption
from twostroke.testing.engines import echo_request
from twostroke.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def test_only_the_run_of_the_request_is_interrupted():
    cut: list[str] = []
    interruption = Interruption(lambda: cut.append("run"))
    interruption.interrupt("a")
    interruption.begin("a")
    interruption.interrupt("b")
    assert not cut
    interruption.interrupt("a")
    assert cut == ["run"]
    assert interruption.end(has_failed=True)
    interruption.interrupt("a")  # too late: it is over
    interruption.begin("b")
    interruption.interrupt("a")
    assert cut == ["run"]
    assert not interruption.end(has_failed=True), "a fault of b's own"
    assert interruption.num_interrupted == 1


def test_a_run_that_was_done_before_it_noticed_counts_as_read():
    interruption = Interruption(lambda: None)
    interruption.begin("a")
    interruption.interrupt("a")
    assert not interruption.end(has_failed=False)
    assert interruption.num_interrupted == 0


@pytest.mark.parametrize("dialect", ["fused", "standard"])
def test_an_abort_ends_a_chunk_that_would_take_minutes(make_engine, recorder, dialect):
    """Without the interruption this would wait for 100 s, and pytest's limit would end it."""
    from twostroke.types import Stroke

    limits = EngineLimits(max_rows=2, prefill_chunk_tokens=16, kv_budget_bytes=2**20)
    dialects = dict.fromkeys(Stroke, dialect)
    echo = make_engine(limits=limits, prefill_delay_s_per_token=0.0, dialects=dialects)
    binding_waits = threading.Event()
    runner = echo.engine._runner
    run_prefill = runner.prefill

    def slow(row, start, token_ids, *, is_last):
        if len(token_ids) == 16:
            session = runner._prefill.session
            wait = session._wait

            def long_wait(delay_s, is_cut):
                binding_waits.set()
                wait(100.0, is_cut)

            session._wait = long_wait
            try:
                return run_prefill(row, start, token_ids, is_last=is_last)
            finally:
                session._wait = wait
        return run_prefill(row, start, token_ids, is_last=is_last)

    runner.prefill = slow
    given_up = recorder()
    echo.engine.submit(echo_request("a", "x" * 40), given_up, arrived_at=0.0)
    assert binding_waits.wait(30)
    echo.engine.abort("a")
    answer = echo.answer("b", "xxxx", GREEDY)
    assert answer.text == "→xxxx"
    assert given_up.reason == "aborted"
    stats = echo.engine.stats()
    assert stats.num_interrupted_chunks == stats.num_aborted_prefill == 1
    assert stats.num_failed == 0
    echo.engine.check()


def test_what_was_read_before_the_interruption_is_reused_and_no_more(make_engine, recorder):
    limits = EngineLimits(max_rows=1, prefill_chunk_tokens=16, kv_budget_bytes=2**20)
    echo = make_engine(started=False, limits=limits)
    runner, text = echo.engine._runner, "a prompt of four chunks, which is read twice. " + "z" * 18
    given_up = recorder()
    echo.engine.submit(echo_request("a", text), given_up, arrived_at=0.0)
    echo.engine.run_step()
    run_prefill = runner.prefill

    def interrupted(row, start, token_ids, *, is_last):
        run_prefill(row, start, [5] * len(token_ids), is_last=False)  # part of it was written
        echo.engine.abort("a")
        raise RuntimeError("Exiting due to terminate flag being set to true.")

    runner.prefill = interrupted
    echo.engine.run_step()
    runner.prefill = run_prefill
    echo.engine.run_step()
    assert given_up.reason == "aborted"
    second = recorder()
    echo.engine.submit(echo_request("b", text), second, arrived_at=0.0)
    while not second.ends:
        echo.engine.run_step()
    assert second.token_ids == [3, *echo_request("b", text).prompt_ids]
    assert second.ends[0].num_cached_tokens == 16
