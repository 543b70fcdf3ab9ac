"""Puts the surfaces together as one aiohttp application."""

from __future__ import annotations

from aiohttp import web

from twostroke.config.schema import ServerConfig
from twostroke.server.access import Guard
from twostroke.server.health import health
from twostroke.server.in_flight import InFlight
from twostroke.server.keys import HEALTH_PATH, IN_FLIGHT, METRICS_PATH, MODELS
from twostroke.server.metrics import HTTP_COUNTS, HttpCounts, MetricsPage
from twostroke.server.middleware import add_headers, make_middleware
from twostroke.server.models import Models
from twostroke.server.surfaces.openai.chat import chat_completions
from twostroke.server.surfaces.openai.completions import completions
from twostroke.server.surfaces.openai.listing import list_models, show_model
from twostroke.server.surfaces.plain.generate import generate
from twostroke.server.traces import Traces


def build_app(
    models: Models, config: ServerConfig, traces: Traces | None = None
) -> web.Application:
    """The application; it serves each model of `models` from the moment that one is added.

    OpenAI's routes answer with and without `/v1`. Must be called in an event loop's thread.
    """
    in_flight, counts = InFlight(), HttpCounts()
    app = web.Application(
        middlewares=[make_middleware(Guard(config), in_flight, counts, traces)],
        client_max_size=config.max_body,
    )
    app[MODELS] = models
    app[IN_FLIGHT] = in_flight
    app[HTTP_COUNTS] = counts
    app.on_response_prepare.append(add_headers)
    app.router.add_get(HEALTH_PATH, health)
    app.router.add_get(METRICS_PATH, MetricsPage(models, in_flight, counts).answer)
    app.router.add_post("/generate", generate)
    for prefix in ("/v1", ""):
        app.router.add_post(f"{prefix}/chat/completions", chat_completions)
        app.router.add_post(f"{prefix}/completions", completions)
        app.router.add_get(f"{prefix}/models", list_models)
        app.router.add_get(f"{prefix}/models/{{id:.+}}", show_model)
    return app
