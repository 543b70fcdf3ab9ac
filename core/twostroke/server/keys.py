"""What an application and its requests carry, by typed keys."""

from __future__ import annotations

from aiohttp import web

from twostroke.server.in_flight import InFlight
from twostroke.server.models import Models

MODELS = web.AppKey("models", Models)
IN_FLIGHT = web.AppKey("in_flight", InFlight)

HEALTH_PATH = "/health"  # open and answered in every state: orchestrators have no key

# Keys of a request: set by the middleware, and the turn by the surface that makes it.
REQUEST_ID = "twostroke_request_id"  # str
ARRIVED_AT = "twostroke_arrived_at"  # float, time.monotonic()
TURN = "twostroke_turn"  # server.turn.Turn
