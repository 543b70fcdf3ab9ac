"""What a model says of itself: where it runs, what it holds, how busy it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from twostroke.backends.capabilities import Reports
from twostroke.backends.ort.threads import HasThreads
from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.life.bundle_weights import stored_weights_bytes
from twostroke.model.opening import OpenEngine
from twostroke.types import Stroke


def placement_report(opened: OpenEngine) -> dict[str, Any]:
    """For each stroke: graph, backend, device, and where its nodes run. Ready for JSON."""
    report = {}
    for stroke in Stroke:
        choice, placement = opened.opened[stroke], opened.engine.placements[stroke]
        report[stroke.value] = {
            "requested": choice.requested,
            "backend": choice.backend.name,
            "device": choice.backend.device.name,
            "device_memory_bytes": choice.backend.device.memory_bytes,
            "threads": _threads(choice.backend),
            "details": _details(choice.backend),
            "dialect": opened.graphs[stroke].dialect,
            "precision": opened.graphs[stroke].quantisation.precision,
            "nodes": dict(placement.nodes),
            "strays": dict(placement.strays),
            "brought": dict(placement.brought),
            "summary": placement.sentence(),
        }
    return report


def _threads(backend: Backend) -> dict[str, Any] | None:
    """How many threads its operators have, and whose; None where the backend does not say."""
    return dataclasses.asdict(backend.threads) if isinstance(backend, HasThreads) else None


def _details(backend: Backend) -> dict[str, Any]:
    """What a backend has to say beside: whether it records its runs, what its sessions share."""
    return dict(backend.report()) if isinstance(backend, Reports) else {}


def placement_lines(opened: OpenEngine) -> Iterator[str]:
    """The same in words: a line for each stroke, one for the cache, and why where it is told."""
    for stroke, place in placement_report(opened).items():
        yield (
            f"{stroke} {place['precision']} ({place['dialect']}) on {place['backend']}, "
            f"{place['device']}: {place['summary']}"
        )
    yield f"KV cache from prefill to decode: {opened.engine.hand_over_way}"
    if opened.note is not None:
        yield opened.note


def fallback_sentence(opened: OpenEngine) -> str | None:
    """Why something else runs than what was asked for; None where nothing had to take over."""
    reasons = [choice.reason_for_fallback for choice in opened.opened.values()]
    said = dict.fromkeys(reason for reason in reasons if reason)
    return " ".join(said) or None


def memory_report(bundle: Bundle, opened: OpenEngine) -> dict[str, int]:
    """The memory plan in bytes; `planned_now_bytes` is what it expects right now, `kv_now_bytes`
    the part of the cache that was written to, `kv_spare_bytes` what of it is the row more that
    graphs need which answer a new cache. Ready for JSON.

    weights_bytes: in memory, of which `prefill_weights_bytes` and `decode_weights_bytes` are what
    each session adds; weights_file_bytes: on disk; kv_bytes: of a full cache.
    """
    plan = opened.engine.memory_plan
    stats = opened.engine.stats()
    held = stats.kv_tokens_touched, stats.kv_tokens_spare
    return {
        "weights_bytes": plan.needs.weights_bytes,
        "prefill_weights_bytes": plan.needs.prefill_weights_bytes,
        "decode_weights_bytes": plan.needs.decode_weights_bytes,
        "weights_file_bytes": stored_weights_bytes(bundle),
        "workspace_bytes": plan.needs.workspace_bytes,
        "scoring_bytes": plan.needs.scoring_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_now_bytes": plan.kv_bytes_now(*held),
        "kv_spare_bytes": plan.kv_bytes_now(0, stats.kv_tokens_spare),
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_budget_bytes": plan.budget_bytes,
        "planned_bytes": plan.total_bytes,
        "planned_now_bytes": plan.bytes_now(*held, stats.kv_tokens_longest),
    }


def health_report(opened: OpenEngine) -> dict[str, Any]:
    """The state and what has failed so far; in an outage also why, for how long, and what comes.

    Ready for JSON. `state`: ready, unhealthy (waits for its next try), rebuilding or failed.
    """
    health = opened.engine.health()
    report: dict[str, Any] = {"state": health.state.value}
    if health.since_s is not None:
        report |= {
            "reason": health.reason,
            "since_s": round(health.since_s, 1),
            "next_try_s": None if health.next_try_s is None else round(health.next_try_s, 1),
            "num_tries": health.num_tries,
        }
    return report | {
        "num_rebuilds": health.num_rebuilds,
        "num_hung_threads": health.num_hung_threads,
        "failures": dict(health.failures),
    }


def load_report(opened: OpenEngine) -> dict[str, int]:
    """The engine's counters. Ready for JSON."""
    return dataclasses.asdict(opened.engine.stats())
