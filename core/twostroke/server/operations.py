"""What operators, orchestrators and readers ask of an endpoint: is it well, what does it speak."""

from __future__ import annotations

from twostroke.server import admin
from twostroke.server.description import Description
from twostroke.server.docs_page import docs_file, docs_page
from twostroke.server.health import health, live
from twostroke.server.keys import HEALTH_PATH, LIVE_PATH, METRICS_PATH
from twostroke.server.metrics import MetricsPage
from twostroke.server.surface import Route, Surface

_TEXTS = ("text/plain", "application/openmetrics-text")
_HEALTH = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "loading", "unhealthy", "stopping"]},
        "num_requests_in_flight": {"type": "integer"},
        "memory": {"type": "object"},
        "config": {"type": "object"},
        "models": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["status", "num_requests_in_flight", "memory", "config", "models"],
}
_LIVE = {
    "type": "object",
    "properties": {"status": {"const": "alive"}},
    "required": ["status"],
}


def operations(metrics: MetricsPage, description: Description) -> Surface:
    """The surface of one endpoint, whose counts `metrics` has and which `description` describes."""
    return Surface(
        name="operations",
        api_version=1,
        summary="for operators, orchestrators and readers",
        routes=(
            Route(
                "GET",
                HEALTH_PATH,
                health,
                "Whether every model is ready.",
                reply=_HEALTH,
                is_open=True,
                reply_statuses=(200, 503),
            ),
            Route(
                "GET",
                LIVE_PATH,
                live,
                "Whether the process answers, for liveness probes.",
                reply=_LIVE,
                is_open=True,
            ),
            Route(
                "GET",
                METRICS_PATH,
                metrics.answer,
                "Counts, for Prometheus.",
                streams=_TEXTS,
            ),
            Route(
                "GET",
                "/openapi.json",
                description.answer,
                "This description.",
                reply={"type": "object"},
                is_open=True,
            ),
            Route(
                "GET",
                "/docs",
                docs_page,
                "The same as a page.",
                streams="text/html",
                is_open=True,
            ),
            Route(
                "GET",
                "/docs/{name:docs\\.(?:css|js)}",
                docs_file,
                "Files of that page.",
                streams=("text/css", "text/javascript"),
                is_open=True,
            ),
            *admin.ROUTES,
        ),
    )
