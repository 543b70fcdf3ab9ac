"""OpenTelemetry spans of the cycle: a request and, below it, its stages.

The spans are made when a request has ended, out of moments that are taken anyway, so that nothing
of it is in the way of a token. Attributes follow OpenTelemetry's semantic conventions for HTTP and
for generative AI. Prompts and answers never appear.

Where spans go is OpenTelemetry's own affair: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME` and
its other environment variables are read by its packages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from twostroke.errors import InstallError
from twostroke.server.keys import ARRIVED_AT, REQUEST_ID, TURN
from twostroke.server.turn import Turn
from twostroke.timings import Timings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_SERVICE = "twostroke"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a turn, by `time.monotonic`; of several choices, `choice` says whose it is."""

    name: str
    began: float
    ended: float
    choice: int | None = None


class Traces:
    """Owns the OpenTelemetry provider of one endpoint."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        """`exporter` None sends spans by OTLP over HTTP.

        Raises:
            InstallError: the packages of the extra `otel` are missing.
        """
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ImportError as error:
            raise InstallError(
                f"server.traces is on and {error.name} is not installed. Install the extra: "
                'pip install "twostroke[otel]", or set server.traces to false.'
            ) from None
        resource = Resource.create({} if _is_named() else {"service.name": _SERVICE})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_SERVICE)

    def record(self, request: web.Request, status: int | None) -> None:
        """Makes the spans of a request that has ended; `status` None is one that was cut off.

        A `traceparent` header makes them part of the caller's trace.
        """
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        to_ns = _wall_clock()
        parent = extract({name.lower(): value for name, value in request.headers.items()})
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        turn: Turn | None = request.get(TURN)
        span = self._tracer.start_span(
            f"{request.method} {route}",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=to_ns(request[ARRIVED_AT]),
            attributes=_attributes(request, route, status, turn),
        )
        if status is None or status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(span, parent)
        for stage in stages(turn) if turn is not None else ():
            facts = {} if stage.choice is None else {"twostroke.choice": stage.choice}
            below = self._tracer.start_span(
                stage.name, context=context, start_time=to_ns(stage.began), attributes=facts
            )
            below.end(to_ns(stage.ended))
        span.end()

    def close(self) -> None:
        """Sends what waits to be sent. Blocks for up to the exporter's time-out."""
        self._provider.shutdown()


def stages(turn: Turn) -> Iterator[Stage]:
    """The stages a turn went through, and each of its choices that ended well."""
    began = turn.arrived_at
    prepared = turn.prepared
    for name, stage_ms in (
        ("template", prepared.template_ms),
        ("tokenise", prepared.tokenise_ms),
        ("constraint", prepared.constraint_ms),
    ):
        if stage_ms is not None:
            yield Stage(name, began, began + stage_ms / 1e3)
            began += stage_ms / 1e3
    for index, choice in enumerate(turn.choices):
        if choice.finished is not None:
            which = index if len(turn.choices) > 1 else None
            yield from _stages_of(choice.finished.timings, turn.arrived_at, which)


def _stages_of(timings: Timings, arrived_at: float, choice: int | None) -> Iterator[Stage]:
    if timings.ttft_ms is None or timings.prefill_ms is None:
        return
    first_token_at = arrived_at + timings.ttft_ms / 1e3
    prefill_at = first_token_at - timings.prefill_ms / 1e3
    if timings.queued_ms is not None:
        yield Stage("queue", prefill_at - timings.queued_ms / 1e3, prefill_at, choice)
    yield Stage("prefill", prefill_at, first_token_at, choice)
    if timings.decode_ms is not None:
        yield Stage("decode", first_token_at, first_token_at + timings.decode_ms / 1e3, choice)


def _is_named() -> bool:
    """Whether the environment names the service."""
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in given


def _wall_clock() -> Callable[[float], int]:
    """From seconds of `time.monotonic` to nanoseconds since the epoch, as of now."""
    offset_ns = time.time_ns() - int(time.monotonic() * 1e9)
    return lambda moment: int(moment * 1e9) + offset_ns


def _attributes(
    request: web.Request, route: str, status: int | None, turn: Turn | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "http.request.method": request.method,
        "http.route": route,
        "twostroke.request_id": request[REQUEST_ID],
    }
    if status is not None:
        facts["http.response.status_code"] = status
    if turn is None:
        return facts
    facts["gen_ai.request.model"] = turn.model.name
    facts["gen_ai.usage.input_tokens"] = turn.num_prompt_tokens
    if len(turn.choices) > 1:
        facts["gen_ai.request.choice.count"] = len(turn.choices)
    if turn.ends:
        facts["gen_ai.usage.output_tokens"] = turn.num_completion_tokens
        facts["gen_ai.response.finish_reasons"] = [end.reason.value for end in turn.ends]
    return facts
