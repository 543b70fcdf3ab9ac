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
from typing import TYPE_CHECKING, Any

from aiohttp import web

from twostroke.errors import InstallError
from twostroke.server.keys import ARRIVED_AT, REQUEST_ID, TURN
from twostroke.server.turn import Turn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_SERVICE = "twostroke"
Stage = tuple[str, float, float]


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
        for name, began, ended in stages(turn) if turn is not None else ():
            stage = self._tracer.start_span(name, context=context, start_time=to_ns(began))
            stage.end(to_ns(ended))
        span.end()

    def close(self) -> None:
        """Sends what waits to be sent. Blocks for up to the exporter's time-out."""
        self._provider.shutdown()


def stages(turn: Turn) -> Iterator[Stage]:
    """The stages a turn went through: name, begin and end, by `time.monotonic`."""
    arrived_at = turn.arrived_at
    began = arrived_at
    prepared = turn.prepared
    for name, stage_ms in (
        ("template", prepared.template_ms),
        ("tokenise", prepared.tokenise_ms),
        ("constraint", prepared.constraint_ms),
    ):
        if stage_ms is not None:
            yield name, began, began + stage_ms / 1e3
            began += stage_ms / 1e3
    timings = turn.finished.timings if turn.finished is not None else None
    if timings is None or timings.ttft_ms is None or timings.prefill_ms is None:
        return
    first_token_at = arrived_at + timings.ttft_ms / 1e3
    prefill_at = first_token_at - timings.prefill_ms / 1e3
    if timings.queued_ms is not None:
        yield "queue", prefill_at - timings.queued_ms / 1e3, prefill_at
    yield "prefill", prefill_at, first_token_at
    if timings.decode_ms is not None:
        yield "decode", first_token_at, first_token_at + timings.decode_ms / 1e3


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
    facts["gen_ai.usage.input_tokens"] = len(turn.request.prompt_ids)
    if turn.finished is not None:
        facts["gen_ai.usage.output_tokens"] = turn.finished.num_completion_tokens
        facts["gen_ai.response.finish_reasons"] = [turn.finished.reason.value]
    return facts
