"""The model of a request, kept in memory until the request ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from aiohttp import web

from twostroke.model import Model
from twostroke.server.keys import CALLER, LEASES, MODELS
from twostroke.server.served import Served


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
    served = named(request, name)  # checked before anything is loaded for it
    model = await models.ready_model(served.name)
    request[LEASES].enter_context(models.lease(model))
    return model


def named(request: web.Request, name: str | None) -> Served:
    """What a request names, loaded or not.

    Raises:
        ModelNotFoundError: no model of that name is served.
        ModelNotAllowedError: the caller's key has other models.
    """
    served = request.app[MODELS].look_up(name)
    request[CALLER].check_model(served.name)
    return served


def usable(request: web.Request) -> list[Served]:
    """All that the caller may use, loaded or not, in the order of the configuration."""
    caller = request[CALLER]
    return [each for each in request.app[MODELS].served.values() if caller.may_use(each.name)]
