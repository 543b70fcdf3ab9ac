"""The model of a request, kept in memory until the request ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from aiohttp import web

from twostroke.model import Model
from twostroke.server.keys import CALLER, LEASES, MODELS


@contextmanager
def leases(request: web.Request) -> Iterator[None]:
    """Lets `model_for` keep models in memory for as long as the body runs."""
    with ExitStack() as stack:
        request[LEASES] = stack
        yield


async def model_for(request: web.Request, name: str | None) -> Model:
    """The model that a request names, loaded where it was not.

    It stays in memory until the request ends, whatever is unloaded or reloaded meanwhile.

    Raises:
        ModelNotAllowedError: the caller's key has other models.
        ModelNotFoundError, UnavailableError: as `Models.ready_model`.
    """
    models = request.app[MODELS]
    served = models.look_up(name)
    request[CALLER].check_model(served.name)  # before anything is loaded for it
    model = await models.ready_model(served.name)
    request[LEASES].enter_context(models.lease(model))
    return model
