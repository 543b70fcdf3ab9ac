"""Random lives of an engine: whatever happens, each sequence has exactly one terminal event."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from twostroke.engine import EngineLimits
from twostroke.engine.health import HealthState
from twostroke.engine.limits import RecoveryLimits
from twostroke.errors import DeadlineError, RequestError, UnavailableError, UnhealthyError
from twostroke.testing.bundles import SEPARATOR_ID
from twostroke.testing.engines import EchoEngine
from twostroke.testing.faults import Faults
from twostroke.types import (
    FailedEvent,
    FinishReason,
    Request,
    SamplingParams,
    Stroke,
    TokenEvent,
)


class EngineLife(RuleBasedStateMachine):
    """Submits, steps, aborts and breaks runs in any order, on three rows."""

    echo_folder: Path
    options: ClassVar[dict] = {}
    kv_budget_bytes: int
    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        limits = EngineLimits(
            max_rows=3,
            max_queue=3,
            prefill_chunk_tokens=5,
            kv_budget_bytes=self.kv_budget_bytes,
            recovery=RecoveryLimits(max_tries=1000),
        )
        self.now = 100.0
        self.faults = Faults()
        self.echo = EchoEngine(
            self.echo_folder, limits, clock=lambda: self.now, faults=self.faults, **self.options
        )
        self.engine = self.echo.engine
        self.deadlines: dict[str, float] = {}
        self.watch_plans()
        self.requests: dict[str, Request] = {}
        self.events: dict[str, list[object]] = {}
        self.to_abort: set[str] = set()

    @rule(
        target=alive,
        prompt=st.lists(st.integers(4, 259), min_size=1, max_size=12),
        max_tokens=st.integers(0, 20) | st.none(),
    )
    def submit(self, prompt: list[int], max_tokens: int | None):
        name = f"r{len(self.requests)}"
        request = Request(name, tuple(prompt), SamplingParams(temperature=0, max_tokens=max_tokens))
        events: list[object] = []
        try:
            self.engine.submit(request, events.append, arrived_at=0.0)
        except UnhealthyError:
            assert not self.is_ready()
            return multiple()
        except UnavailableError:
            assert self.engine.stats().num_waiting == 3
            return multiple()
        self.requests[name] = request
        self.events[name] = events
        return name

    def watch_plans(self) -> None:
        """Every plan keeps to its budget, and each run takes its time on the fake clock."""
        scheduler = self.engine._intake._scheduler
        plan_step, runner = scheduler.plan, self.engine._loop.runner  # whatever is inside of it
        prefill, decode = runner.prefill, runner.decode

        def plan():
            planned = plan_step()
            lengths = [len(chunk.token_ids) for chunk in planned.prefill]
            assert sum(lengths) <= 5
            assert len({chunk.row for chunk in planned.prefill}) == len(lengths)
            return planned

        def timed_prefill(*args: object, **kwargs: object):
            self.now += 0.5
            return prefill(*args, **kwargs)

        def timed_decode(*args: object):
            self.now += 0.1
            return decode(*args)

        scheduler.plan, runner.prefill, runner.decode = plan, timed_prefill, timed_decode

    @rule(
        target=alive,
        prompt=st.lists(st.integers(4, 259), min_size=1, max_size=12),
        count=st.integers(1, 7),
        scope=st.sampled_from(["", "a", "b"]),
        priority=st.integers(-1, 1),
        timeout_s=st.floats(0, 8) | st.none(),
    )
    def submit_all(
        self, prompt: list[int], count: int, scope: str, priority: int, timeout_s: float | None
    ):
        names = [f"r{len(self.requests) + number}" for number in range(count)]
        deadline_at = None if timeout_s is None else self.now + timeout_s
        requests = [
            Request(
                name,
                tuple(prompt),
                SamplingParams(temperature=0, max_tokens=20),
                priority=priority,
                deadline_at=deadline_at,
                group=names[0],
                scope=scope,
            )
            for name in names
        ]
        events: list[list[object]] = [[] for _ in names]
        before = self.engine.stats()
        try:
            sinks = [one.append for one in events]
            self.engine.submit_all(requests, sinks, arrived_at=self.now)
        except RequestError:
            assert count > 6
            return multiple()
        except UnhealthyError:
            assert not self.is_ready()
            return multiple()
        except UnavailableError:
            after = self.engine.stats()
            assert after == before
            assert before.num_waiting + count > 3
            return multiple()
        self.requests |= dict(zip(names, requests, strict=True))
        self.events |= dict(zip(names, events, strict=True))
        if deadline_at is not None:
            self.deadlines |= dict.fromkeys(names, deadline_at)
        return multiple(*names)

    @rule(seconds=st.floats(0.1, 5))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=consumes(alive))
    def abort(self, name: str) -> None:
        self.engine.abort(name)
        self.to_abort.add(name)

    @precondition(lambda self: self.has_work())
    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.has_work():
                late = [name for name, at in self.deadlines.items() if at <= self.now]
                self.engine.run_step()
                # A deadline too, and an abort reaches its sequence in the very next step.
                assert all(self.is_over(name) for name in (*late, *self.to_abort))

    @precondition(lambda self: self.has_work())
    @rule(stroke=st.sampled_from(["prefill", "decode"]))
    def break_a_run(self, stroke: str) -> None:
        runner = self.engine._runner

        def broken(*args: object, **kwargs: object) -> None:
            raise MemoryError("the device is gone")

        setattr(runner, stroke, broken)
        self.engine.run_step()
        delattr(runner, stroke)
        del runner  # errors hold on to this frame, and a lost runner must go at once

    @rule(
        order=st.sampled_from(["throw", "exhaust", "lose_device", "poison"]),
        stroke=st.sampled_from(["prefill", "decode"]),
        after=st.integers(0, 4),
    )
    def order_a_fault(self, order: str, stroke: str, after: int) -> None:
        getattr(self.faults, order)(stroke, after=after)

    @precondition(lambda self: not self.is_ready())
    @rule(failures=st.integers(0, 2), refusals=st.integers(0, 1))
    def recover(self, failures: int, refusals: int) -> None:
        assert not self.has_work(), "somebody was not told that the sessions are lost"
        self.faults.clear()
        self.faults.fail_opening(failures)
        self.faults.refuse_allocations(refusals)
        for _ in range(failures + refusals + 1):
            self.now += self.engine.health().next_try_s or 0.0
            self.engine.run_step()
        assert self.is_ready()

    def is_ready(self) -> bool:
        return self.engine.health().state is HealthState.READY

    def has_work(self) -> bool:
        return any(not self.is_over(name) for name in self.events)

    def is_over(self, name: str) -> bool:
        return any(not isinstance(event, TokenEvent) for event in self.events[name])

    @invariant()
    def rows_and_queue_are_consistent(self) -> None:
        self.engine.check()

    @invariant()
    def nothing_follows_the_one_terminal_event(self) -> None:
        for events in self.events.values():
            assert all(isinstance(event, TokenEvent) for event in events[:-1])

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.has_work():
                break
            self.engine.run_step()
        for name, request in self.requests.items():
            self.check_answer(request, self.events[name])
        self.engine.check()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_tokens_used) == (0, 0, 0)
        assert stats.num_finished + stats.num_aborted + stats.num_failed == len(self.requests)
        self.engine.stop()
        assert self.echo.prefill_backend.num_open_sessions == 0

    def check_answer(self, request: Request, events: list) -> None:
        """What was told is a prefix of the right answer, whole where it finished."""
        wanted = [SEPARATOR_ID, *request.prompt_ids]
        end = events[-1]
        told = [event.token_id for event in events[:-1]]
        assert told == wanted[: len(told)]
        if isinstance(end, FailedEvent):
            is_late = isinstance(end.error, DeadlineError)
            assert not is_late or self.deadlines[request.request_id] <= self.now
            return
        if end.reason is FinishReason.STOP:
            assert told == wanted
        elif end.reason is FinishReason.LENGTH:
            assert len(told) == request.sampling.max_tokens
        else:
            assert request.request_id in self.to_abort


ROW_BYTES = 72 * 32  # of a context of 64


@pytest.mark.parametrize(
    ("facts", "options", "kv_budget_bytes"),
    [
        ({}, {}, 130 * 32),
        ({"position_ids": True, "attention_mask": True}, {}, 130 * 32),
        ({"dialects": ("standard",)}, {}, 130 * 32 + ROW_BYTES),
        (
            {"dialects": ("standard", "fused")},
            {"dialects": {Stroke.DECODE: "fused"}},
            2 * 130 * 32 + ROW_BYTES,
        ),
    ],
    ids=["in place", "in place, masked", "concatenating", "concatenating prefill"],
)
def test_every_life_ends_well(tmp_path, facts, options, kv_budget_bytes):
    from twostroke.testing import make_echo_bundle

    bundle = make_echo_bundle(tmp_path / "echo", context_tokens=64, **facts)
    facts = {"echo_folder": bundle, "options": options, "kv_budget_bytes": kv_budget_bytes}
    run_state_machine_as_test(
        type("Life", (EngineLife,), facts),
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
