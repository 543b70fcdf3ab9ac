"""What an engine says of its sequences' time, on a clock that only its runs move."""

from __future__ import annotations

import pytest

from twostroke.engine import EngineLimits
from twostroke.testing.engines import echo_request
from twostroke.timings import ChunkSpan, Preparation, StepSpan
from twostroke.types import FinishedEvent, SamplingParams

STEP_S, CHUNK_S = 0.25, 2.0


@pytest.fixture
def stepped(make_engine, monkeypatch):
    """An engine whose clock goes on by 2 s a chunk and 0.25 s a decode run, and not otherwise."""
    echo = make_engine(started=False, limits=EngineLimits(max_rows=4, prefill_chunk_tokens=16))
    engine, now = echo.engine, [100.0]
    monkeypatch.setattr(engine, "_clock", lambda: now[0])
    monkeypatch.setattr(engine._stepper, "_clock", lambda: now[0])
    monkeypatch.setattr(engine._stepper._answers, "_clock", lambda: now[0])
    runner = engine._runner

    def taking(run, duration_s):
        def timed(*given, **named):
            now[0] += duration_s
            return run(*given, **named)

        return timed

    monkeypatch.setattr(runner, "prefill", taking(runner.prefill, CHUNK_S))
    monkeypatch.setattr(runner, "decode", taking(runner.decode, STEP_S))
    return echo, now


def ends(sinks):
    found = [sink.events[-1] for sink in sinks]
    assert all(isinstance(end, FinishedEvent) for end in found)
    return [end.timings for end in found]


def test_a_sequence_alone(stepped, recorder):
    echo, now = stepped
    sink = recorder()
    now[0] = 101.0
    prepared = Preparation(template_ms=125.0, tokenise_ms=250.0)
    limit = SamplingParams(temperature=0.0, max_tokens=4)
    request = echo_request("a", "the quick brown fox", limit)  # 19 tokens, in chunks of 16
    echo.engine.submit(request, sink, arrived_at=100.0, prepared=prepared)
    now[0] = 103.0
    while not sink.ends:
        echo.engine.run_step()
    (timings,) = ends([sink])
    assert timings.stages_ms() == {
        "template_ms": 125.0,
        "tokenise_ms": 250.0,
        "queued_ms": 2000.0,
        "prefill_ms": 4000.0,
        "other_ms": 625.0,
        "ttft_ms": 7000.0,
        "decode_ms": 750.0,
        "total_ms": 7750.0,
    }
    assert timings.prefill.chunks == (
        ChunkSpan(0, 16, 1, 3000.0, 2000.0),
        ChunkSpan(16, 3, 1, 5000.0, 2000.0),
    )
    assert timings.prefill.tokens_per_s == 19 / 4.0
    assert timings.decode.steps == (StepSpan(1, 250.0, 1.0),) * 3
    assert timings.decode.inter_token_p50_ms == timings.decode.inter_token_max_ms == 250.0
    assert timings.roofline.decode is None
    assert "no ONNX files" in timings.roofline.reason


def test_each_step_knows_how_many_shared_it_and_a_chunk_shows_as_a_gap(stepped, recorder):
    echo, _ = stepped
    first, second = recorder(), recorder()
    limit = SamplingParams(temperature=0.0, max_tokens=6)
    echo.engine.submit(echo_request("a", "abcdefghij", limit), first, arrived_at=100.0)
    for _ in range(3):
        echo.engine.run_step()
    echo.engine.submit(echo_request("b", "klmnopqrst", limit), second, arrived_at=100.0)
    while not (first.ends and second.ends):
        echo.engine.run_step()
    one, other = ends([first, second])
    shared = [[span.batch_size for span in each.decode.steps] for each in (one, other)]
    assert set(shared[0]) == set(shared[1]) == {1.0, 2.0}
    assert shared[0].count(2.0) == shared[1].count(2.0) > 0, "they shared the same steps"
    assert [len(sizes) for sizes in shared] == [5, 5]
    assert one.decode.batch_size_max == 2
    assert one.decode.inter_token_max_ms == (CHUNK_S + STEP_S) * 1e3, "the other's prompt"
    assert one.decode.inter_token_p50_ms == pytest.approx(STEP_S * 1e3, rel=0.01)
    assert one.decode.busy_ms == 5 * STEP_S * 1e3 < one.decode_ms
    assert other.queued_ms == 0.0


def test_one_that_ends_in_the_queue_has_a_total_and_no_stages(stepped, recorder):
    echo, now = stepped
    sink = recorder()
    echo.engine.submit(echo_request("a", "abc"), sink, arrived_at=99.0)
    now[0] = 104.0
    echo.engine.abort("a")
    echo.engine.run_step()
    (timings,) = ends([sink])
    assert timings.stages_ms() == {"total_ms": 5000.0}
    assert (timings.prefill, timings.decode) == (None, None)
