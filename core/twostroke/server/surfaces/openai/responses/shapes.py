"""The response object, and its token counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from twostroke.errors import TwostrokeError
from twostroke.server.replies import timings_body
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.server.surfaces.openai.responses.tools import shown_tools
from twostroke.server.turn import Turn


def response_id(turn: Turn) -> str:
    """The id of the response that a turn becomes."""
    return f"resp_{turn.request_id}"


def response_body(
    turn: Turn,
    body: ResponsesBody,
    status: str,
    output: Sequence[dict[str, Any]] = (),
    *,
    is_stored: bool = False,
) -> dict[str, Any]:
    """The response as it stands; `status` is in_progress, completed, incomplete or failed."""
    sampling = turn.choices[0].request.sampling
    has_ended = status in ("completed", "incomplete")
    text, reasoning = body.text, body.reasoning
    return {
        "id": response_id(turn),
        "object": "response",
        "created_at": turn.created_at,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": turn.model.name,
        "output": list(output),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": is_stored,
        "temperature": sampling.temperature,
        "text": {
            "format": (text and text.format) or {"type": "text"},
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": shown_tools(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": response_usage(turn) if has_ended else None,
        "user": body.user,
        **({"timings": timings_body(turn.timings)} if has_ended else {}),
    }


def response_usage(turn: Turn) -> dict[str, Any]:
    """Token counts by the names that responses have for them."""
    num_input, num_output = turn.num_prompt_tokens, turn.num_completion_tokens
    return {
        "input_tokens": num_input,
        # Writing to the cache is nothing that is counted here, but clients expect the field.
        "input_tokens_details": {"cached_tokens": turn.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": turn.num_reasoning_tokens},
        "total_tokens": num_input + num_output,
    }


def failure(error: TwostrokeError) -> dict[str, Any]:
    """The `error` of a response that failed; its codes are OpenAI's, which has one for all."""
    return {"code": "server_error", "message": str(error)}
