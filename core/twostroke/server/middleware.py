"""What happens to every request: an id, the guards, one log line, and errors as JSON.

No prompt and no answer is ever logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from twostroke.errors import EngineError, RequestError, TwostrokeError, UnavailableError
from twostroke.server.access import Guard
from twostroke.server.in_flight import InFlight
from twostroke.server.keys import (
    ADMISSION,
    ARRIVED_AT,
    CALLER,
    CORS,
    METRICS_PATH,
    PROBE_PATHS,
    REQUEST_ID,
    TURN,
)
from twostroke.server.metrics.http_counts import HttpCounts
from twostroke.server.model_for import leases
from twostroke.server.replies import REQUEST_ID_HEADER, error_reply
from twostroke.server.routing import Routing
from twostroke.server.surface import ErrorBody, error_body
from twostroke.server.traces import Traces
from twostroke.server.turn import Turn, new_id
from twostroke.types import Timings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger("twostroke.server")


def make_middleware(
    guard: Guard,
    routing: Routing,
    in_flight: InFlight,
    counts: HttpCounts,
    traces: Traces | None = None,
) -> Middleware:
    """The one middleware of an application."""

    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (reply := guard.cors.preflight(request)) is not None:
            return reply
        if request.path in PROBE_PATHS:
            return await handler(request)
        route = routing.route_of(request)
        request[CALLER] = guard.check(request, is_open=route is not None and route.is_open)
        if request.path == METRICS_PATH:  # read to the last, while the server is stopping
            return await handler(request)
        with in_flight.admit(), leases(request):
            try:
                return await handler(request)
            finally:
                if ADMISSION in request:
                    turn = request.get(TURN)
                    request[ADMISSION].leave(turn.num_made_tokens if turn else 0)

    def note(request: web.Request, status: int | None) -> None:
        counts.add(request, status)
        if traces is not None and request.path not in (*PROBE_PATHS, METRICS_PATH):
            traces.record(request, status)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = new_id()
        request[ARRIVED_AT] = time.monotonic()
        request[CORS] = guard.cors
        try:
            response = await _with_json_errors(
                request, routing.error_body_of(request), lambda: guarded(request, handler)
            )
        except (asyncio.CancelledError, ConnectionError) as error:
            note(request, None)
            _log(request, f"broken off ({str(error) or 'the client went away'})")
            raise
        if in_flight.is_stopping:
            response.force_close()
        note(request, response.status)
        _log(request, str(response.status))
        return response

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds what every answer carries, streams included; a signal of aiohttp's."""
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
        if "anthropic-version" in request.headers:  # clients that read it by another name
            response.headers["Request-Id"] = request[REQUEST_ID]
    caller = request.get(CALLER)
    if caller is not None and caller.allowance is not None:
        response.headers.update(caller.allowance.headers())
    if CORS in request:
        request[CORS].add_headers(request, response)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Server"] = "twostroke"


async def _with_json_errors(
    request: web.Request, shape: ErrorBody, answer: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await answer()
    except TwostrokeError as error:
        if error.status >= 500 and not isinstance(error, UnavailableError | RequestError):
            logger.warning("%s: %s", request[REQUEST_ID], error)
        return error_reply(error, shape)
    except web.HTTPException as error:
        return http_error_reply(request, error, shape)
    except ConnectionError:
        raise
    except Exception:
        logger.exception("%s: unhandled error", request[REQUEST_ID])
        return error_reply(
            EngineError(
                f"Internal error. The server's log has it under the request id "
                f"{request[REQUEST_ID]}."
            ),
            shape,
        )


def http_error_reply(
    request: web.BaseRequest, error: web.HTTPException, shape: ErrorBody = error_body
) -> web.Response:
    """aiohttp's own refusals as the error object: unknown routes and methods, mostly."""
    allow = error.headers.get("Allow")
    messages = {
        404: f"There is no {request.path[:80]!r} here; /docs has all routes, e.g. "
        "/v1/chat/completions, /v1/models and /generate.",
        405: f"{request.method} is not a method of {request.path[:80]!r}; use {allow}.",
        417: "This Expect header is not understood; only 100-continue is. Leave it out.",
    }
    phrase = HTTPStatus(error.status).phrase
    reply = error_reply(
        RequestError(
            messages.get(error.status, f"{phrase}."),
            status=error.status,
            code=phrase.lower().replace(" ", "_"),
        ),
        shape,
    )
    if allow:
        reply.headers["Allow"] = allow
    return reply


def _log(request: web.Request, outcome: str) -> None:
    if request.path in (*PROBE_PATHS, METRICS_PATH):
        return
    total_ms = (time.monotonic() - request[ARRIVED_AT]) * 1e3
    turn: Turn | None = request.get(TURN)
    logger.info(
        "%s %s %s %s total_ms=%.1f%s%s",
        request[REQUEST_ID],
        request.method,
        request.rel_url.raw_path[:80],
        outcome,
        total_ms,
        f" key={request[CALLER].name}" if CALLER in request and request[CALLER].name else "",
        _turn_facts(turn) if turn else "",
    )


def _turn_facts(turn: Turn) -> str:
    facts = f" model={turn.model.name} prompt_tokens={turn.num_prompt_tokens}"
    if len(turn.choices) > 1:
        facts += f" choices={len(turn.choices)}"
    ends = turn.ends
    if not ends:
        return facts
    return (
        f"{facts} completion_tokens={turn.num_completion_tokens} "
        f"finish={','.join(end.reason for end in ends)}{_timing_facts(turn.timings)}"
    )


def _timing_facts(timings: Timings) -> str:
    """The stages and what they reached, by the names of docs/timeline.md."""
    # The line begins with a total of its own, which ends when the last byte was written.
    stages = {name: ms for name, ms in timings.stages_ms().items() if name != "total_ms"}
    shown = [f"{name}={ms:.1f}" for name, ms in stages.items()]
    if timings.prefill is not None:
        shown.append(f"cached_tokens={timings.prefill.num_cached_tokens}")
    if timings.decode_tokens_per_s is not None:
        shown.append(f"decode_tokens_per_s={timings.decode_tokens_per_s:.1f}")
    if timings.decode is not None:
        shown.append(f"batch_size_mean={timings.decode.batch_size_mean:.1f}")
    roofline = timings.roofline
    if roofline and roofline.prefill and roofline.prefill.fraction_of_peak is not None:
        shown.append(f"prefill_fraction_of_peak={roofline.prefill.fraction_of_peak:.3f}")
    if roofline and roofline.decode and roofline.decode.fraction_of_bandwidth is not None:
        of_bandwidth = roofline.decode.fraction_of_bandwidth
        shown.append(f"decode_fraction_of_bandwidth={of_bandwidth:.3f}")
    return "".join(f" {fact}" for fact in shown)
