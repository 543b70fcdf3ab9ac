"""What an application and its requests carry, by typed keys."""

from __future__ import annotations

from contextlib import ExitStack

from aiohttp import web

from twostroke.api_keys import Admission, Caller
from twostroke.server.cors import Cors
from twostroke.server.in_flight import InFlight
from twostroke.server.models import Models
from twostroke.server.turn import Turn

MODELS = web.AppKey("models", Models)
IN_FLIGHT = web.AppKey("in_flight", InFlight)

HEALTH_PATH = "/health"
LIVE_PATH = "/health/live"
METRICS_PATH = "/metrics"
PROBE_PATHS = (HEALTH_PATH, LIVE_PATH)  # open, answered in every state: orchestrators have no key

# Of a request: set by the middleware, and the turn by the surface that makes it.
REQUEST_ID = web.RequestKey("request_id", str)
CALLER = web.RequestKey("caller", Caller)  # who asks; see `access.Guard.check`
CORS = web.RequestKey("cors", Cors)  # what a page of another site may read
ADMISSION = web.RequestKey("admission", Admission)  # set by `begin`, ended by the middleware
ARRIVED_AT = web.RequestKey("arrived_at", float)  # time.monotonic()
LEASES = web.RequestKey("leases", ExitStack)  # models that the request keeps in memory
TURN = web.RequestKey("turn", Turn)
