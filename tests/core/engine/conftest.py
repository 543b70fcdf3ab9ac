"""Engines on the echo backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from twostroke.engine import EngineLimits
from twostroke.testing import make_echo_bundle
from twostroke.testing.engines import EchoEngine
from twostroke.types import Event, FinishedEvent, Stroke, TokenEvent

MakeEngine = Callable[..., EchoEngine]

# How the strokes may be placed: options of an EchoEngine, by what they mean.
STANDARD = {Stroke.PREFILL: "standard", Stroke.DECODE: "standard"}
PLACEMENTS: dict[str, dict[str, object]] = {
    "one backend": {},
    "no row views": {"row_views": False},
    "two backends": {"decode_options": {}},
    "two backends, no row views in decode": {"decode_options": {"row_views": False}},
    "concatenating": {"dialects": STANDARD},
    "concatenating, no views": {"dialects": STANDARD, "row_views": False},
    "concatenating, two backends": {"dialects": STANDARD, "decode_options": {}},
    "concatenating prefill": {"dialects": {Stroke.PREFILL: "standard"}},
    "concatenating prefill, two backends": {
        "dialects": {Stroke.PREFILL: "standard"},
        "decode_options": {},
    },
    "concatenating decode": {"dialects": {Stroke.DECODE: "standard"}, "row_views": False},
}


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


@pytest.fixture(scope="session")
def both_dialects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An echo bundle with graphs of both dialects; shared, so not to be changed."""
    folder = tmp_path_factory.mktemp("bundles") / "both"
    return make_echo_bundle(folder, position_ids=True, dialects=("fused", "standard"))


@pytest.fixture(scope="session")
def recorder() -> Callable[[], Recorder]:
    return Recorder


@pytest.fixture
def make_engine(both_dialects: Path) -> Iterator[MakeEngine]:
    """Builds engines that are stopped when the test ends; `started=False` leaves steps to it."""
    with ExitStack() as stack:

        def make(
            bundle: Path = both_dialects,
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
