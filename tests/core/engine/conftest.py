"""Engines on the echo backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from twostroke.engine import EngineLimits
from twostroke.testing.engines import EchoEngine
from twostroke.types import Event, FinishedEvent, TokenEvent

MakeEngine = Callable[..., EchoEngine]


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def token_ids(self) -> list[int]:
        return [event.token_id for event in self.events if isinstance(event, TokenEvent)]

    @property
    def ends(self) -> list[Event]:
        return [event for event in self.events if not isinstance(event, TokenEvent)]

    @property
    def reason(self) -> str:
        (end,) = self.ends
        assert isinstance(end, FinishedEvent)
        assert self.events[-1] is end
        return end.reason.value


@pytest.fixture
def recorder() -> Callable[[], Recorder]:
    return Recorder


@pytest.fixture
def make_engine(echo_bundle: Path) -> Iterator[MakeEngine]:
    """Builds engines that are stopped when the test ends; `started=False` leaves steps to it."""
    with ExitStack() as stack:

        def make(
            bundle: Path = echo_bundle,
            *,
            started: bool = True,
            limits: EngineLimits | None = None,
            **options: object,
        ) -> EchoEngine:
            limits = limits or EngineLimits(prefill_chunk_tokens=16, kv_budget_bytes=2**20)
            echo = stack.enter_context(EchoEngine(bundle, limits, **options))
            if started:
                echo.engine.start()
            return echo

        yield make
