"""What a model says of itself: where it runs, what it holds, how busy it is."""

from __future__ import annotations

import dataclasses
from typing import Any

from twostroke.bundle import Bundle
from twostroke.model.opening import OpenEngine
from twostroke.types import Stroke

_TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".md", ".model")


def placement_report(opened: OpenEngine) -> dict[str, Any]:
    """For each stroke: graph, backend, device, and where its nodes run. Ready for JSON."""
    report = {}
    for stroke in Stroke:
        choice, placement = opened.opened[stroke], opened.engine.placements[stroke]
        report[stroke.value] = {
            "requested": choice.requested,
            "backend": choice.backend.name,
            "device": choice.backend.device.name,
            "dialect": opened.graphs[stroke].dialect,
            "precision": opened.graphs[stroke].quantisation.precision,
            "nodes": dict(placement.nodes),
            "strays": dict(placement.strays),
            "summary": placement.sentence(),
        }
    return report


def fallback_sentence(opened: OpenEngine) -> str | None:
    """Why something else runs than what was asked for; None where nothing had to take over."""
    reasons = [choice.reason_for_fallback for choice in opened.opened.values()]
    said = dict.fromkeys(reason for reason in reasons if reason)
    return " ".join(said) or None


def memory_report(bundle: Bundle, opened: OpenEngine) -> dict[str, int]:
    """Bytes of the weights on disk, and of the KV cache when it is full. Ready for JSON."""
    plan = opened.engine.memory_plan
    weights_bytes = sum(
        fact.num_bytes
        for name, fact in bundle.manifest.files.items()
        if not name.endswith(_TEXT_SUFFIXES)
    )
    return {
        "weights_bytes": weights_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_budget_bytes": plan.budget_bytes,
    }


def load_report(opened: OpenEngine) -> dict[str, int]:
    """The engine's counters. Ready for JSON."""
    return dataclasses.asdict(opened.engine.stats())
