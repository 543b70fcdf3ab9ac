"""What of a model is shown to Prometheus, under which name.

Names, units and labels are those that dashboards for vLLM know, with the prefix `twostroke_`;
what vLLM has no name for follows the same rules. `docs/metrics.md` is made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twostroke.life.metrics import Tally
from twostroke.server.metrics.family import Family, Labels, Shown
from twostroke.server.metrics.health_families import HEALTH
from twostroke.types import FinishReason, Stroke

_REASONS = {reason.value: reason.value for reason in FinishReason}
_REASONS |= {"aborted": "abort", "error": "error"}  # vLLM's words


def families() -> Iterable[Family]:
    """Every metric of a model, in the order of the page."""
    yield from HEALTH
    yield from _LOAD
    yield from _WORK
    yield from _STAGES
    yield from _PLACES


def _stat(name: str) -> Callable[[Shown], Mapping[Labels, Any]]:
    return lambda shown: {(): getattr(shown.stats, name)}


def _tally(name: str) -> Callable[[Shown], Mapping[Labels, Tally]]:
    return lambda shown: {(): getattr(shown.model.metrics, name)}


def _of_strokes(name: str) -> Callable[[Shown], Mapping[Labels, Tally]]:
    return lambda shown: {
        (stroke.value,): getattr(shown.model.metrics, name)[stroke] for stroke in Stroke
    }


def _kv_usage(shown: Shown) -> Mapping[Labels, float]:
    stats = shown.stats
    return {(): stats.kv_tokens_used / stats.kv_tokens_total}


def _ends(shown: Shown) -> Mapping[Labels, float]:
    ended = dict(shown.model.metrics.num_ended)
    return {(shown,): ended.get(reason, 0) for reason, shown in _REASONS.items()}


def _tokens(name: str) -> Callable[[Shown], Mapping[Labels, float]]:
    return lambda shown: {(): getattr(shown.model.metrics, name).sum}


def _aborted(shown: Shown) -> Mapping[Labels, float]:
    return {
        (stage,): getattr(shown.stats, f"num_aborted_{stage}")
        for stage in ("waiting", "prefill", "decode")
    }


def _nodes(shown: Shown) -> Mapping[Labels, float]:
    return {
        (stroke.value, provider): count
        for stroke, placement in shown.model.engine.placements.items()
        for provider, count in placement.nodes.items()
    }


def _memory(shown: Shown) -> Mapping[Labels, float]:
    report = shown.model.status()["memory"]
    kinds = ("weights", "workspace", "kv", "planned", "planned_now")
    return {(kind,): report[f"{kind}_bytes"] for kind in kinds}


_LOAD = (
    Family("num_requests_running", "gauge", "Sequences that hold a row.", _stat("num_running")),
    Family("num_requests_waiting", "gauge", "Sequences in the queue.", _stat("num_waiting")),
    Family("num_rows", "gauge", "Sequences that can run at once.", _stat("num_rows")),
    Family(
        "kv_cache_usage_perc",
        "gauge",
        "Used part of the KV cache's tokens; 1 is all of them.",
        _kv_usage,
    ),
    Family("kv_cache_tokens", "gauge", "Tokens that the KV cache holds.", _stat("kv_tokens_total")),
    Family(
        "kv_cache_kept_tokens",
        "gauge",
        "Tokens of ended sequences, kept for prompts that begin alike.",
        _stat("kv_tokens_kept"),
    ),
)
_WORK = (
    Family(
        "request_success_total",
        "counter",
        "Sequences that ended, by finish reason; abort is a client that went away.",
        _ends,
        ("finished_reason",),
    ),
    Family("prompt_tokens_total", "counter", "Tokens of prompts.", _tokens("prompt_tokens")),
    Family(
        "generation_tokens_total", "counter", "Tokens of answers.", _tokens("generation_tokens")
    ),
    Family(
        "prefix_cache_queries_total",
        "counter",
        "Prompt tokens that were looked for in the KV cache.",
        _stat("num_prompt_tokens"),
    ),
    Family(
        "prefix_cache_hits_total",
        "counter",
        "Prompt tokens that were found there and not computed.",
        _stat("num_cached_tokens"),
    ),
    Family(
        "prefix_copied_tokens_total",
        "counter",
        "Tokens copied from row to row for it.",
        _stat("num_copied_tokens"),
    ),
    Family(
        "spec_decode_num_draft_tokens_total",
        "counter",
        "Tokens that were guessed and verified.",
        _stat("num_drafted_tokens"),
    ),
    Family(
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "Of these, those that were right.",
        _stat("num_accepted_tokens"),
    ),
    Family(
        "request_aborted_total",
        "counter",
        "Sequences whose client went away, by the stage they were in.",
        _aborted,
        ("stage",),
    ),
    Family(
        "request_expired_total",
        "counter",
        "Sequences that their deadline ended.",
        _stat("num_expired"),
    ),
    Family(
        "interrupted_chunks_total",
        "counter",
        "Prompt chunks that were stopped because their client went away.",
        _stat("num_interrupted_chunks"),
    ),
    Family(
        "kv_given_back_tokens_total",
        "counter",
        "Tokens of the KV cache whose memory was returned to the system.",
        _stat("num_given_back_tokens"),
    ),
    Family(
        "kv_handed_over_bytes_total",
        "counter",
        "Bytes of the KV cache that were copied between prefill's and decode's.",
        lambda shown: {(): shown.model.metrics.handed_over_bytes},
    ),
    Family("engine_steps_total", "counter", "Steps of the engine.", _stat("num_steps")),
    Family(
        "stroke_duration_seconds",
        "histogram",
        "Time of one run of a graph; its sum is the time a stroke took.",
        _of_strokes("run_seconds"),
        ("stroke",),
    ),
    Family(
        "stroke_tokens",
        "histogram",
        "Tokens that one run of a graph computed.",
        _of_strokes("run_tokens"),
        ("stroke",),
    ),
    Family("decode_batch_size", "histogram", "Rows of a decode run.", _tally("batch_rows")),
    Family("request_prompt_tokens", "histogram", "Tokens of a prompt.", _tally("prompt_tokens")),
    Family(
        "request_generation_tokens",
        "histogram",
        "Tokens of an answer.",
        _tally("generation_tokens"),
    ),
)
_STAGES = tuple(
    Family(f"{name}_seconds", "histogram", text, _tally(attribute))
    for name, text, attribute in (
        ("time_to_first_token", "From the request's arrival to its first token.", "ttft"),
        ("inter_token_latency", "Between two tokens of an answer.", "inter_token"),
        (
            "request_time_per_output_token",
            "Mean time between the tokens of an answer.",
            "per_output_token",
        ),
        ("e2e_request_latency", "From the request's arrival to its last token.", "latency"),
        ("request_tokenise_time", "Tokenising the prompt.", "tokenise"),
        ("request_queue_time", "Waiting for a row and for the first run.", "queue"),
        ("request_prefill_time", "From the first run to the whole prompt read.", "prefill"),
        ("request_decode_time", "From the first token to the last.", "decode"),
        (
            "request_hand_over_time",
            "Copies of its KV cache between prefill and decode.",
            "hand_over",
        ),
    )
)
_PLACES = (
    Family(
        "placement_nodes",
        "gauge",
        "Nodes of a stroke's graph on each execution provider.",
        _nodes,
        ("stroke", "provider"),
    ),
    Family(
        "memory_bytes",
        "gauge",
        "The model's memory plan: weights, workspace, full KV cache, all, and what is due now.",
        _memory,
        ("kind",),
    ),
)
