"""Engines on the echo backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.errors import TwostrokeError
from twostroke.testing import make_echo_bundle
from twostroke.testing.echo import EchoBackend, EchoOptions, probe
from twostroke.testing.engines import EchoEngine, echo_request
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import FaultyBackend
from twostroke.types import Event, FailedEvent, FinishedEvent, SamplingParams, Stroke, TokenEvent

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
    def error(self) -> TwostrokeError:
        (end,) = self.ends
        assert isinstance(end, FailedEvent)
        assert self.events[-1] is end
        return end.error

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


class FaultyEngine:
    """An engine on the echo backend that fails as `faults` says, with a clock that tests set."""

    def __init__(self, bundle: Path, limits: EngineLimits) -> None:
        self.now = 100.0
        self.faults = Faults()
        self.backend: FaultyBackend | None = None
        first = self.reopen(is_hung=False)
        self.engine = build_engine(
            open_bundle(bundle),
            *first,
            limits,
            clock=lambda: self.now,
            reopen_backends=self.reopen,
        )

    def reopen(self, *, is_hung: bool) -> tuple[FaultyBackend, FaultyBackend]:
        if self.backend is not None and not is_hung:
            self.backend.close()
        self.faults.open_device()
        echo = EchoBackend(probe().devices[0], EchoOptions())
        self.backend = FaultyBackend(echo, self.faults)
        return self.backend, self.backend

    def submit(self, name: str, text: str, **sampling: object) -> Recorder:
        """Submits a greedy request; what it is told."""
        sink = Recorder()
        params = SamplingParams(temperature=0.0, **sampling)
        self.engine.submit(echo_request(name, text, params), sink, arrived_at=self.now)
        return sink

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.engine.run_step()

    def recover(self) -> None:
        """Lets time pass, so that the next step makes the next try."""
        pause_s = self.engine.health().next_try_s
        assert pause_s is not None
        self.now += pause_s
        self.step()

    def finish(self, *sinks: Recorder) -> None:
        """Steps until all have ended."""
        for _ in range(500):
            if all(sink.ends for sink in sinks):
                return
            self.step()
        raise AssertionError("not all have ended")


@pytest.fixture
def faulty(both_dialects: Path) -> Iterator[Callable[..., FaultyEngine]]:
    """Makes engines whose backend fails on order; nothing hangs longer than the test."""
    with ExitStack() as stack:

        def make(bundle: Path = both_dialects, **limits: object) -> FaultyEngine:
            limits = {"max_rows": 4, "prefill_chunk_tokens": 64, "kv_budget_bytes": 2**20, **limits}
            made = FaultyEngine(bundle, EngineLimits(**limits))
            stack.callback(made.engine.stop)
            stack.callback(made.faults.release)
            return made

        yield make


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Waits for another thread to bring something about."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            time.sleep(0.005)

    return wait
