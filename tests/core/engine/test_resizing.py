"""The KV cache on a device, where memory costs what was allocated: it grows and shrinks."""

from __future__ import annotations

import functools
import gc

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from twostroke.engine import EngineLimits, engine_plan
from twostroke.engine.kv_extent import Buckets, Extent
from twostroke.errors import EngineError, UnavailableError
from twostroke.testing import make_echo_bundle
from twostroke.testing.engines import echo_request
from twostroke.types import FailedEvent, SamplingParams, Stroke

from .conftest import STANDARD
from .test_machine import EngineLife

LEAST_TOKENS = 8

PLACEMENTS = {
    "one backend": {},
    "no row views": {"row_views": False},
    "two backends": {"decode_options": {"lazy": False}},
    "host prefill": {"lazy": True, "decode_options": {"lazy": False}},
    "concatenating": {"dialects": STANDARD},
    "concatenating prefill": {"dialects": {Stroke.PREFILL: "standard"}},
}
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def small_buckets(monkeypatch):
    """The least row has few tokens, as the contexts of tests have."""

    small = functools.partial(Buckets, least_row_tokens=LEAST_TOKENS)
    monkeypatch.setattr(engine_plan, "Buckets", small)


@pytest.fixture
def device_engine(small_buckets, make_engine):
    """An engine on a device, whose steps the test decides; without work the next is a rest."""

    def make(**options):
        limits = EngineLimits(max_rows=4, prefill_chunk_tokens=16, kv_budget_bytes=2**20)
        return make_engine(
            started=False, limits=limits, idle_after_s=0.0, **({"lazy": False} | options)
        )

    return make


def begin(echo, recorder, request_id, text, max_tokens=None):
    sink = recorder()
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    echo.engine.submit(echo_request(request_id, text, sampling), sink, arrived_at=0.0)
    return sink


def finish(echo, *sinks):
    while not all(sink.ends for sink in sinks):
        echo.engine.run_step()
    echo.engine.check()


def extent_of(echo):
    extent = echo.engine._runner.extent
    stats = echo.engine.stats()
    assert stats.kv_tokens_touched == extent.num_tokens
    return extent


@pytest.mark.parametrize("options", PLACEMENTS.values(), ids=PLACEMENTS)
def test_answers_are_those_of_memory_that_never_changes(
    device_engine, make_engine, recorder, options
):
    texts = ["short", "a longer one that takes more " * 4, "x", "another one " * 9, "short again"]
    answers = []
    fixed = {**options, "lazy": True}
    if "decode_options" in options:
        fixed["decode_options"] = {}
    for echo in (device_engine(**options), make_engine(started=False, **fixed)):
        sinks = []
        for number, text in enumerate(texts):
            sinks.append(begin(echo, recorder, f"r{number}", text, 300))
            for _ in range(3):
                echo.engine.run_step()
        finish(echo, *sinks)
        answers.append([sink.token_ids for sink in sinks])
    assert answers[0] == answers[1]
    assert all(len(ids) > len(text) for ids, text in zip(answers[0], texts, strict=True))


@pytest.mark.parametrize("options", PLACEMENTS.values(), ids=PLACEMENTS)
def test_the_cache_holds_what_is_in_use_and_shrinks_when_idle(device_engine, recorder, options):
    echo = device_engine(**options)
    assert extent_of(echo) == Extent(1, LEAST_TOKENS)
    finish(echo, begin(echo, recorder, "one", "a" * 20, 10))  # 30 tokens
    assert extent_of(echo) == Extent(1, 32)
    both = [begin(echo, recorder, f"two{n}", f"{n}" * 90, 60) for n in range(2)]
    finish(echo, *both)
    grown = extent_of(echo)
    assert grown.row_tokens == 256
    assert echo.engine.run_step()  # the rest
    echo.engine.check()
    kept = [length for length in echo.engine._intake.row_lengths() if length]
    small = extent_of(echo)
    assert small.row_tokens >= max(kept, default=0)
    again = begin(echo, recorder, "again", "1" * 90, 60)
    finish(echo, again)
    assert again.token_ids == both[1].token_ids
    if echo.engine._intake._scheduler.prefixes.counts.num_hits:
        assert again.ends[0].num_cached_tokens >= 80


def test_nothing_kept_leaves_the_least(small_buckets, make_engine, recorder):
    limits = EngineLimits(max_rows=4, kv_budget_bytes=2**20, reuse_prefixes="off")
    echo = make_engine(started=False, limits=limits, idle_after_s=0.0, lazy=False)
    finish(echo, *(begin(echo, recorder, f"r{n}", "abc" * 30, 9) for n in range(3)))
    assert extent_of(echo) == Extent(4, 128)
    echo.engine.run_step()
    assert extent_of(echo) == Extent(1, LEAST_TOKENS)
    gc.collect()
    memory = echo.decode_backend.memory
    assert memory.taken_bytes == LEAST_TOKENS * echo.engine.memory_plan.kv_bytes_per_token


def test_a_refusal_fails_those_who_begin_and_nobody_else(device_engine, recorder):
    echo = device_engine()
    memory = echo.decode_backend.memory
    running = begin(echo, recorder, "running", "a" * 40, 80)
    for _ in range(6):
        echo.engine.run_step()
    memory.limit_bytes = memory.taken_bytes + 8
    beginning = [begin(echo, recorder, f"new{n}", "b" * n * 70, 90) for n in (1, 2)]
    finish(echo, *beginning)
    for sink in beginning:
        (end,) = sink.ends
        assert isinstance(end, FailedEvent)
        assert isinstance(end.error, UnavailableError)
        assert "no memory left for this request: echo: " in str(end.error)
    assert not running.ends
    memory.limit_bytes = 0
    later = begin(echo, recorder, "later", "b" * 70, 90)
    finish(echo, running, later)
    assert (running.reason, later.reason) == ("stop", "stop")
    assert extent_of(echo) == Extent(2, 256)


