"""What operators and orchestrators ask of an endpoint: is it well, what has it done."""

from __future__ import annotations

from twostroke.server.health import health
from twostroke.server.keys import HEALTH_PATH, METRICS_PATH
from twostroke.server.metrics import MetricsPage
from twostroke.server.surface import Route, Surface


def operations(metrics: MetricsPage) -> Surface:
    """The surface of one endpoint, whose counts are on the page `metrics`."""
    return Surface(
        name="operations",
        api_version=1,
        summary="for operators and orchestrators",
        routes=(
            Route("GET", HEALTH_PATH, health, "Whether every model is ready.", is_open=True),
            Route("GET", METRICS_PATH, metrics.answer, "Counts, for Prometheus."),
        ),
    )
