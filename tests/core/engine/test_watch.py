"""A run that does not come back: ended where it listens, left behind where it does not."""

from __future__ import annotations

import threading

import pytest

from twostroke.engine.health import HealthState
from twostroke.engine.limits import RecoveryLimits
from twostroke.engine.prefill_budget import PrefillBudget
from twostroke.engine.run_bounds import RunBounds
from twostroke.engine.watch import GivenUp, RunWatch
from twostroke.errors import ConfigError, HungRunError, UnhealthyError
from twostroke.life.observe import RunFacts
from twostroke.types import Stroke

NO_WATCHDOG_THREAD = RecoveryLimits(watchdog_s=1000.0)
"""So long that it never looks by itself: tests call `look_after`, and set the clock."""


class Interrupted:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bool:
        self.count += 1
        return True


def test_a_run_is_interrupted_once_and_given_up_after_its_grace():
    now, interrupt, released = [0.0], Interrupted(), []
    watch = RunWatch(lambda: now[0], grace_s=5.0)
    assert watch.look(interrupt) is None
    run = watch.begin(10.0, lambda: released.append(1))
    now[0] = 9.9
    assert watch.look(interrupt) is None
    assert interrupt.count == 0
    now[0] = 10.0
    assert watch.look(interrupt) is None
    now[0] = 14.9
    assert watch.look(interrupt) is None
    assert interrupt.count == 1
    assert run.is_cut
    now[0] = 15.0
    assert watch.look(interrupt) is run
    assert watch.look(interrupt) is None, "it is given up once"
    with pytest.raises(GivenUp) as late:
        watch.end(run)
    late.value.release()
    assert released == [1]


def test_a_run_that_came_back_is_nobodys_business():
    now, interrupt = [0.0], Interrupted()
    watch = RunWatch(lambda: now[0], grace_s=5.0)
    watch.end(watch.begin(10.0, lambda: None))
    now[0] = 100.0
    assert watch.look(interrupt) is None
    assert not watch.interrupt(interrupt)
    assert not watch.give_up()
    assert interrupt.count == 0


def test_bounds_follow_what_runs_take_and_never_fall_below_the_least():
    budget = PrefillBudget(256)
    bounds = RunBounds(2.0, budget)
    assert bounds.decode_s() == 2.0
    assert bounds.prompt_s(256, 0) >= 2.0
    assert bounds.prompt_s(1024, 0) >= 8.0, "a prompt that is read whole is several chunks long"
    for _ in range(20):
        budget.ran(RunFacts(Stroke.DECODE, 1, 1, 10, 0.0, 3.0))
        budget.ran(RunFacts(Stroke.PREFILL, 1, 256, 0, 0.0, 30.0))
    assert bounds.decode_s() == pytest.approx(30.0)
    assert 100 < bounds.prompt_s(256, 0) < 400  # outliers are believed slowly
    assert RunBounds(None, budget).decode_s() == float("inf")


@pytest.mark.parametrize("wrong", [{"watchdog_s": 0.0}, {"max_tries": -1}])
def test_limits_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RecoveryLimits(**wrong)


@pytest.mark.parametrize("stroke", ["prefill", "decode"])
def test_a_run_that_listens_has_failed_and_nothing_else(faulty, wait_until, stroke):
    made = faulty(recovery=NO_WATCHDOG_THREAD, max_rows=1)
    made.faults.hang(stroke)
    hung, waiting = made.submit("a", "abc"), made.submit("b", "abc")
    made.engine.start()
    assert made.faults.hanging.wait(30)
    made.now += 10_000.0
    made.engine._loop.look_after()
    wait_until(lambda: waiting.ends)
    assert isinstance(hung.error, HungRunError)
    assert "watchdog_s" in str(hung.error)
    assert waiting.reason == "stop"
    health = made.engine.health()
    assert (health.state, health.failures) == (HealthState.READY, {"hang": 1})
    assert not made.engine.has_hung_threads


def give_up_a_run(made) -> None:
    assert made.faults.hanging.wait(30)
    for _ in range(2):  # interrupted, then given up
        made.now += 10_000.0
        made.engine._loop.look_after()


