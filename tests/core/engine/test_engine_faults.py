"""A fault ends the sequences it touched, and nothing else."""

from __future__ import annotations

import logging

import pytest

from twostroke.engine import EngineLimits
from twostroke.errors import EngineError, UnavailableError
from twostroke.testing.engines import echo_request
from twostroke.types import FailedEvent, SamplingParams, TokenEvent

GREEDY = SamplingParams(temperature=0.0)
LIMITS = EngineLimits(max_rows=4, prefill_chunk_tokens=64, kv_budget_bytes=2**20)


def submit(echo, recorder, *texts):
    sinks = [recorder() for _ in texts]
    for number, (text, sink) in enumerate(zip(texts, sinks, strict=True)):
        echo.engine.submit(echo_request(f"r{number}", text), sink, arrived_at=0.0)
    return sinks


def fault_of(sink) -> str:
    (end,) = sink.ends
    assert isinstance(end, FailedEvent)
    assert isinstance(end.error, EngineError)
    assert sink.events[-1] is end
    return str(end.error)


def test_a_failing_prefill_ends_its_own_sequence_only(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS, fail_prefill_runs=[1])
    sinks = submit(echo, recorder, "first", "second", "third")
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert "prefill run 1 fails" in fault_of(sinks[1])
    assert [sinks[0].reason, sinks[2].reason] == ["stop", "stop"]
    echo.engine.check()
    assert echo.engine.stats().num_failed == 1


def test_a_failing_decode_ends_those_in_its_batch_and_the_engine_goes_on(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS, fail_decode_runs=[2])
    sinks = submit(echo, recorder, "first", "second")
    for _ in range(4):  # the prefill and three decode steps
        echo.engine.run_step()
    echo.engine.start()
    answer = echo.answer("later", "third", GREEDY)
    echo.engine.stop(drain_timeout_s=30)
    assert ["decode run 2 fails" in fault_of(sink) for sink in sinks] == [True, True]
    assert answer.text == "→third"
    assert echo.engine.stats().num_failed == 2
    assert echo.engine.stats().kv_tokens_used == 0


def test_logits_that_are_no_numbers_end_the_sequence_with_a_sentence(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS, nan_decode_runs=[1])
    (sink,) = submit(echo, recorder, "hello")
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert "no finite numbers" in fault_of(sink)
    assert len(sink.token_ids) == 2


@pytest.mark.parametrize(
    ("culprit", "told"), [("uniform", "failed to sample"), ("add", "failed to take a token")]
)
def test_what_fails_for_one_sequence_of_a_batch_ends_that_one(
    make_engine, recorder, monkeypatch, culprit, told
):
    echo = make_engine(started=False, limits=LIMITS)
    (good,) = submit(echo, recorder, "neighbour")
    bad = recorder()
    sampled = SamplingParams(temperature=0.01)
    echo.engine.submit(echo_request("bad", "hello", sampled), bad, arrived_at=0.0)
    echo.engine.run_step()
    sampler = echo.engine._intake._table["bad"].sampler
    monkeypatch.setattr(sampler, culprit, lambda *args: 1 / 0)
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert told in fault_of(bad)
    assert good.reason == "stop"
    echo.engine.check()


def test_an_unforeseen_exception_is_wrapped_and_logged(make_engine, recorder, monkeypatch, caplog):
    echo = make_engine(started=False, limits=LIMITS)
    (sink,) = submit(echo, recorder, "hello")

    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(echo.engine._runner, "prefill", broken)
    with caplog.at_level(logging.ERROR):
        echo.engine.run_step()
    assert "ZeroDivisionError: surprise" in fault_of(sink)
    assert any(record.exc_info for record in caplog.records)


def test_a_sink_that_raises_is_aborted_and_its_neighbours_are_not(make_engine, recorder):
    echo = make_engine(started=False, limits=LIMITS)
    seen = []

    def broken(event: object) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise RuntimeError("the listener is gone")

    echo.engine.submit(echo_request("bad", "hello"), broken, arrived_at=0.0)
    (good,) = submit(echo, recorder, "neighbour")
    echo.engine.start()
    echo.engine.stop(drain_timeout_s=30)
    assert good.reason == "stop"
    assert [type(event) for event in seen[:2]] == [TokenEvent, TokenEvent]
    assert [event.reason.value for event in seen[2:]] == ["aborted"]
    assert echo.engine.stats().num_aborted == 1


def test_a_fault_of_the_engine_itself_ends_everything_and_new_requests_work(
    make_engine, recorder, monkeypatch
):
    echo = make_engine(started=False, limits=LIMITS)
    sinks = submit(echo, recorder, "one", "two")
    stepper = echo.engine._stepper
    with monkeypatch.context() as patch:
        patch.setattr(stepper, "_prefill", lambda chunk: 1 / 0)
        assert echo.engine.run_step()
    assert ["ZeroDivisionError" in fault_of(sink) for sink in sinks] == [True, True]
    echo.engine.start()
    assert echo.answer("next", "three", GREEDY).text == "→three"


@pytest.mark.parametrize("failing", ["run", "fail_all"])
def test_where_even_that_fails_nobody_hangs_and_requests_are_refused(
    make_engine, recorder, monkeypatch, failing
):
    echo = make_engine(started=False, limits=LIMITS)
    sinks = submit(echo, recorder, "one", "two")
    monkeypatch.setattr(echo.engine._stepper, failing, lambda *args: 1 / 0)
    monkeypatch.setattr(echo.engine._intake, "next_step", lambda: 1 / 0)
    echo.engine.start()
    echo.engine._loop._thread.join(30)
    told = "ZeroDivisionError" if failing == "run" else "engine has stopped"
    assert [told in fault_of(sink) for sink in sinks] == [True, True]
    with pytest.raises(UnavailableError):
        echo.answer("next", "three", GREEDY)
    echo.engine.stop()
    assert echo.prefill_backend.num_open_sessions == 0
