"""An engine on the echo backend, for tests of whatever stands above the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twostroke.bundle import open_bundle
from twostroke.engine import Engine, EngineLimits, SyncEvents, build_engine
from twostroke.engine.engine_plan import Dialects
from twostroke.engine.intake import IDLE_AFTER_S
from twostroke.engine.rebuild import Backends
from twostroke.life.timeline import Clock
from twostroke.testing.bundles import byte_tokenizer
from twostroke.testing.echo import EchoBackend, parse_options, probe
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import Mending, faulty_pair
from twostroke.types import FailedEvent, FinishedEvent, Request, SamplingParams, TokenEvent, TokenId


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: the ids of its TokenEvents, and how it ended."""

    token_ids: tuple[TokenId, ...]
    end: FinishedEvent

    @property
    def text(self) -> str:
        """The answer in the echo bundle's own vocabulary."""
        return str(byte_tokenizer().decode(list(self.token_ids)))


class EchoEngine:
    """An engine and the echo backends under it; a context manager that stops it.

    With `decode_options` the two strokes run on two backends, else on one; `dialects` is what
    `build_engine` takes. With `faults` the backends fail as those say; they are mended when the
    engine opens them again. The engine is not started: call `engine.start()`, or
    `engine.run_step()` to decide when a step happens.
    """

    def __init__(
        self,
        bundle: Path,
        limits: EngineLimits | None = None,
        *,
        decode_options: dict[str, Any] | None = None,
        dialects: Dialects | None = None,
        idle_after_s: float = IDLE_AFTER_S,
        clock: Clock = time.monotonic,
        faults: Faults | None = None,
        **options: Any,
    ) -> None:
        device = probe().devices[0]
        self.prefill_backend = EchoBackend(device, parse_options(options))
        self.decode_backend = self.prefill_backend
        if decode_options is not None:
            self.decode_backend = EchoBackend(device, parse_options(decode_options))
        backends: Backends = self.prefill_backend, self.decode_backend
        if faults is not None:
            backends = faulty_pair(*backends, faults)
        self.engine: Engine = build_engine(
            open_bundle(bundle),
            *backends,
            limits or EngineLimits(),
            dialects=dialects,
            idle_after_s=idle_after_s,
            clock=clock,
            reopen_backends=None if faults is None else Mending(backends, faults),
        )

    def answer(self, request_id: str, text: str, sampling: SamplingParams) -> Answer:
        """Serves one prompt to its end; the engine must be started.

        Raises:
            TwostrokeError: what the request was refused with, or what it failed with.
        """
        return collect(SyncEvents(self.engine, [echo_request(request_id, text, sampling)]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.stop()


def echo_request(request_id: str, text: str, sampling: SamplingParams | None = None) -> Request:
    """A request in the echo bundle's vocabulary, greedy unless `sampling` says otherwise."""
    ids = tuple(byte_tokenizer().encode(text).ids)
    return Request(request_id, ids, sampling or SamplingParams(temperature=0.0))


def collect(events: SyncEvents) -> Answer:
    """Reads the events of one request to their end.

    Raises:
        TwostrokeError: the error of a FailedEvent.
    """
    token_ids: list[TokenId] = []
    for _, event in events:
        if isinstance(event, TokenEvent):
            assert event.index == len(token_ids)
            token_ids.append(event.token_id)
        elif isinstance(event, FinishedEvent):
            return Answer(tuple(token_ids), event)
        elif isinstance(event, FailedEvent):
            raise event.error
    raise AssertionError("the events ended without a terminal one")