@pytest.mark.parametrize("stroke", ["prefill", "decode"])
def test_a_deaf_run_is_left_behind_and_the_engine_goes_on_in_another_thread(
    faulty, wait_until, stroke
):
    made = faulty(recovery=NO_WATCHDOG_THREAD, max_rows=1)
    made.faults.hang(stroke, deaf=True)
    hung, waiting = made.submit("a", "abc"), made.submit("b", "abc")
    made.engine.start()
    first = made.engine._loop._thread
    give_up_a_run(made)
    assert [type(sink.error) for sink in (hung, waiting)] == [UnhealthyError] * 2
    assert made.engine.has_hung_threads
    made.now += 10.0  # the pause; the new thread waits on the real clock for a second at most
    wait_until(lambda: made.engine.health().state is HealthState.READY)
    sink = made.submit("c", "abc")
    wait_until(lambda: sink.ends)
    assert sink.reason == "stop"
    assert made.faults.num_open_sessions == 4, "those of the run that hangs are still open"
    made.faults.release()
    first.join(30)
    assert made.faults.num_open_sessions == 2
    assert not made.engine.has_hung_threads
    told = [len(hung.events), len(waiting.events)]
    sink = made.submit("d", "abc")
    wait_until(lambda: sink.ends)
    assert [len(hung.events), len(waiting.events)] == told, "nobody was told twice"
    made.engine.stop()
    made.engine.check()
    assert made.faults.num_open_sessions == 0


def test_a_second_run_that_hangs_is_the_end(faulty, wait_until):
    made = faulty(recovery=NO_WATCHDOG_THREAD)
    made.faults.hang("decode", deaf=True, times=2)
    made.submit("a", "abc")
    made.engine.start()
    give_up_a_run(made)
    made.now += 10.0
    wait_until(lambda: made.faults.num_hanging == 2)  # the trial of the new sessions
    give_up_a_run(made)
    health = made.engine.health()
    assert (health.state, health.num_hung_threads) == (HealthState.FAILED, 2)
    with pytest.raises(UnhealthyError, match="Restart"):
        made.submit("b", "abc")
    made.engine.stop()


def test_the_watchdog_looks_by_itself(faulty, wait_until):
    made = faulty(recovery=RecoveryLimits(watchdog_s=0.05))
    made.faults.hang("decode")
    hung = made.submit("a", "abc")
    made.engine.start()
    assert made.faults.hanging.wait(30)
    made.now += 1.0
    wait_until(lambda: hung.ends)
    assert isinstance(hung.error, HungRunError)


@pytest.mark.parametrize("stroke", ["prefill", "decode"])
def test_an_engine_stops_although_a_run_hangs(faulty, stroke):
    made = faulty(recovery=RecoveryLimits(watchdog_s=0.05))  # and so is the time of grace
    made.faults.hang(stroke, deaf=True)
    hung = made.submit("a", "abc")
    made.engine.start()
    assert made.faults.hanging.wait(30)
    made.engine.stop(drain_timeout_s=0.05)
    assert len(hung.ends) == 1
    assert made.engine.has_hung_threads
    assert made.faults.num_open_sessions == 2, "closing them would pull them from under the run"
    made.faults.release()
    made.engine._loop._thread.join(30)
    assert made.faults.num_open_sessions == 0
    assert len(hung.ends) == 1


def test_it_stops_while_sessions_are_being_opened(faulty, wait_until, monkeypatch):
    made = faulty(recovery=RecoveryLimits(watchdog_s=0.05))
    opening, go_on = threading.Event(), threading.Event()
    reopen = made.reopen

    def slow(*, is_hung):
        opening.set()
        assert go_on.wait(30)
        return reopen(is_hung=is_hung)

    monkeypatch.setattr(made.engine._loop._recovery._reopen, "_reopen_backends", slow)
    made.faults.lose_device()
    made.submit("a", "abc")
    made.step()
    made.now += 10.0
    made.engine.start()
    assert opening.wait(30)
    made.engine.stop()
    go_on.set()
    made.engine._loop._thread.join(30)
    assert made.faults.num_open_sessions == 0
