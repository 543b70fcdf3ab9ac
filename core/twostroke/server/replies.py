"""JSON answers: what is asked for, and errors in the shape of the surface that was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from twostroke.errors import RateLimitError, TwostrokeError, UnavailableError
from twostroke.server.surface import ErrorBody, error_body
from twostroke.server.turn import Turn
from twostroke.types import Timings

REQUEST_ID_HEADER = "X-Request-Id"


def dump(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_reply(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A whole JSON answer."""
    return web.Response(
        body=dump(value), status=status, headers=headers, content_type="application/json"
    )


def error_reply(error: TwostrokeError, shape: ErrorBody = error_body) -> web.Response:
    """The answer to a request that was refused or failed."""
    headers = {}
    if isinstance(error, UnavailableError | RateLimitError):
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_reply(shape(error), status=error.status, headers=headers)


def timings_body(timings: Timings) -> dict[str, Any]:
    """The stages that were reached, and what they took; docs/timeline.md has the names."""
    return timings.report()


def usage_body(turn: Turn) -> dict[str, Any]:
    """OpenAI's token counts: of all choices, and of each prompt once."""
    prompt, completion = turn.num_prompt_tokens, turn.num_completion_tokens
    details = {"reasoning_tokens": turn.num_reasoning_tokens}
    if (predicted := turn.prediction_counts) is not None:
        details["accepted_prediction_tokens"], details["rejected_prediction_tokens"] = predicted
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": turn.num_cached_tokens},
        "completion_tokens_details": details,
    }