def test_kept_rows_go_for_those_who_begin(device_engine, recorder):
    echo = device_engine()
    finish(echo, *(begin(echo, recorder, f"r{n}", f"{n}" * 60, 60) for n in range(2)))
    assert extent_of(echo) == Extent(2, 128)
    assert echo.engine.stats().kv_tokens_kept
    memory = echo.decode_backend.memory
    memory.limit_bytes = memory.taken_bytes + 2 * 128 * 8  # and one array of one layer
    small = [begin(echo, recorder, f"small{n}", f"s{n}" * 10, 30) for n in range(2)]
    large = begin(echo, recorder, "large", "l" * 200, 200)
    finish(echo, *small, large)
    assert [sink.reason for sink in small] == ["stop"] * 2
    assert isinstance(large.ends[0], FailedEvent)
    alone = begin(echo, recorder, "alone", "l" * 100, 110)  # one long row instead of two short ones
    finish(echo, alone)
    assert alone.reason == "stop"
    assert extent_of(echo) == Extent(1, 256)


def test_kept_rows_that_go_are_stored_first(small_buckets, make_engine, recorder):
    limits = EngineLimits(max_rows=4, kv_budget_bytes=2**20, prefix_store_bytes=2**20)
    echo = make_engine(started=False, limits=limits, idle_after_s=0.0, lazy=False)
    first = begin(echo, recorder, "first", "kept for later" * 8, 120)
    finish(echo, first)
    memory = echo.decode_backend.memory
    memory.limit_bytes = memory.taken_bytes
    other = begin(echo, recorder, "other", "nothing like that", 20)
    finish(echo, other)
    assert other.reason == "stop"
    assert echo.engine.stats().prefix_store_bytes
    again = begin(echo, recorder, "again", "kept for later" * 8, 120)
    finish(echo, again)
    assert again.token_ids == first.token_ids
    assert again.ends[0].num_cached_tokens > 100


def test_a_device_that_refuses_to_shrink_serves_on(device_engine, recorder, caplog):
    echo = device_engine()
    first = begin(echo, recorder, "first", "abc" * 60, 200)
    finish(echo, first)
    memory = echo.decode_backend.memory
    before, memory.limit_bytes = extent_of(echo), 1
    echo.engine._intake._scheduler.prefixes.store = None
    echo.engine._intake.forget_row(0, None)  # nothing is kept, so all may go
    echo.engine.run_step()
    assert "stays as large as it is" in caplog.text
    assert extent_of(echo) == before
    memory.limit_bytes = 0
    again = begin(echo, recorder, "again", "abc" * 60, 200)
    finish(echo, again)
    assert again.token_ids == first.token_ids


def test_an_engine_that_starts_over_does_not_trust_the_room_it_had(device_engine, recorder):
    echo = device_engine()
    first = begin(echo, recorder, "first", "abc" * 60, 200)
    finish(echo, first)
    echo.engine._intake.start_over(lambda: EngineError("lost"))
    echo.engine._runner.resize(Extent(1, LEAST_TOKENS), [0] * 4)  # as new sessions have it
    echo.engine._intake.resume()
    again = begin(echo, recorder, "again", "abc" * 60, 200)
    finish(echo, again)
    assert again.token_ids == first.token_ids


class DeviceLife(EngineLife):
    """An engine's life on a device that refuses memory now and then."""

    def memories(self):
        return {b.memory for b in (self.echo.prefill_backend, self.echo.decode_backend)}

    @precondition(lambda self: self.has_work())
    @rule(spare_bytes=st.integers(0, 2000), steps=st.integers(1, 3))
    def step_without_memory(self, spare_bytes, steps):
        for memory in self.memories():
            memory.limit_bytes = max(1, memory.taken_bytes + spare_bytes)
        self.step(steps)
        for memory in self.memories():
            memory.limit_bytes = 0

    @precondition(lambda self: self.is_ready() and not self.has_work())
    @rule()
    def rest(self):
        self.engine._intake._has_rested = False
        self.engine._intake._idle_after_s = 0.0
        assert self.engine.run_step()

    @invariant()
    def memory_is_what_the_books_say(self):
        if not self.is_ready():
            assert not any(memory.taken_bytes for memory in self.memories())
            return
        stats, plan = self.engine.stats(), self.engine.memory_plan
        assert self.engine._runner.extent.num_tokens == stats.kv_tokens_touched
        taken = sum(memory.taken_bytes for memory in self.memories())
        assert taken == plan.kv_bytes_now(stats.kv_tokens_touched, stats.kv_tokens_spare)
        peak = sum(memory.peak_bytes for memory in self.memories())
        assert peak <= plan.kv_bytes + plan.kv_bytes // 4  # an array of four in two layers


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({}, {}),
        ({}, {"row_views": False}),
        ({}, {"decode_options": {"lazy": False}}),
        ({"dialects": ("standard",)}, {}),
    ],
    ids=["in place", "no row views", "two backends", "concatenating"],
)
def test_every_life_on_a_device_ends_well(tmp_path, small_buckets, facts, options):
    bundle = make_echo_bundle(tmp_path / "echo", context_tokens=64, **facts)
    life = {
        "echo_folder": bundle,
        "options": {"lazy": False, **options},
        "kv_budget_bytes": 9 * 72 * 32,
    }
    run_state_machine_as_test(
        type("Life", (DeviceLife,), life),
        settings=settings(
            max_examples=15,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
