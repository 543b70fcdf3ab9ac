"""Lost sessions: what ends, what is refused meanwhile, and how the engine comes back."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from twostroke.engine.health import HealthState, pause_s
from twostroke.engine.limits import RecoveryLimits
from twostroke.errors import EngineError, UnhealthyError


def ready(made) -> bool:
    return made.engine.health().state is HealthState.READY


def answers(made, name: str = "later", text: str = "xyz") -> None:
    """The engine serves as if nothing had been, and its books are exact."""
    sink = made.submit(name, text)
    made.finish(sink)
    assert sink.reason == "stop"
    assert len(sink.token_ids) == len(text) + 1
    made.engine.check()
    made.engine._runner.check(made.engine._intake.row_lengths())
    assert made.engine.stats().kv_tokens_used == 0


@pytest.mark.parametrize("stroke", ["prefill", "decode"])
@pytest.mark.parametrize("order", ["throw", "exhaust"])
def test_one_run_that_throws_ends_those_it_served_and_nothing_else(faulty, stroke, order):
    made = faulty()
    first, other = made.submit("a", "first"), made.submit("b", "second")
    getattr(made.faults, order)(stroke, after=1)
    made.finish(first, other)
    errors = [
        sink.error for sink in (first, other) if sink.ends[0].__class__.__name__ != "FinishedEvent"
    ]
    assert len(errors) == (1 if stroke == "prefill" else 2)  # one prompt each, one batch for both
    assert all(isinstance(error, EngineError) and error.status == 500 for error in errors)
    assert ready(made)
    health = made.engine.health()
    assert health.failures == {"run" if order == "throw" else "memory": 1}
    assert health.num_rebuilds == 0
    answers(made)


def test_a_lost_device_ends_all_that_is_in_flight_with_one_event_each(faulty):
    made = faulty(max_rows=2)
    running = [made.submit(name, "abc") for name in "ab"]
    waiting = made.submit("c", "abc")
    made.step(2)
    made.faults.lose_device("decode")
    made.step()
    for sink in (*running, waiting):
        error = sink.error
        assert isinstance(error, UnhealthyError)
        assert (error.status, error.code) == (503, "model_unhealthy")
        assert error.retry_after_s >= 1
        assert "The device is lost, as was ordered" in str(error)
        assert "Send the request again" in str(error)
    stats = made.engine.stats()
    assert (stats.num_failed, stats.num_running, stats.num_waiting) == (3, 0, 0)
    assert made.engine.health().failures == {"device_lost": 1}


def test_requests_are_refused_until_it_is_back(faulty):
    made = faulty()
    made.faults.lose_device()
    lost = made.submit("a", "abc")
    made.step()
    assert isinstance(lost.error, UnhealthyError)
    health = made.engine.health()
    assert health.state is HealthState.UNHEALTHY
    assert 0.75 <= health.next_try_s <= 1.0
    with pytest.raises(UnhealthyError, match="being made anew") as refused:
        made.submit("b", "abc")
    assert refused.value.retry_after_s == 2
    made.recover()
    assert ready(made)
    assert made.engine.health().num_rebuilds == 1
    answers(made)


def test_what_cannot_be_opened_is_tried_with_longer_and_longer_pauses(faulty):
    made = faulty()
    made.engine._loop.health._chance = lambda: 0.0
    made.faults.lose_device()
    made.submit("a", "abc")
    made.faults.fail_opening(3)
    made.step()
    pauses = []
    while not ready(made):
        pauses.append(made.engine.health().next_try_s)
        made.recover()
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    answers(made)
    # A model that has answered begins with a short pause again.
    made.faults.lose_device()
    made.submit("b", "abc")
    made.step()
    assert made.engine.health().next_try_s == 1.0
    assert made.engine.health().num_tries == 0


def test_pauses_grow_to_a_minute_and_differ_a_little():
    assert [pause_s(tries, 0.0) for tries in (0, 1, 5, 6, 7, 1000)] == [1, 2, 32, 60, 60, 60]
    assert pause_s(0, 1.0) == 0.75


def test_after_so_many_tries_it_is_given_up(faulty):
    made = faulty(recovery=RecoveryLimits(max_tries=2))
    made.faults.lose_device()
    made.submit("a", "abc")
    made.faults.fail_opening(9)
    made.step()
    made.recover()
    made.recover()
    health = made.engine.health()
    assert (health.state, health.num_tries, health.next_try_s) == (HealthState.FAILED, 2, None)
    assert "cannot be opened" in health.reason
    with pytest.raises(UnhealthyError, match="Restart the server"):
        made.submit("b", "abc")


def test_without_tries_the_first_loss_is_the_end(faulty):
    made = faulty(recovery=RecoveryLimits(max_tries=0))
    made.faults.lose_device()
    lost = made.submit("a", "abc")
    made.step()
    assert made.engine.health().state is HealthState.FAILED
    assert "Restart the server" in str(lost.error)


def test_three_failures_in_a_row_are_the_sessions_fault(faulty):
    made = faulty()
    made.faults.throw("prefill", times=3)
    sinks = [made.submit(name, "abc") for name in "abcd"]
    made.step()
    codes = [sink.error.code for sink in sinks]
    assert codes == ["engine_error", "engine_error", "model_unhealthy", "model_unhealthy"]
    assert "3 runs in a row failed" in made.engine.health().reason
    made.recover()
    answers(made)


def test_failures_with_successes_between_them_are_not(faulty):
    made = faulty()
    for number in range(5):
        made.faults.throw("prefill")
        made.finish(made.submit(f"bad{number}", "abc"))
        answers(made, f"good{number}")
    assert made.engine.health().failures == {"run": 5}
    assert ready(made)


def test_new_sessions_that_fail_their_trial_are_not_used(faulty):
    made = faulty()
    made.faults.lose_device()
    made.submit("a", "abc")
    made.step()
    made.faults.poison("decode")
    made.recover()
    assert made.engine.health().state is HealthState.UNHEALTHY
    assert "no finite numbers" in made.engine.health().reason
    assert made.faults.num_open_sessions == 0
    made.recover()
    answers(made)


def test_memory_that_is_refused_at_the_rebuild_is_asked_for_again(faulty):
    made = faulty()
    made.faults.lose_device()
    made.submit("a", "abc")
    made.step()
    made.faults.refuse_allocations(1)
    made.recover()
    assert "No memory for a buffer" in made.engine.health().reason
    made.recover()
    answers(made)


def test_fewer_rows_than_there_were_are_no_recovery(faulty, monkeypatch):
    made = faulty()
    made.faults.lose_device()
    made.submit("a", "abc")
    made.step()
    smaller = replace(made.engine.memory_plan, num_rows=1)
    with monkeypatch.context() as patch:
        patch.setattr(made.engine._loop._recovery._reopen, "_plan", lambda *backends: smaller)
        made.recover()
    assert "holds 1 rows of KV cache instead of 4" in made.engine.health().reason
    made.recover()
    answers(made)


def test_old_sessions_and_buffers_are_gone_before_new_ones_are_made(faulty, monkeypatch):
    made = faulty()
    old = weakref.ref(made.engine._runner)
    made.faults.lose_device("decode")
    lost = made.submit("a", "abc")
    seen = []
    reopen = made.reopen

    def spying(*, is_hung):
        gc.collect()
        seen.append((made.faults.num_open_sessions, old()))
        return reopen(is_hung=is_hung)

    monkeypatch.setattr(made.engine._loop._recovery._reopen, "_reopen_backends", spying)
    made.step(2)
    assert lost.error  # the error is still held, but nothing of the run with it
    made.recover()
    assert seen == [(0, None)]
    assert made.faults.num_open_sessions == 2
    assert (made.faults.num_devices_opened, made.faults.num_open_devices) == (2, 1)


def test_rows_kept_for_reuse_are_forgotten_and_the_store_is_not(faulty):
    made = faulty(prefix_store_bytes=2**20, max_rows=1)
    prompt = "a prompt that is long enough to be stored, and whose row must then make way " * 2
    made.finish(made.submit("a", prompt))
    made.finish(made.submit("b", "z" * 200))  # takes the only row: the first one is stored
    assert made.engine.stats().prefix_store_bytes > 0
    made.faults.lose_device()
    made.finish(made.submit("c", "abc"))
    stats = made.engine.stats()
    assert (stats.kv_tokens_kept, stats.kv_tokens_touched) == (0, 0)
    made.recover()
    again = made.submit("d", prompt)
    made.finish(again)
    assert again.reason == "stop"
    assert again.ends[0].num_cached_tokens > 100
    assert made.engine.stats().num_restored_tokens > 100
    made.engine.check()


def test_logits_that_are_no_numbers_end_one_sequence_and_are_counted(faulty):
    made = faulty()
    made.faults.poison("decode", after=1)
    sink = made.submit("a", "abcd")
    made.finish(sink)
    assert "no finite numbers" in str(sink.error)
    assert made.engine.health().failures == {"logits": 1}
    assert ready(made)
    answers(made)


@pytest.mark.parametrize("state", ["unhealthy", "failed"])
def test_it_can_be_stopped_in_every_state(faulty, state):
    made = faulty(recovery=RecoveryLimits(max_tries=0 if state == "failed" else 5))
    made.faults.lose_device()
    made.submit("a", "abc")
    made.step()
    assert made.engine.health().state.value == state
    made.engine.start()
    made.engine.stop(drain_timeout_s=5)
    assert made.faults.num_open_sessions == 0
    assert not made.engine.has_hung_threads
