"""Answers, timings, log-probabilities and errors by llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from twostroke.errors import ContextLengthError, TwostrokeError
from twostroke.server.turn import Turn
from twostroke.text import Tokenizer
from twostroke.types import (
    FinishedEvent,
    FinishReason,
    SamplingParams,
    Timings,
    TokenId,
    TokenLogprob,
)

_LOWEST = -9999.0  # JSON has no infinity
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class LlamaCompletion(BaseModel):
    """One whole answer, or the last event of a stream; `response_fields` leaves fields out."""

    index: int = 0
    content: str = ""
    tokens: list[int] = []
    stop: bool = True
    model: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    tokens_cached: int = 0
    prompt: str = ""
    has_new_line: bool = False
    truncated: Literal[False] = False
    stop_type: Literal["eos", "limit", "word"] = "eos"
    stopping_word: str = ""
    generation_settings: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    completion_probabilities: list[dict[str, Any]] = []


def error_body(error: TwostrokeError) -> dict[str, Any]:
    """llama.cpp's error object."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, kind)
    if isinstance(error, ContextLengthError):
        kind = "exceed_context_size_error"
    return {"error": {"code": error.status, "message": str(error), "type": kind}}


def ending(turn: Turn, index: int, finished: FinishedEvent, prompt: str) -> dict[str, Any]:
    """All that the end of an answer tells but its text."""
    request = turn.choices[index].request
    return {
        "index": index,
        "id_slot": index,
        "stop": True,
        "model": turn.model.name,
        "tokens_predicted": finished.num_completion_tokens,
        "tokens_evaluated": finished.num_prompt_tokens,
        "tokens_cached": finished.num_cached_tokens,
        "generation_settings": settings(request.sampling, turn.model.context_tokens),
        "prompt": prompt,
        "truncated": False,
        "stop_type": _stop_type(finished),
        "stopping_word": finished.stop_string or "",
        "timings": timings(finished),
    }


def _stop_type(finished: FinishedEvent) -> str:
    if finished.reason is FinishReason.LENGTH:
        return "limit"
    return "eos" if finished.stop_string is None else "word"


def settings(sampling: SamplingParams, context_tokens: int) -> dict[str, Any]:
    """How tokens were chosen."""
    num_tokens = -1 if sampling.max_tokens is None else sampling.max_tokens
    return {
        "n_ctx": context_tokens,
        "n_predict": num_tokens,
        "max_tokens": num_tokens,
        "seed": 2**32 - 1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": 1.0,
        "repeat_last_n": -1,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "mirostat": 0,
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": [
            {"token": token, "bias": bias} for token, bias in sampling.logit_bias.items()
        ],
        "n_probs": sampling.logprobs or 0,
        "grammar": "",
    }


def timings(finished: FinishedEvent) -> dict[str, Any]:
    """What prompt and answer took, in milliseconds and tokens a second."""
    known: Timings = finished.timings
    read = finished.num_prompt_tokens - finished.num_cached_tokens
    return {
        "cache_n": finished.num_cached_tokens,
        **_pace("prompt", read, known.prefill_ms or 0.0),
        **_pace("predicted", finished.num_completion_tokens, known.decode_ms or 0.0),
        **_drafts(known),
    }


def timings_so_far(num_prompt: int, num_answered: int, decode_ms: float) -> dict[str, Any]:
    """The same in the middle of an answer, of whose prompt only the length is told."""
    return {"prompt_n": num_prompt, **_pace("predicted", num_answered, decode_ms)}


def _pace(what: str, num_tokens: int, took_ms: float) -> dict[str, Any]:
    return {
        f"{what}_n": num_tokens,
        f"{what}_ms": took_ms,
        f"{what}_per_token_ms": took_ms / num_tokens if num_tokens else None,
        f"{what}_per_second": num_tokens * 1e3 / took_ms if took_ms else None,
    }


def _drafts(known: Timings) -> dict[str, int]:
    if known.decode is None or not known.decode.num_drafted_tokens:
        return {}
    return {
        "draft_n": known.decode.num_drafted_tokens,
        "draft_n_accepted": known.decode.num_accepted_tokens,
    }


def probabilities(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """`completion_probabilities`: one entry a token."""
    return [
        {
            **_token(tokenizer, each.token_id, each.logprob),
            "top_logprobs": [_token(tokenizer, *alternative) for alternative in each.top],
        }
        for each in found
    ]


def _token(tokenizer: Tokenizer, token_id: TokenId, logprob: float) -> dict[str, Any]:
    spelt = tokenizer.spelling(token_id)
    text = spelt.decode("utf-8", "replace")
    return {"id": token_id, "token": text, "bytes": list(spelt), "logprob": max(logprob, _LOWEST)}


def only(fields: Sequence[str] | None, body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an answer that is asked for; a field that is not there is left out."""
    if fields is None:
        return dict(body)
    found: dict[str, Any] = {}
    for name in fields:
        value: Any = body
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name.rsplit("/", 1)[-1]] = value
    return found
