"""Metrics of what fails, and of what is done about it."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.engine.health import FAILURE_KINDS, HealthState
from twostroke.server.metrics.family import Family, Labels, Shown


def _failures(shown: Shown) -> Mapping[Labels, float]:
    counted = shown.health.failures
    return {(kind,): counted.get(kind, 0) for kind in FAILURE_KINDS}


HEALTH = (
    Family(
        "backend_healthy",
        "gauge",
        "1 where the model can answer; 0 while its sessions are made anew, or given up.",
        lambda shown: {(): shown.health.state is HealthState.READY},
    ),
    Family(
        "run_failures_total",
        "counter",
        "Runs that failed, hung or lost the device, and logits that were no numbers.",
        _failures,
        ("kind",),
    ),
    Family(
        "backend_rebuilds_total",
        "counter",
        "How often lost sessions were made anew.",
        lambda shown: {(): shown.health.num_rebuilds},
    ),
    Family(
        "hung_threads",
        "gauge",
        "Runs that were given up and never came back; each holds its memory.",
        lambda shown: {(): shown.health.num_hung_threads},
    ),
)
