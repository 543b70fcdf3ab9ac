"""Puts the surfaces together as one aiohttp application."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from twostroke.api_keys import KnownKeys
from twostroke.config.schema import ServerConfig
from twostroke.server.access import Guard
from twostroke.server.all_surfaces import BUILT_IN
from twostroke.server.description import Description
from twostroke.server.in_flight import InFlight
from twostroke.server.keys import IN_FLIGHT, MODELS
from twostroke.server.metrics import HTTP_COUNTS, HttpCounts, MetricsPage
from twostroke.server.middleware import add_headers, make_middleware
from twostroke.server.models import Models
from twostroke.server.operations import operations
from twostroke.server.routing import Routing
from twostroke.server.surface import Surface
from twostroke.server.traces import Traces

GUARD = web.AppKey("guard", Guard)


def build_app(
    models: Models,
    config: ServerConfig,
    traces: Traces | None = None,
    surfaces: Sequence[Surface] = BUILT_IN,
    known_keys: KnownKeys | None = None,
) -> web.Application:
    """The application; it serves each model of `models` from the moment that one is added.

    `surfaces` are what `all_surfaces` answers; `known_keys` None: those of `config.keys`. Must be
    called in an event loop's thread.
    """
    in_flight, counts, routing = InFlight(), HttpCounts(), Routing()
    guard = Guard(
        config, known_keys, key_headers={h for each in surfaces for h in each.key_headers}
    )
    app = web.Application(
        middlewares=[make_middleware(guard, routing, in_flight, counts, traces)],
        client_max_size=config.max_body,
    )
    app[MODELS] = models
    app[GUARD] = guard
    app[IN_FLIGHT] = in_flight
    app[HTTP_COUNTS] = counts
    app.on_response_prepare.append(add_headers)
    for surface in surfaces:
        if surface.set_up is not None:
            surface.set_up(app, config)
    metrics = MetricsPage(models, in_flight, counts)
    description = Description(lambda: routing.surfaces, wants_key=lambda: guard.wants_key)
    routing.add_to(app.router, (*surfaces, operations(metrics, description)))
    return app
